"""From a DataFrame's columns to a shard's: which are key, val, time and diff, and how they are cast."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as st

import persist
from persist import InvalidArgument, SchemaMismatch, ShardNotFound, TypeNotSupported
from persist.arrow import ArrowArray, ArrowField
from pyspark_persist.naming import DIFF_COLUMN, TIME_COLUMN, check_distinct, find, shown_name, stored_name
from pyspark_persist.options.options import WriteOptions
from pyspark_persist.spark_types import arrow_schema, cast_column, fits, spark_type

_TS = pa.field("ts", pa.uint64(), nullable=False)
_DIFF = pa.field("diff", pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """How a DataFrame's batches become updates.

    ``sources``: the DataFrame's name of each field, None for all nulls. ``times`` and ``diffs``: its names of those
    columns, None where it has none.
    """

    fields: pa.Schema
    sources: tuple[str | None, ...]
    times: str | None
    diffs: str | None

    def shard_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Columns key…, val…, then ts and diff where the DataFrame has them. Raises SchemaMismatch, InvalidArgument."""
        arrays, fields = [], list(self.fields)
        for field, source in zip(self.fields, self.sources, strict=True):
            given = pa.nulls(batch.num_rows, field.type) if source is None else batch.column(source)
            arrays.append(cast_column(_given(given, field), field))
        for source, field in ((self.times, _TS), (self.diffs, _DIFF)):
            if source is not None:
                arrays.append(cast_column(_counted(batch.column(source), source), field))
                fields.append(field)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _given(column: ArrowArray, field: ArrowField) -> ArrowArray:
    if not field.nullable and column.null_count:
        raise InvalidArgument(
            "a column that the shard declares not null holds nulls",
            hint="fill them, or leave those rows out",
            column=shown_name(field.name),
            nulls=column.null_count,
        )
    return column


def _counted(column: ArrowArray, name: str) -> ArrowArray:
    if column.null_count:
        plain = "the time of the commit" if name.lower() == TIME_COLUMN else "a count of 1"
        raise InvalidArgument(
            f"{name} is null in some rows",
            hint=f"give every row a value; without the column every row has {plain}",
            column=name,
            nulls=column.null_count,
        )
    return column


def columns_of(frame: st.StructType, schema: "persist.Schema") -> Columns:
    """The mapping from a DataFrame to a shard. Nullable val columns may be missing. Raises SchemaMismatch."""
    check_distinct(frame.fieldNames())
    given = {field.name.lower(): field for field in frame.fields}
    fields = [*schema.key, *schema.val]
    names = [shown_name(field.name) for field in fields]
    extra = set(given) - {name.lower() for name in names} - {TIME_COLUMN, DIFF_COLUMN}
    if extra:
        raise SchemaMismatch(
            "the DataFrame has columns the shard has not",
            hint=f"drop them, or add them with mergeSchema=true; the shard has {', '.join(names)}",
            columns=", ".join(sorted(given[name].name for name in extra)),
        )
    sources = [_source(field, given, optional=field.name in schema.val.names) for field in fields]
    for name in (TIME_COLUMN, DIFF_COLUMN):
        if name in given and not isinstance(given[name].dataType, st.IntegralType | st.DecimalType):
            raise SchemaMismatch("the column must be a whole number", hint=f"cast {name} to bigint", column=name)
    return Columns(
        fields=pa.schema(fields),
        sources=tuple(sources),
        times=given[TIME_COLUMN].name if TIME_COLUMN in given else None,
        diffs=given[DIFF_COLUMN].name if DIFF_COLUMN in given else None,
    )


def _source(field: ArrowField, given: dict[str, st.StructField], *, optional: bool) -> str | None:
    name = shown_name(field.name)
    source = given.get(name.lower())
    if source is None:
        if optional and field.nullable:
            return None
        raise SchemaMismatch("the DataFrame lacks a column of the shard", hint="add it", column=name)
    wanted = spark_type(field.type, name)
    if not fits(source.dataType, wanted):
        raise SchemaMismatch(
            "the DataFrame's column has another type than the shard's",
            hint=f"cast it to {wanted.simpleString()}",
            column=name,
            type=source.dataType.simpleString(),
        )
    return str(source.name)


def schema_for(options: WriteOptions, frame: st.StructType, stored: "persist.Schema | None") -> "persist.Schema":
    """The schema a write needs its shard to have; ``stored`` is the one it has, None when there is no shard.

    A value: nothing is registered. Raises ShardNotFound, SchemaMismatch, TypeNotSupported, InvalidArgument.
    """
    check_distinct(frame.fieldNames())
    if stored is not None:
        return merged(stored, frame) if options.merge_schema else stored
    if not options.key_columns:
        raise ShardNotFound(
            "there is nothing to write to yet",
            hint='add .option("keyColumns", "id") to make it from the DataFrame, or check the name and the location',
            **options.target.described,
        )
    return schema_of_frame(frame, options.key_columns)


def schema_of_frame(frame: st.StructType, key: Sequence[str]) -> "persist.Schema":
    """A persist.Schema with these key columns and all other data columns of the DataFrame as val.

    Vals are nullable whatever the DataFrame says: Spark calls every literal and every count not null, and a column that
    refuses nulls would do so for ever.
    """
    arrow = {field.name: field for field in _storable(frame)}
    named = []
    for name in key:
        spelled = find(arrow, name)
        if spelled is None or spelled in named:
            raise InvalidArgument(
                "keyColumns names a column the DataFrame has not, or names it twice",
                hint=f"it has: {', '.join(arrow)}",
                column=name,
            )
        named.append(spelled)
    return persist.Schema(
        key={stored_name(name): arrow[name] for name in named},
        val={stored_name(name): field.with_nullable(True) for name, field in arrow.items() if name not in named},
    )


def merged(stored: "persist.Schema", frame: st.StructType) -> "persist.Schema":
    """The shard's schema with the DataFrame's new columns added to val, nullable."""
    known = {shown_name(name).lower() for name in (*stored.key.names, *stored.val.names)}
    added = [field.with_nullable(True) for field in _storable(frame) if field.name.lower() not in known]
    if not added:
        return stored
    val = {field.name: field for field in stored.val} | {stored_name(field.name): field for field in added}
    return persist.Schema(key={field.name: field for field in stored.key}, val=val, codec=stored.codec)


def _storable(frame: st.StructType) -> list[ArrowField]:
    data = st.StructType([field for field in frame.fields if field.name.lower() not in {TIME_COLUMN, DIFF_COLUMN}])
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
