"""Why what is kept up does not go on, as the process that leads has it in the catalog for all to see.

One setting for each view or index that is stalled, gone once it goes on. Source: collections: the controller (views);
docs/formats.md.
"""

from typing import Final, NamedTuple, Self

from persist.core.catalog.objects import Setting, SettingKey
from persist.core.catalog.values import Id
from persist.core.frontier import Antichain

_STALLED: Final = "stalled "
_UNKNOWN: Final = "-"


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
