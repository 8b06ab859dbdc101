"""Payloads of many schemas into the columns of one table, whichever was newest when they were read.

What a row is follows from its payload alone: the schema it names is what it was written with, and that of the table
only adds what was not written. A column that came later is null in all that was written without it, whatever default
it has: so a message read before the table grew, and read again afterwards, is the same row.
Source: Avro specification, schema resolution; sources.md section 3, decode.
"""

import contextlib
import functools
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from persist import InvalidArgument, Schema
from persist.arrow import ArrowArray, ArrowField
from persist.arrow.exact import cast_exactly
from persist.typed import Record
from persist_ingest.decode.avro_rows import AvroDecoder
from persist_ingest.decode.exact import Bad, Decoded, Decoder, combined
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.decode.protobuf_rows import File, ProtobufDecoder, protobuf_defaults
from persist_ingest.sources.kafka.schemas.json_schema import json_fields
from persist_ingest.sources.kafka.schemas.references import whole_avro, whole_json
from persist_ingest.sources.kafka.schemas.rest import PROTOBUF, Registered, Registry, UnknownSchema

HEADER_BYTES: Final = 5
_TYPES: Final = {"avro": "AVRO", "json": "JSON", "protobuf": PROTOBUF}
# Those that lose nothing.
_WIDER: Final = (
    (pa.types.is_int32, pa.types.is_int64),
    (pa.types.is_int32, pa.types.is_float64),
    (pa.types.is_float32, pa.types.is_float64),
    (pa.types.is_string, pa.types.is_binary),
)


class ColumnsGrew(Exception):
    """Messages have fields that the table has no columns for. ``fields``: those, nullable, as they are called there."""

    def __init__(self, fields: Sequence[ArrowField]) -> None:
        super().__init__("the messages have new fields")
        self.fields = tuple(fields)


