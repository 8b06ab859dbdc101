"""Bytes that were written once must be read, and keys be encoded, the same for ever."""

import dataclasses
import datetime
import decimal
import math
import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from golden.parts import sample
from property.core.data.rows import rows_of
from sure import sure

from persist.core.data.encoding import encode_key
from persist.core.data.schema import Schema
from persist.wire.columnar import decode_inline, part_batches

SETS = sorted(path.stem for path in sample.FOLDER.glob("*.parquet"))

ENCODED: list[Any] = [
    (pa.bool_(), False, "0200"),
    (pa.bool_(), True, "0201"),
    (pa.int8(), -128, "0200"),
    (pa.int16(), 1, "028001"),
    (pa.int32(), -1, "027fffffff"),
    (pa.int64(), 0, "028000000000000000"),
    (pa.int64(), 2**63 - 1, "02ffffffffffffffff"),
    (pa.int64(), None, "01"),
    (pa.uint8(), 255, "02ff"),
    (pa.uint64(), 2**64 - 1, "02ffffffffffffffff"),
    (pa.float32(), 1.0, "02bf800000"),
    (pa.float64(), -0.0, "028000000000000000"),
    (pa.float64(), 0.0, "028000000000000000"),
    (pa.float64(), 1.0, "02bff0000000000000"),
    (pa.float64(), -1.0, "02400fffffffffffff"),
    (pa.float64(), math.inf, "02fff0000000000000"),
    (pa.float64(), -math.nan, "02fff8000000000000"),
    (pa.decimal128(5, 2), decimal.Decimal("-0.01"), "027fffffffffffffffffffffffffffffff"),
    (pa.date32(), datetime.date(1969, 12, 31), "027fffffff"),
    (pa.timestamp("us", "UTC"), 1, "028000000000000001"),
    (pa.time64("ns"), 1, "028000000000000001"),
    (pa.duration("s"), -1, "027fffffffffffffff"),
    (pa.string(), "", "02"),
    (pa.string(), "é\0", "02c3a900"),
    (pa.binary(), b"\0\xff", "0200ff"),
    (pa.binary(2), b"\0\1", "020001"),
    (pa.struct([("a", pa.string()), ("b", pa.int8())]), {"a": "x\0", "b": None}, "02027800ff0001"),
    (pa.struct([("a", pa.int8())]), None, "01"),
    (pa.list_(pa.int8()), [], "0200"),
    (pa.list_(pa.int8()), [None], "020100"),
    (pa.list_(pa.int8()), [1, 2], "020281028200"),
    (pa.list_(pa.list_(pa.int8())), [[]], "02020000"),
    (pa.map_(pa.string(), pa.int8()), [("a", 1)], "0202026100028100"),
]


@pytest.mark.parametrize(("given", "value", "expected"), ENCODED, ids=lambda item: str(item)[:40])
def test_canonical_bytes_of_a_value_never_change(given, value, expected):
    assert encode_key([pa.array([value], given)])[0].as_py().hex() == expected


def test_canonical_bytes_of_several_columns_never_change():
    columns = [pa.array(["a\0b", None]), pa.array([b"", b"x"]), pa.array([1, 2], pa.int8()), pa.array(["", "\0"])]
    assert [sure(row).hex() for row in encode_key(columns).to_pylist()] == [
        "026100ff62000200028102",
        "0102780002820200",
    ]


def test_golden_sets_are_there():
    assert "v1" in SETS


@pytest.mark.parametrize("name", SETS)
def test_golden_part_is_still_read(name):
    data = (sample.FOLDER / f"{name}.parquet").read_bytes()
    part = dataclasses.replace(sample.from_json((sample.FOLDER / f"{name}.part.json").read_text()), key="k")
    found = pa.Table.from_batches(part_batches(part, lambda start, end: data[start:end], sample.SCHEMA))
    assert found.schema.equals(sample.SCHEMA.updates)
    assert rows_of(found, sample.SCHEMA) == rows_of(sample.rows(), sample.SCHEMA)


@pytest.mark.parametrize("name", SETS)
def test_golden_inline_part_is_still_read(name):
    part = sample.from_json((sample.FOLDER / f"{name}.inline.json").read_text())
    found = decode_inline(part, sample.SCHEMA)
    assert rows_of(found, sample.SCHEMA) == rows_of(sample.rows(), sample.SCHEMA)


@pytest.mark.parametrize("name", SETS)
def test_golden_descriptions_keep_their_bounds_and_statistics(name):
    _, part, inline = sample.encoded()
    kept = sample.from_json((sample.FOLDER / f"{name}.part.json").read_text())
    same = ["rows", "key_lower", "key_upper", "min_ts", "max_ts", "diffs_sum", "stats", "order_version"]
    assert [getattr(part, field) for field in same] == [getattr(kept, field) for field in same]
    assert [(block.first_key, block.rows) for block in part.blocks] == [(b.first_key, b.rows) for b in kept.blocks]
    same.remove("stats")
    assert [getattr(inline, field) for field in same] == [getattr(kept, field) for field in same]
    assert inline.stats == ()


@pytest.mark.parametrize("name", SETS)
def test_golden_schema_is_still_read(name):
    assert Schema.from_bytes((sample.FOLDER / f"{name}.schema").read_bytes()) == sample.SCHEMA


PROGRAM = """
import hashlib
from golden.parts import sample
data, part, inline = sample.encoded()
print(hashlib.sha256(data).hexdigest(), hashlib.sha256(repr((part, inline)).encode()).hexdigest())
"""


def test_parts_are_the_same_bytes_in_every_process():
    found = set()
    for seed, disabled in (("0", ""), ("1", ""), ("2", "AVX512F AVX512_SKX AVX512_ICL AVX2")):
        path = os.pathsep.join(sys.path)
        environ = {**os.environ, "PYTHONHASHSEED": seed, "NPY_DISABLE_CPU_FEATURES": disabled, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
