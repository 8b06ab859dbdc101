"""What may stand beside what in a query, by kinds of types: as in PostgreSQL, where DuckDB takes more."""
