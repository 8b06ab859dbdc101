"""Tables: rows at times of an oracle, and the log that makes transactions whole."""