class Incompatible(Exception):
    """Messages of a schema cannot be rows of the table; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredDecoder:
    """``fields``: the columns of the table that are payloads'. ``declared``: the schema that they began with.

    ``taken``: columns of the table that are not payloads'. ``message``: of Protobuf, the full name of what payloads
    are; empty: the first message of the schema.
    ``passed``: columns that another decoder fills, so that fields called so are none of these. ``fixed``: no columns
    may come, as they are a key. ``decode`` raises ColumnsGrew, Incompatible, LocationError.
    """

    registry: Registry
    format: str
    declared: Registered
    fields: pa.Schema
    message: str = ""
    taken: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    fixed: bool = False

    def decode(self, payloads: Sequence[bytes | None]) -> Decoded:
        ids = np.array([_number(payload) for payload in payloads], dtype=np.int64)
        bad = [
            Bad(int(at), "there is no header of a zero byte and a schema's number") for at in np.flatnonzero(ids < 0)
        ]
        parts: list[pa.RecordBatch] = []
        places: list[Any] = []
        for id in np.unique(ids[ids >= 0]):
            at = np.flatnonzero(ids == id)
            try:
                written = self._written(int(id))
            except UnknownSchema:
                bad += [Bad(int(each), f"the registry has no schema {id}") for each in at]
                continue
            decoded = written.decoder.decode([(payloads[each] or b"")[HEADER_BYTES:] for each in at.tolist()])
            bad += [Bad(int(at[each.index]), each.error) for each in decoded.bad]
            rows, missing = self._placed(decoded.rows, written)
            bad += [
                Bad(int(at[decoded.good[each]]), f"column {name} must have a value") for each, name in missing.items()
            ]
            kept = np.delete(np.arange(rows.num_rows), sorted(missing))
            parts.append(rows.take(pa.array(kept)).cast(self.fields) if missing else rows.cast(self.fields))
            places.append(at[decoded.good[kept]])
        good = np.concatenate(places) if places else np.array([], dtype=np.int64)
        order = np.argsort(good, kind="stable")
        rows = combined(parts, self.fields)
        if len(parts) > 1:
            rows = rows.take(pa.array(order))
        return Decoded(rows=rows, good=good[order], bad=tuple(sorted(bad, key=lambda each: each.index)))

    def _written(self, id: int) -> "Written":
        if not _is_same(self.registry, self.declared):
            raise Incompatible(
                f"the registry is another one than when the source was created: its schema {self.declared.id} is"
            )
        written = _written(self.registry, self.format, id, self.message)
        grown = []
        for each in written.decoder.fields:
            name = self._column(each.name)
            if name not in self.fields.names and name not in self.passed:
                grown.append(pa.field(name, each.type))
        if grown and self.fixed:
            raise Incompatible(f"schema {id} has another key: {', '.join(each.name for each in grown)}")
        if grown:
            raise ColumnsGrew(grown)
        return written

    def _column(self, name: str) -> str:
        """What a field is called in the table."""
        alike = {each.lower(): each for each in (*self.fields.names, *self.taken)}
        while is_reserved(name) or name in self.taken or alike.get(name.lower(), name) != name:
            name = f"_{name}"
        return name

    def _placed(self, rows: pa.RecordBatch, written: "Written") -> tuple[pa.RecordBatch, dict[int, str]]:
        """The rows in the columns of the table, all nullable, and which of them have no value where one must be."""
        there = {self._column(name): rows.column(at) for at, name in enumerate(rows.schema.names)}
        defaults = {
            self._column(name): value for name, value in _defaults(self.format, self.declared, self.message).items()
        }
        columns, missing = [], dict[int, str]()
        for each in self.fields:
            if each.name in there:
                column = _widened(there[each.name], each, written.id)
            elif each.name in defaults:
                column = pa.repeat(pa.scalar(defaults[each.name], each.type), rows.num_rows)
            elif each.nullable:
                column = pa.nulls(rows.num_rows, each.type)
            else:
                raise Incompatible(f"schema {written.id} has no field for column {each.name}, which has no default")
            if not each.nullable and column.null_count:
                missing.update(
                    dict.fromkeys(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist(), each.name)
                )
            columns.append(column)
        fields = pa.schema([each.with_nullable(True) for each in self.fields])
        return pa.RecordBatch.from_arrays(columns, schema=fields), missing


@dataclass(frozen=True, slots=True)
class Written:
    """How payloads of one schema are read."""

    id: int
    decoder: Decoder


def fields_of(format: str, registered: Registered, message: str = "") -> pa.Schema:
    """The columns of a schema. Raises InvalidArgument."""
    return _decoder(format, registered, message).fields


@functools.lru_cache(maxsize=4096)
def is_reserved(name: str) -> bool:
    """Whether shards have a column of that name themselves."""
    try:
        Schema({name: pa.int64()})
    except InvalidArgument:
        return True
    return False


def _number(payload: bytes | None) -> int:
    """The id in the header; -1: there is none."""
    if payload is None or len(payload) < HEADER_BYTES or payload[0]:
        return -1
    return int.from_bytes(payload[1:HEADER_BYTES])


def _decoder(format: str, registered: Registered, message: str) -> Decoder:
    if registered.type != _TYPES[format]:
        raise InvalidArgument(
            f"schema {registered.id} is of type {registered.type}", hint=f"format={registered.type.lower()}", got=format
        )
    if format == "protobuf":
        return _protobuf(registered, message)
    if format == "avro":
        return AvroDecoder(schema=whole_avro(registered.text, registered.parts))
    return JsonDecoder(json_fields(whole_json(registered.text, registered.parts)))


def _protobuf(registered: Registered, message: str) -> ProtobufDecoder:
    imported = tuple(File(part.name, part.text) for part in registered.parts)
    return ProtobufDecoder(
        file=File(f"schema-{registered.id}.proto", registered.text), imported=imported, message=message
    )


@functools.lru_cache(maxsize=256)
def _written(registry: Registry, format: str, id: int, message: str) -> Written:
    try:
        decoder = _decoder(format, registry.schema(id), message)
        _ = decoder.fields
    except InvalidArgument as cause:
        raise Incompatible(f"schema {id} cannot be read: {cause}") from cause
    return Written(id, decoder)


@functools.lru_cache(maxsize=256)
def _is_same(registry: Registry, declared: Registered) -> bool:
    """The registry has what it had when the source was created: ids of another one mean other things."""
    try:
        found = registry.schema(declared.id)
    except UnknownSchema:
        return False
    if found.type == PROTOBUF or found.type != declared.type:
        return found == declared
    texts = [[each.text, *(part.text for part in each.parts)] for each in (found, declared)]
    one, other = ([json.loads(text) for text in each] for each in texts)
    return one == other


@functools.lru_cache(maxsize=256)
def _defaults(format: str, declared: Registered, message: str) -> Mapping[str, object]:
    """What fields come to that were not written, in the schema that the table began with."""
    if format == "protobuf":
        return protobuf_defaults(_protobuf(declared, message))
    if format != "avro":
        return {}
    found: dict[str, object] = {}
    for each in json.loads(whole_avro(declared.text, declared.parts))["fields"]:
        if "default" in each:
            # Its type is named elsewhere: as if none.
            with contextlib.suppress(fastavro.schema.SchemaParseException, fastavro.schema.UnknownType):
                found[each["name"]] = _default(each)
    return found


def _default(declared: Mapping[str, object]) -> object:
    """The value of a default, which Avro writes as JSON: bytes as text of code points up to 255."""
    alone = fastavro.parse_schema({"type": "record", "name": "only", "fields": [dict(declared)]})
    empty = fastavro.parse_schema({"type": "record", "name": "only", "fields": []})
    record: Record = fastavro.schemaless_reader(io.BytesIO(b""), empty, alone)  # type: ignore[assignment]  # of one
    return record[str(declared["name"])]


def _widened(column: ArrowArray, wanted: ArrowField, id: int) -> ArrowArray:
    if column.type == wanted.type:
        return column
    if any(narrow(column.type) and wide(wanted.type) for narrow, wide in _WIDER):
        return cast_exactly(column, wanted.type)
    raise Incompatible(f"schema {id} has {column.type} for column {wanted.name}, which is {wanted.type}")
