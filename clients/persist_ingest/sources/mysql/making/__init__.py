"""Setting up and reading anew what a MySQL source reads."""
