"""From a DataFrame's columns to a shard's: which are key, val, time and diff, and how they are cast."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st

import persist
from persist import InvalidArgument, SchemaMismatch, ShardNotFound, TypeNotSupported, WriterId
from pyspark_persist.options import WriteOptions
from pyspark_persist.planning import current_schema
from pyspark_persist.spark_types import arrow_schema, cast_column, fits, spark_type

TIME_COLUMN: Final = "_ts"
DIFF_COLUMN: Final = "_diff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """How a DataFrame's batches become updates. ``sources``: the DataFrame's name of each field, None for all nulls."""

    fields: pa.Schema
    sources: tuple[str | None, ...]
    has_times: bool
    has_diffs: bool

    def shard_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Columns key…, val…, then ts and diff where the DataFrame has them. Raises SchemaMismatch, InvalidArgument."""
        arrays, fields = [], []
        for field, source in zip(self.fields, self.sources, strict=True):
            given = pa.nulls(batch.num_rows, field.type) if source is None else batch.column(source)
            arrays.append(cast_column(given, field))
            fields.append(field)
        if self.has_times:
            _append(arrays, fields, batch.column(TIME_COLUMN), pa.field("ts", pa.uint64(), nullable=False))
        if self.has_diffs:
            _append(arrays, fields, batch.column(DIFF_COLUMN), pa.field("diff", pa.int64(), nullable=False))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _append(arrays: list[Any], fields: list[pa.Field], column: Any, field: pa.Field) -> None:
    arrays.append(cast_column(column, field))
    fields.append(field)


def columns_of(frame: st.StructType, schema: Any) -> Columns:
    """The mapping from a DataFrame to a shard. Nullable val columns may be missing. Raises SchemaMismatch."""
    given = {field.name: field for field in frame.fields}
    fields = [*schema.key, *schema.val]
    extra = set(given) - {field.name for field in fields} - {TIME_COLUMN, DIFF_COLUMN}
    if extra:
        raise SchemaMismatch(
            "the DataFrame has columns the shard has not",
            hint=f"drop them, or add them with mergeSchema=true; the shard has {', '.join(f.name for f in fields)}",
            columns=", ".join(sorted(extra)),
        )
    sources = [_source(field, given, optional=field.name in schema.val.names) for field in fields]
    for name in (TIME_COLUMN, DIFF_COLUMN):
        if name in given and not isinstance(given[name].dataType, st.IntegralType | st.DecimalType):
            raise SchemaMismatch("the column must be a whole number", hint=f"cast {name} to bigint", column=name)
    return Columns(
        fields=pa.schema(fields), sources=tuple(sources), has_times=TIME_COLUMN in given, has_diffs=DIFF_COLUMN in given
    )


def _source(field: pa.Field, given: dict[str, st.StructField], *, optional: bool) -> str | None:
    source = given.get(field.name)
    if source is None:
        if optional and field.nullable:
            return None
        raise SchemaMismatch("the DataFrame lacks a column of the shard", hint="add it", column=field.name)
    wanted = spark_type(field.type, field.name)
    if not fits(source.dataType, wanted):
        raise SchemaMismatch(
            "the DataFrame's column has another type than the shard's",
            hint=f"cast it to {wanted.simpleString()}",
            column=field.name,
            type=source.dataType.simpleString(),
        )
    return str(field.name)


def open_writer(options: WriteOptions, frame: st.StructType, writer_id: WriterId) -> Any:
    """A writer of the shard; a new shard is initialised from the DataFrame when ``keyColumns`` tells its key.

    Raises ShardNotFound, SchemaMismatch, TypeNotSupported.
    """
    target = options.target
    try:
        stored = current_schema(target)
    except ShardNotFound as missing:
        if not options.key_columns:
            raise ShardNotFound(
                "the shard does not exist yet",
                hint='add .option("keyColumns", "id") to initialise it from the DataFrame',
                shard=target.shard,
            ) from missing
        wanted = schema_of_frame(frame, options.key_columns)
    else:
        wanted = merged(stored, frame) if options.merge_schema else stored
        if wanted is not stored:
            target.client().evolve_schema(target.shard_id, wanted, timeout=target.timeout)
    return target.client().open_writer(target.shard_id, schema=wanted, writer_id=writer_id, timeout=target.timeout)


def schema_of_frame(frame: st.StructType, key: Sequence[str]) -> Any:
    """A persist.Schema with these key columns and all other data columns of the DataFrame as val."""
    arrow = {field.name: field for field in _storable(frame)}
    for name in key:
        if name not in arrow:
            raise InvalidArgument(
                "keyColumns names a column the DataFrame has not", hint=f"it has: {', '.join(arrow)}", column=name
            )
    return persist.Schema(
        key={name: arrow[name] for name in key},
        val={name: field for name, field in arrow.items() if name not in key},
    )


def merged(stored: Any, frame: st.StructType) -> Any:
    """The shard's schema with the DataFrame's new columns added to val, nullable."""
    known = {*stored.key.names, *stored.val.names}
    added = {field.name: field.with_nullable(True) for field in _storable(frame) if field.name not in known}
    if not added:
        return stored
    old_val = {field.name: field for field in stored.val}
    return persist.Schema(key={field.name: field for field in stored.key}, val={**old_val, **added}, codec=stored.codec)


def _storable(frame: st.StructType) -> list[pa.Field]:
    data = st.StructType([field for field in frame.fields if field.name not in {TIME_COLUMN, DIFF_COLUMN}])
    for field in data.fields:
        if isinstance(
            field.dataType, st.NullType | st.VariantType | st.YearMonthIntervalType | st.CalendarIntervalType
        ):
            raise TypeNotSupported(
                "a shard cannot hold this type",
                hint="cast or drop the column",
                column=field.name,
                type=field.dataType.simpleString(),
            )
    return list(arrow_schema(data))
