"""What a transaction of SQL knows of its own: rows that are not committed, what names meant, tables in doubt."""
