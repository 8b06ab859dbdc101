"""Codecs: a user's keys and vals as Arrow columns and back; and the eight bytes of a time or a diff.

Codecs see Python objects row by row, at the edge only; everything behind them is Arrow. What an older release encoded
stays decodable. Source: design 001, Codec; architecture.md section 4.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import pyarrow as pa

from persist.arrow import ArrowArray, ArrowField
from persist.errors import CodecMismatch, CorruptData, InvalidArgument
from persist.typed import Json

KeyVal = tuple[Any, Any]


@runtime_checkable
class Codec(Protocol):
    """Maps (key, val) objects to the columns ``key`` and ``val``. Picklable where handles are to be pickled.

    ``name`` is kept with the shard, so it must never change its meaning: equal objects encode to equal rows for ever,
    and rows encoded long ago stay decodable.
    """

    @property
    def name(self) -> str:
        """Stable name, such as ``json``."""
        ...

    @property
    def key(self) -> pa.Schema:
        """Columns of the key."""
        ...

    @property
    def val(self) -> pa.Schema:
        """Columns of the val."""
        ...

    def encode(self, rows: Iterable[KeyVal]) -> pa.Table:
        """A table of the key and val columns, one row each. Raises InvalidArgument for an object it cannot take."""
        ...

    def decode(self, table: pa.Table) -> Iterator[KeyVal]:
        """The objects of each row of a table with (at least) the key and val columns."""
        ...


class ArrowCodec:
    """Keys and vals are dicts from column names to values. A missing name is a null."""

    name: Final = "arrow"

    def __init__(self, key: pa.Schema, val: pa.Schema) -> None:
        self.key = key
        self.val = val

    def encode(self, rows: Iterable[KeyVal]) -> pa.Table:
        """One column per field. Raises InvalidArgument naming the column for unknown names and unfit values."""
        pairs = list(rows)
        arrays = self._columns([key for key, _ in pairs], self.key) + self._columns([val for _, val in pairs], self.val)
        return pa.Table.from_arrays(arrays, schema=pa.schema([*self.key, *self.val]))

    def decode(self, table: pa.Table) -> Iterator[KeyVal]:
        """A dict for the key and one for the val."""
        keys, vals = table.select(self.key.names).to_pylist(), table.select(self.val.names).to_pylist()
        # A table without columns has no rows to list.
        return zip(keys, vals if len(self.val) else ({} for _ in keys), strict=True)

    def _columns(self, items: list[Json], fields: pa.Schema) -> list[ArrowArray]:
        known = set(fields.names)
        for item in items:
            if not isinstance(item, Mapping):
                if item is None and not known:
                    continue
                raise InvalidArgument(
                    "a key or val must be a dict", hint=f"with {sorted(known)}", got=type(item).__name__
                )
            if not known.issuperset(item):
                unknown = sorted(map(str, set(item) - known))
                raise InvalidArgument("no such column", hint=f"the columns are {sorted(known)}", got=unknown)
        return [_array([item.get(field.name) for item in items], field) for field in fields]


class JsonCodec:
    """Keys and vals are anything JSON can say, stored as one string column each, names sorted, without blanks."""

    name: Final = "json"
    key: Final = pa.schema([pa.field("key", pa.string(), nullable=False)])
    val: Final = pa.schema([pa.field("val", pa.string(), nullable=False)])

    def encode(self, rows: Iterable[KeyVal]) -> pa.Table:
        """Two string columns. Raises InvalidArgument for what JSON has no form for (NaN included)."""
        texts = [(_to_json(key), _to_json(val)) for key, val in rows]
        columns = [pa.array([pair[at] for pair in texts], pa.string()) for at in (0, 1)]
        return pa.Table.from_arrays(columns, schema=pa.schema([*self.key, *self.val]))

    def decode(self, table: pa.Table) -> Iterator[KeyVal]:
        """The objects. Raises CorruptData when a row holds no JSON."""
        for key, val in zip(table.column("key").to_pylist(), table.column("val").to_pylist(), strict=True):
            try:
                yield json.loads(key), json.loads(val)  # type: ignore[arg-type]  # no nulls here
            except ValueError as error:
                raise CorruptData("a stored row is not JSON", hint="it was written by another codec") from error


class BytesCodec:
    """Keys and vals are bytes, stored as they are."""

    name: Final = "bytes"
    key: Final = pa.schema([pa.field("key", pa.binary(), nullable=False)])
    val: Final = pa.schema([pa.field("val", pa.binary(), nullable=False)])

    def encode(self, rows: Iterable[KeyVal]) -> pa.Table:
        """Two binary columns. Raises InvalidArgument for anything but bytes."""
        pairs = list(rows)
        for item in (item for pair in pairs for item in pair):
            if not isinstance(item, bytes):
                raise InvalidArgument("a key or val must be bytes", hint="encode it first", got=type(item).__name__)
        columns = [pa.array([pair[at] for pair in pairs], pa.binary()) for at in (0, 1)]
        return pa.Table.from_arrays(columns, schema=pa.schema([*self.key, *self.val]))

    def decode(self, table: pa.Table) -> Iterator[KeyVal]:
        """The bytes."""
        return zip(table.column("key").to_pylist(), table.column("val").to_pylist(), strict=True)


class UnknownCodec:
    """Stands in for a user's codec where only columns matter; refuses to touch objects."""

    def __init__(self, name: str, key: pa.Schema, val: pa.Schema) -> None:
        self.name = name
        self.key = key
        self.val = val

    def encode(self, rows: Iterable[KeyVal]) -> pa.Table:
        """Raises CodecMismatch."""
        raise self._error()

    def decode(self, table: pa.Table) -> Iterator[KeyVal]:
        """Raises CodecMismatch."""
        raise self._error()

    def _error(self) -> CodecMismatch:
        return CodecMismatch("the shard's codec is not known here", hint="pass it with the schema", codec=self.name)


