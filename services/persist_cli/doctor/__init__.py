"""``persist doctor``."""
