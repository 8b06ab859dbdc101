"""``persist admin``, ``persist fsck``, ``persist usage``."""
