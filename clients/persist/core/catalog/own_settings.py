"""Settings that are the library's own: what it keeps in a catalog beside the objects that statements define.

Each is named by a word and what it is about. Transactions of others write none of them, so who reads one finds what the
library wrote; what is not of that form is passed over all the same. Source: docs/formats.md.
"""

from enum import StrEnum

from persist.core.catalog.objects import SettingKey
from persist.errors import InvalidArgument


class Own(StrEnum):
    """What begins the name of one. A member that is added here is kept from others, and has its form checked."""

    MADE = "made_by"
    MOVED = "moved"
    GONE = "shard_gone"
    STALLED = "stalled"
    GRANTED = "granted"


def own_key(what: Own, about: object) -> SettingKey:
    """The setting of this kind about something."""
    return SettingKey(f"{what} {about}")


def about(what: Own, key: SettingKey) -> str | None:
    """What a setting of this kind is about; None: it is none."""
    word, space, rest = key.name.partition(" ")
    return rest if space and word == what else None


def own_of(key: SettingKey) -> Own | None:
    """The kind of a setting of the library's own; None: it is no such one."""
    word, space, _ = key.name.partition(" ")
    return Own(word) if space and word in _WORDS else None


def check_not_own(key: SettingKey) -> None:
    """Nothing, unless a setting is the library's own. Raises InvalidArgument."""
    if (own := own_of(key)) is not None:
        raise InvalidArgument(
            "settings of this kind are the library's own", hint="take another name", kind=own.value, key=key.name[:80]
        )


_WORDS = frozenset(Own)
