"""Decoding many payloads at once is decoding each alone, also when some are bad or hostile."""

import datetime
import io
import json
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist import InvalidArgument
from persist_ingest.decode.avro_rows import AvroDecoder, avro_fields
from persist_ingest.decode.exact import FEW, decode_exactly
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.sources.divert import DIVERT, FAIL, PAYLOAD_BYTES_MAX, BadRow, diverted
from persist_ingest.sources.options import columns
from persist_ingest.sources.port import BadRows

FIELDS = columns("id bigint not null, name string, price decimal(10, 2), at timestamp, day date, ok boolean")
JSON = JsonDecoder(FIELDS)

GOOD = [
    b'{"id":1}',
    b'  {"id" : 2, "name":"b", "more": [1, {"x": null}]}\r\n',
    b'{"id":3,"name":"line\\nbreak","price":"1.25"}',
    b'{"id":4,\n"name":null,\n"price":2.5}',
    b'{"id":5,"at":"2020-01-01T00:00:00Z"}',
    b'{"id":6,"at":"2020-01-01 02:00:00.5+02:00","day":"2020-02-29","ok":true}',
    b'{"id":7,"at":"2020-01-01T00:00:00"}',
    b'{"name":"} null","id":8}',
    b'{"persist.ordinal":99,"id":9}',
    '{"id":10,"name":"é\\u0000"}'.encode(),
    b'{"id":11,"price":1.25e1,"name":"7e5"}',
    b'{"id":12,"price":"-1E2"}',
    b'{"id":13,"Id":14,"NAME":null,"name":"b"}',
    b'{"id":15,"more":{"NAME":"b"},"Names":"c"}',
]
BAD = [
    b"",
    b" ",
    b"null",
    b"3",
    b"[]",
    b"{}",
    b"{",
    b'{"id":null}',
    b'{"name":"no id"}',
    b'{"id":1}{"id":2}',
    b'{"id":1} null',
    b'{"id":1} x',
    b'{"id":1,"name":',
    b'{"id":1,"id":2}',
    b'{"id":"1"}',
    b'{"id":1.5}',
    b'{"id":99999999999999999999}',
    b'{"id":1,"name":3}',
    b'{"id":1,"name":"\xff"}',
    b'{"ID":1}',
    b'{"id":1,"NAME" : "b"}',
    b'{"id":1,"Price":null}',
    b'{"id":1,"name":"\\ud800"}',
    b'{"id":1,"price":"1.255"}',
    b'{"id":1,"price":340282366920938463463374607431768211461}',
    b'{"id":1,"price":"340282366920938463463374607431768211461.00"}',
    b'{"id":1,"price":1e-45}',
    b'{"id":1,"price":1e300}',
    b'{"id":1,"day":"2020-02-30"}',
    b'{"id":1,"at":"yesterday"}',
    b'\xef\xbb\xbf{"id":1}',
]


def outcomes(payloads: list[bytes]) -> list[Any]:
    """For each payload its row, or the text of its error."""
    decoded = JSON.decode(payloads)
    found: list[Any] = [None] * len(payloads)
    for index, row in zip(decoded.good.tolist(), decoded.rows.to_pylist(), strict=True):
        found[index] = tuple(row.values())
    for bad in decoded.bad:
        assert found[bad.index] is None
        found[bad.index] = bad.error
    assert decoded.rows.schema == FIELDS
    return found


ALONE = {payload: outcomes([payload])[0] for payload in GOOD + BAD}


@pytest.mark.parametrize("payload", GOOD)
def test_good_json_becomes_a_row(payload: bytes) -> None:
    assert isinstance(ALONE[payload], tuple)


@pytest.mark.parametrize("payload", BAD)
def test_bad_json_becomes_an_error(payload: bytes) -> None:
    assert isinstance(ALONE[payload], str)
    assert ALONE[payload]


