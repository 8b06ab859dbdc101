"""Avro datums without a registry: every payload is of the one declared schema.

fastavro decodes, and nothing else even where that would be faster: what a message means must not depend on which
packages a machine has.
Source: sources.md section 3, decode.
"""

import decimal
import functools
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import fastavro
import numpy as np
import pyarrow as pa

from persist import InvalidArgument
from persist.arrow import ArrowField
from persist.typed import Json, Record
from persist_ingest.decode.exact import ERROR_CHARS_MAX, Bad, Decoded, decode_exactly

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
}
_HEADER_BYTES: Final = 5
_DATUM: Final = "datum"
_BOUNDED: Final = "persist-decimal"
_DECIMAL: Final = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
DECIMAL_BYTES_MAX: Final = 256
"""Of a decimal's number; 16 have 38 digits, and more may be before them in a fixed that is wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroDecoder:
    """``schema``: JSON text of a record. ``header``: payloads begin with a zero byte and four of a schema's number.

    ``only``: with a header, the number they must show, as datums of another schema could be misread; None for any.
    """

    schema: str
    header: bool = False
    only: int | None = None

    @property
    def fields(self) -> pa.Schema:
        return avro_fields(self.schema)

    def decode(self, payloads: Sequence[bytes | None]) -> Decoded:
        records: list[Record] = []
        kept: list[int] = []
        bad: list[Bad] = []
        for index, payload in enumerate(payloads):
            try:
                records.append(self._record(payload or b""))
                kept.append(index)
            except Exception as error:  # fastavro raises whatever it stumbles over: IndexError, EOFError, struct.error
                bad.append(Bad(index, f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]))
        fields = self.fields

        def parse(begin: int, end: int) -> pa.RecordBatch:
            return pa.RecordBatch.from_pylist(records[begin:end], schema=fields)

        decoded = decode_exactly(len(records), fields, parse)
        bad += [Bad(kept[each.index], each.error) for each in decoded.bad]
        good = np.array(kept, dtype=np.int64)[decoded.good]
        return Decoded(rows=decoded.rows, good=good, bad=tuple(sorted(bad, key=lambda each: each.index)))

    def _record(self, payload: bytes) -> Record:
        if self.header:
            if len(payload) < _HEADER_BYTES or payload[0]:
                raise ValueError("there is no header of a zero byte and a schema's number")
            number = int.from_bytes(payload[1:_HEADER_BYTES])
            if self.only is not None and number != self.only:
                raise ValueError(f"this is of schema {number}, not {self.only}")
            payload = payload[_HEADER_BYTES:]
        stream = io.BytesIO(payload)
        record = datum(stream, _plain(self.schema))
        if stream.tell() != len(payload):
            raise ValueError("bytes are left over")
        if not isinstance(record, dict):
            raise ValueError("this is no record")
        return record


@functools.lru_cache(maxsize=64)
def avro_fields(schema: str) -> pa.Schema:
    """The columns of a record's schema. Raises InvalidArgument for what is no record or has no columns."""
    try:
        declared = json.loads(schema)
        parsed(_plain(schema))
    except InvalidArgument:
        raise
    except Exception as cause:  # as above
        raise InvalidArgument("this is no Avro schema", hint="give its JSON text", cause=cause) from cause
    if not isinstance(declared, dict) or declared.get("type") != "record" or not declared.get("fields"):
        raise InvalidArgument("the Avro schema must be of a record with fields", got=schema[:80])
    named: dict[str, pa.DataType] = {}
    return pa.schema([_field(each["name"], each["type"], named) for each in declared["fields"]])


@functools.lru_cache(maxsize=64)
def _plain(schema: str) -> str:
    return json.dumps(_texts(json.loads(schema)))


@functools.lru_cache(maxsize=64)
def parsed(schema: str) -> Json:
    """A schema as fastavro has it, bounded, of a record as ``datum`` reads it. Raises InvalidArgument, and as fastavro
    does.
    """
    # SUBTLE: one that is a union would be parsed anew by each read, and loses what was done to it.
    found = fastavro.parse_schema(
        {"type": "record", "name": "persist_datum", "fields": [{"name": _DATUM, "type": json.loads(schema)}]}
    )
    bound(found)
    _counted(found)
    return found


def datum(stream: io.BytesIO, schema: str) -> object:
    """The next datum of a schema, as JSON text. Raises whatever fastavro stumbles over."""
    record: Json = fastavro.schemaless_reader(stream, parsed(schema), None)
    return record[_DATUM]


class _Branches(list[object]):
    """Those of a union, of which none is counted from the end: fastavro takes -1 of a message for the last one."""

    def __getitem__(self, index: int) -> object:  # type: ignore[override]  # no slices are taken
        if index < 0:
            raise ValueError(f"a union has no branch {index}")
        return super().__getitem__(index)

    def __len__(self) -> int:
        # SUBTLE: compiled, its reader looks an index up by the sequence protocol, which adds this to a negative one.
        return 0


