"""The logs of rows a catalog is kept in, and the one way into them."""
