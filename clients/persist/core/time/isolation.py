"""How much of what was written before a read sees. Source: design 004, collections.md."""

from enum import StrEnum


class Isolation(StrEnum):
    """What a read sees of writes that returned before it began: all of them, or a prefix."""

    STRICT_SERIALIZABLE = "strict serializable"
    SERIALIZABLE = "serializable"
