"""What a PostgreSQL source is told, as values.

Source: design 003; architecture.md section 8.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument

NAMES: Final = (
    "dsn",
    "tables",
    "publication",
    "slot",
    "setReplicaIdentity",
    "replaceSlot",
    "snapshotTasks",
    "badRows",
)
_NAME_MAX: Final = 63
_TABLE: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s".,]+))\s*\.\s*(?:"((?:[^"]|"")+)"|([^\s".,]+))\s*(?:,|$)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``tables``: pairs of schema and name; None: all of the publication. ``snapshot_tasks``: about how many."""

    dsn: str
    tables: tuple[tuple[str, str], ...] | None
    publication: str
    slot: str
    set_replica_identity: bool
    replace_slot: bool
    snapshot_tasks: int


def parse_options(raw: Mapping[str, str], source: str) -> Options:
    """The options of a source of that name. Raises InvalidArgument for what is unknown, missing or malformed."""
    for name in raw:
        if name not in NAMES:
            near = difflib.get_close_matches(name.lower(), [each.lower() for each in NAMES], 1)
            meant = [each for each in NAMES if near and each.lower() == near[0]]
            hint = f"did you mean {meant[0]}?" if meant else f"known are {', '.join(NAMES)}"
            raise InvalidArgument("the PostgreSQL source has no such option", hint=hint, option=name)
    if not raw.get("dsn"):
        raise InvalidArgument("option dsn is missing", hint="such as host=db dbname=shop user=persist")
    if raw.get("badRows", "fail") != "fail":
        raise InvalidArgument("the PostgreSQL source can only fail on bad rows", hint="leave badRows out")
    standard = default_name(source)
    slot = raw.get("slot", standard)
    if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        raise InvalidArgument("this cannot name a slot", hint="use a-z, 0-9 and _, at most 63", slot=slot)
    return Options(
        dsn=raw["dsn"],
        tables=_tables(raw["tables"]) if "tables" in raw else None,
        publication=raw.get("publication") or standard,
        slot=slot,
        set_replica_identity=_flag(raw, "setReplicaIdentity"),
        replace_slot=_flag(raw, "replaceSlot"),
        snapshot_tasks=_count(raw, "snapshotTasks", 4),
    )


def default_name(source: str) -> str:
    """How slot and publication of a source are called unless told."""
    return "persist_" + re.sub(r"[^a-z0-9_]", "_", source.lower())[: _NAME_MAX - len("persist_")]


def _tables(text: str) -> tuple[tuple[str, str], ...]:
    found, at = [], 0
    while at < len(text):
        match = _TABLE.match(text, at)
        if match is None:
            raise InvalidArgument(
                "option tables is malformed", hint='such as public.orders, public."Line Items"', at=text[at : at + 60]
            )
        schema, name = (_unquoted(match, first) for first in (1, 3))
        found.append((schema, name))
        at = match.end()
    if not found or len(set(found)) < len(found):
        raise InvalidArgument("option tables names none, or one twice", hint="name each once", tables=text)
    return tuple(found)


def _unquoted(match: re.Match[str], first: int) -> str:
    quoted: str | None = match[first]
    return match[first + 1].lower() if quoted is None else quoted.replace('""', '"')


def _flag(raw: Mapping[str, str], name: str) -> bool:
    value = str(raw.get(name, "false")).lower()
    if value not in ("true", "false"):
        raise InvalidArgument(f"option {name} is true or false", hint="correct it", got=value)
    return value == "true"


def _count(raw: Mapping[str, str], name: str, default: int) -> int:
    value = str(raw.get(name, default))
    if not value.isdigit() or not 1 <= int(value) <= 1000:
        raise InvalidArgument(f"option {name} is a number from 1 to 1000", hint="correct it", got=value)
    return int(value)
