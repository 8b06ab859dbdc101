"""Files that are cut off, of another table, hostile, or very wide: never silently wrong, and in bounded memory."""

import gzip
import resource
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from ingest.sources.suite import check_laws, reached, read, rows_of
from ingest.sources.test_files import START, made, parquet, put
from sure import as_a

from persist.sources import SourceFrontier, SourceKind
from persist_ingest.sources.files import formats
from persist_ingest.sources.port import Changes, Event

SCHEMA = "id bigint, name string"
OPEN = "a quote is open where the file ends: it may have been cut off"


def as_changes(event: Event) -> Changes:
    return as_a(Changes, event)


def judged(folder: Path, data: bytes, kind: str, name: str = "file", **options: str) -> tuple[list[Any], list[Any]]:
    """The rows of a file (number, id, name), and its bad ones (number, error), wherever it is read from."""
    put(folder / name, data)
    reader = made(folder, format=kind, schema=SCHEMA, badRows="divert", **options)
    end = reached(reader)
    middle = SourceFrontier.at(SourceKind.FILES, {end.keys[0]: 1})
    found = check_laws(reader, [START, middle, end], elsewhere=False)
    rows = [(row[0], *row[2:]) for row in rows_of(found, "rows")]
    return rows, [(row[0], row[5]) for row in rows_of(found, "errors")]


@pytest.mark.parametrize(
    ("data", "good"),
    [
        (b'id,name\n1,a\n2,"b', 1),
        (b'id,name\n1,a\n2,"b\n3,c\n4,d\n', 1),
        (b'id,name\n1,a\n2,"b""', 1),
        (b'id,name,more\n1,a,\n2,b,"x', 1),
        (b'id,name\n1,a\n2,"b"', 2),
        (b'id,name\n1,a\n2,"b"""\n', 2),
        (b'id,name\n1,a\n2,b"c', 2),
        (b'id,name\n1,"a\nb"\n2,"b, ""c"""\n\n', 2),
        (b'id,name\r1,a\r2,"b', 1),
    ],
)
def test_a_quote_that_is_open_at_the_end_is_a_bad_row(tmp_path: Path, data: bytes, good: int) -> None:
    rows, bad = judged(tmp_path, data, "csv")
    assert [row[1] for row in rows] == [1, 2][:good]
    assert [number for number, _ in bad] == [1][: 2 - good]
    assert all("quote is open" in error for _, error in bad)


@pytest.mark.parametrize("blocks", [12, 16, 1 << 22])
def test_an_open_quote_is_seen_across_blocks(tmp_path: Path, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "BLOCK_BYTES", blocks)
    rows, bad = judged(tmp_path, b'id,name\n1,a\n2,"b"\n3,c\n4,"d', "csv")
    assert [row[1] for row in rows] == [1, 2, 3]
    assert [number for number, _ in bad] == [3]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"1,a", "no column id, name"),
        (b"id,Name\n1,a\n", "a column Name, and no name"),
        (b"id,Name", "a column Name, and no name"),
        (b"id,name,name\n1,a,b\n", "columns twice: name"),
        (b'id,"na\nme"\n1,a\n', "no column name"),
    ],
)
def test_a_header_is_judged_also_without_rows(tmp_path: Path, data: bytes, says: str) -> None:
    rows, bad = judged(tmp_path, data, "csv")
    assert not rows
    assert [number for number, _ in bad] == [0]
    assert says in bad[0][1]


def test_endings_count_in_any_case(tmp_path: Path) -> None:
    assert judged(tmp_path, gzip.compress(b"\xef\xbb\xbfid,name\n1,a\n"), "csv", "x.csv.GZ") == ([(0, 1, "a")], [])


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"x": [1, 2]}), "lacks columns that must have values or are of the key: id"),
        (pa.table({"name": ["a"]}), "of the key: id"),
        (pa.table({"id": [1], "Name": ["a"]}), "a column Name, and no name"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], ["id", "name", "name"]),
            "twice: name",
        ),
    ],
)
def test_parquet_of_another_table_is_bad(tmp_path: Path, table: pa.Table, says: str) -> None:
    rows, bad = judged(tmp_path, parquet(table), "parquet")
    assert not rows
    assert [number for number, _ in bad] == [0]
    assert says in bad[0][1]