def test_values_are_what_was_written() -> None:
    utc = datetime.UTC
    assert ALONE[GOOD[2]][:3] == (3, "line\nbreak", Decimal("1.25"))
    assert ALONE[GOOD[3]][:3] == (4, None, Decimal("2.50"))
    assert ALONE[GOOD[5]][3:] == (
        datetime.datetime(2020, 1, 1, 0, 0, 0, 500_000, utc),
        datetime.date(2020, 2, 29),
        True,
    )
    assert ALONE[GOOD[6]][3] == ALONE[GOOD[4]][3] == datetime.datetime(2020, 1, 1, tzinfo=utc)
    assert ALONE[GOOD[9]][1] == "é\0"


@given(st.lists(st.sampled_from(GOOD + BAD), max_size=40))
def test_neighbours_make_no_difference(payloads: list[bytes]) -> None:
    assert outcomes(payloads) == [ALONE[payload] for payload in payloads]


def test_objects_across_payloads_are_not_taken_for_objects_in_them() -> None:
    payloads = [b'{"id":1,"more":', b'{"id":2}}', b'{"id":3}{"id":4}', b'{"id":5}']
    found = outcomes(payloads)
    assert [isinstance(each, str) for each in found] == [True, True, True, False]
    assert found[3][0] == 5


def test_bad_rows_fail_or_are_diverted() -> None:
    bad = [BadRow(3, 17, "why", b"x" * (PAYLOAD_BYTES_MAX + 1)), BadRow(3, 18, "why not", None)]
    with pytest.raises(BadRows, match=r"why.*offset=17.*badRows=divert"):
        diverted("orders", bad, FAIL, pa.int64())
    changes = diverted("orders", bad, DIVERT, pa.int64())
    assert changes.export == "errors"
    assert changes.rows.select(["export", "partition", "offset", "error"]).to_pylist() == [
        {"export": "orders", "partition": 3, "offset": 17, "error": "why"},
        {"export": "orders", "partition": 3, "offset": 18, "error": "why not"},
    ]
    assert [None if each is None else len(each) for each in changes.rows["payload"].to_pylist()] == [65536, None]
    assert changes.diffs.to_pylist() == [1, 1]
    assert changes.offsets.to_pylist() == [17, 18]


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_number_is_decoded_as_it_is_written_or_not_at_all(quote: str) -> None:
    wide = pa.schema([("v", pa.decimal128(38, 10))])
    mantissas = ("1", "-7", "123.456", str(2**128 + 5), "7" + "0" * 28, "7" + "0" * 60)
    for text in (
        f"{mantissa}{more}" for mantissa in mantissas for more in ("", "e0", "e5", "e27", "e38", "e-39", "e-45")
    ):
        found = JsonDecoder(wide).decode([f'{{"v":{quote}{text}{quote}}}'.encode()])
        number = Decimal(text)
        fits = abs(number) < 10**28 and -int(number.normalize().as_tuple().exponent) <= 10
        assert [row["v"] for row in found.rows.to_pylist()] == ([number] if fits else []), text


@pytest.mark.parametrize(("kind", "small"), [(pa.float32(), b"1e-60"), (pa.float64(), b"-0.1e-0400")])
def test_a_float_is_not_zero_because_it_is_small(kind: pa.DataType, small: bytes) -> None:
    fields = pa.schema([("v", kind), ("s", pa.struct([("l", pa.list_(kind))]))])
    good = [b'{"v":0.0e-5,"s":{"l":[0,1e-30]}}', b'{"v":1e-20}']
    payloads = [good[0], b'{"v":' + small + b"}", good[1], b'{"v":1,"s":{"l":[2,' + small + b"]}}"]
    found = JsonDecoder(fields).decode(payloads)
    assert [at.index for at in found.bad] == [1, 3]
    assert found.rows.num_rows == 2


def test_a_float_is_not_infinite_because_it_is_large() -> None:
    found = JsonDecoder(pa.schema([("v", pa.float32())])).decode([b'{"v":1e30}', b'{"v":1e300}'])
    assert [at.index for at in found.bad] == [1]
    assert found.rows.num_rows == 1


