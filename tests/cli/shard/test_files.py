"""Files as people have them: columns with taken names, other encodings, damaged rows; each with the next step."""

import datetime

import pyarrow as pa
import pytest
from pyarrow import parquet


@pytest.fixture
def file(tmp_path):
    def made(name: str, content: str, encoding: str = "utf-8"):
        path = tmp_path / name
        path.write_bytes(content.encode(encoding))
        return path

    return made


TIMES = "id,ts,diff\n1,2026-11-22T06:00:00,a\n2,2026-11-22T07:00:00,b\n"
SIX = 1_795_327_200_000


def test_columns_named_like_those_of_updates_are_stored_under_other_names(persist, here, file):
    path = file("t.csv", TIMES)
    stored = persist("shard", "append", "t", path, "--key", "id", "--rename", "ts=_ts", "--rename", "diff=_diff", *here)
    assert stored.code == 0, stored.err
    first, _ = sorted(persist("shard", "snapshot", "t", "--json", *here).lines, key=lambda row: row["id"])
    assert first == {"id": 1, "_ts": "2026-11-22T06:00:00", "_diff": "a", "diff": 1}


def test_the_columns_of_time_and_diff_can_be_named(persist, here, file):
    path = file("t.csv", "id,seen,n\n1,2026-11-22T06:00:00,1\n2,2026-11-22T07:00:00,2\n")
    named = ("--time-column", "seen", "--diff-column", "n")
    appended = persist("shard", "append", "t", path, "--key", "id", *named, "--json", *here)
    assert appended.json["upper"] == [SIX + 3_600_001]
    at_six = persist("shard", "snapshot", "t", "--as-of", "2026-11-22T06:30", "--json", *here)
    assert at_six.lines == [{"id": 1, "diff": 1}]
    assert [row["diff"] for row in persist("shard", "snapshot", "t", "--json", *here).lines] == [1, 2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), ("--rename ts=_ts", "--time-column")),
        (("--rename", "ts=_ts"), ("--rename diff=_diff", "--diff-column")),
        (("--rename", "ts=id"), ("two columns have one name", "id, ts, diff")),
        (("--rename", "ts"), ("--rename OLD=NEW",)),
        (("--rename", "ts=a", "--time-column", "ts"), ("given two names",)),
        (("--rename", "ts=a", "--rename", "diff=b", "--rename", "nobody=c"), ("no such column in the file", "nobody")),
        (("--rename", "ts=TS", "--rename", "diff=b"), ("this column name is taken", "_TS")),
    ],
)
def test_taken_names_are_refused_with_what_to_do(persist, begun, file, words, told):
    done = persist("shard", "append", "t", file("t.csv", TIMES), "--key", "id", *words, *begun)
    assert done.code == 2
    assert all(each in done.err for each in told), done.err
    assert persist("shard", "list", "--json", *begun).json == []


MANY = "".join(f'{{"id": {number}}}\n' for number in range(100_000))
DAMAGED = {
    "csv-columns": ("t.csv", "id,name\n1,a\n2,b,c\n", (), "line 3: Expected 2 columns, got 3"),
    "csv-value": ("t.csv", "id,name\n1,a\nx,b\n", ("--val", "name"), "line 3: CSV conversion error to int64"),
    "json-syntax": ("t.jsonl", '{"id": 1}\n{"id": 2\n{"id": 3}\n', (), "in line 2"),
    "json-type": ("t.jsonl", '{"id": 1}\n{"id": "x"}\n', (), "changed from number to string, in line 2"),
    "json-far": ("t.jsonl", MANY + '{"id":\n', (), "in line 100001"),
    "json-array": ("t.json", '[{"id": 1}, {"id": 2}]', (), "JSON lines"),
    "double": ("t.csv", "id,name,name\n1,a,b\n", (), "two columns have one name column=name"),
}


