"""Two catalogs that must do the same, as one."""
