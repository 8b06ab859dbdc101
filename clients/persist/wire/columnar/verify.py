"""Whether a part holds what its description says: length, checksum, form, rows, order, bounds, times, sum of diffs.

Readers trust descriptions: they skip parts by their bounds, and do not sum a run whose rows they take for distinct. So
code that takes a part in, or looks for damage, compares the two. Source: docs/formats.md, parts; reliability.md I24.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.core.data.consolidation import checked_sum
from persist.core.data.encoding import edge_keys, encode_key
from persist.core.data.order import key_words
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.shard.batch import Part, Run
from persist.errors import CorruptData, InvalidArgument, RequestTooLarge, VersionMismatch
from persist.wire.checksum import crc32c
from persist.wire.columnar.decode import part_batches
from persist.wire.columnar.inline import DECODED_BYTES_MAX, decode_inline, inline_message_bytes

_SLACK_BYTES: Final = 64 << 10


class PartFlaw(Exception):
    """A part is not what its description says; the message says in which way."""


def verify_inline_run(run: Run, schemas: Sequence[Schema], *, decoded_bytes_max: int = DECODED_BYTES_MAX) -> None:
    """Raise PartFlaw unless each inline part of a run is what it is described as, and lies behind the one before it.

    ``schemas`` are all of the shard's, by id. Parts in Blob are passed over.
    """
    before: PartRows | None = None
    if len({part.schema_id for part in run.parts if part.inline is not None}) > 1:
        raise PartFlaw("the inline parts of its run have several schemas")
    for part in run.parts:
        if part.inline is None:
            before = None
            continue
        if part.schema_id >= len(schemas):
            raise PartFlaw(f"it names the unknown schema {part.schema_id}")
        rows = _verified_inline(part, schemas[part.schema_id], decoded_bytes_max)
        if before is not None and not rows.lie_behind(before):
            raise PartFlaw("its rows do not lie behind those of the part before it")
        before = rows


def verify_blob(part: Part, data: bytes, schema: Schema) -> None:
    """Raise PartFlaw unless these bytes are the part's, and hold what it is described as. Decodes all of it."""
    if len(data) != part.encoded_bytes:
        raise PartFlaw(f"it has {len(data):,} bytes, and must have {part.encoded_bytes:,}")
    if crc32c(data) != part.checksum:
        raise PartFlaw("its bytes are not those that were written")
    view = memoryview(data)
    rows = PartRows(part, schema)
    try:
        for batch in part_batches(_unmoved(part), lambda start, end: view[start:end], schema):
            rows.take(pa.Table.from_batches([batch]))
    except (CorruptData, VersionMismatch, RequestTooLarge) as error:
        raise PartFlaw(_reason(error)) from error
    rows.end()


def _verified_inline(part: Part, schema: Schema, decoded_bytes_max: int) -> "PartRows":
    if part.stats:
        # Readers would skip rows by them, and nothing would be won: the rows are at hand.
        raise PartFlaw("an inline part has no statistics")
    try:
        table = decode_inline(_unmoved(part), schema, decoded_bytes_max=decoded_bytes_max)
    except (CorruptData, VersionMismatch, RequestTooLarge) as error:
        raise PartFlaw(_reason(error)) from error
    allowed = 2 * part.decoded_bytes + _SLACK_BYTES + 8 * table.num_rows * table.num_columns
    if inline_message_bytes(part) > allowed:
        raise PartFlaw(f"it decodes to more than the {part.decoded_bytes:,} bytes it declares")
    rows = PartRows(part, schema)
    rows.take(table)
    rows.end()
    return rows


class PartRows:
    """The rows of one part as they come, held against its description."""

    def __init__(self, part: Part, schema: Schema) -> None:
        self._part = part
        self._schema = schema
        self._required = [field.name for field in schema.updates if not field.nullable]
        self._count = 0
        self._sums: list[int] = []
        self._first: pa.Table | None = None
        self._last: pa.Table | None = None

    def lie_behind(self, earlier: "PartRows") -> bool:
        """Whether all of them come behind all of the other part's."""
        if self._first is None or earlier._last is None:
            return True
        return earlier._edge(earlier._last) < self._edge(self._first)

    def take(self, table: pa.Table) -> None:
        """The next rows, times as they are in the file. Raises PartFlaw."""
        if not table.num_rows:
            return
        for name in self._required:
            if table.column(name).null_count:
                raise PartFlaw(f"column {name} has nulls")
        self._take_order(table)
        self._take_bounds(table)
        diffs = table.column(DIFF.name).to_numpy()
        if not diffs.all():
            raise PartFlaw("a diff is 0")
        if self._part.only_adds and int(diffs.min()) < 0:
            raise PartFlaw("a diff is below 0, and all are described as above")
        self._sums.append(_sum(diffs))
        self._count += table.num_rows

    def end(self) -> None:
        """There are no more rows. Raises PartFlaw."""
        part, total = self._part, sum(self._sums)
        if self._count != part.rows:
            raise PartFlaw(f"it has {self._count:,} rows, and must have {part.rows:,}")
        if total != part.diffs_sum:
            raise PartFlaw(f"its diffs sum to {total:,}, and must sum to {part.diffs_sum:,}")

    def _take_order(self, table: pa.Table) -> None:
        """Every row comes behind the one before it, so that no two are equal."""
        first = table.slice(0, 1)
        if not self._ascends(table) or (self._last is not None and self._edge(first) <= self._edge(self._last)):
            raise PartFlaw("its rows are not sorted")
        self._first = first if self._first is None else self._first
        self._last = table.slice(table.num_rows - 1)

    def _ascends(self, table: pa.Table) -> bool:
        if table.num_rows < 2:
            return True
        words = key_words([table.column(name) for name in self._schema.key.names])
        if words is not None and bool((words[:-1] < words[1:]).all()):
            return True
        rows = self._canonical(table)
        return bool(pc.all(pc.less(rows.slice(0, len(rows) - 1), rows.slice(1))).as_py())

    def _edge(self, row: pa.Table) -> bytes:
        edge: bytes = self._canonical(row)[0].as_py()
        return edge

    def _canonical(self, table: pa.Table) -> pa.LargeBinaryArray:
        return encode_key([table.column(name) for name in (*self._schema.key.names, *self._schema.val.names, TS.name)])

    def _take_bounds(self, table: pa.Table) -> None:
        part = self._part
        first, last = edge_keys([table.column(name) for name in self._schema.key.names])
        if first < part.key_lower or (part.key_upper is not None and part.key_upper < last):
            raise PartFlaw("a key lies outside of its bounds")
        times = table.column(TS.name).to_numpy()
        low, high = int(times.min()), int(times.max())
        if low < part.min_ts or part.max_ts < high:
            raise PartFlaw(f"its times lie in [{low}, {high}], and must lie in [{part.min_ts}, {part.max_ts}]")


def _sum(diffs: npt.NDArray[np.int64]) -> int:
    try:
        return checked_sum(diffs)
    except InvalidArgument as error:
        raise PartFlaw("the sum of its diffs leaves 64 bits") from error


def _unmoved(part: Part) -> Part:
    """The part with its times as they are in the file."""
    if part.ts_rewrite is None:
        return part
    return dataclasses.replace(part, ts_rewrite=None)


def _reason(error: CorruptData | VersionMismatch | RequestTooLarge) -> str:
    found = error.details.get("found")
    return f"{error.message} ({found})" if found else error.message
