"""Days and times that Python has no value for: whatever a table holds is shown, and delivered."""

import datetime
import json
import sqlite3

import pyarrow as pa
import pytest
from client.sql.support import last, rows, sessions

from persist.client.collections.plain import rows_of, values_of
from persist.sinks.files import FilesSink
from persist.sinks.sqlite import SqliteSink

MADE = """
create table t (id int primary key, d date, w timestamp, z timestamptz);
insert into t select 1, 'infinity'::date, '-infinity'::timestamp, 'infinity'::timestamptz;
insert into t select 2, '0044-03-15 (BC)'::date, '0044-03-15 (BC) 12:30:00.5'::timestamp, '0044-03-15 (BC)'::timestamp;
insert into t select 3, '10000-01-01'::date, '294247-01-10 04:00:54'::timestamp, '10000-01-01'::timestamp;
insert into t select 4, '2026-01-01'::date, '9999-12-31 23:59:59.999999'::timestamp, null;
"""
SHOWN = [
    (1, "infinity", "-infinity", "infinity"),
    (2, "0044-03-15 BC", "0044-03-15 12:30:00.5 BC", "0044-03-15 00:00:00+00 BC"),
    (3, "10000-01-01", "294247-01-10 04:00:54", "10000-01-01 00:00:00+00"),
    (4, datetime.date(2026, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), None),
]


async def test_they_are_in_rows_and_in_what_is_returned_of_rows_that_are_gone(tmp_path):
    async with sessions(files=True) as (session,):
        await session.execute(MADE)
        assert await rows(session, "select * from t order by id") == SHOWN
        assert await rows(session, "select array_agg(d order by id) from t") == [([row[1] for row in SHOWN],)]
        path = tmp_path / "a.csv"
        await session.execute(f"copy (select * from t order by id) to '{path}'")
        assert path.read_text().splitlines()[2].replace('"', "") == (
            "2,0044-03-15 BC,0044-03-15 12:30:00.5 BC,0044-03-15 00:00:00+00 BC"
        )
        await session.execute(f"copy (select * from t order by id) to '{tmp_path / 'a.jsonl'}'")
        assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])["d"] == "infinity"
        assert await rows(session, "delete from t where id < 3 returning *") == SHOWN[:2]


async def test_sinks_go_on_after_such_a_row(tmp_path):
    async with sessions() as (session,):
        await session.execute(MADE)
        table = (await last(session, "select * from t order by id")).to_arrow()
    ts, diff = pa.repeat(pa.scalar(1, pa.uint64()), 4), pa.repeat(pa.scalar(1, pa.int64()), 4)
    updates = table.append_column("ts", ts).append_column("diff", diff)
    for sink in (FilesSink(tmp_path / "f", "jsonl"), SqliteSink(tmp_path / "a.db", "t")):
        sink.begin("k", 0, updates.schema)
        sink.write("k", 0, updates, None, 2)
        sink.close()
    (file,) = FilesSink(tmp_path / "f", "jsonl").files()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["d"] for line in lines] == ["infinity", "0044-03-15 BC", "10000-01-01", "2026-01-01"]
    with sqlite3.connect(tmp_path / "a.db") as kept:
        found = kept.execute("select w from t order by id").fetchall()
    assert found == [
        ("-infinity",),
        ("0044-03-15 12:30:00.5 BC",),
        ("294247-01-10 04:00:54",),
        ("9999-12-31T23:59:59.999999",),
    ]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("s")])
def test_the_calendar_goes_on_beyond_that_of_python(kind):
    day = 1 if pa.types.is_date32(kind) else 86_400 * (1 if kind.unit == "s" else 10**6)
    for days in (-719_162, -1, 0, 59, 11_016, 2_932_896):
        number = days * day
        (found,) = values_of(
            pa.array([number, None]).cast(pa.int32() if day == 1 else pa.int64()).cast(kind).slice(0, 1)
        )
        assert str(found)[:10] == str(datetime.date(1970, 1, 1) + datetime.timedelta(days))
        later = pa.array([number + 146_097 * 100 * day]).cast(pa.int32() if day == 1 else pa.int64()).cast(kind)
        year, rest = str(found)[:10].split("-", 1)
        assert values_of(later)[0].startswith(f"{int(year) + 40_000}-{rest}")


def test_nested_values_are_shown_too():
    far = pa.array([2**31 - 1, 0, None], pa.int32()).cast(pa.date32())
    nested = pa.StructArray.from_arrays([far, pa.array([1, 2, 3])], ["d", "n"])
    day = datetime.date(1970, 1, 1)
    assert list(rows_of(pa.table({"s": nested}))) == [
        {"s": {"d": "infinity", "n": 1}}, {"s": {"d": day, "n": 2}}, {"s": {"d": None, "n": 3}},
    ]  # fmt: skip
    assert values_of(pa.array([[2**31 - 1], None, []], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))) == [
        ["infinity"], None, [],
    ]  # fmt: skip