@pytest.mark.parametrize(("name", "content", "words", "told"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_rows_are_told_with_their_line(persist, begun, file, name, content, words, told):
    done = persist("shard", "append", "t", file(name, content), "--key", "id:int64", *words, *begun)
    assert (done.code, told in done.err) == (2, True), done.err
    assert persist("shard", "list", "--json", *begun).json == []


@pytest.mark.parametrize(("name", "content"), [("t.csv", "id,name\n1,café\n"), ("t.jsonl", '{"id":1,"name":"café"}\n')])
@pytest.mark.parametrize("known", [False, True])
def test_other_encodings_are_told_and_read_when_named(persist, begun, file, name, content, known):
    if known:
        persist("shard", "append", "t", file(f"utf8-{name}", content.replace("1", "2")), "--key", "id", *begun)
    latin = file(name, content, "latin-1")
    refused = persist("shard", "append", "t", latin, "--key", "id", *begun)
    assert (refused.code, "--encoding latin-1" in refused.err) == (2, True), refused.err
    assert persist("shard", "append", "t", latin, "--key", "id", "--encoding", "latin-1", *begun).code == 0
    assert {row["name"] for row in persist("shard", "snapshot", "t", "--json", *begun).lines} == {"café"}
    unknown = persist("shard", "append", "t", latin, "--encoding", "nonsense", *begun)
    assert (unknown.code, "unknown encoding" in unknown.err) == (2, True)


@pytest.mark.parametrize(("name", "content"), [("t.csv", "id,name\n1,café\n"), ("t.jsonl", '{"id":1,"name":"café"}\n')])
def test_a_byte_order_mark_is_no_part_of_the_first_column(persist, here, file, name, content):
    assert persist("shard", "append", "t", file(name, content, "utf-8-sig"), "--key", "id", *here).code == 0
    assert persist("shard", "snapshot", "t", "--json", *here).lines == [{"id": 1, "name": "café", "diff": 1}]


def test_a_folder_and_an_encoding_of_what_is_no_text_are_refused(persist, begun, tmp_path):
    assert "this is a folder" in persist("shard", "append", "t", tmp_path, "--key", "id", *begun).err
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"id": [1], "ts": [datetime.datetime(2026, 11, 22, 6)]}), path)
    assert (
        "only text has an encoding"
        in persist("shard", "append", "t", path, "--key", "id", "--encoding", "latin-1", *begun).err
    )
    assert persist("shard", "append", "t", path, "--key", "id", "--time-column", "ts", *begun).code == 0
    assert "as of 1795327200000 (2026-11-22T06:00:00.000Z)" in persist("shard", "snapshot", "t", *begun).out


@pytest.mark.parametrize("number", ["340282366920938463463374607431768211461", "7" + "0" * 28, "1e-45", "-1e300"])
def test_a_number_beyond_its_column_is_refused_and_never_another_one(persist, begun, file, number):
    rows = pa.table({"id": [1], "v": pa.array([5], pa.decimal128(38, 10))})
    first = file("first.parquet", "")
    parquet.write_table(rows, first)
    assert persist("shard", "append", "t", first, "--key", "id", *begun).code == 0
    for name, content in (
        ("t.csv", f"id,v\n2,{number}\n"),
        ("t.json", f'{{"id":2,"v":{number}}}\n'),
        ("u.json", f'{{"id":2,"v":"{number}"}}\n'),
    ):
        done = persist("shard", "append", "t", file(name, content), *begun)
        assert done.code == 2, done.out
    assert [row["v"] for row in persist("shard", "snapshot", "t", "--json", *begun).lines] == ["5.0000000000"]


def test_a_file_is_no_location(persist, file):
    path = file("some.csv", "id\n1\n")
    for words in (("shard", "list"), ("shard", "append", "t", path, "--key", "id"), ("sql", "SELECT 1")):
        done = persist(*words, "--location", path)
        assert (done.code, "a location is a directory, and this is a file" in done.err) == (2, True), done.err


def test_file_that_is_not_there_is_said_in_words(persist, here):
    done = persist("shard", "append", "people", "nofile.csv", "--key", "id", *here)
    assert (done.code, "there is no such file" in done.err, "Errno" in done.err) == (2, True, False), done.err
