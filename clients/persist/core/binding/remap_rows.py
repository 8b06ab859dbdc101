"""Remap rows as a shard stores them: the schema of a remap shard, and rows to updates and back.

One row is one element of a source frontier. Its columns, all of the key (there is no val):

| column | holds |
|---|---|
| ``version`` | 1: what the other columns mean |
| ``incarnation`` | which life of the upstream this is about: one, or at each time the one that followed it |
| ``kind`` | ``lsn``, ``partitions`` or ``files`` |
| ``partition`` | the partition, numbers in decimal; null for a log and for a range |
| ``after``, ``before`` | for a range the known partitions around it; null where there is none, and for points |
| ``offset`` | the first offset that is not bound |

The columns and their meaning never change under one version. Source: catalog-semantics.md section 4.2, physical form.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from persist.core.binding.lives import precedes
from persist.core.binding.remap import RemapUpdate
from persist.core.data.schema import Schema
from persist.core.source.source_time import Lsn, Partition, Point, Range, SourceKind, SourceTime
from persist.core.time.errors import UpstreamReplaced
from persist.errors import CorruptData, InvalidArgument, VersionMismatch, check
from persist.typed import AnyKey, AnyValue

VERSION: Final = 1

REMAP_SCHEMA: Final = Schema(
    key={
        "version": pa.field("version", pa.int32(), nullable=False),
        "incarnation": pa.field("incarnation", pa.string(), nullable=False),
        "kind": pa.field("kind", pa.string(), nullable=False),
        "partition": pa.string(),
        "after": pa.string(),
        "before": pa.string(),
        "offset": pa.field("offset", pa.uint64(), nullable=False),
    }
)
"""The schema of every remap shard."""

_Row = tuple[int, str, str, str | None, str | None, str | None, int]


def encode_time(kind: SourceKind, incarnation: str, time: SourceTime) -> _Row:
    """The key columns of one source time, in the order of the schema. One time has one row. Raises InvalidArgument."""
    partition = after = before = None
    if isinstance(time, Range):
        after, before = _text(kind, time.lo), _text(kind, time.hi)
        offset = time.offset
    elif isinstance(time, Point):
        partition, offset = _text(kind, time.partition), time.offset
    elif isinstance(time, Lsn):
        offset = time.position
    else:
        raise InvalidArgument("this source time has no row", got=str(time))
    if isinstance(time, Lsn) != (kind is SourceKind.LSN):
        raise InvalidArgument("this is no time of this source", kind=kind.value, got=str(time))
    return VERSION, incarnation, kind.value, partition, after, before, offset


def decode_time(kind: SourceKind, incarnation: str, row: Sequence[AnyValue]) -> SourceTime:
    """The source time of one row, of this incarnation or of one before it.

    Raises VersionMismatch (written by another release: upgrade), UpstreamReplaced (of another incarnation),
    CorruptData (no row that ``encode_time`` writes).
    """
    version, found, kind_text, partition, after, before, offset = row
    if version != VERSION:
        raise VersionMismatch("remap rows of another version", hint="upgrade", version=version, known=VERSION)
    if found != incarnation and not precedes(found, incarnation):
        raise replaced(found, incarnation)
    check(kind_text == kind.value, "a remap collection has one kind", found=kind_text, expected=kind.value)
    try:
        time = _time(kind, partition, after, before, offset)
        sound = encode_time(kind, found, time) == tuple(row)
    except (InvalidArgument, ValueError, TypeError) as error:
        raise CorruptData("a remap row cannot be read", hint="stop and report it", row=tuple(row)) from error
    check(sound, "a remap row has one form", row=tuple(row))
    return time


def check_current(incarnation: str, table: pa.Table) -> None:
    """Raise UpstreamReplaced where bindings have not gone on as this incarnation yet: none may be added as its own.

    ``table``: all updates up to some time. See ``succession``.
    """
    counts = table.group_by("incarnation").aggregate([("diff", "sum")]).to_pylist()
    for found in (each["incarnation"] for each in counts if each["diff_sum"]):
        if found != incarnation:
            raise replaced(found, incarnation)


def replaced(found: str, expected: str) -> UpstreamReplaced:
    """The refusal of an incarnation that the bindings are not about."""
    return UpstreamReplaced(
        "these bindings are of another upstream", hint="make a new source", incarnation=found, expected=expected
    )


def to_table(kind: SourceKind, incarnation: str, updates: Iterable[RemapUpdate]) -> pa.Table:
    """The updates as rows of the remap shard. Columns: those of ``REMAP_SCHEMA.updates``."""
    rows = [(*encode_time(kind, incarnation, time), ts, diff) for time, ts, diff in updates]
    schema = REMAP_SCHEMA.updates
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is


def from_table(kind: SourceKind, incarnation: str, table: pa.Table) -> list[RemapUpdate]:
    """The updates in rows of a remap shard, with the columns of ``REMAP_SCHEMA.updates``. Raises as ``decode_time``."""
    columns = [table.column(name).to_pylist() for name in REMAP_SCHEMA.updates.names]
    return [RemapUpdate(decode_time(kind, incarnation, row), ts, diff) for *row, ts, diff in zip(*columns, strict=True)]


def _text(kind: SourceKind, key: Partition | None) -> str | None:
    return None if key is None else str(kind.check_key(key))


def _key(kind: SourceKind, text: str | None) -> AnyKey:
    return text if text is None or kind is SourceKind.FILES else int(text)


def _time(kind: SourceKind, partition: str | None, after: str | None, before: str | None, offset: int) -> SourceTime:
    if kind is SourceKind.LSN:
        return Lsn(offset)
    if partition is not None:
        return Point(_key(kind, partition), offset)
    return Range(_key(kind, after), _key(kind, before), offset)
