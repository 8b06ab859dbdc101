"""What messages mean: rows that are added, the newest value of a key, or changes with the row before and after.

Source: sources.md sections 3 and 4; Debezium documentation, data change events.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persist.arrow import ArrowArray, ArrowField, array_of
from persist_ingest.decode.exact import Bad, Decoder, Undecodable, converted, decode_exactly
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.sources.kafka.cluster import Fetched

Places: TypeAlias = NDArray[np.int64]

INCLUDED: Final = {
    "partition": pa.field("partition", pa.int32(), nullable=False),
    "offset": pa.field("offset", pa.int64(), nullable=False),
    "timestamp": pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
    "headers": pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    "key": pa.field("key", pa.binary()),
}
"""Columns that can be had besides those in the payload."""
UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What Debezium sends for a large value that is as it was, unless it was configured otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What some messages say. ``places``: of the message of each row; ``signs``: diffs, or present for upserts."""

    columns: dict[str, ArrowArray]
    places: Places
    signs: ArrowArray
    bad: tuple[Bad, ...]


class Envelope(Protocol):
    """A picklable way to read messages. ``upserts`` says what its signs are."""

    @property
    def fields(self) -> pa.Schema:
        """The columns it makes of payloads."""
        ...

    @property
    def upserts(self) -> bool:
        """Rows are the newest values of their keys."""
        ...

    def meaning(self, fetched: Fetched) -> Meaning:
        """Of all the messages, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Added:
    """Every message is a row."""

    values: Decoder

    @property
    def fields(self) -> pa.Schema:
        return self.values.fields

    @property
    def upserts(self) -> bool:
        return False

    def meaning(self, fetched: Fetched) -> Meaning:
        decoded = self.values.decode(fetched.values)
        signs = pa.array(np.ones(len(decoded.good), np.int64))
        return Meaning(columns=_named(decoded.rows), places=decoded.good, signs=signs, bad=decoded.bad)


@dataclass(frozen=True, slots=True)
class Upserted:
    """The key of a message says which row, its value what the row is now; no value: there is none any more."""

    keys: Decoder
    values: Decoder

    @property
    def fields(self) -> pa.Schema:
        return pa.schema([*self.keys.fields, *self._val])

    @property
    def upserts(self) -> bool:
        return True

    @property
    def _val(self) -> pa.Schema:
        """A field of the value that is named like one of the key is the key's."""
        kept = [each for each in self.values.fields if each.name not in self.keys.fields.names]
        return pa.schema([pa.field(each.name, each.type) for each in kept])

    def meaning(self, fetched: Fetched) -> Meaning:
        count = len(fetched.offsets)
        live = np.array([at for at, value in enumerate(fetched.values) if value is not None], dtype=np.int64)
        keyed = self.keys.decode(fetched.keys)
        valued = self.values.decode([value for value in fetched.values if value is not None])
        bad = {int(live[each.index]): each.error for each in valued.bad}
        bad |= {each.index: f"key: {each.error}" for each in keyed.bad}
        kept = np.delete(np.arange(count, dtype=np.int64), sorted(bad))
        key_rows = keyed.rows.take(array_of(_ranks(keyed.good, count)[kept]))
        ranks = _ranks(live[valued.good], count)[kept]
        present = ranks >= 0
        value_rows = valued.rows.take(array_of(ranks, mask=~present))
        columns = {**{name: _named(value_rows)[name] for name in self._val.names}, **_named(key_rows)}
        wrong = tuple(Bad(at, error) for at, error in sorted(bad.items()))
        return Meaning(columns=columns, places=kept, signs=pa.array(present), bad=wrong)


