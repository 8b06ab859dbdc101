"""What a read covers, and the pipeline from parts to rows: decode, filter, merge, advance, project.

Pure but for the ``reader`` it is given: it runs in whatever thread pulls it. The merge of one key range over all runs
is right alone, so ranges may be read apart. Source: architecture.md section 4; persist-semantics.md section 2.6.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowArray, array_of
from persist.core.data.merging.cursors import RUN_BYTES_MAX
from persist.core.data.merging.merge import LargeKey, PartSource, merge
from persist.core.data.merging.pooling import merged_pool, pooled
from persist.core.data.predicate import Predicate
from persist.core.data.schema import Schema
from persist.core.data.splits import KeyRange, choose, touching
from persist.core.frontier import TIME_MAX
from persist.core.shard.batch import HollowBatch, Part
from persist.core.shard.commands import SchemaEntry
from persist.errors import CorruptData, InvalidArgument, UsageError
from persist.machine.parts.ahead import Ahead
from persist.machine.parts.runs import RunView, groups
from persist.machine.shards import ShardInfo
from persist.settings import Settings
from persist.wire.columnar import Choice, only_adds, part_batches

BATCH_ROWS_MAX = 65_536
DECODE_ROWS = 4_096
"""Rows decoded at once for a merge, which gathers them itself."""
MERGE_ROWS_MIN = 4_096
MERGE_BYTES_MAX = 40 << 20
"""What the merge of a read holds of many runs."""
AHEAD_RUNS_MAX = 32
"""Runs decoded ahead: of more, the rows made ahead would take too much memory."""
_KEY_BYTES = 32
_POOLED_RUN_BYTES_MAX = 64 << 10
"""Decoded bytes of an inline run that is put together with others before they are merged: less than a budget counts
for it."""
_POOL_BYTES_MAX = 8 << 20
_ON_LOOP_BYTES_MAX = 256 << 10
_LOOKED_AT_BYTES_MAX = 8 << 20
"""Bytes held to find out whether parts only add, where their descriptions do not say."""
_SMALL_ROWS = 8_192
_KEY_BYTES_MAX = 32 << 20
"""What a merge without some val columns holds of one key."""
PART_BYTES = 16 << 10
"""What opening a part costs, as decoded bytes that take as long."""

Reader = Callable[[str | None], Callable[[int, int], bytes | memoryview]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSizes:
    """What a merge holds of each run: ``rows`` or ``run_bytes``, decoded ``batch_rows`` at a time.

    ``ahead_bytes``: decoded ahead of them, in each of two steps.
    """

    rows: int
    run_bytes: int
    batch_rows: int = DECODE_ROWS
    ahead_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One definite read: which updates, at which ``since``, of which keys. Picklable.

    ``times``: the rows keep their ts (a change feed); otherwise they are a snapshot's. ``schemas`` hold every schema
    the parts were written with; the last is what rows are shown in. ``decoded_bytes_max`` bounds one row group.

    ``consolidated`` False: what repeats rows by their diffs asks. Where no update of overlapping parts takes anything
    out, nothing cancels and they are not merged: a row may come in several, in any order, with diffs above 0 that sum
    to its own. A snapshot's rows that are merged are then summed by the columns shown and their keys: the sums by what
    is shown are those of the consolidated read, as a sum over rows does not depend on what is summed first.
    """

    schemas: tuple[SchemaEntry, ...]
    runs: tuple[RunView, ...]
    since: int
    times: bool = False
    key_range: KeyRange | None = None
    where: tuple[Predicate, ...] = ()
    decoded_bytes_max: int
    consolidated: bool = True

    @property
    def parts(self) -> Iterator[Part]:
        """All parts."""
        return (part for run in self.runs for part in run.parts)

    @property
    def rows(self) -> int:
        """Updates in the parts: at least as many as the read yields within its key range."""
        return sum(part.rows for part in self.parts)

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.encoded_bytes for part in self.parts)

    @property
    def decoded_bytes(self) -> int:
        """What the parts take as Arrow."""
        return sum(part.decoded_bytes for part in self.parts)

    @property
    def is_quick(self) -> bool:
        """Decoding and merging it takes a few milliseconds at most: it may be done on an event loop."""
        cost = 0
        for part in self.parts:
            cost += PART_BYTES + part.decoded_bytes
            if cost > _ON_LOOP_BYTES_MAX:
                return False
        return True

    @property
    def schema(self) -> Schema:
        """What rows are shown in."""
        return Schema.from_bytes(self.schemas[-1].schema)

    def narrowed(self, *, key_range: KeyRange | None = None, where: Predicate | None = None) -> "Reading":
        """The same read of fewer keys and rows, without the parts that cannot hold any.

        Raises InvalidArgument for a predicate that the rows cannot answer.
        """
        if where is not None:
            where.check(self.schema, times=self.times)
        keys = self.key_range if key_range is None else _intersection(key_range, self.key_range)
        if key_range is not None and keys is None:
            return dataclasses.replace(self, runs=())
        predicates = self.where if where is None else (*self.where, where)
        reading = dataclasses.replace(self, key_range=keys, where=predicates)
        runs = (dataclasses.replace(run, parts=tuple(filter(reading._may_hold, run.parts))) for run in self.runs)
        return dataclasses.replace(reading, runs=tuple(run for run in runs if run.parts))

    @property
    def focused(self) -> "Reading":
        """The same read within the keys that its conditions leave: blocks beyond them are not even fetched."""
        reading = self
        for keys in (predicate.keys(self.schema) for predicate in self.where):
            if keys is not None and keys.lower is not None and keys.upper is not None and keys.lower >= keys.upper:
                return dataclasses.replace(self, runs=())
            reading = reading if keys is None else reading.narrowed(key_range=keys)
        return reading

    def split(self, n: int) -> list["Reading"]:
        """At most ``n`` reads of disjoint key ranges that together are this one, in key order."""
        if n <= 1:
            return [self] if self.runs else []
        ranges = choose(list(self.parts), n)
        found: list[list[RunView]] = [[] for _ in ranges]
        for run in self.runs:
            pieces: dict[int, list[Part]] = {}
            for part, numbers in touching(ranges, run.parts):
                for number in numbers:
                    pieces.setdefault(number, []).append(part)
            for number, parts in pieces.items():
                found[number].append(dataclasses.replace(run, parts=tuple(parts)))
        within = [_intersection(key_range, self.key_range) for key_range in ranges]
        return [
            dataclasses.replace(self, key_range=keys, runs=tuple(runs))
            for keys, runs in zip(within, found, strict=True)
            if keys is not None and runs
        ]

    def output(self, columns: Sequence[str] | None) -> pa.Schema:
        """The columns of the rows: all of them, or ``columns`` in that order; then ts if asked for, then diff.

        Raises InvalidArgument for unknown columns.
        """
        full = self.schema.updates if self.times else self.schema.rows
        if columns is None:
            return full
        tail = ["ts", "diff"] if self.times else ["diff"]
        names = [name for name in columns if name not in tail]
        unknown = [name for name in names if name not in full.names]
        if unknown or len(set(names)) != len(names):
            alike = get_close_matches(unknown[0], full.names, n=1) if unknown else []
            meant = f"did you mean {alike[0]}? " if alike else ""
            raise InvalidArgument(
                "unknown or repeated columns",
                hint=f"{meant}the shard has {', '.join(full.names)}",
                columns=unknown or names,
            )
        return pa.schema([full.field(name) for name in [*names, *tail]])

    def batches(
        self,
        reader: Reader,
        columns: Sequence[str] | None,
        ahead: Ahead | None = None,
        sizes: MergeSizes | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows, at most 65,536 per batch, empty batches left out. Raises CorruptData, LocationError.

        ``ahead``: how to decode runs that are merged before the merge asks for their rows. ``sizes``: what to hold.
        """
        output = self.output(columns)
        # Compaction has cut what it merges already.
        pieces = [self] if sizes is not None else self._groups()
        found = itertools.chain.from_iterable(piece._tables(reader, output.names, ahead, sizes) for piece in pieces)
        for table in found if self.consolidated else _gathered(found):
            if table.num_rows:
                shown = pa.Table.from_arrays([table.column(name) for name in output.names], schema=output)
                yield from shown.to_batches(max_chunksize=BATCH_ROWS_MAX)

    def _may_hold(self, part: Part) -> bool:
        if self.key_range is not None and not self.key_range.overlaps(part.key_lower, part.key_upper):
            return False
        written = self._written_with(part)
        return all(predicate.may_match(part, written) for predicate in self.where)

    @property
    def is_merged(self) -> bool:
        """Rows need to be merged or summed, as far as descriptions of parts show."""
        return any(piece._cancels and not piece._only_adds for piece in self._groups())

    def _groups(self) -> list["Reading"]:
        """The read cut between keys that no part crosses."""
        return [dataclasses.replace(self, runs=runs) for runs in groups(self.runs)]

    @property
    def _cancels(self) -> bool:
        """Updates may be equal as they will be shown. Not so of one run at one time: there they are distinct."""
        if len(self.runs) > 1:
            return True
        if self.times:
            return any(part.ts_rewrite is not None or part.min_ts < self.since for part in self.parts)
        times = {(part.min_ts, part.max_ts) for part in self.parts}
        return len(times) > 1 or any(first != last for first, last in times)

    @property
    def _only_adds(self) -> bool:
        return not self.consolidated and all(part.only_adds for part in self.parts)

    def _adds(self, reader: Reader) -> bool:
        """As ``_only_adds``, and where descriptions do not say, the rows of inline parts and footers are looked at."""
        if self.consolidated or any(part.diffs_sum < part.rows for part in self.parts):
            return False
        unknown = [part for part in self.parts if not part.only_adds]
        if sum(part.footer_bytes if part.blocks else part.encoded_bytes for part in unknown) > _LOOKED_AT_BYTES_MAX:
            return False
        return all(
            only_adds(part, reader(part.key), self._written_with(part), decoded_bytes_max=self.decoded_bytes_max)
            for part in unknown
        )

    def _tables(
        self, reader: Reader, names: list[str], ahead: Ahead | None, sizes: MergeSizes | None
    ) -> Iterator[pa.Table]:
        """The rows of one group, with at least the columns of these names."""
        if not self._cancels or self._adds(reader):
            return self._unmerged(reader, names, BATCH_ROWS_MAX if sizes is None else sizes.batch_rows)
        narrow = self._narrow(names)
        if narrow is not None:
            return self._projected(reader, narrow, ahead)
        return self._merged(reader, ahead, sizes or self._sizes(), self.schema)

    def _narrow(self, names: list[str]) -> Schema | None:
        """The schema of what is merged in place of all columns, where not all are needed; else None."""
        vals = [name for name in self.schema.val.names if name in names]
        if self.consolidated or self.times or len(vals) == len(self.schema.val):
            return None
        return self.schema.project(vals)

    def _projected(self, reader: Reader, narrow: Schema, ahead: Ahead | None) -> Iterator[pa.Table]:
        """The rows merged without some val columns; from a key on of which too many rows differ, with them."""
        try:
            yield from self._merged(reader, ahead, self._sizes(), narrow)
        except LargeKey as found:
            rest = self.narrowed(key_range=KeyRange(lower=found.key))
            yield from rest._merged(reader, ahead, self._sizes(), self.schema)

    def _unmerged(self, reader: Reader, names: Sequence[str], batch_rows: int) -> Iterator[pa.Table]:
        for run in self.runs:
            for part in run.parts:
                yield from self._rows(run, part, reader, self._read_for(part, names), batch_rows)

    def _merged(self, reader: Reader, ahead: Ahead | None, sizes: MergeSizes, schema: Schema) -> Iterator[pa.Table]:
        """The rows in the columns of ``schema``: all, or without some val columns."""
        pools = _pools(self.runs)
        by_val = len(schema.val) == len(self.schema.val)
        if len(pools) > AHEAD_RUNS_MAX:
            ahead = None

        def opened(run: RunView, part: Part) -> Iterator[pa.RecordBatch]:
            source = self._source(run, part, reader, sizes.batch_rows, None if by_val else schema.updates.names)
            return source if ahead is None or part.inline is not None else ahead(source)

        def sources(run: RunView) -> list[PartSource]:
            return [PartSource(part.key_lower, functools.partial(opened, run, part)) for part in run.parts]

        if by_val and len(pools) == 1 and len(pools[0]) > 1:
            return merged_pool([*map(sources, pools[0])], schema, since=self.since)
        runs = [
            sources(*pool) if len(pool) == 1 else [pooled([*map(sources, pool)], schema, batch_rows=sizes.rows)]
            for pool in pools
        ]
        return merge(
            runs,
            schema,
            since=self.since,
            batch_rows=sizes.rows,
            batch_bytes=sizes.run_bytes,
            by_val=by_val,
            key_bytes_max=None if by_val else _KEY_BYTES_MAX,
        )

    def _source(
        self, run: RunView, part: Part, reader: Reader, rows: int, names: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        for table in self._rows(run, part, reader, None if names is None else self._read_for(part, names), rows):
            yield from (table if names is None else table.select(names)).to_batches()

    def _read_for(self, part: Part, names: Sequence[str]) -> list[str]:
        """The columns of a part that are needed to show those of these names, and to choose rows."""
        # An expression is evaluated in the newest schema, which may have columns that the part lacks.
        shown = self.schema.updates if self.times else self.schema.rows
        wanted = {*names, "ts", "diff"}.union(*(predicate.columns(shown) for predicate in self.where))
        return [name for name in self._written_with(part).updates.names if name in wanted]

    def _sizes(self) -> MergeSizes:
        """What to hold of each run: a merge takes about three times as much, keys included."""
        row_bytes = self.decoded_bytes // max(1, self.rows) + _KEY_BYTES
        fit = MERGE_BYTES_MAX // (3 * row_bytes * max(1, len(self.runs)))
        rows = max(MERGE_ROWS_MIN, min(BATCH_ROWS_MAX, fit))
        # What conditions leave is less than what they look at, and each look at a batch costs something.
        return MergeSizes(rows=rows, run_bytes=RUN_BYTES_MAX, batch_rows=rows if self.where else DECODE_ROWS)

    def _rows(
        self, run: RunView, part: Part, reader: Reader, columns: list[str] | None, batch_rows: int
    ) -> Iterator[pa.Table]:
        """The updates of one part that count, shown in the read's schema."""
        written = self._written_with(part)
        choice = self._choice(written)
        found = part_batches(
            part,
            reader(part.key),
            written,
            columns=columns,
            key_range=self.key_range,
            batch_rows=batch_rows,
            decoded_bytes_max=self.decoded_bytes_max,
            choice=choice,
        )
        for batch in found:
            table = pa.Table.from_batches([batch])
            if not run.covers(part):
                table = _within(table, run)
            if written != self.schema:
                table = written.upgrade(table, self.schema)
            if choice is None:
                table = _filtered(table, self.where)
            if table.num_rows:
                yield table

    def _choice(self, written: Schema) -> Choice | None:
        """The conditions as a choice of rows while they are decoded; None: they are to be asked of decoded ones.

        SUBTLE: times are rewritten after that, and columns that the part lacks are added.
        """
        shown = self.schema.updates if self.times else self.schema.rows
        asked = {name for predicate in self.where for name in predicate.columns(shown)}
        if not asked or not asked <= {*written.key.names, *written.val.names}:
            return None
        return Choice(frozenset(asked), functools.partial(_numbers_of, where=self.where))

    def _written_with(self, part: Part) -> Schema:
        for entry in self.schemas:
            if entry.schema_id == part.schema_id:
                return Schema.from_bytes(entry.schema)
        raise CorruptData("a part was written with an unknown schema", key=part.key, schema_id=part.schema_id)


def snapshot_of(batches: Iterable[HollowBatch], info: ShardInfo, settings: Settings, as_of: int) -> Reading:
    """The read of everything at or before ``as_of``, with times advanced to it."""
    upper = None if as_of == TIME_MAX else as_of + 1
    return _reading(batches, info.schemas, settings, 0, upper, since=as_of, times=False)


def changes_of(
    batches: Iterable[HollowBatch], info: ShardInfo, settings: Settings, lower: int, upper: int | None
) -> Reading:
    """The read of every update at a time in ``[lower, upper)``, at its own time."""
    return _reading(batches, info.schemas, settings, lower, upper, since=0, times=True)


def compaction_of(
    batches: Sequence[HollowBatch], schemas: tuple[SchemaEntry, ...], settings: Settings, since: int
) -> Reading:
    """The read of every update of some batches, times advanced to ``since``, in the newest schema of their parts."""
    newest = max((part.schema_id for batch in batches for part in batch.parts), default=0)
    return _reading(batches, schemas[: newest + 1], settings, 0, None, since=since, times=True)


def parse_where(where: object) -> Predicate | None:
    """The predicate a user means; None for none. Raises InvalidArgument."""
    return None if where is None else Predicate.parse(where)


def _reading(
    batches: Iterable[HollowBatch],
    schemas: tuple[SchemaEntry, ...],
    settings: Settings,
    lower: int,
    upper: int | None,
    *,
    since: int,
    times: bool,
) -> Reading:
    views: list[RunView] = []
    for batch in batches:
        begin, end = lower, upper
        if batch.truncated:
            first, last = batch.desc.lower.time, batch.desc.upper.time
            begin = max(begin, first or 0)
            end = last if end is None else end if last is None else min(end, last)
        for run in batch.runs:
            view = RunView(parts=run.parts, lower=begin, upper=end)
            parts = tuple(filter(view.touches, run.parts))
            if parts:
                views.append(dataclasses.replace(view, parts=parts))
    if not schemas:
        raise UsageError("the shard has no schema yet", hint="open it with schema= first")
    return Reading(
        schemas=schemas,
        runs=tuple(views),
        since=since,
        times=times,
        decoded_bytes_max=settings.decoded_bytes_max,
    )


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows with small tables put together: each that is passed on costs something, however few its rows."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        if held and (table.num_rows >= _SMALL_ROWS or table.schema != held[0].schema):
            yield _joined(held)
            held, rows = [], 0
        if table.num_rows >= _SMALL_ROWS:
            yield table
            continue
        held.append(table)
        rows += table.num_rows
        if rows >= _SMALL_ROWS:
            yield _joined(held)
            held, rows = [], 0
    if held:
        yield _joined(held)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


def _pools(runs: Sequence[RunView]) -> list[list[RunView]]:
    """The runs in the order given, tiny inline ones together: each pool is one run for a merge."""
    pools: list[list[RunView]] = []
    pool: list[RunView] = []
    held = 0
    for run in runs:
        size = sum(part.decoded_bytes for part in run.parts)
        if size > _POOLED_RUN_BYTES_MAX or any(part.inline is None for part in run.parts):
            pools.append([run])
            continue
        if not pool or held + size > _POOL_BYTES_MAX:
            pool, held = [], 0
            pools.append(pool)
        pool.append(run)
        held += size
    return pools


def _intersection(one: KeyRange, other: KeyRange | None) -> KeyRange | None:
    """The keys in both; None when there are none."""
    if other is None:
        return one
    lower = max((bound for bound in (one.lower, other.lower) if bound is not None), default=None)
    upper = min((bound for bound in (one.upper, other.upper) if bound is not None), default=None)
    if lower is not None and upper is not None and lower >= upper:
        return None
    return KeyRange(lower=lower, upper=upper)


def _within(table: pa.Table, run: RunView) -> pa.Table:
    ts = table.column("ts").to_numpy()
    keep = ts >= np.uint64(run.lower)
    if run.upper is not None:
        keep &= ts < np.uint64(run.upper)
    return table.filter(pa.array(keep))


def _filtered(table: pa.Table, where: Iterable[Predicate]) -> pa.Table:
    for predicate in where:
        table = predicate.filter(table)
    return table


def _numbers_of(table: pa.Table, where: Iterable[Predicate]) -> ArrowArray | None:
    """Which rows of a table the conditions hold for, in order; None: all."""
    number = "_" + max(table.column_names, key=len)
    rows = pa.array(np.arange(table.num_rows))
    found = _filtered(table.append_column(number, rows), where).column(number)
    if len(found) == table.num_rows:
        return None
    return array_of(found.to_numpy(), pa.int64())
