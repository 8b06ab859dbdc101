import datetime
import decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from persist import InvalidArgument, SchemaMismatch, TypeNotSupported
from pyspark_persist import spark_types as types


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.uint8(), "smallint"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.timestamp("ms", tz="Europe/Paris"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.large_string(), "string"),
        (pa.binary(4), "binary"),
        (pa.decimal128(12, 3), "decimal(12,3)"),
        (pa.list_(pa.struct([("x", pa.int16())])), "array<struct<x:smallint>>"),
        (pa.map_(pa.string(), pa.float32()), "map<string,float>"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.duration("ms"), "interval day to second"),
        (pa.time32("s"), "time(6)"),
    ],
    ids=str,
)
def test_spark_type_of_an_arrow_type(kind: pa.DataType, expected: str) -> None:
    assert types.spark_type(kind, "c").simpleString() == expected


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.month_day_nano_interval(), pa.null()], ids=str)
def test_spark_type_unknown_to_spark_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(TypeNotSupported, match="column=price"):
        types.spark_type(kind, "price")


def test_arrow_schema_refuses_char_and_varchar() -> None:
    with pytest.raises(TypeNotSupported, match="column=c"):
        types.arrow_schema(st.StructType([st.StructField("c", st.VarcharType(3))]))


def test_to_spark_batches_equal_what_spark_demands() -> None:
    table = pa.table(
        {
            "u": pa.array([2**64 - 1, None], pa.uint64()),
            "t": pa.array(
                [datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC), None], pa.timestamp("ms", tz="Asia/Tokyo")
            ),
            "d": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(9, 2)),
            "l": pa.array([[1], None], pa.large_list(pa.int8())),
        }
    )
    wanted = types.arrow_schema(types.spark_schema(table.schema))
    (batch,) = types.to_spark(table, wanted)
    assert batch.schema.equals(wanted)
    assert batch.to_pylist()[0]["u"] == decimal.Decimal(2**64 - 1)
    assert batch.schema.field("t").type == pa.timestamp("us", tz="UTC")


def test_to_spark_cuts_large_tables_and_skips_empty_ones() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    table = pa.table([pa.array(range(types.BATCH_ROWS + 1), pa.int64())], schema=schema)
    assert [b.num_rows for b in types.to_spark(table, schema)] == [types.BATCH_ROWS, 1]
    assert list(types.to_spark(table.slice(0, 0), schema)) == []


def test_cast_that_would_lose_something_is_refused() -> None:
    nanos = pa.array([1], pa.timestamp("ns", tz="UTC"))
    with pytest.raises(SchemaMismatch, match="column=t"):
        types.cast_column(nanos, pa.field("t", pa.timestamp("us", tz="UTC")))
    with pytest.raises(SchemaMismatch, match="column=t"):
        types.cast_column(pa.array([1], pa.timestamp("us")), pa.field("t", pa.timestamp("us", tz="UTC")))
    with pytest.raises(InvalidArgument, match="column=t"):
        types.cast_column(pa.array([None], pa.int64()), pa.field("t", pa.int64(), nullable=False))


_INT, _LONG = st.IntegerType(), st.LongType()


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        (_INT, _LONG, True),
        (_LONG, _INT, False),
        (st.FloatType(), st.DoubleType(), True),
        (st.DecimalType(5, 2), st.DecimalType(9, 2), True),
        (st.DecimalType(5, 2), st.DecimalType(9, 1), False),
        (st.ArrayType(_INT), st.ArrayType(_LONG), True),
        (st.StructType().add("a", _INT), st.StructType().add("b", _INT), False),
        (st.TimestampType(), st.TimestampNTZType(), False),
        (_INT, st.StringType(), False),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, st.DataType) else str(value),
)
def test_fits_only_without_loss(given: st.DataType, wanted: st.DataType, expected: bool) -> None:
    assert types.fits(given, wanted) is expected
