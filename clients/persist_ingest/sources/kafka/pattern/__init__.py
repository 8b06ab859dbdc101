"""Sources of all topics whose names match a pattern: each is a table, also those that come later."""
