"""From payloads to columns, such that what becomes of a payload depends on nothing but that payload."""
