"""Queries run on DuckDB, which reaches nothing but what it is given."""
