"""What a read shows: the columns Spark sees, the columns it needs from the shard, and how updates become rows.

A view is made on the driver and travels to executors with the reader; it holds no connection.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

import persist
from persist import SchemaMismatch
from persist.arrow import ArrowField
from pyspark_persist.naming import found, shown_fields, shown_name, stored_name
from pyspark_persist.options.options import CHANGES, DIFFS, NO_FEED_OPTIONS, Changefeed, ReadOptions
from pyspark_persist.read import rows
from pyspark_persist.spark_types import arrow_schema, check_projection, spark_schema, to_spark


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One read's rows. ``needed`` are the shard's names of the columns to read, all others here are Spark's names.

    ``output`` is the Arrow schema Spark demands, in the spelling that was asked for; ``offered`` names its columns as
    they are known here. ``inserts_only``: the read is a stream of plain rows, in which a deletion has no place.
    """

    shape: str
    key: tuple[str, ...]
    needed: tuple[str, ...]
    offered: tuple[str, ...]
    output: pa.Schema
    feed: Changefeed = NO_FEED_OPTIONS
    inserts_only: bool = False
    ignore_deletes: bool = False

    def batches(self, source: Iterable[pa.RecordBatch], *, as_of: int | None) -> Iterator[pa.RecordBatch]:
        """Spark's batches for a split's batches: net counts at ``as_of``, or updates with their ``ts`` when None."""
        tables = self._tables(self._shown(source), as_of)
        return itertools.chain.from_iterable(to_spark(table.select(self.offered), self.output) for table in tables)

    def is_summed_here(self, as_of: int | None) -> bool:
        """Rows are repeated by their diffs and each shown alone: what cannot cancel need not be summed before."""
        if self.shape == CHANGES:
            return as_of is None and not self.feed.compute_updates and not self.feed.net
        return self.shape != DIFFS

    def _shown(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches under Spark's names: those that were needed, the time if there is one, and the count."""
        shown = [shown_name(name) for name in self.needed]
        for batch in source:
            extra = (rows.TS.name, rows.DIFF.name) if batch.num_columns > len(shown) + 1 else (rows.DIFF.name,)
            yield batch.rename_columns([*shown, *extra])

    def _tables(self, source: Iterable[pa.RecordBatch], as_of: int | None) -> Iterator[pa.Table]:
        if self.shape == CHANGES:
            yield from self._changes(source, as_of)
            return
        for batch in source:
            table = pa.Table.from_batches([batch])
            if self.shape == DIFFS:
                yield rows.raw_diffs(table, as_of)
            elif as_of is None and self.inserts_only:
                yield from rows.inserted_rows(table, ignore_deletes=self.ignore_deletes)
            else:
                yield from rows.snapshot_rows(table)

    def _changes(self, source: Iterable[pa.RecordBatch], as_of: int | None) -> Iterator[pa.Table]:
        if as_of is not None:
            for batch in source:
                yield from rows.change_rows(_at(pa.Table.from_batches([batch]), as_of))
            return
        if not self.feed.compute_updates and not self.feed.net:
            for batch in source:
                yield from rows.change_rows(pa.Table.from_batches([batch]))
            return
        for table in rows.whole_keys(source, self.key):
            kept = rows.net_changes(table, [shown_name(name) for name in self.needed]) if self.feed.net else table
            if self.feed.compute_updates:
                yield from rows.paired_changes(kept, self.key, net=self.feed.net)
            else:
                yield from rows.change_rows(kept)


def offered_fields(options: ReadOptions, schema: "persist.Schema") -> list[ArrowField]:
    """The Arrow fields a read can show: the shard's columns and those its shape adds. Raises SchemaMismatch."""
    fields = shown_fields(schema)
    if options.filters.columns is not None:
        known = {field.name: field for field in fields}
        names = found(list(known), options.filters.columns)
        if len(set(names)) < len(names):
            raise SchemaMismatch(
                "option columns names a column twice", hint="name it once, and repeat it with select", columns=names
            )
        fields = [known[name] for name in names]
    if options.shape == CHANGES:
        return [*fields, *rows.CHANGE_FIELDS]
    return [*fields, rows.SPARK_TS, rows.DIFF] if options.shape == DIFFS else fields


def schema_of(options: ReadOptions, schema: "persist.Schema") -> StructType:
    """The Spark schema of a read of a shard with this persist.Schema."""
    return spark_schema(offered_fields(options, schema))


def view_of(options: ReadOptions, schema: "persist.Schema", asked: StructType, *, streaming: bool) -> View:
    """The view that shows ``asked`` columns (Spark's, or a user's projection). Raises SchemaMismatch."""
    offered = check_projection(asked, schema_of(options, schema))
    key = tuple(shown_name(name) for name in schema.key.names)
    columns = [field.name for field in shown_fields(schema)]
    wanted = [name for name in dict.fromkeys(offered) if name in columns]
    if options.shape == CHANGES and options.feed.net:
        wanted = columns
    elif options.shape == CHANGES and options.feed.compute_updates:
        wanted = [*key, *(name for name in wanted if name not in key)]
    return View(
        shape=options.shape,
        key=key,
        needed=tuple(stored_name(name) for name in wanted),
        offered=tuple(offered),
        output=arrow_schema(asked),
        feed=options.feed,
        inserts_only=streaming,
        ignore_deletes=options.ignore_deletes,
    )


def all_shown(options: ReadOptions, schema: "persist.Schema", view: View) -> frozenset[str] | None:
    """The shard's columns, which a stream shows all of; None: its user chose some by name.

    Raises SchemaMismatch where it leaves some out otherwise: Spark gives the columns of a DataFrame that was loaded
    before others were added as it gives those that a user wants.
    """
    if options.filters.columns is not None:
        return None
    columns = _stored(schema)
    left_out = columns - {stored_name(name) for name in view.offered}
    if left_out:
        raise SchemaMismatch(
            "the DataFrame lacks columns of the shard, whose values the stream would leave out",
            hint="load it again, which finds them; or name those that are to be shown with option columns",
            columns=_shown(left_out),
        )
    return columns


def check_columns(schema: "persist.Schema", known: frozenset[str]) -> None:
    """Raise SchemaMismatch when the shard has got columns since all of its columns were these."""
    added = _stored(schema) - known
    if added:
        raise SchemaMismatch(
            "the shard has got columns since the query began, which it would leave out",
            hint="load the DataFrame and start the query again: it goes on from its checkpoint, with them. A query that"
            " is to show no others than now names them with option columns",
            columns=_shown(added),
        )


def _shown(columns: Iterable[str]) -> str:
    return ", ".join(sorted(map(shown_name, columns)))


def _stored(schema: "persist.Schema") -> frozenset[str]:
    return frozenset((*schema.key.names, *schema.val.names))


def _at(table: pa.Table, as_of: int) -> pa.Table:
    times = pa.repeat(pa.scalar(as_of, pa.uint64()), table.num_rows)
    return table.append_column(rows.TS, times)
