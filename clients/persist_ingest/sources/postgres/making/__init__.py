"""Setting up, taking down and reading anew what a PostgreSQL source has upstream."""
