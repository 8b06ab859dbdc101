"""Files: whole when they appear, the same for ever, and bad rows found wherever they are."""

import asyncio
import contextlib
import gzip
import http.client
import json
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pytest
from ingest.sources.suite import check_laws, check_probe, reached, read, rows_of
from sure import as_a

from persist import InvalidArgument, InvalidUri, LocationError
from persist.sources import OFFSET_MAX, SourceFrontier, SourceKind, UpstreamLost
from persist.testing.http_faults import HttpFaultProxy, Refusal, port_of, through
from persist_ingest.sources.files import FILES, formats
from persist_ingest.sources.files import objects as placing
from persist_ingest.sources.files import reader as reading
from persist_ingest.sources.files.places import Content
from persist_ingest.sources.files.reader import FilesReader
from persist_ingest.sources.options import columns
from persist_ingest.sources.port import BadRows, Changes, SourceFailure

START = SourceFrontier.minimum(SourceKind.FILES)
SCHEMA = "id bigint not null, name string, price double"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All new files are found at once, however slow the machine is."""
    monkeypatch.setattr(reading, "IDENTIFY_SECONDS", 60.0)


def made(root: Path | str, **options: str) -> FilesReader:
    given = {"path": str(root), "key": "id", **options}
    with FILES.create(given, source="test") as beginning:
        assert beginning.bound == START
        definition = json.loads(json.dumps(beginning.definition))
        return FILES.open(definition, beginning.reader.exports())


def put(path: Path, data: bytes) -> None:
    """As a careful writer does it: under another name first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(data)
    hidden.rename(path)


def everything(reader: FilesReader) -> list[tuple[Any, ...]]:
    return rows_of(read(reader, START, reached(reader)), "rows")


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def csv(count: int, first: int = 0) -> bytes:
    return b"id,name,price\n" + b"".join(b"%d,n%d,%d.5\n" % (n, n, n) for n in range(first, first + count))


def jsonl(count: int) -> bytes:
    return b"".join(b'{"id":%d,"name":"n%d","price":%d.5}\n' % (n, n, n) for n in range(count))


def table(count: int) -> pa.Table:
    ids = list(range(count))
    return pa.table({"id": ids, "name": [f"n{n}" for n in ids], "price": [n + 0.5 for n in ids]})


CONTENT = {"csv": csv(20_000), "json": jsonl(20_000), "parquet": parquet(table(20_000), row_group_size=3_000)}


@pytest.mark.parametrize("kind", CONTENT)
def test_formats_keep_the_laws_of_readers(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "b/one", CONTENT[kind])
    put(tmp_path / "a", CONTENT[kind])
    put(tmp_path / "empty", b"")
    declared = {} if kind == "parquet" else {"schema": SCHEMA}
    reader = made(tmp_path, format=kind, include="path,row", **declared)
    end = reached(reader)
    assert [key.rpartition("#")[0] for key in end.keys] == ["a", "b/one", "empty"]
    assert set(end.bounds) == {OFFSET_MAX}
    middle = SourceFrontier.at(SourceKind.FILES, {end.keys[0]: 17_000, end.keys[1]: 2_999})
    found = check_laws(reader, [START, middle, end])
    check_probe(reader)
    rows = found["rows", end.keys[1]]
    assert rows[12_345] == (12_345, 1, 12_345, "n12345", 12_345.5, "b/one", 12_345)
    assert [len(each) for each in found.values()] == [20_000, 20_000]


