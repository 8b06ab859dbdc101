"""What a PostgreSQL source is made with, as values.

Source: design 003; architecture.md section 8.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument
from persist_ingest.given import Given
from persist_ingest.sources.options import check_options, one_of, required
from persist_ingest.sources.postgres.column_types import SpecialValues
from persist_ingest.sources.postgres.session import check_dsn
from persist_ingest.sources.tables.options import NamesInSql, check_rows_fail, takes_over

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
    "failoverSlot",
    "snapshotTasks",
    "badRows",
    "onAltered",
    "specialValues",
)
ALTERABLE: Final = ("onAltered", "specialValues", "excludeColumns", "dsn")
"""Those that may be given otherwise later. Where ``dsn`` leads has to be the same source: that is looked at there."""
_NAME_MAX: Final = 63
_TASKS_MAX: Final = 1000
_NAMES: Final = NamesInSql('"', str.lower)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``tables``: pairs of schema and name; None: all of the publication, without ``exclude_tables``.

    ``include_columns``, ``exclude_columns``: schema, table and column; of a table with any included, no others are
    read. ``renames``: schema, table, column and what it is called instead. ``snapshot_tasks``: about how many.
    ``failover``: the slot is one that standbys take over. ``takes_over``: altered tables are snapshotted again by
    themselves. ``special``: what becomes of special values.
    """

    dsn: str
    tables: tuple[tuple[str, str], ...] | None
    publication: str
    slot: str
    set_replica_identity: bool
    replace_slot: bool
    snapshot_tasks: int
    failover: bool = False
    takes_over: bool = False
    exclude_tables: tuple[tuple[str, ...], ...] = ()
    include_columns: tuple[tuple[str, ...], ...] = ()
    exclude_columns: tuple[tuple[str, ...], ...] = ()
    renames: tuple[tuple[str, ...], ...] = ()
    special: SpecialValues = SpecialValues.FAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """What is decided otherwise of a source; None: as it was."""

    takes_over: bool | None
    special: SpecialValues | None
    exclude_columns: tuple[tuple[str, ...], ...]
    dsn: str | None


def parse_options(raw: Mapping[str, str], source: str, token: str) -> Options:
    """The options of a source of that name. Raises InvalidArgument for what is unknown, missing or malformed.

    ``token``: of this attempt alone. Slots are named for a whole server, so it is in the name of one that is not given.
    """
    given = check_options(raw, NAMES, "the PostgreSQL source")
    dsn = required(given, "dsn", "'host=db dbname=shop user=persist'")
    check_rows_fail(given)
    standard = default_name(source)
    slot = given.get("slot") or f"{standard[: _NAME_MAX - len(token) - 1]}_{token}"
    if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        raise InvalidArgument("this cannot name a slot", hint="use a-z, 0-9 and _, at most 63", slot=slot)
    return Options(
        dsn=dsn,
        tables=_tables(given),
        exclude_tables=_NAMES.of(given, "excludeTables", _NAMES.table, "public.log"),
        include_columns=_NAMES.of(given, "includeColumns", _NAMES.column, "public.orders.id"),
        exclude_columns=_excluded(given),
        renames=_NAMES.of(given, "renameColumns", _NAMES.renamed, "public.orders.ts:moment"),
        publication=given.get("publication") or standard,
        slot=slot,
        set_replica_identity=given.flag("setReplicaIdentity", False),
        replace_slot=given.flag("replaceSlot", False),
        failover=given.flag("failoverSlot", False),
        snapshot_tasks=_snapshot_tasks(given),
        takes_over=takes_over(given),
        special=_special(given),
    )


def parse_altered(raw: Mapping[str, str]) -> Altered:
    """The options of a source that was created before. Raises InvalidArgument."""
    fixed = [name for name in raw if name.lower() in {each.lower() for each in NAMES if each not in ALTERABLE}]
    if fixed:
        raise InvalidArgument(
            "this option is as the source was created with", hint=f"of {', '.join(ALTERABLE)}", option=fixed[0]
        )
    given = check_options(raw, ALTERABLE, "a source that is there")
    return Altered(
        takes_over=None if given.get("onAltered") is None else takes_over(given),
        special=None if given.get("specialValues") is None else _special(given),
        exclude_columns=_excluded(given),
        dsn=None
        if given.get("dsn") is None
        else check_dsn(required(given, "dsn", "'host=db dbname=shop user=persist'")),
    )


def default_name(source: str) -> str:
    """How the publication of a source is called by default, and its slot begins."""
    return "persist_" + re.sub(r"[^a-z0-9_]", "_", source.lower())[: _NAME_MAX - len("persist_")]


def parse_table(text: str) -> tuple[str, str]:
    """Schema and name of one table. Raises InvalidArgument."""
    return _NAMES.one_table(text, 'public.orders, or public."Line Items"')


def _special(given: Given) -> SpecialValues:
    return SpecialValues(
        one_of(given, "specialValues", [each.value for each in SpecialValues], SpecialValues.FAIL.value)
    )


def _excluded(given: Given) -> tuple[tuple[str, ...], ...]:
    return _NAMES.of(given, "excludeColumns", _NAMES.column, "public.orders.secret")


def _tables(given: Given) -> tuple[tuple[str, str], ...] | None:
    text = given.get("tables")
    if text is None:
        return None
    found = _NAMES.parsed("tables", text, _NAMES.table, 'public.orders, public."Line Items"')
    return tuple((schema, name) for schema, name in found)


def _snapshot_tasks(given: Given) -> int:
    tasks = given.whole("snapshotTasks", least=1) or 4
    if tasks > _TASKS_MAX:
        raise InvalidArgument("option snapshotTasks is too large", hint=f"at most {_TASKS_MAX}", got=tasks)
    return tasks
