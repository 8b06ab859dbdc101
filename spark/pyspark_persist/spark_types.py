"""Arrow types of a shard and Spark types, both ways, and the casts between them.

Spark has no unsigned integers and only microseconds: unsigned columns widen to the next signed type, timestamps become
``timestamp[us, UTC]``; a value that does not fit fails the read instead of changing. Source: spark.md section 2.2.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from persist import InvalidArgument, SchemaMismatch, TypeNotSupported
from persist.arrow import ArrowArray, ArrowChunks, ArrowField
from persist.arrow.exact import cast_exactly
from pyspark_persist.naming import found

Column = TypeVar("Column", ArrowArray, ArrowChunks)
"""One array, or a column of a table: what is given is what comes back."""

BATCH_ROWS: Final = 65_536

_SIMPLE: Final[Mapping[str, st.DataType]] = {
    "bool": st.BooleanType(),
    "int8": st.ByteType(),
    "int16": st.ShortType(),
    "int32": st.IntegerType(),
    "int64": st.LongType(),
    "uint8": st.ShortType(),
    "uint16": st.IntegerType(),
    "uint32": st.LongType(),
    "uint64": st.DecimalType(20, 0),
    "halffloat": st.FloatType(),
    "float": st.FloatType(),
    "double": st.DoubleType(),
    "string": st.StringType(),
    "large_string": st.StringType(),
    "string_view": st.StringType(),
    "binary": st.BinaryType(),
    "large_binary": st.BinaryType(),
    "binary_view": st.BinaryType(),
    "date32[day]": st.DateType(),
    "date64[ms]": st.DateType(),
}

_WIDENINGS: Final[Mapping[type[st.DataType], tuple[type[st.DataType], ...]]] = {
    st.ByteType: (st.ShortType, st.IntegerType, st.LongType),
    st.ShortType: (st.IntegerType, st.LongType),
    st.IntegerType: (st.LongType,),
    st.FloatType: (st.DoubleType,),
}
_DIGITS: Final[Mapping[type[st.DataType], int]] = {
    st.ByteType: 3, st.ShortType: 5, st.IntegerType: 10, st.LongType: 19,
}  # fmt: skip
"""Decimal digits of the greatest whole number of a type."""


def spark_type(kind: pa.DataType, name: str) -> st.DataType:
    """The Spark type that shows an Arrow type. Raises TypeNotSupported naming the column."""
    simple = _SIMPLE.get(str(kind))
    if simple is not None:
        return simple
    if pa.types.is_fixed_size_binary(kind):
        return st.BinaryType()
    if pa.types.is_timestamp(kind):
        return st.TimestampNTZType() if kind.tz is None else st.TimestampType()
    if pa.types.is_time(kind):
        return st.TimeType(6)
    if pa.types.is_duration(kind):
        return st.DayTimeIntervalType()
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return st.DecimalType(kind.precision, kind.scale)
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type, name)
    return _nested(kind, name)


def _nested(kind: pa.DataType, name: str) -> st.DataType:
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return st.StructType(
            [st.StructField(f.name, spark_type(f.type, f"{name}.{f.name}"), f.nullable) for f in fields]
        )
    if pa.types.is_map(kind):
        value = kind.item_field
        return st.MapType(spark_type(kind.key_type, name), spark_type(value.type, name), value.nullable)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return st.ArrayType(spark_type(kind.value_type, name), kind.value_field.nullable)
    raise TypeNotSupported(
        "Spark has no type for this column", hint="leave it out with option columns", column=name, type=kind
    )


def spark_schema(fields: Iterable[ArrowField]) -> st.StructType:
    """The Spark schema that shows Arrow fields. Raises TypeNotSupported."""
    return st.StructType([st.StructField(f.name, spark_type(f.type, f.name), f.nullable) for f in fields])


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """The Arrow schema Spark demands of the batches of a read. Raises TypeNotSupported for char(n) and varchar(n)."""
    for field in schema.fields:
        if isinstance(field.dataType, st.CharType | st.VarcharType):
            raise TypeNotSupported("char and varchar cannot be read", hint="use string", column=field.name)
    return to_arrow_schema(schema, timezone="UTC")  # type: ignore[no-any-return]  # kernels and pyspark have no types


def check_projection(asked: st.StructType, offered: st.StructType) -> list[str]:
    """The offered names of the asked columns, each offered with this type or one that widens to it.

    Raises SchemaMismatch.
    """
    known = {field.name: field for field in offered.fields}
    names = found(list(known), asked.fieldNames())
    for name, field in zip(names, asked.fields, strict=True):
        source = known[name]
        if not fits(source.dataType, field.dataType):
            raise SchemaMismatch(
                "the schema given to the reader has another type for this column",
                hint=f"use {source.dataType.simpleString()}, or read and cast",
                column=field.name,
                type=field.dataType.simpleString(),
            )
    return names


def fits(given: st.DataType, wanted: st.DataType) -> bool:
    """Values of ``given`` are values of ``wanted`` without loss (nullability aside)."""
    if isinstance(given, st.StringType) and isinstance(wanted, st.StringType):
        return True
    if isinstance(given, st.DecimalType) and isinstance(wanted, st.DecimalType):
        return bool(given.precision - given.scale <= wanted.precision - wanted.scale and given.scale <= wanted.scale)
    if isinstance(given, st.ArrayType) and isinstance(wanted, st.ArrayType):
        return fits(given.elementType, wanted.elementType)
    if isinstance(given, st.MapType) and isinstance(wanted, st.MapType):
        return fits(given.keyType, wanted.keyType) and fits(given.valueType, wanted.valueType)
    if isinstance(given, st.StructType) and isinstance(wanted, st.StructType):
        same_names = given.fieldNames() == wanted.fieldNames()
        pairs = zip(given.fields, wanted.fields, strict=False)
        return same_names and all(fits(g.dataType, w.dataType) for g, w in pairs)
    return bool(type(given) is type(wanted)) or type(wanted) in _WIDENINGS.get(type(given), ())


def assignable(given: st.DataType, wanted: st.DataType) -> bool:
    """Values of ``given`` may be stored as ``wanted``: those that fit, and numbers that a cast makes none of too large.

    Beyond ``fits``: whole numbers and decimals as the nearest ``float`` or ``double``, and whole numbers as decimals
    with room for all of their type. As SQL's store assignment; what that refuses only when it runs is refused here.
    """
    digits = _DIGITS.get(type(given))
    if isinstance(wanted, st.FloatType | st.DoubleType) and (digits or isinstance(given, st.DecimalType)):
        return True
    if digits and isinstance(wanted, st.DecimalType):
        return bool(wanted.precision - wanted.scale >= digits)
    return fits(given, wanted)


def cast_column(column: Column, field: ArrowField) -> Column:
    """The column in the type of ``field``, checked for loss and for nulls where there may be none."""
    if not field.nullable and column.null_count:
        raise InvalidArgument("a column declared not null holds nulls", hint="declare it nullable", column=field.name)
    if column.type == field.type:
        return column
    try:
        return _cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise SchemaMismatch(
            "a value does not fit the column's type",
            hint=str(cause),
            column=field.name,
            wanted=field.type,
            got=column.type,
        ) from cause


def _cast(column: Column, kind: pa.DataType) -> Column:
    source = column.type
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(kind) and (source.tz is None) != (kind.tz is None):
        raise pa.ArrowInvalid("a timestamp with a zone and one without are different types")
    return cast_exactly(column, kind)


def to_spark(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The table's columns, in order, as batches that equal ``schema``: at most BATCH_ROWS rows, never none."""
    columns = [cast_column(column, field) for column, field in zip(table.columns, schema, strict=True)]
    shaped = pa.Table.from_arrays(columns, schema=schema)
    return itertools.filterfalse(lambda batch: batch.num_rows == 0, iter(shaped.to_batches(max_chunksize=BATCH_ROWS)))
