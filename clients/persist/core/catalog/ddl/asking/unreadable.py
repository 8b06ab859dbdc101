"""Which settings of the library's own are not what it writes: they are passed over, and named to who looks after it.

None can be written any more, other than by hand; a catalog may have some of before. Source: docs/formats.md.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from persist.core.catalog.ddl.asking.outcomes import made_ids, moves_of
from persist.core.catalog.kept_settings import Own, Stall, about, count_of, own_of, stalled_id
from persist.core.catalog.objects import Setting, SettingKey
from persist.core.ids import ShardId, Token
from persist.errors import PersistError

Reads = Callable[[SettingKey, Setting], bool]
"""Whether a setting is as the library writes it."""

READERS: Final[Mapping[Own, Reads]] = {
    Own.MADE: lambda key, setting: _parses(Token.parse, about(Own.MADE, key)) and made_ids(setting) is not None,
    Own.MOVED: lambda key, setting: moves_of(key, setting) is not None,
    Own.GONE: lambda key, _: _parses(ShardId.parse, about(Own.GONE, key)),
    Own.STALLED: lambda key, setting: stalled_id(key) is not None and Stall.of(setting) is not None,
    Own.GRANTED: lambda _, setting: count_of(setting) is not None,
}


def unreadable(settings: Mapping[SettingKey, Setting]) -> Iterator[SettingKey]:
    """Those of the library's own that it did not write like this."""
    for key, setting in settings.items():
        own = own_of(key)
        if own is not None and not READERS[own](key, setting):
            yield key


def _parses(parse: Callable[[str], object], text: str | None) -> bool:
    try:
        parse(text or "")
    except PersistError:
        return False
    return True
