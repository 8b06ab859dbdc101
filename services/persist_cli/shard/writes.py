"""What ``persist shard append`` does, given a client."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from persist import Appended, Schema, WriterId
from persist.arrow import ArrowArray
from persist.core.names import id_or_name
from persist.errors import InvalidArgument, InvalidBounds, ShardClosed, ShardNotFound, UsageError
from persist.runtime import system
from persist_cli.shard import rows_in as tables_in
from persist_cli.shard.texts import Rows
from persist_cli.terminal import counted, frontier, note, print_json, progress
from persist_cli.times import dated_frontier

if TYPE_CHECKING:
    import persist


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFile:
    """What to append and when. ``time`` None: the ``ts`` column says, or the clock if there is none."""

    shard: str
    file: tables_in.File
    key: tuple[str, ...]
    val: tuple[str, ...]
    time: int | None
    diff: int | None
    new_upper: int | None


def check_new(request: AppendFile) -> None:
    """Before a location is made: this file makes a shard. Raises UsageError. Standard input is not looked at."""
    id_or_name(request.shard)
    if request.file.source != tables_in.STANDARD_INPUT:
        _new_schema(request, _first(_read(request, None), request).batch.schema)


def append(client: "persist.Client", request: AppendFile, *, timeout: float, json: bool) -> None:
    """Append all rows of a file in one commit and say where they went. Nothing is appended when it fails."""
    shard = client.named(request.shard, create=True, timeout=timeout)
    known = _registered(client, shard, timeout)
    if known is not None:
        _check_key(request, known)
    batches = _read(request, known)
    first = _first(batches, request)
    schema = known or _new_schema(request, first.batch.schema)
    # The shard is made, if it is new, once every row was read.
    writer_id = WriterId.born(system().now_ms(), system().random_bytes(16))
    builder = client.batch_spec(shard, schema, writer_id=writer_id, timeout=timeout).open()
    try:
        with progress("appending") as done:
            for batch in _all(first, batches):
                placed = Rows(_placed(batch.batch, request), batch.line_of)
                whole = tables_in.conform(placed, schema.updates)
                tables_in.check_updates(whole, schema.updates)
                builder.add(whole.batch)
                done(whole.batch.num_rows)
        prepared = builder.finish()
    except BaseException:
        builder.discard()
        raise
    writer = client.open_writer(shard, schema=schema, writer_id=writer_id, timeout=timeout)
    prepared = prepared.registered(writer.batch_spec().schema_id)
    timeless = tables_in.TIME not in first.batch.schema.names
    outcome = _commit(writer, prepared, request, timeless=timeless, timeout=timeout)
    if json:
        print_json(
            {"shard": str(shard), "rows": prepared.rows, "upper": frontier(outcome.upper), "seqno": outcome.seqno}
        )
    else:
        to = f"{'a new shard' if known is None else 'the existing shard'} {request.shard}"
        upper = dated_frontier(frontier(outcome.upper))
        note(f"{counted(prepared.rows, 'update')} appended to {to}: upper {upper}, seqno {outcome.seqno}")


def _check_key(request: AppendFile, known: Schema) -> None:
    """Raise InvalidArgument when the key, the val or a type that was given is not the shard's."""
    for option, texts, fields in (("--key", request.key, known.key), ("--val", request.val, known.val)):
        given = dict(tables_in.column_of(text) for text in texts)
        types = {field.name: field.type for field in fields}
        what = option.removeprefix("--")
        if given and given.keys() != types.keys():
            hint = f"leave {option} out, or name another shard"
            raise InvalidArgument(f"this shard has another {what}", hint=hint, given=[*given], **{what: [*types]})
        for name, kind in given.items():
            if kind is not None and kind != types[name]:
                hint = f"leave the type out, or name another shard: {option} {name}"
                raise InvalidArgument(
                    "this column has another type", hint=hint, column=name, given=str(kind), type=str(types[name])
                )


def _registered(client: "persist.Client", shard: Any, timeout: float) -> Schema | None:
    try:
        schema: Schema = client.schema(shard, timeout=timeout)
    except ShardNotFound:
        return None
    except UsageError as error:
        if type(error) is UsageError:  # initialised, but never given a schema
            return None
        raise
    return schema


def _read(request: AppendFile, known: Schema | None) -> Iterator[Rows]:
    return tables_in.read(request.file, _types(request, known))


def _first(batches: Iterator[Rows], request: AppendFile) -> Rows:
    first = next(batches, None)
    if first is None:
        raise InvalidArgument(
            "there are no rows", hint="an empty file says nothing about its columns", source=request.file.source
        )
    return first


def _types(request: AppendFile, known: Schema | None) -> dict[str, pa.DataType]:
    if known is not None:
        return {field.name: field.type for field in [*known.key, *known.val]}
    named = (tables_in.column_of(text) for text in (*request.key, *request.val))
    return {name: typed for name, typed in named if typed is not None}


def _new_schema(request: AppendFile, found: pa.Schema) -> Schema:
    if not request.key:
        raise ShardNotFound("no such shard", hint="to make it, name its key columns with --key", shard=request.shard)
    key, val = tables_in.split_columns(found, request.key, request.val)
    return Schema(key=key, val=val)


def _all(first: Rows, rest: Iterator[Rows]) -> Iterator[Rows]:
    yield first
    yield from rest


def _placed(batch: pa.RecordBatch, request: AppendFile) -> pa.RecordBatch:
    """The rows with the time and diff the options give, in place of any columns of that name."""
    columns: dict[str, ArrowArray] = dict(zip(batch.schema.names, batch.columns, strict=True))
    if request.time is not None:
        columns.pop(tables_in.TIME, None)
    if request.diff is not None:
        columns[tables_in.DIFF] = pa.repeat(pa.scalar(request.diff, pa.int64()), batch.num_rows)
    return pa.RecordBatch.from_pydict(columns)


def _commit(
    writer: "persist.WriteHandle",
    prepared: "persist.PreparedBatch",
    request: AppendFile,
    *,
    timeless: bool,
    timeout: float,
) -> Appended:
    """Commit at the shard's upper, wherever it has moved to meanwhile. Raises InvalidBounds when it passed the rows.

    Rows without any time are at this one, in milliseconds, as tables and Spark have it; at the upper if that is later.
    """
    if timeless and request.time is None and request.new_upper is None:
        now = system().now_ms()
        appended: Appended = writer.append_batches_at_upper([prepared], not_before=now, timeout=timeout)
        return appended
    expected = writer.upper
    while True:
        if expected.is_empty:
            raise ShardClosed("the shard is closed for writes", hint="append to another shard", shard=request.shard)
        reached = expected.time
        assert reached is not None
        at_time = _time(request, reached, timeless=timeless)
        last = at_time if at_time is not None else prepared.max_ts
        first = at_time if at_time is not None else prepared.min_ts
        if first is not None and first < reached:
            hint = f"use times at or beyond {reached}"
            raise InvalidBounds("the shard's upper has passed these times", hint=hint, upper=expected, time=first)
        upper = request.new_upper if request.new_upper is not None else max(reached, (last or 0) + 1)
        outcome = writer.compare_and_append_batches([prepared], expected, upper, at_time=at_time, timeout=timeout)
        if isinstance(outcome, Appended):
            return outcome
        expected = outcome.upper


def _time(request: AppendFile, upper: int, *, timeless: bool) -> int | None:
    if request.time is not None:
        return request.time
    return upper if timeless else None
