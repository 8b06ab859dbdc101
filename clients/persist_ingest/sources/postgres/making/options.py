"""What a PostgreSQL source is made with, as values.

Source: design 003; architecture.md section 8.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument
from persist_ingest.sources.options import check_options

NAMES: Final = (
    "dsn",
    "tables",
    "excludeTables",
    "includeColumns",
    "excludeColumns",
    "renameColumns",
    "publication",
    "slot",
    "setReplicaIdentity",
    "replaceSlot",
    "snapshotTasks",
    "badRows",
    "onAltered",
)
ALTERABLE: Final = ("onAltered",)
"""Those that may be given otherwise later."""
STALL: Final = "stall"
RESNAPSHOT: Final = "resnapshot"
_NAME_MAX: Final = 63
_PART: Final = r'\s*(?:"((?:[^"]|"")+)"|([^\s".,]+))\s*'
_TABLE: Final = re.compile(rf"{_PART}\.{_PART}(?:,|$)")
_RENAME: Final = re.compile(rf"{_PART}\.{_PART}\.{_PART}:{_PART}(?:,|$)")
_COLUMN: Final = re.compile(rf"{_PART}\.{_PART}\.{_PART}(?:,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``tables``: pairs of schema and name; None: all of the publication, without ``exclude_tables``.

    ``include_columns``, ``exclude_columns``: schema, table and column; of a table with any included, no others are
    read. ``renames``: schema, table, column and what it is called instead. ``snapshot_tasks``: about how many.
    ``takes_over``: altered tables are snapshotted again by themselves.
    """

    dsn: str
    tables: tuple[tuple[str, str], ...] | None
    publication: str
    slot: str
    set_replica_identity: bool
    replace_slot: bool
    snapshot_tasks: int
    takes_over: bool = False
    exclude_tables: tuple[tuple[str, ...], ...] = ()
    include_columns: tuple[tuple[str, ...], ...] = ()
    exclude_columns: tuple[tuple[str, ...], ...] = ()
    renames: tuple[tuple[str, ...], ...] = ()


def parse_options(raw: Mapping[str, str], source: str, token: str) -> Options:
    """The options of a source of that name. Raises InvalidArgument for what is unknown, missing or malformed.

    ``token``: of this attempt alone. Slots are named for a whole server, so it is in the name of one that is not given.
    """
    raw = check_options(raw, NAMES, "the PostgreSQL source").values
    if not raw.get("dsn"):
        raise InvalidArgument("option dsn is missing", hint="such as host=db dbname=shop user=persist")
    if raw.get("badRows", "fail") != "fail":
        raise InvalidArgument("the PostgreSQL source can only fail on bad rows", hint="leave badRows out")
    standard = default_name(source)
    slot = raw.get("slot") or f"{standard[: _NAME_MAX - len(token) - 1]}_{token}"
    if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        raise InvalidArgument("this cannot name a slot", hint="use a-z, 0-9 and _, at most 63", slot=slot)
    return Options(
        dsn=raw["dsn"],
        tables=_tables(raw["tables"]) if "tables" in raw else None,
        exclude_tables=_names(raw, "excludeTables", _TABLE, "public.log"),
        include_columns=_names(raw, "includeColumns", _COLUMN, "public.orders.id"),
        exclude_columns=_names(raw, "excludeColumns", _COLUMN, "public.orders.secret"),
        renames=_names(raw, "renameColumns", _RENAME, "public.orders.ts:moment"),
        publication=raw.get("publication") or standard,
        slot=slot,
        set_replica_identity=_flag(raw, "setReplicaIdentity"),
        replace_slot=_flag(raw, "replaceSlot"),
        snapshot_tasks=_count(raw, "snapshotTasks", 4),
        takes_over=_takes_over(raw.get("onAltered", STALL)),
    )


def parse_altered(raw: Mapping[str, str]) -> bool:
    """``takes_over``, of the options of a source that was created before. Raises InvalidArgument."""
    fixed = [name for name in raw if name.lower() in {each.lower() for each in NAMES if each not in ALTERABLE}]
    if fixed:
        raise InvalidArgument(
            "this option is as the source was created with", hint=f"of {', '.join(ALTERABLE)}", option=fixed[0]
        )
    return _takes_over(check_options(raw, ALTERABLE, "a source that is there").values["onAltered"])


def _takes_over(text: str) -> bool:
    if text not in (STALL, RESNAPSHOT):
        raise InvalidArgument(f"option onAltered is {STALL} or {RESNAPSHOT}", hint="correct it", got=text)
    return text == RESNAPSHOT


def default_name(source: str) -> str:
    """How the publication of a source is called by default, and its slot begins."""
    return "persist_" + re.sub(r"[^a-z0-9_]", "_", source.lower())[: _NAME_MAX - len("persist_")]


def parse_table(text: str) -> tuple[str, str]:
    """Schema and name of one table. Raises InvalidArgument."""
    found = _parsed("tables", text, _TABLE, 'public.orders, or public."Line Items"')
    if len(found) > 1:
        raise InvalidArgument("one table at a time", hint="repeat it for each", tables=text)
    return found[0][0], found[0][1]


def _tables(text: str) -> tuple[tuple[str, str], ...]:
    found = _parsed("tables", text, _TABLE, 'public.orders, public."Line Items"')
    return tuple((schema, name) for schema, name in found)


def _names(raw: Mapping[str, str], name: str, form: re.Pattern[str], such: str) -> tuple[tuple[str, ...], ...]:
    return _parsed(name, raw[name], form, such) if name in raw else ()


def _parsed(name: str, text: str, form: re.Pattern[str], such: str) -> tuple[tuple[str, ...], ...]:
    found, at = list[tuple[str, ...]](), 0
    while at < len(text):
        match = form.match(text, at)
        if match is None:
            raise InvalidArgument(f"option {name} is malformed", hint=f"such as {such}", at=text[at : at + 60])
        found.append(tuple(_unquoted(match, first) for first in range(1, form.groups, 2)))
        at = match.end()
    if not found or len(set(found)) < len(found):
        raise InvalidArgument(f"option {name} names none, or one twice", hint="name each once", **{name: text})
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
