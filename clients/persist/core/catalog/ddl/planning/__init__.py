"""What each statement does to a catalog, a module for each group of them."""