def built_in(name: str, key: pa.Schema, val: pa.Schema) -> Codec | None:
    """The codec of this library with that name; None when the name is a user's."""
    if name == ArrowCodec.name:
        return ArrowCodec(key, val)
    codecs: dict[str, Codec] = {JsonCodec.name: JsonCodec(), BytesCodec.name: BytesCodec()}
    return codecs.get(name)


class Codec64:
    """Times (u64) and diffs (i64) as 8 bytes, little-endian."""

    @staticmethod
    def encode_time(time: int) -> bytes:
        """Raises InvalidArgument outside [0, 2^64)."""
        return _pack("<Q", time)

    @staticmethod
    def decode_time(data: bytes) -> int:
        """Raises InvalidArgument unless given 8 bytes."""
        return _unpack("<Q", data)

    @staticmethod
    def encode_diff(diff: int) -> bytes:
        """Raises InvalidArgument outside [-2^63, 2^63)."""
        return _pack("<q", diff)

    @staticmethod
    def decode_diff(data: bytes) -> int:
        """Raises InvalidArgument unless given 8 bytes."""
        return _unpack("<q", data)


def _pack(form: str, value: int) -> bytes:
    try:
        return struct.pack(form, value)
    except struct.error as error:
        raise InvalidArgument("does not fit 64 bits", hint="times are u64, diffs i64", got=repr(value)) from error


def _unpack(form: str, data: bytes) -> int:
    if len(data) != 8:
        raise InvalidArgument("a time or diff takes 8 bytes", got=len(data))
    return int(struct.unpack(form, data)[0])


def _array(values: list[Json], field: ArrowField) -> ArrowArray:
    try:
        array = pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            "a value does not fit its column", hint=f"expected {field.type}", column=field.name, reason=str(error)[:200]
        ) from error
    if array.null_count and not field.nullable:
        raise InvalidArgument("a value is missing", hint="the column is not nullable", column=field.name)
    return array


def _to_json(item: object) -> str:
    try:
        text = json.dumps(item, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            "JSON has no form for this", hint="use text, numbers, lists, dicts", got=repr(item)[:80]
        ) from error
    return text
