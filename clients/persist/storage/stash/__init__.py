"""The port Stash and its adapters."""