def test_a_column_that_older_files_lack_is_null(tmp_path: Path) -> None:
    assert judged(tmp_path, parquet(pa.table({"id": [1]})), "parquet") == ([(0, 1, None)], [])


def test_row_counts_of_a_footer_are_checked(tmp_path: Path) -> None:
    sound = parquet(pa.table({"id": list(range(60)), "name": ["z"] * 60}), row_group_size=20)
    size = int.from_bytes(sound[-8:-4], "little")
    lost = 0
    for at in range(len(sound) - 8 - size, len(sound) - 8):
        if sound[at] not in (40, 120):  # 20 and 60, as the footer writes them
            continue
        data = sound[:at] + b"\x02" + sound[at + 1 :]
        folder = tmp_path / str(at)
        rows, bad = judged(folder, data, "parquet")
        assert len(rows) == 60 or bad
        lost += len(rows) < 60
    assert lost


def test_wide_texts_of_parquet_are_read_in_bounded_memory(tmp_path: Path) -> None:
    text = "x" * 200_000
    names = pa.DictionaryArray.from_arrays(pa.array([0] * 16_384, pa.int32()), pa.array([text]))
    put(tmp_path / "file", parquet(pa.table({"id": list(range(16_384)), "name": names}), compression="zstd"))
    reader = made(tmp_path, format="parquet", schema=SCHEMA)
    count, before = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for task in reader.plan(START, reached(reader), 1):
        for event in map(as_changes, task.read()):
            assert event.rows.nbytes < 3 * formats.BLOCK_BYTES
            count += event.rows.num_rows
    assert count == 16_384
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_wide_lines_of_json_are_read_in_bounded_memory(tmp_path: Path) -> None:
    line = b'{"id":1,"name":"' + b"x" * 300_000 + b'"}\n'
    put(tmp_path / "file.gz", gzip.compress(line * 1000, 1))
    reader = made(tmp_path, format="json", schema=SCHEMA)
    count = 0
    for task in reader.plan(START, reached(reader), 1):
        for event in map(as_changes, task.read()):
            assert event.rows.nbytes < 2 * formats.BLOCK_BYTES
            count += event.rows.num_rows
    assert count == 1000


def test_a_line_of_json_beyond_the_limit_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "ROW_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(formats, "BLOCK_BYTES", 1 << 18)
    long = b'{"id":2,"name":"' + b"x" * (3 << 20) + b'"}'
    rows, bad = judged(tmp_path, b'{"id":1}\n' + long + b'\n\n{"id":3}\n', "json")
    assert rows == [(0, 1, None), (2, 3, None)]
    assert [(number, error) for number, error in bad] == [(1, "a line is longer than 1 MiB")]
    assert (
        len(
            rows_of(
                read(made(tmp_path, format="json", schema=SCHEMA, badRows="divert"), START, _end(tmp_path)), "errors"
            )
        )
        == 1
    )


def _end(folder: Path) -> SourceFrontier:
    return reached(made(folder, format="json", schema=SCHEMA))


def test_quotes_amid_cells_cost_little(tmp_path: Path) -> None:
    def seconds(name: str, cell: bytes) -> float:
        put(tmp_path / name / "file", b"id,name\n" + b"".join(b"%d,%s\n" % (n, cell) for n in range(200_000)))
        reader = made(tmp_path / name, format="csv", schema=SCHEMA)
        (task,) = reader.plan(START, reached(reader), 1)
        began = time.process_time()
        assert sum(as_changes(event).rows.num_rows for event in task.read()) == 200_000
        return time.process_time() - began

    plain, quotes = (
        min(seconds(f"{name}{turn}", cell) for turn in range(3))
        for name, cell in (("plain", b"a pipe of 5'"), ("quotes", b'a pipe of 5"'))
    )
    assert quotes < 3 * plain


def test_a_mark_before_a_quoted_header_is_no_part_of_it(tmp_path: Path) -> None:
    assert judged(tmp_path, b'\xef\xbb\xbf"id","name"\n1,a\n2,"b', "csv") == ([(0, 1, "a")], [(1, OPEN)])
    assert judged(tmp_path / "other", b'\xef\xbb\xbf"id","name"\n1,a\n', "csv") == ([(0, 1, "a")], [])