@pytest.mark.parametrize(
    ("count", "bad", "calls_max", "work_max"),
    [
        (100_000, {0}, 2 * 17 + FEW, 4),
        (100_000, {77_777}, 2 * 17 + FEW, 4),
        (100_000, {99_999}, 2 * 17 + FEW, 4),
        (4_096, set(range(0, 4_096, 2)), 1.5 * 4_096, 12),
        (4_096, set(range(4_096)), 1.5 * 4_096, 12),
    ],
    ids=["first", "one", "last", "every second", "all"],
)
def test_bad_payloads_cost_few_calls(count: int, bad: set[int], calls_max: float, work_max: int) -> None:
    parses: list[int] = []
    texts = [b'{"id": "x"}' if at in bad else b'{"id": 1}' for at in range(count)]
    decoder = JsonDecoder(pa.schema({"id": pa.int64()}))

    def parse(begin: int, end: int) -> pa.RecordBatch:
        parses.append(end - begin)
        return decoder._parse(texts[begin:end])

    decoded = decode_exactly(count, decoder.fields, parse)
    assert {each.index for each in decoded.bad} == bad
    assert decoded.rows.num_rows == count - len(bad)
    assert len(parses) <= calls_max
    assert sum(parses) <= work_max * count
    assert parses.count(count) == 1


def test_behind_the_first_bad_payload_of_an_owner_nothing_is_parsed():
    parses = []
    texts = [b'{"id": 1}'] * 5 + [b'{"id": "x"}'] * 10_000 + [b'{"id": 2}'] * 5
    owners = np.asarray([0] * 4 + [1] * 10_001 + [2] * 5)
    decoder = JsonDecoder(pa.schema({"id": pa.int64()}))

    def parse(begin, end):
        parses.append(end - begin)
        return decoder._parse(texts[begin:end])

    decoded = decode_exactly(len(texts), decoder.fields, parse, owners)
    assert [each.index for each in decoded.bad] == [5]
    assert decoded.good.tolist() == [0, 1, 2, 3, 4, *range(10_005, 10_010)]
    assert decoded.rows.column("id").to_pylist() == [1] * 5 + [2] * 5
    assert len(parses) < 60


NOTHING: dict[str, Any] = {
    "fixed": {"type": "fixed", "name": "z", "size": 0},
    "record": {"type": "record", "name": "z", "fields": []},
    "records": {"type": "record", "name": "z", "fields": [{"name": "y", "type": "null"}]},
    "null": "null",
}


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("kind", NOTHING)
def test_items_that_take_no_bytes_are_refused(kind: str, *, is_named: bool) -> None:
    """Otherwise a message of seven bytes has as many as it says: 2^40."""
    before = [{"name": "before", "type": NOTHING[kind]}] if is_named and kind != "null" else []
    items = "z" if before else NOTHING[kind]
    fields = [*before, {"name": "x", "type": {"type": "array", "items": items}}]
    with pytest.raises(InvalidArgument):
        avro_fields(json.dumps({"type": "record", "name": "r", "fields": fields}))


def test_times_and_uuids_are_read() -> None:
    kinds = {"u": ("string", "uuid"), "m": ("int", "time-millis"), "n": ("long", "time-micros")}
    fields = [{"name": name, "type": {"type": kind, "logicalType": of}} for name, (kind, of) in kinds.items()]
    decoder = AvroDecoder(schema=json.dumps({"type": "record", "name": "r", "fields": fields}))
    [row] = decoder.decode([b"\x06abc" + b"\xd0\x0f" + b"\x02"]).rows.to_pylist()
    assert row == {"u": "abc", "m": datetime.time(0, 0, 1), "n": datetime.time(0, 0, 0, 1)}


