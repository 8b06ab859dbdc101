"""What a Spark operation is asked for: the table of options, their text, their values."""
