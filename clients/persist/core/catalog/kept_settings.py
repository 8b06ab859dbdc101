"""What the process that leads keeps in settings of the catalog, for all to see, and how others do not write them.

Why what is kept up does not go on: a setting for each view or index that is stalled, gone once it goes on. And how
often statements said what holds of an object. Each is named by a word and what it is about; what is not of that
form is passed over. Source: collections: the controller (views); docs/formats.md; ADR 24.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple, Self

from persist.core.catalog.objects import Setting, SettingKey
from persist.core.catalog.values import Id, ObjectType
from persist.core.frontier import Antichain
from persist.errors import InvalidArgument, InvalidId

_UNKNOWN: Final = "-"
_COUNT: Final = re.compile("[0-9]{1,20}", re.ASCII)
CONTAINERS: Final = frozenset({ObjectType.DATABASE, ObjectType.SCHEMA, ObjectType.ROLE, ObjectType.CLUSTER})
"""What has names of its own, besides items."""


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
    return Own(word) if space and word in frozenset(Own) else None


def check_not_own(key: SettingKey) -> None:
    """Nothing, unless a setting is the library's own. Raises InvalidArgument."""
    if (own := own_of(key)) is not None:
        raise InvalidArgument(
            "settings of this kind are the library's own", hint="take another name", kind=own.value, key=key.name[:80]
        )


class Stall(NamedTuple):
    """``upper``: where it stands, None: that is not known. ``since_ms``: milliseconds since 1970."""

    reason: str
    upper: Antichain | None
    since_ms: int

    def setting(self) -> Setting:
        """As it is kept."""
        at = _UNKNOWN if self.upper is None or self.upper.time is None else str(self.upper.time)
        return Setting(f"{at} {self.since_ms} {self.reason}")

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """What a setting says; None: the library did not write this."""
        at, _, rest = setting.value.partition(" ")
        since_ms, space, reason = rest.partition(" ")
        if not space or not _COUNT.fullmatch(since_ms) or not (at == _UNKNOWN or _COUNT.fullmatch(at)):
            return None
        return cls(reason, None if at == _UNKNOWN else Antichain.of(int(at)), int(since_ms))


def stalled_key(id: Id) -> SettingKey:
    """The setting that says why a view or an index does not go on."""
    return own_key(Own.STALLED, id)


def stalled_id(key: SettingKey) -> Id | None:
    """What a setting says this of; None: it says something else."""
    text = about(Own.STALLED, key)
    try:
        return None if text is None else Id.parse(text)
    except (InvalidId, ValueError):
        return None


def place_of(kind: ObjectType) -> ObjectType:
    """Where names of objects of a kind are: items have theirs together, as if all were tables."""
    return kind if kind in CONTAINERS or kind is ObjectType.SYSTEM else ObjectType.TABLE


def counted_on(place: ObjectType, id: str) -> SettingKey:
    """The setting that counts statements which said what holds of an object: who may do what, whose it is, its name.
    ``id`` empty: of the environment.
    """
    return own_key(Own.GRANTED, f"{place.value} {id}")


def is_count(key: SettingKey) -> bool:
    """Whether a setting counts such changes."""
    return about(Own.GRANTED, key) is not None


def count_of(setting: Setting) -> int | None:
    """The count that a setting says; None: the library did not write this."""
    return int(setting.value) if _COUNT.fullmatch(setting.value) else None
