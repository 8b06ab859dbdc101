"""``persist serve`` and ``persist dev``."""
