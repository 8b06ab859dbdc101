"""``persist catalog``."""