def test_files_still_being_written_are_not_there(tmp_path: Path) -> None:
    for name in (".a.csv", "_SUCCESS", "a.csv.tmp", "b.crdownload", "_delta/a.csv", "d/.x/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(csv(1))
    reader = made(tmp_path, format="csv", schema=SCHEMA, pattern="*.csv")
    assert reader.probe().high == ()
    put(tmp_path / "d/e/a.csv", csv(1))
    put(tmp_path / "readme.txt", b"?")
    assert [key.rpartition("#")[0] for key in reached(reader).keys] == ["d/e/a.csv"]


def test_a_file_that_still_changes_has_not_settled(tmp_path: Path) -> None:
    reader = made(tmp_path, format="csv", schema=SCHEMA, settleSeconds="0.05")
    (tmp_path / "a.csv").write_bytes(csv(1))
    assert reader.probe().high == ()
    (tmp_path / "a.csv").write_bytes(csv(2))
    assert reader.probe().high == ()
    while not reader.probe().high:
        pass
    assert len(everything(reader)) == 2


def test_a_bound_file_may_not_change(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", csv(2))
    reader = made(tmp_path, format="csv", schema=SCHEMA)
    end = reached(reader)
    plan = reader.plan(START, end, 1)
    put(tmp_path / "a.csv", csv(2, first=7))
    for ask in (lambda: list(plan[0].read()), reader.probe):
        with pytest.raises(SourceFailure, match="changed"):
            ask()
    again = FILES.open(json.loads(json.dumps(made(tmp_path, format="csv", schema=SCHEMA)._definition.to_json())), {})
    both = end.join(reached(again))  # bound by a driver that could not know: found when it plans
    with pytest.raises(SourceFailure, match="another one has its name"):
        again.plan(end, both, 1)


def test_a_bound_file_may_go_once_it_was_read_but_not_before(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", csv(2))
    reader = made(tmp_path, format="csv", schema=SCHEMA)
    first = reached(reader)
    plan = reader.plan(START, first, 1)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(UpstreamLost, match="removed before"):
        list(pickle.loads(pickle.dumps(plan[0])).read())
    put(tmp_path / "b.csv", csv(3))
    assert len(rows_of(read(reader, first, first.join(reached(reader))), "rows")) == 3
    reader.commit(first.join(reached(reader)))
    assert reader.probe().high == ()
    assert reader.status().committed is not None
    os.utime(tmp_path / "b.csv", ns=(1, 1))
    with pytest.raises(SourceFailure, match="changed"):
        reader.probe()


def test_a_file_changed_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", csv(200_000))
    reader = made(tmp_path, format="csv", schema=SCHEMA)
    events = reader.plan(START, reached(reader), 1)[0].read()
    next(events)
    with (tmp_path / "a.csv").open("ab") as file:
        file.write(b"1,x,2\n")
    with pytest.raises(SourceFailure, match="changed"):
        list(events)


def test_the_directory_may_be_away_but_not_missing_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    reader = made(root, format="csv", schema=SCHEMA)
    root.rmdir()
    with pytest.raises(LocationError, match="not there"):
        reader.probe()


BAD_CSV = b'id,name,price\n1,a,1\n2,b\n\nx,c,3\n4,d,4,4\n,e,5\n6,,\n7,"",7\n8,\xff,8\n9,i,9\n10\n'
BAD_JSON = b'\xef\xbb\xbf{"id":1}\n\n \r\n{"id":"x"}\n{"id":3,"name":"c"}\nnull\n{"id":5}{"id":6}\n{"id":7}'


def diverted(tmp_path: Path, data: bytes, **options: str) -> tuple[list[Any], list[Any]]:
    put(tmp_path / "file", data)
    reader = made(tmp_path, schema=SCHEMA, badRows="divert", **options)
    end = reached(reader)
    found = check_laws(reader, [START, *(SourceFrontier.at(SourceKind.FILES, {end.keys[0]: n}) for n in (2, 4)), end])
    bad = rows_of(found, "errors")
    assert all(row[2:5] == ("rows", end.keys[0], row[0]) for row in bad)
    return rows_of(found, "rows"), [(row[0], row[-1]) for row in bad]


def test_bad_rows_of_csv_are_diverted(tmp_path: Path) -> None:
    good, bad = diverted(tmp_path, BAD_CSV, format="csv")
    assert [(row[0], *row[2:]) for row in good] == [
        (0, 1, "a", 1.0),
        (5, 6, None, None),
        (6, 7, "", 7.0),
        (8, 9, "i", 9.0),
    ]
    assert bad == [(1, b"2,b"), (2, b"x,c,3"), (3, b"4,d,4,4"), (4, b",e,5"), (7, b"8,\xff,8"), (9, b"10")]


@pytest.mark.parametrize("number", [str(2**128 + 5), "1e300", "7" + "0" * 28, "1e-45"])
def test_a_number_beyond_its_column_is_a_bad_row(tmp_path: Path, number: str) -> None:
    for kind, data in (
        ("csv", f"id,v\n1,1.5\n2,{number}\n"),
        ("json", f'{{"id":1,"v":1.5}}\n{{"id":2,"v":{number}}}\n'),
    ):
        folder = tmp_path / kind
        folder.mkdir()
        put(folder / "file", data.encode())
        reader = made(folder, schema="id int not null, v decimal(38, 10)", badRows="divert", format=kind)
        found = check_laws(reader, [START, reached(reader)])
        assert [row[-1] for row in rows_of(found, "rows")] == [Decimal("1.5")]
        assert len(rows_of(found, "errors")) == 1


def test_bad_rows_of_json_are_diverted(tmp_path: Path) -> None:
    good, bad = diverted(tmp_path, BAD_JSON, format="json")
    assert [(row[0], row[2], row[3]) for row in good] == [(0, 1, None), (2, 3, "c"), (5, 7, None)]
    assert bad == [(1, b'{"id":"x"}'), (3, b"null"), (4, b'{"id":5}{"id":6}')]


@pytest.mark.parametrize(
    ("kind", "data"),
    [("csv", BAD_CSV), ("json", BAD_JSON), ("parquet", parquet(table(50), row_group_size=7))],
)
def test_blocks_make_no_difference(tmp_path: Path, kind: str, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "file", data)
    reader = made(tmp_path, format=kind, schema=SCHEMA, badRows="divert")
    whole = read(reader, START, reached(reader))
    monkeypatch.setattr(formats, "BLOCK_ROWS", 2)
    monkeypatch.setattr(formats, "BLOCK_BYTES", 16)
    assert read(reader, START, reached(reader)) == whole
    assert rows_of(whole, "rows")


def test_bad_rows_fail_unless_told(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", BAD_CSV)
    reader = made(tmp_path, format="csv", schema=SCHEMA)
    with pytest.raises(BadRows, match=r"offset=1.*another source.*badRows=divert"):
        everything(reader)


def test_values_of_parquet_that_do_not_fit_are_bad_rows(tmp_path: Path) -> None:
    wide = pa.table({"id": [1, 1 << 40, None, 4], "price": ["1", "2", "3", "x"], "more": [0, 0, 0, 0]})
    put(tmp_path / "file", parquet(wide))
    reader = made(tmp_path, format="parquet", schema="id int not null, price double, name string", badRows="divert")
    found = read(reader, START, reached(reader))
    assert [row[2:] for row in rows_of(found, "rows")] == [(1, 1.0, None)]
    assert [row[0] for row in rows_of(found, "errors")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "data", "good"),
    [
        ("parquet", CONTENT["parquet"][:-9], 0),
        ("parquet", parquet(pa.table({"name": ["no id"]})), 0),
        ("csv", b"id,nam\n1,a\n", 0),
        ("csv", csv(2) + b'3,"never closed' + b"x" * (5 << 20), None),
        ("csv", b"A" * 200_000, 0),
    ],
    ids=["no footer", "column missing", "no such column", "a row too long", "a name too long"],
)
def test_files_that_make_no_sense_end_with_a_bad_row(tmp_path: Path, kind: str, data: bytes, good: int | None) -> None:
    put(tmp_path / "file", data)
    reader = made(tmp_path, format=kind, schema=SCHEMA, badRows="divert")
    end = reached(reader)
    middle = SourceFrontier.at(SourceKind.FILES, {end.keys[0]: 5_000})
    found = check_laws(reader, [START, middle, end], elsewhere=False)
    rows, bad = rows_of(found, "rows"), rows_of(found, "errors")
    assert len(bad) == 1
    assert bad[0][0] == len(rows) if good is None else len(rows) == good
    with pytest.raises(BadRows):
        everything(made(tmp_path, format=kind, schema=SCHEMA))


def test_headers_delimiters_and_compression(tmp_path: Path) -> None:
    put(tmp_path / "a.csv.gz", gzip.compress(b"1;a;1\n2;b\n3;c;3\n"))
    put(tmp_path / "b.csv.gz", gzip.compress(b'1;"x\ny;";1')[:-12])
    reader = made(tmp_path, format="csv", schema=SCHEMA, header="false", delimiter=";", badRows="divert")
    found = read(reader, START, reached(reader))
    assert [(row[0], row[3]) for row in rows_of(found, "rows")] == [(0, "a"), (2, "c")]
    assert [row[0] for row in rows_of(found, "errors")] == [1, 0]
    only_header = made(tmp_path / "none", format="csv", schema=SCHEMA)
    put(tmp_path / "none/a.csv", b"id,name,price")
    put(tmp_path / "none/b.csv", b"name,id,more,price\nx,1,?,2\n")
    assert [row[2:] for row in everything(only_header)] == [(1, "x", 2.0)]


def test_the_columns_of_parquet_are_learned(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no Parquet file to learn"):
        made(tmp_path, format="parquet")
    put(tmp_path / "b", parquet(pa.table({"other": [1]})))
    put(tmp_path / "a", parquet(pa.table({"id": [1], "tags": [["x"]], "kind": pa.array(["k"]).dictionary_encode()})))
    reader = made(tmp_path, format="parquet", badRows="divert")
    schema = reader.exports()["rows"]
    assert schema.key.names == ["id"]
    assert schema.val.field("kind").type == pa.string()
    rows = rows_of(read(reader, START, reached(reader)), "rows")
    assert rows == [(0, 1, 1, ["x"], "k")]  # the other file is of another table


def test_tasks_share_files_by_size(tmp_path: Path) -> None:
    for number in range(20):
        put(tmp_path / f"{number:02}.csv", csv(100 if number else 3_000, first=number))
    reader = made(tmp_path, format="csv", schema=SCHEMA)
    plan = reader.plan(START, reached(reader), 2)
    assert [len(task.pieces) for task in plan] == [1, 19]
    assert sum(task.weight for task in plan) == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "tasks", "good", "bad"),
    [
        (CONTENT["parquet"], 8, 20_000, 0),
        (CONTENT["parquet"][:60_000] + bytes(100) + CONTENT["parquet"][60_100:], 8, 17_000, 1),
        (CONTENT["parquet"][:-9], 1, 0, 1),
    ],
    ids=["sound", "garbage in a row group", "no footer"],
)
def test_tasks_share_the_rows_of_a_large_parquet_file(
    tmp_path: Path, data: bytes, tasks: int, good: int, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SPLIT_BYTES", 1000)
    put(tmp_path / "file", data)
    reader = made(tmp_path, format="parquet", schema=SCHEMA, badRows="divert")
    end = reached(reader)
    assert len(reader.plan(START, end, 8)) == tasks
    middle = SourceFrontier.at(SourceKind.FILES, {end.keys[0]: 11_111})
    found = check_laws(reader, [START, middle, end], elsewhere=False)
    assert len(rows_of(found, "rows")) == good
    assert len(rows_of(found, "errors")) == bad


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"format": "cvs"}, r"did you mean csv\?"),
        ({"format": "csv"}, "need option schema"),
        ({"format": "csv", "schema": SCHEMA, "key": "ident"}, "key column"),
        ({"format": "csv", "schema": SCHEMA, "key": ""}, "needs option key"),
        ({"format": "json", "schema": SCHEMA, "header": "true"}, "about CSV"),
        ({"format": "csv", "schema": SCHEMA, "delimiter": "||"}, "one character"),
        ({"format": "csv", "schema": SCHEMA, "include": "file"}, "path and row"),
        ({"format": "csv", "schema": "id int, row int", "include": "row"}, "both in the files"),
        ({"format": "csv", "schema": SCHEMA, "export": "errors"}, "another name"),
        ({"format": "csv", "schema": SCHEMA, "settle": "3"}, r"did you mean settleSeconds\?"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        made(tmp_path, **options)


def test_wrong_places_are_refused() -> None:
    for uri in ("ftp://x/y", "s3:///x", "s3://b/p?regoin=x"):
        with pytest.raises(InvalidUri):
            made(uri, format="csv", schema=SCHEMA)


class Broken:
    """A file on a disk that went away after it was opened."""

    at = 0

    def read(self, count: int | None) -> bytes:
        raise OSError("the disk is gone")

    def seek(self, offset: int, whence: int) -> int:
        self.at = offset if whence == os.SEEK_SET else 1000 + offset
        return self.at

    def tell(self) -> int:
        return self.at


@pytest.mark.parametrize("path", ["file", "file.gz"])
@pytest.mark.parametrize("kind", [formats.JsonLines, formats.Parquet, lambda fields: formats.Csv(fields=fields)])
def test_a_fault_of_the_store_is_no_fault_of_the_data(kind: Any, path: str) -> None:
    with pytest.raises(LocationError, match="the disk is gone"):
        list(kind(columns(SCHEMA)).blocks(Content(Broken(), 1000), path, 0, OFFSET_MAX))


def test_objects_in_s3_are_files(fresh_s3_uri: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = fresh_s3_uri()
    reader = made(uri, format="csv", schema=SCHEMA, include="path")
    assert reader.probe().high == ()
    place: Any = reader._place
    store = place._store()
    for name in ("x/a.csv", "b.csv", "_no.csv"):
        with store.open_output_stream(f"{place.root}/{name}") as sink:
            sink.write(csv(50))
    end = reached(reader)
    assert [key.rpartition("#")[0] for key in end.keys] == ["b.csv", "x/a.csv"]
    found = check_laws(reader, [START, SourceFrontier.at(SourceKind.FILES, {end.keys[1]: 7}), end])
    assert len(rows_of(found, "rows")) == 100
    plan = reader.plan(START, end, 1)
    with store.open_output_stream(f"{place.root}/b.csv") as sink:
        sink.write(csv(51))
    with pytest.raises(SourceFailure, match="changed"):
        list(plan[0].read())
    store.delete_file(f"{place.root}/b.csv")
    with pytest.raises(UpstreamLost):
        list(plan[0].read())


class Objects:
    """A prefix of a server of S3, written by requests, so that keys are as they are given."""

    def __init__(self, uri: str) -> None:
        self.uri, parts = uri, urlsplit(uri)
        self._server = urlsplit(dict(parse_qsl(parts.query))["endpoint"]).netloc
        self._root = f"/{parts.netloc}{parts.path}"

    def put(self, key: str, data: bytes) -> None:
        self._ask("PUT", key, data)

    def delete(self, key: str) -> None:
        self._ask("DELETE", key)

    def _ask(self, method: str, key: str, data: bytes = b"") -> None:
        with contextlib.closing(http.client.HTTPConnection(self._server)) as connection:
            connection.request(method, f"{self._root}/{quote(key)}", data)
            assert connection.getresponse().status < 300


def test_an_object_replaced_within_its_second_is_another(fresh_s3_uri: Any) -> None:
    objects = Objects(fresh_s3_uri())
    while time.time() % 1 > 0.2:
        time.sleep(0.01)
    objects.put("f.csv", b"id,name,price\n1,old,1\n")
    one = made(objects.uri, format="csv", schema=SCHEMA)
    end = reached(one)
    assert [row[3] for row in rows_of(read(one, START, end), "rows")] == ["old"]
    objects.put("f.csv", b"id,name,price\n1,new,1\n")
    other = made(objects.uri, format="csv", schema=SCHEMA)
    with pytest.raises(SourceFailure, match=r"changed.*path=f\.csv.*new source"):
        read(other, START, end)
    assert reached(made(objects.uri, format="csv", schema=SCHEMA)) != end
    again = made(objects.uri, format="csv", schema=SCHEMA)
    again.remember(end)
    assert reached(again) == end  # it was bound as that, and is looked at when it is read


def test_an_object_replaced_while_it_is_read_is_an_error(fresh_s3_uri: Any) -> None:
    objects = Objects(fresh_s3_uri())
    objects.put("f.csv", csv(200_000))
    reader = made(objects.uri, format="csv", schema=SCHEMA)
    events = reader.plan(START, reached(reader), 1)[0].read()
    next(events)
    objects.put("f.csv", csv(200_000).replace(b"n1,", b"m1,"))
    with pytest.raises(SourceFailure, match="changed"):
        list(events)


def test_bindings_of_earlier_releases_are_read(fresh_s3_uri: Any) -> None:
    objects = Objects(fresh_s3_uri())
    objects.put("f.csv", csv(3))
    definition = made(objects.uri, format="csv", schema=SCHEMA)._definition.to_json()
    del definition["identity"]
    old = FILES.open(definition, {})
    assert old.probe().high == ()  # its second may not have passed
    while not old.probe().high:
        pass
    end = reached(old)
    assert [len(key.rpartition("#")[2]) for key in end.keys] == [12]
    for reader in (old, FILES.open(definition, {}), made(objects.uri, format="csv", schema=SCHEMA)):
        reader.remember(end)
        assert reached(reader) == end
        assert len(rows_of(read(reader, START, end), "rows")) == 3


@pytest.mark.parametrize("key", ["x//y.csv", "/z.csv", "dir/"])
def test_an_object_that_cannot_be_opened_is_named_before_it_is_bound(fresh_s3_uri: Any, key: str) -> None:
    objects = Objects(fresh_s3_uri())
    objects.put("a.csv", csv(3))
    objects.put(key, csv(3))
    reader = made(objects.uri, format="csv", schema=SCHEMA)
    with contextlib.suppress(SourceFailure):
        assert len(reader.probe().high) == 1
    with pytest.raises(SourceFailure, match="cannot be opened"):
        reader.probe()
    objects.delete(key)
    assert len(everything(reader)) == 3


def test_small_objects_are_read_ahead_in_order(fresh_s3_uri: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "AHEAD_BYTES", 10_000)
    objects = Objects(fresh_s3_uri())
    for number in range(40):
        objects.put(f"{number:02}.csv", csv(2_000 if number % 7 == 3 else 3, first=number))
    reader = made(objects.uri, format="csv", schema=SCHEMA, include="path")
    end = reached(reader)
    (task,) = reader.plan(START, end, 1)
    paths = [as_a(Changes, event).rows["path"][0].as_py() for event in task.read()]
    assert list(dict.fromkeys(paths)) == [f"{number:02}.csv" for number in range(40)]
    assert len(rows_of(read(reader, START, end), "rows")) == 6 * 2_000 + 34 * 3
    objects.put("20.csv", csv(4))
    events = task.read()
    with pytest.raises(SourceFailure, match=r"20\.csv"):
        list(events)


def puts(objects: Objects, count: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: objects.put(f"{number:05}.csv", csv(1, first=number)), range(count)))


async def test_many_new_objects_are_identified_by_lists(fresh_s3_uri: Any) -> None:
    objects = Objects(fresh_s3_uri())
    puts(objects, 1_500)
    async with HttpFaultProxy(port_of(objects.uri)) as proxy:
        reader = made(through(objects.uri, proxy.endpoint), format="csv", schema=SCHEMA)
        high = (await asyncio.to_thread(reader.probe)).high
        assert len(high) == 1_500
        assert proxy.asked["HEAD"] <= 3
        assert proxy.asked["LIST"] <= 6
    alone = made(objects.uri, format="csv", schema=SCHEMA)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(placing, "LISTED_FROM", 10_000)
        assert set(alone.probe().high) == set(high)  # however they are identified


async def test_new_objects_are_taken_however_many_requests_fail(
    fresh_s3_uri: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "LISTED_FROM", 10_000)
    objects = Objects(fresh_s3_uri())
    puts(objects, 200)
    refusal = Refusal(status=403, code="AccessDenied")
    async with HttpFaultProxy(port_of(objects.uri), (refusal,), probability=0.5) as proxy:
        reader = made(through(objects.uri, proxy.endpoint), format="csv", schema=SCHEMA)
        found: set[Any] = set()
        for _ in range(60):
            with contextlib.suppress(LocationError):
                high = set((await asyncio.to_thread(reader.probe)).high)
                assert found <= high
                found = high
        assert len(found) == 200
        assert proxy.asked["HEAD"] < 200 * 4


def test_a_probe_takes_what_it_identified_in_time(fresh_s3_uri: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "LISTED_FROM", 10_000)
    monkeypatch.setattr(reading, "IDENTIFY_SECONDS", 0.0)
    objects = Objects(fresh_s3_uri())
    puts(objects, 3 * placing.AHEAD)
    reader = made(objects.uri, format="csv", schema=SCHEMA)
    assert [len(reader.probe().high) for _ in range(4)] == [placing.AHEAD * count for count in (1, 2, 3, 3)]


def test_an_object_that_has_settled_stays_so(fresh_s3_uri: Any) -> None:
    objects = Objects(fresh_s3_uri())
    objects.put("a.csv", csv(1))
    reader = made(objects.uri, format="csv", schema=SCHEMA, settleSeconds="0.2")
    assert reader.probe().high == ()
    time.sleep(0.3)
    for _ in range(4):
        assert len(reader.probe().high) == 1
        time.sleep(0.15)
    objects.put("a.csv", csv(2))
    assert reader.probe().high == ()


def test_a_file_has_not_settled_before_it_was_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MANY_FILES", 1)
    put(tmp_path / "a.csv", csv(1))
    reader = made(tmp_path, format="csv", schema=SCHEMA, settleSeconds="0.1")
    monkeypatch.setattr(type(reader._place), "seconds_each", 10**6)
    assert reader.probe().high == ()
    (tmp_path / "a.csv").write_bytes(csv(2))
    time.sleep(0.2)
    assert reader.probe().high == ()
    reader._list_at = float("-inf")
    assert reader.probe().high == ()
    time.sleep(0.2)
    reader._list_at = float("-inf")
    assert len(everything(reader)) == 2


def test_an_object_that_goes_between_two_lists_is_no_error(fresh_s3_uri: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "LISTED_FROM", 10_000)
    monkeypatch.setattr(reading, "IDENTIFY_SECONDS", 0.0)
    monkeypatch.setattr(reading, "MANY_FILES", 1)
    objects = Objects(fresh_s3_uri())
    puts(objects, placing.AHEAD + 3)
    reader = made(objects.uri, format="csv", schema=SCHEMA)
    monkeypatch.setattr(type(reader._place), "seconds_each", 10**6)
    assert len(reader.probe().high) == placing.AHEAD
    objects.delete(f"{placing.AHEAD + 2:05}.csv")
    assert [len(reader.probe().high) for _ in range(4)] == [placing.AHEAD + 2] * 4
    reader._list_at = float("-inf")
    assert len(reader.probe().high) == placing.AHEAD + 2
