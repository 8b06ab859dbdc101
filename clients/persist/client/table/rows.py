"""Rows of tables: as users hand them over, as a transaction log keeps them, and what replaces what.

Source: catalog-semantics.md section 4.2, table writes.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowColumn
from persist.client.shard.write.bodies import values_of
from persist.client.shard.write.inputs import tables, with_defaults
from persist.core.data.encoding import encode, encode_key
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.splits import KeyRange
from persist.core.data.update import check_declared, consolidate, laid_out, normalise
from persist.core.ids import ShardId
from persist.errors import CorruptData, InvalidArgument, RequestTooLarge, SchemaMismatch
from persist.wire.columnar.encode import GROUP_BYTES_MAX

RowsLike: TypeAlias = Any
"""What an append takes, without times and diffs."""

PAYLOAD_ROWS: Final = 65_536
"""Rows in one entry of a transaction log, at most."""

ROW_BYTES_MAX: Final = GROUP_BYTES_MAX - (1 << 20)
"""Arrow bytes of a row, so that it fits whatever it is written with: into a log, and out of it again."""

PAYLOAD_BYTES: Final = 16 << 20
"""Arrow bytes of such an entry, unless one row is larger: an entry is a single value, which readers hold whole."""


def updates_of(rows: RowsLike, schema: Schema, *, diff: int = 1, declared: Schema | None = None) -> pa.Table:
    """Rows as updates at time 0, each taken ``diff`` times. Checked: they can be appended at any time, by any process.

    ``declared``: no row that is put in has nulls where this one has none, inside of columns.

    Raises InvalidArgument, SchemaMismatch, RequestTooLarge (a row is larger than any may be).
    """
    pieces = [normalise(with_defaults(_sized(piece)), schema) for piece in tables(rows, schema)]
    table = times(pa.concat_tables(pieces) if pieces else schema.updates.empty_table(), diff)
    return consolidate(at_time(table if declared is None else check_declared(table, declared), 0), schema)


def _sized(piece: pa.Table) -> pa.Table:
    """The same, before anything is done with it that takes memory. Raises RequestTooLarge."""
    # Where all of it is not too large no row is.
    if laid_out(piece).nbytes > ROW_BYTES_MAX and piece.num_rows:
        largest = int(sum(map(_bytes_of, piece.columns), start=np.zeros(piece.num_rows, np.int64)).max())
        if largest > ROW_BYTES_MAX:
            raise RequestTooLarge(
                "a row is larger than any row may be",
                hint="cut it, or keep it elsewhere and its address here",
                bytes=largest,
                limit=ROW_BYTES_MAX,
            )
    return piece


def _bytes_of(values: ArrowColumn) -> npt.NDArray[np.int64]:
    """About how many bytes each value has."""
    if isinstance(values, pa.ChunkedArray):
        return np.concatenate([np.zeros(0, np.int64), *map(_bytes_of, values.chunks)])
    if isinstance(values, pa.StructArray):
        return sum(map(_bytes_of, values.flatten()), start=np.zeros(len(values), np.int64))
    if isinstance(values, pa.ListArray | pa.LargeListArray):
        within = np.concatenate([np.zeros(1, np.int64), np.cumsum(_bytes_of(values.flatten()))])
        ends = np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False))
        return np.diff(within[ends.astype(np.int64)], prepend=0)
    if pa.types.is_primitive(values.type):
        return np.full(len(values), values.type.bit_width // 8, np.int64)
    try:
        lengths = pc.fill_null(pc.binary_length(values), 0)
    except pa.ArrowNotImplementedError:
        # Of another type, such as a dictionary: each value is in all of them.
        return np.full(len(values), values.nbytes // max(1, len(values)), np.int64)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def times(updates: pa.Table, factor: int) -> pa.Table:
    """Every diff multiplied."""
    at = updates.schema.get_field_index(DIFF.name)
    return updates if factor == 1 else updates.set_column(at, DIFF, pc.multiply(updates.column(at), factor))


def widened(updates: pa.Table, schema: Schema) -> pa.Table:
    """Updates of an earlier schema as this one has them: null in the val columns that were added since.

    Raises SchemaMismatch for columns that this one has not: without them an update would be another one.
    """
    if more := lacking(schema, updates.schema.names):
        raise SchemaMismatch(
            "the updates have columns that the schema has not", hint=f"it has {schema.updates.names}", unknown=more
        )
    for field in schema.val:
        if field.name not in updates.schema.names:
            updates = updates.append_column(field, pa.nulls(updates.num_rows, field.type))
    return updates if updates.schema.names == schema.updates.names else updates.select(schema.updates.names)


def lacking(schema: Schema, names: Iterable[str]) -> list[str]:
    """Those of these columns of updates that a schema has not."""
    return sorted(set(names) - set(schema.updates.names))


def wider(one: Schema, other: Schema) -> Schema:
    """The later of two schemas of one shard: each has what those before it had."""
    return other if len(other.val) > len(one.val) else one


def at_time(updates: pa.Table, ts: int) -> pa.Table:
    """Every update at ``ts``."""
    column = pa.array(np.full(updates.num_rows, ts, np.uint64))
    return updates.set_column(updates.schema.get_field_index(TS.name), TS, column)


def keys_of(rows: RowsLike, schema: Schema) -> pa.LargeBinaryArray:
    """The canonical bytes of the keys of rows that have at least the key columns. Raises as ``updates_of``."""
    only = Schema(schema.key)
    pieces = [piece.select(schema.key.names) for piece in _keyed(rows, only)]
    table = pa.concat_tables([normalise(with_defaults(piece), only) for piece in pieces]) if pieces else None
    if table is None:
        return pa.array([], pa.large_binary())
    return encode_key([table.column(name) for name in schema.key.names])


def key_range(keys: pa.LargeBinaryArray) -> KeyRange:
    """The smallest range of keys that holds all of these; there is at least one key."""
    ends = pc.min_max(keys)
    return KeyRange(lower=ends["min"].as_py(), upper=ends["max"].as_py() + b"\0")


def with_keys(rows: pa.Table, keys: pa.LargeBinaryArray, schema: Schema) -> pa.Table:
    """Those rows of a snapshot whose key is one of ``keys``, as updates at time 0."""
    if not rows.num_rows:
        return schema.updates.empty_table()
    own = encode_key([rows.column(name) for name in schema.key.names])
    return normalise(with_defaults(rows.filter(pc.is_in(own, keys))), schema)


def replacing(old: pa.Table, new: pa.Table, schema: Schema) -> pa.Table:
    """The updates that take ``old`` away and put ``new`` in its place; none where they are the same."""
    return consolidate(pa.concat_tables([times(old, -1), new]), schema)


def check_distinct(keys: pa.LargeBinaryArray) -> None:
    """Raise InvalidArgument when a key appears twice: it is unclear which row stays."""
    if pc.count_distinct(keys).as_py() != len(keys):
        raise InvalidArgument("two of the rows have the same key", hint="give one row per key")


def payloads(updates: pa.Table) -> Iterator[bytes]:
    """Updates without their time, as entries of a log."""
    rows = updates.drop_columns([TS.name])
    at = 0
    while at < rows.num_rows:
        entry = rows.slice(at, PAYLOAD_ROWS)
        while entry.num_rows > 1 and entry.nbytes > PAYLOAD_BYTES:
            entry = entry.slice(0, entry.num_rows // 2)
        at += entry.num_rows
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(entry)
        yield sink.getvalue().to_pybytes()


def from_payload(payload: bytes, ts: int, schema: Schema) -> pa.Table:
    """The updates of an entry at its time, with the columns of ``schema``: null where the entry has none yet.

    Raises SchemaMismatch when the entry has more columns (the schema is not the newest), CorruptData.
    """
    try:
        rows = pa.ipc.open_stream(payload).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptData("an entry of a transaction log cannot be read", ts=ts) from error
    for field in schema.val:
        if field.name not in rows.schema.names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return normalise(rows.append_column(TS, pa.array(np.full(rows.num_rows, ts, np.uint64))), schema)


def body_of(rows: Mapping[ShardId, pa.Table]) -> str:
    """What distinguishes one set of updates to tables from another: the same for the same rows, in every process.

    Also after columns were added: the last value columns count only from the last one on that has a value.
    """
    digest = hashlib.blake2b(digest_size=24)
    for shard in sorted(rows, key=str):
        updates = rows[shard]
        digest.update(f"{shard} {updates.num_rows} ".encode())
        names = _hashed_columns(updates)
        for batch in updates.select(names).to_batches(max_chunksize=PAYLOAD_ROWS):
            if batch.num_rows:
                # Every column ends by itself here, so that the bytes of all rows can stand one behind the other.
                encoded = encode(batch.columns, last=False)
                digest.update(values_of(encoded))
    return digest.hexdigest()


def _hashed_columns(updates: pa.Table) -> list[str]:
    names = [name for name in updates.schema.names if name not in (TS.name, DIFF.name)]
    while names and updates.num_rows and updates.column(names[-1]).null_count == updates.num_rows:
        names.pop()
    return [*names, DIFF.name]


def _keyed(rows: RowsLike, only: Schema) -> Iterator[pa.Table]:
    for piece in tables(rows, only):
        missing = sorted(set(only.key.names) - set(piece.schema.names))
        if missing:
            raise SchemaMismatch("rows without their keys", hint=f"give {only.key.names}", missing=missing)
        yield piece
