"""``persist backup``."""
