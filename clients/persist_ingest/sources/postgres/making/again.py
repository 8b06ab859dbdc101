"""A table of a source that is read anew while the others go on: what it holds at one position of the log, and the rest.

A temporary slot says the position and exports what was there: all that commits later is read from the source's own
slot, which is not moved meanwhile. Source: sources.md section 1, consistent snapshot.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from persist import Schema, UsageError
from persist.arrow import ArrowField
from persist.runtime import system
from persist.sources import SourceFrontier
from persist_ingest.sources.port import BegunAgain, Event, ReadTask, SourceFailure, Truncated
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.checks import check_identities, check_upstream
from persist_ingest.sources.postgres.definition import Definition, Table
from persist_ingest.sources.postgres.making import slots
from persist_ingest.sources.postgres.making.setup import check_alone, check_trees, defined, lock
from persist_ingest.sources.postgres.reader import KIND, ChangesTask
from persist_ingest.sources.postgres.session import Session
from persist_ingest.sources.postgres.snapshot import SnapshotTask, snapshot_tasks

TASKS: Final = 1
_ANEW: Final = "make a source of this table, and drop it from this one by excludeTables; or create the source again"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainTask:
    """All of one table from a position on, in place of what its export held."""

    export: str
    offset: int
    snapshot: tuple[SnapshotTask, ...]
    changes: ChangesTask

    @property
    def weight(self) -> int:
        return self.changes.weight + sum(task.weight for task in self.snapshot)

    @property
    def ordered(self) -> bool:
        return True

    def read(self) -> Iterator[Event]:
        yield Truncated(export=self.export, offset=self.offset)
        for task in self.snapshot:
            yield from task.read()
        if self.changes.begin < self.changes.end:
            yield from self.changes.read()


@contextmanager
def begun_again(definition: Definition, export: str, schema: Schema) -> Iterator[BegunAgain]:
    """See ReadsApart.snapshot_again."""
    (known,) = definition.of({export}).tables
    with ExitStack() as stack:
        session = stack.enter_context(Session(definition.dsn))
        check_upstream(session, definition.of(()))
        listed = check_alone(session, definition, known)
        forms = catalog.forms(session, definition.publication, [listed.oid])
        check_identities(session, definition, known, forms[listed.oid])
        holder = stack.enter_context(Session(definition.dsn))
        lock(holder, [listed])
        alone = defined(holder, definition, [listed], {listed.oid: known.excluded})
        (table,) = (_renamed(schema, table) for table in alone.tables)
        alone = replace(alone, tables=(table,))
        grown = _grown(schema, table)
        exporter = stack.enter_context(Session(definition.dsn, replication=True))
        point, snapshot = slots.make(session, exporter, f"persist_again_{system().random_bytes(8).hex()}")
        check_trees(definition.dsn, snapshot, alone)
        holder.run("COMMIT")
        tasks = tuple(snapshot_tasks(session, alone, {export: grown}, snapshot, point, TASKS))

        def read(end: SourceFrontier) -> ReadTask:
            last = end.bound(0) or 0
            changes = ChangesTask(definition=alone, schemas={export: grown}, begin=point, end=last)
            return AgainTask(export=export, offset=point - 1, snapshot=tasks, changes=changes)

        def renewed(given: Mapping[str, object]) -> Mapping[str, object]:
            return Definition.from_json(given).within(alone).to_json()

        yield BegunAgain(schema=grown, bound=SourceFrontier.at(KIND, {0: point}), read=read, renewed=renewed)


def _renamed(schema: Schema, table: Table) -> Table:
    """The table, its columns called otherwise where the collection has one of that name and of another type."""
    there = {field.name: field for field in (*schema.key, *schema.val)}
    taken = {column.called for column in table.columns}
    columns = []
    for column in table.columns:
        field, number = column.called, 2
        while field in there and there[field].type != column.type.arrow and there[column.called].nullable:
            field, number = f"{column.called}_{number}", number + 1
            field = f"_{field}" if field in taken else field
        taken.add(field)
        columns.append(replace(column, field="" if field == column.name else field))
    return replace(table, columns=tuple(columns))


def _grown(schema: Schema, table: Table) -> Schema:
    """The schema of the shard, with columns that the table got since. Raises SourceFailure where it has others."""
    types = {column.called: column.type.arrow for column in table.columns}
    _check_fields([*schema.key, *schema.val], types, table)
    known = {*schema.key.names, *schema.val.names}
    added = [pa.field(name, kind) for name, kind in types.items() if name not in known]
    if not added:
        return schema
    try:
        return Schema(schema.key, pa.schema([*schema.val, *added]))
    except UsageError as error:
        raise SourceFailure(error.message, hint=error.hint, export=table.export, **error.details) from error


def _check_fields(fields: Sequence[ArrowField], types: dict[str, pa.DataType], table: Table) -> None:
    """What a column was called stays in the collection, and is null once the table has it no more."""
    for field in fields:
        if field.name not in types and not field.nullable:
            raise SourceFailure(
                "a key column was dropped or renamed", hint=_ANEW, export=table.export, column=field.name
            )
        if field.name in types and types[field.name] != field.type:
            raise SourceFailure(
                "a key column has another type, which its collection cannot take over",
                hint=_ANEW,
                export=table.export,
                column=field.name,
                was=str(field.type),
                now=str(types[field.name]),
            )
