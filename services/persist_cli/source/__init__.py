"""``persist source``."""
