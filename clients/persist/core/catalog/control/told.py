"""What the process that leads tells in settings of the catalog, for all to see.

Why what is kept up does not go on: a setting for each view or index that is stalled, gone once it goes on. And how
often what roles may do with an object was changed. Source: collections: the controller (views); ADR 24.
"""

from typing import Final, NamedTuple, Self

from persist.core.catalog.objects import Setting, SettingKey
from persist.core.catalog.values import Id, ObjectType
from persist.core.frontier import Antichain

_STALLED: Final = "stalled "
_UNKNOWN: Final = "-"
_GRANTED: Final = "granted "
CONTAINERS: Final = frozenset({ObjectType.DATABASE, ObjectType.SCHEMA, ObjectType.ROLE, ObjectType.CLUSTER})
"""What has names of its own, besides items."""


class Stall(NamedTuple):
    """``upper``: where it stands, None: nobody could see. ``since_ms``: milliseconds since 1970."""

    reason: str
    upper: Antichain | None
    since_ms: int

    def setting(self) -> Setting:
        """As it is kept."""
        at = _UNKNOWN if self.upper is None or self.upper.time is None else str(self.upper.time)
        return Setting(f"{at} {self.since_ms} {self.reason}")

    @classmethod
    def of(cls, setting: Setting) -> Self:
        """What a setting says."""
        at, since_ms, reason = setting.value.split(" ", 2)
        return cls(reason, None if at == _UNKNOWN else Antichain.of(int(at)), int(since_ms))


def stalled_key(id: Id) -> SettingKey:
    """The setting that says why a view or an index does not go on."""
    return SettingKey(f"{_STALLED}{id}")


def stalled_id(key: SettingKey) -> Id | None:
    """What a setting says this of; None: it says something else."""
    return Id.parse(key.name.removeprefix(_STALLED)) if key.name.startswith(_STALLED) else None


def place_of(kind: ObjectType) -> ObjectType:
    """Where names of objects of a kind are: items have theirs together, as if all were tables."""
    return kind if kind in CONTAINERS or kind is ObjectType.SYSTEM else ObjectType.TABLE


def granted_on(place: ObjectType, id: str) -> SettingKey:
    """The setting that counts changes of what roles may do with an object. ``id`` empty: with the environment."""
    return SettingKey(f"{_GRANTED}{place.value} {id}")


def is_grants(key: SettingKey) -> bool:
    """Whether a setting counts such changes."""
    return key.name.startswith(_GRANTED)