def _counted(schema: object) -> object:
    """A schema that fastavro has parsed, so that messages with negative numbers of branches or symbols are errors."""
    if isinstance(schema, list):
        return _Branches([_counted(each) for each in schema])
    if isinstance(schema, dict):
        for name in ("type", "items", "values"):
            if isinstance(schema.get(name), list | dict):
                schema[name] = _counted(schema[name])
        for each in schema.get("fields", ()):
            _counted(each)
        if isinstance(schema.get("symbols"), list):
            schema["symbols"] = dict(enumerate(schema["symbols"]))
    return schema


def _texts(declared: object) -> object:
    """The same with uuids as the texts that they are written as."""
    if isinstance(declared, list):
        return [_texts(each) for each in declared]
    if not isinstance(declared, dict):
        return declared
    is_text = declared.get("logicalType") == "uuid" and declared.get("type") == "string"
    return {name: _texts(each) for name, each in declared.items() if not (is_text and name == "logicalType")}


def bound(schema: object) -> None:
    """Have what messages come to, and the time that this takes, be bounded by their bytes. Raises InvalidArgument.

    So no type is inside itself, and items of arrays take bytes: otherwise a few bytes have as many as they say; and
    decimals have no more bytes than any of 38 digits, as their time is quadratic. Whatever the schema.
    ``schema``: as fastavro has parsed it, so that names are whole; it is changed.
    """
    _check(schema, (), {})


def _decimal(number: bytes, schema: Mapping[str, object] | None, _: object = None) -> decimal.Decimal:
    """As fastavro's own, but for the bound; and digits beyond the precision are not rounded, but left to be refused."""
    if len(number) > DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal has {len(number):,} bytes")
    whole = decimal.Decimal(int.from_bytes(number, signed=True))
    scale = (schema or {}).get("scale", 0)
    return whole.scaleb(-scale if isinstance(scale, int) else 0, _DECIMAL)


for _kind in ("bytes", "fixed"):
    fastavro.read.LOGICAL_READERS[f"{_kind}-{_BOUNDED}"] = _decimal


def _check(schema: object, within: tuple[str, ...], named: dict[str, bool]) -> bool:
    """As ``bound``; whether each value takes bytes. ``named``: the same of types by their names."""
    if isinstance(schema, list):
        # Which of them it is takes one.
        return bool([_check(each, within, named) for each in schema])
    if isinstance(schema, str):
        if schema in within:
            raise InvalidArgument("an Avro type is inside itself", hint="such messages are not read", type=schema)
        return named.get(schema, schema != "null")
    if not isinstance(schema, dict):
        raise InvalidArgument("this is no Avro schema", hint="give its JSON text", got=str(schema)[:80])
    kind, inside = schema["type"], (*within, schema["name"]) if "name" in schema else within
    if schema.get("logicalType") == "decimal":
        schema["logicalType"] = _BOUNDED
    if kind == "array":
        if not _check(schema["items"], inside, named):
            raise InvalidArgument("items of an Avro array must take bytes", hint="such messages are not read")
        return True
    if kind == "map":
        _check(schema["values"], inside, named)
        return True
    if kind in ("record", "error"):
        takes = any([_check(each["type"], inside, named) for each in schema["fields"]])
    elif kind == "fixed":
        takes = bool(schema["size"] > 0)
    else:
        takes = _check(kind, inside, named)
    if "name" in schema:
        named[schema["name"]] = takes
    return takes


def _field(name: str, declared: Json, named: dict[str, pa.DataType]) -> ArrowField:
    if not isinstance(declared, list):
        return pa.field(name, _type(declared, named), nullable=False)
    kinds = [each for each in declared if each != "null"]
    if len(kinds) != 1:
        raise InvalidArgument("a union can only be of null and one type", hint="split it", column=name)
    return pa.field(name, _type(kinds[0], named), nullable="null" in declared)


def _type(declared: Json, named: dict[str, pa.DataType]) -> pa.DataType:
    spec = declared if isinstance(declared, dict) else {"type": declared}
    kind = spec["type"]
    if isinstance(kind, dict):
        return _type(kind, named)
    logical = spec.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(spec["precision"], spec.get("scale", 0))
    if logical == "uuid" and kind == "string":
        return pa.string()
    if isinstance(logical, str) and logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "array":
        return pa.list_(_field("element", spec["items"], named).with_nullable(True))
    if kind == "map":
        return pa.map_(pa.string(), _field("value", spec["values"], named).type)
    found = named.get(kind) or _PLAIN.get(kind) if logical is None else None
    if kind == "record":
        found = pa.struct([_field(each["name"], each["type"], named) for each in spec["fields"]])
    if found is None:
        raise InvalidArgument("an Avro type has no column type", hint="read it as bytes", got=json.dumps(declared)[:80])
    if "name" in spec:
        named[spec["name"]] = found
    return found
