"""The type ``cdcv2``: updates with their own times, and statements of how many there are of each time.

A message is ``{"array": [{"data": {…}, "time": 5, "diff": 1}, …]}``, or ``{"progress": {"lower": [0], "upper": [6],
"counts": [{"time": 5, "count": 1}]}}``; in Avro a union of that array and that record. No ``upper``: the end.
Source: the public documentation of the CDCv2 format; design 004, variants (External).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from persist import InvalidArgument, Schema
from persist.sources import CounterTimeline, SourceFrontier
from persist.typed import Fields, Json, Record
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.sources.brought.following import FollowedReader
from persist_ingest.sources.brought.messages import (
    PLACES,
    Connect,
    How,
    Message,
    Messages,
    Where,
    whole_numbers,
    without_settings,
)
from persist_ingest.sources.options import check_options, columns, listed, one_of, required
from persist_ingest.sources.port import ERRORS, BadRows, Beginning, Stated, StatedProgress
from persist_ingest.sources.renames import OPTION, Renames

_OPTIONS: Final = (*PLACES, "format", "schema", "avroSchema", "avroHeader", "key", "export", OPTION)
_PARTS: Final = ("data", "time", "diff")


class Cdcv2Reader(FollowedReader):
    """Follows messages of updates and progress."""

    def __init__(self, export: str, schema: Schema, messages: Messages, *, is_json: bool, renames: Renames) -> None:
        super().__init__(export, schema, messages)
        self._renames = renames
        self._fields = renames.upstream(pa.schema([*schema.key, *schema.val]))
        self._decoder = JsonDecoder(self._fields) if is_json else None

    @property
    def counter(self) -> CounterTimeline | None:
        return None

    def follow(self) -> Iterator[Stated | StatedProgress]:
        for message in self._messages.new():
            updates, progress = _parts(message)
            if progress is not None:
                yield _progress(progress, message.where)
            else:
                yield from self._stated(updates, message.where)

    def _stated(self, updates: Sequence[Json], where: str) -> Iterator[Stated]:
        for each in updates:
            if not isinstance(each, dict) or any(part not in each for part in _PARTS):
                raise BadRows("an update has data, time and diff", hint="correct it", at=where, got=str(each)[:200])
        times = whole_numbers([each["time"] for each in updates], where)
        for each, time, row in zip(updates, times, self._rows([each["data"] for each in updates], where), strict=True):
            diff = each["diff"]
            if not isinstance(diff, int) or isinstance(diff, bool) or not -(1 << 63) <= diff < 1 << 63:
                raise BadRows("a diff is a whole number", hint="correct it", at=where, got=str(diff)[:80])
            # The same row at the same time is the same update, said again.
            yield Stated(time, repr(row), ((self._renames.named(row), diff),))

    def _rows(self, data: Sequence[Json], where: str) -> list[Record]:
        if not data:
            return []
        try:
            if self._decoder is None:
                return pa.RecordBatch.from_pylist(list(data), schema=self._fields).to_pylist()
            decoded = self._decoder.decode([json.dumps(each).encode() for each in data])
        except (pa.ArrowException, TypeError, ValueError) as cause:
            raise BadRows("a row has not the declared columns", hint="correct it", at=where, cause=cause) from cause
        if decoded.bad:
            bad = decoded.bad[0]
            raise BadRows(
                f"a row has not the declared form: {bad.error}",
                hint="correct the declaration",
                at=where,
                payload=str(data[bad.index])[:200],
            )
        return decoded.rows.to_pylist()


class Cdcv2Type:
    """Options. ``path`` (a directory or ``s3://bucket/prefix``), or ``bootstrapServers`` and ``topic``.

    ``format``: json with ``schema``, columns such as ``id bigint not null, name string``, or avro with ``avroSchema``,
    that of the whole union. ``avroHeader``: confluent for payloads with a registry's header. ``key``: names of key
    columns. ``export``: the collection's name, ``rows`` by default. ``kafka.NAME``: a setting of librdkafka.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    @contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        given = check_options(without_settings(options), _OPTIONS, "a source of CDCv2")
        kind = one_of(given, "format", ("json", "avro"), "json")
        avro = required(given, "avroSchema", '[{"type": "array", …}, {"type": "record", …}]') if kind == "avro" else ""
        declared = avro_data(avro) if kind == "avro" else columns(required(given, "schema", "id bigint, name string"))
        required(given, "key", "id")
        renames = Renames.of(given)
        schema = renames.keyed(declared, listed(given, "key"))
        export = given.get("export") or "rows"
        if export == ERRORS:
            raise InvalidArgument("the export errors is for bad rows", hint="choose another name for export")
        where = Where.of(given, options, group=f"persist-{source}").found(self._connect)
        header = one_of(given, "avroHeader", ("none", "confluent"), "none") == "confluent"
        definition = {"where": where.to_json(), "format": kind, "avro": avro, "header": header, "export": export}
        definition["renames"] = renames.to_json()
        reader = self._reader(definition, schema)
        yield Beginning(definition=definition, reader=reader, bound=SourceFrontier.minimum(reader.kind))

    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> Cdcv2Reader:
        return self._reader(definition, schemas[definition["export"]])

    def drop(self, definition: Mapping[str, object]) -> None:
        """Nothing was set up."""

    def _reader(self, definition: Fields, schema: Schema) -> Cdcv2Reader:
        how = How(definition["format"], definition["avro"], definition["header"])
        # StatedProgress says what is missing, so what a topic threw away need not be there.
        messages = Where.from_json(definition["where"]).messages(self._connect, how, whole=False)
        return Cdcv2Reader(
            definition["export"],
            schema,
            messages,
            is_json=how.format == "json",
            renames=Renames.from_json(definition.get("renames")),
        )


def avro_data(schema: str) -> pa.Schema:
    """The columns of ``data`` in the schema of the union. Raises InvalidArgument."""
    from persist_ingest.decode.avro_rows import avro_fields

    try:
        declared = json.loads(schema)
        arrays = [each for each in declared if isinstance(each, dict) and each.get("type") == "array"]
        (data,) = [each["type"] for each in arrays[0]["items"]["fields"] if each["name"] == "data"]
    except (ValueError, KeyError, IndexError, TypeError) as cause:
        hint = "a union of an array of records with data, time and diff, and of a record progress"
        raise InvalidArgument("this is no Avro schema of CDCv2", hint=hint, got=schema[:80], cause=cause) from cause
    return avro_fields(json.dumps(data))


def _parts(message: Message) -> tuple[Sequence[object], object | None]:
    """The updates of a message, or its progress. Raises BadRows."""
    value = message.value
    if isinstance(value, list):
        return value, None
    if isinstance(value, dict):
        if isinstance(value.get("array"), list):
            return value["array"], None
        for name, inner in value.items():
            # Avro's JSON calls a record of a union by its full name.
            if name.rpartition(".")[2] == "progress":
                return (), inner
        if {"lower", "upper", "counts"} <= set(value):
            return (), value
    raise BadRows("this is neither updates nor progress", hint="correct it", at=message.where, got=str(value)[:200])


def _progress(said: object, where: str) -> StatedProgress:
    if not isinstance(said, dict) or not all(isinstance(said.get(each), list) for each in ("lower", "upper", "counts")):
        raise BadRows("progress has lower, upper and counts", hint="correct it", at=where, got=str(said)[:200])
    lower, upper = whole_numbers(said["lower"], where), whole_numbers(said["upper"], where)
    if len(lower) > 1 or len(upper) > 1 or (lower and upper and lower[0] > upper[0]):
        raise BadRows("lower and upper are one time each", hint="correct it", at=where, got=str(said)[:200])
    counts: dict[int, int] = {}
    for each in said["counts"]:
        if not isinstance(each, dict) or "time" not in each or "count" not in each:
            raise BadRows("a count is of a time", hint="correct it", at=where, got=str(each)[:200])
        time, count = whole_numbers([each["time"], each["count"]], where)
        counts[time] = count
    if not lower:
        return StatedProgress(0, 0, {})  # after the end there is nothing to say
    inside = {time: count for time, count in counts.items() if time >= lower[0] and (not upper or time < upper[0])}
    return StatedProgress(lower[0], upper[0] if upper else None, inside)
