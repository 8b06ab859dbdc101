"""Opening a catalog: what each mode may do, when there is a catalog, and whether this release may go on with it.

Source: catalog-semantics.md sections 0 (0.6, 0.7), 1.2.2 and 1.2.7.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from persist.core.catalog.allocation import FIRST_IDS
from persist.core.catalog.errors import IncompatibleContentVersion, NotWritable, Uninitialized
from persist.core.catalog.kinds import CONFIG, ID_ALLOCATOR, SETTING
from persist.core.catalog.objects import Config, ConfigKey, IdAllocator, IdAllocatorKey, Setting, SettingKey
from persist.core.catalog.rows import Contents, Row, RowCodec
from persist.core.catalog.values import U64_MAX
from persist.errors import InvalidArgument

DATA_VERSION: Final = ConfigKey("user_version")
CONTENT_VERSION: Final = SettingKey("catalog_content_version")
FENCE_INCARNATION: Final = ConfigKey("fence_incarnation")
"""How often the fence token was set back by hand. No row: never."""


class Mode(StrEnum):
    """What an open catalog is for.

    A savepoint takes changes in memory only and never looks at the shard again, so it cannot be fenced.
    """

    READ_ONLY = "read_only"
    SAVEPOINT = "savepoint"
    WRITABLE = "writable"


def is_initialized(upper: int, rows: Contents, codec: RowCodec) -> bool:
    """Whether there is a catalog: something was committed, the data version among it."""
    version = codec.encode(CONFIG.tag, DATA_VERSION, Config(0)).key
    return upper > 0 and version in rows.get(CONFIG.tag, {})


def check_open(mode: Mode, generation: int | None, *, initialized: bool, allow_uninitialized: bool = False) -> None:
    """Whether a catalog can be opened this way. Raises InvalidArgument, Uninitialized, NotWritable.

    ``allow_uninitialized`` lets a savepoint begin a catalog that exists in its memory only.
    """
    if mode is not Mode.READ_ONLY and generation is None:
        raise InvalidArgument("this mode needs a deploy generation", hint="give one", mode=mode.value)
    if generation is not None and (type(generation) is not int or not 0 <= generation <= U64_MAX):
        raise InvalidArgument("a deploy generation is an int of 64 bits", hint="give one", got=repr(generation)[:80])
    if initialized or mode is Mode.WRITABLE or (mode is Mode.SAVEPOINT and allow_uninitialized):
        return
    hint = "open it writable first"
    if mode is Mode.SAVEPOINT:
        raise NotWritable("a savepoint cannot make a catalog", hint=hint, recoverable_by="opening writable")
    raise Uninitialized("there is no catalog yet", hint=hint)


def initial_rows(codec: RowCodec, data_version: int, content_version: str) -> list[Row]:
    """What every catalog begins with: its versions and allocators."""
    return [
        codec.encode(CONFIG.tag, DATA_VERSION, Config(data_version)),
        codec.encode(SETTING.tag, CONTENT_VERSION, Setting(content_version)),
        *(codec.encode(ID_ALLOCATOR.tag, IdAllocatorKey(name), IdAllocator(n)) for name, n in FIRST_IDS.items()),
    ]


def check_content_version(found: str, running: str) -> None:
    """Whether a release may go on from what another one left. Raises IncompatibleContentVersion, InvalidArgument.

    It may not when it is older, or more than one major version newer. Order is that of semantic versions: build
    metadata does not count.
    """
    if _precedence(running) < _precedence(found):
        raise IncompatibleContentVersion(
            "a newer release opened this catalog", hint="run that release", found=found, running=running
        )
    if _precedence(running)[0] > _precedence(found)[0] + 1:
        raise IncompatibleContentVersion(
            "a major version was skipped", hint="open the catalog with each in turn", found=found, running=running
        )


_NUMBER = r"(0|[1-9]\d*)"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


def _precedence(version: str) -> tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]:
    match = _SEMVER.fullmatch(version)
    if match is None:
        raise InvalidArgument("no semantic version", hint="expected the form 1.2.3", got=version[:80])
    major, minor, patch, early = match.groups()
    return int(major), int(minor), int(patch), int(early is None), _identifiers((early or "").split("."))


def _identifiers(parts: Iterable[str]) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
