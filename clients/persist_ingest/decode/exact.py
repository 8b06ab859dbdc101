"""Many payloads decoded at once, with the outcome each would have had alone.

Messages are read again in other batches after a failure; what they mean must not depend on their neighbours. So a
batch that does not decode is halved until few payloads are left, which are decoded one by one. A bad one among n costs
about 2 log n calls and three times the work of n good ones; however many are bad, calls are fewer than 1.5 n, of which
none but the first has all of them, and each payload is in log n.
Source: sources.md section 3, decode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persist.arrow import ArrowArray
from persist.arrow.exact import cast_exactly

ERROR_CHARS_MAX: Final = 500
FEW: Final = 8
"""So many, of which one is bad, are decoded one by one: halving them takes as many calls, or more."""


_FIRST: Final = -62_135_596_800
_END: Final = 253_402_300_800
"""Seconds from 1970 to the years 1 and 10000."""


class Undecodable(ValueError):
    """A range of payloads holds one that cannot be decoded. The text of one that stands alone is the error's text."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A payload that has not the declared form: its place in the batch and why."""

    index: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """``rows``: of the good payloads in order; ``good``: their places in the batch; ``bad``: the others."""

    rows: pa.RecordBatch
    good: NDArray[np.int64]
    bad: tuple[Bad, ...] = ()


class Decoder(Protocol):
    """A picklable function from payloads to rows with fixed columns."""

    @property
    def fields(self) -> pa.Schema:
        """The columns it makes."""
        ...

    def decode(self, payloads: Sequence[bytes | None]) -> Decoded:
        """One row for each payload that has the declared form. None: there is no payload at all."""
        ...


def decode_exactly(
    count: int, fields: pa.Schema, parse: Callable[[int, int], pa.RecordBatch], owners: NDArray[np.int64] | None = None
) -> Decoded:
    """Decode ``count`` payloads, those in ``[begin, end)`` by ``parse(begin, end)``.

    ``parse`` gives one row for each or raises Undecodable or an error of Arrow; it must judge each payload alone.
    ``owners``, ascending: what each payload is a part of. Behind the first bad payload of an owner its others are not
    looked at: they are neither good nor bad. So each owner costs few parses, however many bad payloads it has.
    """
    parts: list[pa.RecordBatch] = []
    bad: list[Bad] = []
    skipped: list[NDArray[np.int64]] = []
    waiting, past = [(0, count)] if count else [], 0
    while waiting:
        begin, end = waiting.pop()
        begin = max(begin, past)
        if begin >= end:
            continue
        try:
            parts.append(_sound(parse(begin, end), end - begin))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, Undecodable) as error:
            if end - begin == 1:
                bad.append(Bad(begin, str(error)[:ERROR_CHARS_MAX]))
                if owners is not None:
                    past = int(np.searchsorted(owners, owners[begin], side="right"))
                    skipped.append(np.arange(begin + 1, past, dtype=np.int64))
            elif end - begin <= FEW:
                waiting += [(at, at + 1) for at in reversed(range(begin, end))]
            else:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
    apart = np.concatenate([np.asarray([each.index for each in bad], np.int64), *skipped])
    good = np.delete(np.arange(count, dtype=np.int64), apart)
    return Decoded(rows=combined(parts, fields), good=good, bad=tuple(bad))


def combined(parts: Sequence[pa.RecordBatch], fields: pa.Schema) -> pa.RecordBatch:
    """Batches of these columns as one."""
    if len(parts) == 1:
        return parts[0]
    return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], fields)  # type: ignore[attr-defined]  # missing in the stubs


def converted(columns: Sequence[ArrowArray], fields: pa.Schema) -> pa.RecordBatch:
    """The columns in the types of ``fields``. Raises an error of Arrow where a value does not fit."""
    arrays = [_cast(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def _cast(column: ArrowArray, kind: pa.DataType) -> ArrowArray:
    if column.type == kind:
        return column
    if pa.types.is_binary(column.type) and not pa.types.is_string(kind):
        column = column if pa.types.is_binary(kind) else pc.cast(column, pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None and pa.types.is_string(column.type):
        return _moments(column, kind)
    return cast_exactly(column, kind)


def _moments(texts: ArrowArray, kind: pa.DataType) -> ArrowArray:
    """Timestamps with a zone from texts: those that name no zone are in UTC."""
    zoned = pc.match_substring_regex(texts, r"[Zz]$|[T ].*[+-]\d\d(:?\d\d)?$")
    return cast_exactly(pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", "")), kind)


def _sound(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """The batch, if it has that many rows, valid text, and a value wherever one is required."""
    if batch.num_rows != count:
        raise Undecodable("this is more or less than one row")
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise Undecodable(f"column {field.name} must have a value")
        _check_years(field.name, column)
    batch.validate(full=True)
    return batch


def _check_years(name: str, column: ArrowArray) -> None:
    """Raise Undecodable for a day that Python, Spark and SQL do not have, as databases' are bad rows, too."""
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        seconds = pc.min_max(column.cast(pa.timestamp("s"), safe=False).cast(pa.int64()))
        if seconds["min"].is_valid and not _FIRST <= seconds["min"].as_py() <= seconds["max"].as_py() < _END:
            raise Undecodable(f"column {name} has a day outside the years 1 to 9999")
    elif pa.types.is_map(kind):
        begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()  # type: ignore[attr-defined]  # its type says what it is
        for each in (column.keys, column.items):  # type: ignore[attr-defined]  # as above
            _check_years(name, each.slice(begin, end - begin))
    elif pa.types.is_nested(kind):
        inside = column.flatten()  # type: ignore[attr-defined]  # as above
        for each in inside if pa.types.is_struct(kind) else [inside]:
            _check_years(name, each)