@dataclass(frozen=True, slots=True)
class Debezium:
    """JSON with ``before``, ``after`` and ``op``, alone or in ``payload``. A message without a value says nothing.

    Updates and deletions must carry the whole row before (REPLICA IDENTITY FULL, or the like of it).
    """

    fields: pa.Schema

    @property
    def upserts(self) -> bool:
        return False

    def meaning(self, fetched: Fetched) -> Meaning:
        live = np.array([at for at, value in enumerate(fetched.values) if value is not None], dtype=np.int64)
        payloads = [value for value in fetched.values if value is not None]
        read = JsonDecoder(_envelope(self.fields)).decode(payloads)
        checked = decode_exactly(read.rows.num_rows, _images(self.fields), _slices(read.rows, self._images))
        good = live[read.good[checked.good]]
        bad = [(int(live[each.index]), each.error) for each in read.bad]
        bad += [(int(live[read.good[each.index]]), each.error) for each in checked.bad]
        before, after = (_arms(checked.rows, arm) for arm in (0, 1))
        order = np.argsort(np.concatenate([np.flatnonzero(arm[0]) for arm in (before, after)]), kind="stable")
        places = np.concatenate([good[np.flatnonzero(arm[0])] for arm in (before, after)])[order]
        signs = np.repeat(np.array([-1, 1]), [int(arm[0].sum()) for arm in (before, after)])[order]
        columns = {
            each.name: pa.concat_arrays([arm[1][at].filter(pa.array(arm[0])) for arm in (before, after)]).take(
                array_of(order)
            )
            for at, each in enumerate(self.fields)
        }
        wrong = tuple(Bad(at, error) for at, error in sorted(bad))
        return Meaning(columns=columns, places=places, signs=pa.array(signs, pa.int64()), bad=wrong)

    def _images(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Each change as whether there is a row before, that row, whether there is one after, and that one."""
        before, after, op = _change(rows)
        _check_ops(op, after)
        if pc.any(pc.and_(pc.is_in(op, pa.array(("u", "d"))), before.is_null())).as_py():
            raise Undecodable("the row before is missing: let the connector send it (REPLICA IDENTITY FULL)")
        arrays: list[ArrowArray] = []
        for image, ops in ((before, ("u", "d")), (after, ("c", "r", "u"))):
            there = pc.is_in(op, pa.array(ops))
            inside = image.flatten()  # type: ignore[attr-defined]  # its type says what it is
            cells = converted([pc.if_else(there, each, None) for each in inside], self.fields)
            for field, column in zip(self.fields, cells.columns, strict=True):
                if not field.nullable and pc.any(pc.and_(there, column.is_null())).as_py():
                    raise Undecodable(f"column {field.name} must have a value")
            arrays += [there, *cells.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=_images(self.fields))


@dataclass(frozen=True, slots=True)
class DebeziumUpserted:
    """As ``Debezium``, where rows before are not sent: ``after`` is what the row of its key is now.

    ``key``: columns of the row. A deletion has them in ``before``, or its message in its own key.
    """

    fields: pa.Schema
    key: tuple[str, ...]

    @property
    def upserts(self) -> bool:
        return True

    def meaning(self, fetched: Fetched) -> Meaning:
        live = np.array([at for at, value in enumerate(fetched.values) if value is not None], dtype=np.int64)
        read = JsonDecoder(_envelope(self.fields)).decode([value for value in fetched.values if value is not None])
        before, after, op = _change(read.rows)
        # Of others it does not matter, and it may be no JSON at all.
        alone = pc.and_(pc.fill_null(pc.equal(op, "d"), False), before.is_null()).to_numpy(zero_copy_only=False)
        keys = self._keys(
            [fetched.keys[at] if is_it else None for at, is_it in zip(live[read.good], alone, strict=True)]
        )
        rows = pa.record_batch([before, after, op, *keys], names=["before", "after", "op", *self.key])
        newest = pa.schema([pa.field("present", pa.bool_()), *self._loose])
        checked = decode_exactly(rows.num_rows, newest, _slices(rows, self._newest))
        bad = [(int(live[each.index]), each.error) for each in read.bad]
        bad += [(int(live[read.good[each.index]]), each.error) for each in checked.bad]
        present, *columns = checked.rows.columns
        return Meaning(
            columns=dict(zip(self.fields.names, columns, strict=True)),
            places=live[read.good[checked.good]],
            signs=present,
            bad=tuple(Bad(at, error) for at, error in sorted(bad)),
        )

    @property
    def _loose(self) -> pa.Schema:
        """The columns, of which a row that is gone has the key alone."""
        return pa.schema([each if each.name in self.key else each.with_nullable(True) for each in self.fields])

    def _keys(self, payloads: Sequence[bytes | None]) -> list[ArrowArray]:
        """What messages' keys say, alone or in ``payload``; null where they are none."""
        fields = pa.schema([_textual(self.fields.field(name)) for name in self.key])
        wrapped = pa.schema([pa.field("payload", pa.struct(list(fields))), *fields])
        decoded = JsonDecoder(wrapped).decode([payload or b"{}" for payload in payloads])
        ranks = _ranks(decoded.good, len(payloads))
        inner, *bare = decoded.rows.take(array_of(ranks, mask=ranks < 0)).columns
        nested = inner.flatten()  # type: ignore[attr-defined]  # its type says what it is
        return [pc.coalesce(each, mine) for each, mine in zip(bare, nested, strict=True)]

    def _newest(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        before, after, op, *keys = rows.columns
        _check_ops(op, after)
        is_gone = pc.equal(op, "d")
        said = dict(zip(self.key, keys, strict=True))
        cells = []
        for field, old, new in zip(self.fields, before.flatten(), after.flatten(), strict=True):  # type: ignore[attr-defined]  # its type says what it is
            gone = pc.coalesce(old, said[field.name]) if field.name in said else pa.nulls(len(rows), new.type)
            cells.append(pc.if_else(is_gone, gone, new))
            if pa.types.is_string(new.type) and pc.any(pc.equal(cells[-1], UNAVAILABLE)).as_py():
                raise Undecodable(f"column {field.name} was not sent again: let the connector send whole rows")
        found = converted(cells, self._loose)
        for field, column in zip(self.fields, found.columns, strict=True):
            required = column.is_null() if field.name in said else pc.and_(column.is_null(), pc.invert(is_gone))
            if (field.name in said or not field.nullable) and pc.any(required).as_py():
                raise Undecodable(f"column {field.name} must have a value")
        return pa.RecordBatch.from_arrays([pc.invert(is_gone), *found.columns], names=["present", *self.fields.names])


def _change(rows: pa.RecordBatch) -> tuple[ArrowArray, ArrowArray, ArrowArray]:
    """``before``, ``after`` and ``op`` of each message, whether they are in ``payload`` or not."""
    wrapped, *bare = rows.columns
    inner = wrapped.flatten()  # type: ignore[attr-defined]  # its type says what it is
    before, after, op = (pc.if_else(wrapped.is_valid(), mine, its) for mine, its in zip(inner, bare, strict=True))
    return before, after, op


def _check_ops(op: ArrowArray, after: ArrowArray) -> None:
    """Each is known, and has the row that it comes to."""
    known = pc.fill_null(pc.is_in(op, pa.array(("c", "r", "u", "d"))), False)
    if not pc.all(known).as_py():
        raise Undecodable(f"there is no such op: {op.filter(pc.invert(known))[0].as_py()}")
    if pc.any(pc.and_(pc.not_equal(op, "d"), after.is_null())).as_py():
        raise Undecodable("the row after is missing")


def _envelope(fields: pa.Schema) -> pa.Schema:
    """What is read of a message: nested dates and times are texts at first, decimals too."""
    row = pa.struct([_textual(each) for each in fields])
    change = [pa.field("before", row), pa.field("after", row), pa.field("op", pa.string())]
    return pa.schema([pa.field("payload", pa.struct(change)), *change])


def _textual(field: ArrowField) -> ArrowField:
    kinds = (pa.types.is_date, pa.types.is_timestamp, pa.types.is_time)
    return pa.field(field.name, pa.string() if any(is_(field.type) for is_ in kinds) else field.type)


def _images(fields: pa.Schema) -> pa.Schema:
    cells = [[pa.field(f"{arm}.{each.name}", each.type) for each in fields] for arm in ("before", "after")]
    return pa.schema([pa.field("before", pa.bool_()), *cells[0], pa.field("after", pa.bool_()), *cells[1]])


def _arms(images: pa.RecordBatch, arm: int) -> tuple[Any, Sequence[ArrowArray]]:
    width = images.num_columns // 2
    there, *cells = images.columns[arm * width : (arm + 1) * width]
    return there.to_numpy(zero_copy_only=False).astype(bool), cells


def _slices(rows: pa.RecordBatch, read: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Callable[[int, int], Any]:
    return lambda begin, end: read(rows.slice(begin, end - begin))


def _ranks(places: Places, count: int) -> Places:
    """For each of ``count`` places its position in ``places``, -1 when it is not there."""
    ranks = np.full(count, -1, dtype=np.int64)
    ranks[places] = np.arange(len(places), dtype=np.int64)
    return ranks


def _named(rows: pa.RecordBatch) -> dict[str, ArrowArray]:
    return dict(zip(rows.schema.names, rows.columns, strict=True))


def included(name: str, fetched: Fetched, places: Places) -> ArrowArray:
    """A column of INCLUDED for the messages at these places."""
    kind = INCLUDED[name].type
    if name == "partition":
        return pa.array(np.full(len(places), fetched.partition, np.int32))
    if name == "offset":
        return pa.array(np.asarray(fetched.offsets, dtype=np.int64)[places])
    if name == "timestamp":
        moments = np.asarray(fetched.timestamps, dtype=np.int64)[places]
        return pa.array(moments, pa.int64(), mask=moments < 0).view(kind)
    if name == "key":
        return pa.array([fetched.keys[at] for at in places], kind)
    headers = [fetched.headers[at] for at in places]
    named = [each and [{"name": key, "value": value} for key, value in each] for each in headers]
    return pa.array(named, kind)