def test_types_inside_themselves_are_refused() -> None:
    inner = {"type": "record", "name": "b", "fields": [{"name": "a", "type": {"type": "array", "items": "r"}}]}
    with pytest.raises(InvalidArgument, match="inside itself"):
        avro_fields(json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": inner}]}))


@pytest.mark.parametrize("day", ["0000-01-01", "0000-12-31T23:59:59"])
def test_a_day_that_nothing_else_has_is_a_bad_row(day: str) -> None:
    fields = columns("id bigint, at timestamp, day date")
    name = "at" if "T" in day else "day"
    payloads = [b'{"id":1,"at":"0001-01-01T00:00:00","day":"9999-12-31"}', json.dumps({"id": 2, name: day}).encode()]
    decoded = JsonDecoder(fields).decode(payloads)
    assert decoded.good.tolist() == [0]
    assert "years" in decoded.bad[0].error
    assert decoded.rows.to_pylist()[0]["day"] == datetime.date(9999, 12, 31)


def test_items_that_take_bytes_are_read() -> None:
    pair = {"type": "record", "name": "p", "fields": [{"name": "a", "type": "long"}]}
    fields = [
        {"name": "x", "type": {"type": "array", "items": pair}},
        {"name": "y", "type": {"type": "array", "items": "p"}},
    ]
    decoder = AvroDecoder(schema=json.dumps({"type": "record", "name": "r", "fields": fields}))
    decoded = decoder.decode([b"\4\2\4\0\0", b"\2\2\0\2\6\0"])
    assert decoded.rows.to_pylist() == [{"x": [{"a": 1}, {"a": 2}], "y": []}, {"x": [{"a": 1}], "y": [{"a": 3}]}]


def test_avro_decimals_are_bounded_by_their_bytes_and_exact() -> None:
    fixed = {"type": "fixed", "name": "wide", "size": 32, "logicalType": "decimal", "precision": 38, "scale": 2}
    fields: list[dict[str, object]] = [
        {"name": "b", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}]},
        {"name": "f", "type": fixed},
    ]
    schema = {"type": "record", "name": "r", "fields": fields}

    def written(number: bytes, wide: int) -> bytes:
        plain = {
            **schema,
            "fields": [{"name": "b", "type": "bytes"}, {**fields[1], "type": {**fixed, "logicalType": ""}}],
        }
        stream = io.BytesIO()
        fastavro.schemaless_writer(
            stream, fastavro.parse_schema(plain), {"b": number, "f": wide.to_bytes(32, signed=True)}
        )
        return b"\2" + stream.getvalue()

    largest = 10**38 - 1
    payloads = [
        written((-12345).to_bytes(8, signed=True), largest),
        written(b"\1" * 8_000_000, 0),
        written(b"", -largest),
        written((1_000_000).to_bytes(4, signed=True), 1),
        written(b"\1", 10**38),
    ]
    decoded = AvroDecoder(schema=json.dumps(schema)).decode(payloads)
    assert decoded.rows.to_pylist() == [
        {"b": Decimal("-123.45"), "f": Decimal(largest).scaleb(-2, Context(prec=50))},
        {"b": Decimal("0.00"), "f": Decimal(-largest).scaleb(-2, Context(prec=50))},
    ]
    assert [bad.index for bad in decoded.bad] == [1, 3, 4]
    assert "8,000,000 bytes" in decoded.bad[0].error


@pytest.mark.parametrize("inside", ["payload", "array", "named", "map"])
@pytest.mark.parametrize("number", [-1, -2, -3, -(2**40), 2])
def test_a_branch_or_symbol_that_a_message_counts_from_the_end_is_a_bad_row(inside: str, number: int) -> None:
    """fastavro takes -1 for the last one."""
    kinds: dict[str, Any] = {"union": ["null", "long"], "enum": {"type": "enum", "name": "e", "symbols": ["A", "B"]}}
    for kind, declared in kinds.items():
        record = {"type": "record", "name": "in", "fields": [{"name": "v", "type": declared}]}
        held = {
            "payload": declared,
            "array": {"type": "array", "items": declared},
            "named": record,
            "map": {"type": "map", "values": declared},
        }[inside]
        more = {"name": "y", "type": "in" if inside == "named" else "e" if kind == "enum" else "long"}
        schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": held}, more]})
        begin, end = {"array": (b"\2", b"\0"), "map": (b"\2\2k", b"\0")}.get(inside, (b"", b""))
        if kind == "union" and inside == "named":
            good, tail = b"\2\6", b"\2\6"
        else:
            good, tail = (b"\2\6" if kind == "union" else b"\2"), b"\2"
        index = io.BytesIO()
        fastavro.schemaless_writer(index, "long", number)
        decoder = AvroDecoder(schema=schema)
        bad = index.getvalue() + good[1:]
        decoded = decoder.decode([begin + good + end + tail, begin + bad + end + tail])
        assert (decoded.good.tolist(), [each.index for each in decoded.bad]) == ([0], [1]), (kind, decoded.bad)
