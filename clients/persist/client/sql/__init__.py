"""SQL over collections: parsed, bound to names and times, run on DuckDB; statements that define go to the leader."""
