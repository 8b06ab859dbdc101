"""Rows of texts: numbers are those that are written, line numbers those of the file, and an interrupt ends a wait."""

import csv
import os
import pty
import signal
import subprocess
import sys

import pytest

FIRST = "id,a\n7,x\n"


@pytest.fixture
def put(persist, begun, tmp_path):
    """Append a text of this format to the shard ``t``, after another one if there is a first."""

    def call(content: str, *words: str, kind: str = "csv", first: str = ""):
        done = None
        for name, text in (("first.csv", first), (f"t.{kind}", content)):
            path = tmp_path / name
            path.write_text(text, newline="")
            if text:
                done = persist("shard", "append", "t", path, "--key", "id", *words, *begun)
        return done

    return call


NOT_KEPT = {
    "csv-key": ("csv", "id,a\n1,x\n9223372036854775809,x\n9223372036854775810,x\n", 3),
    "csv-val": ("csv", "id,a\n1,9007199254740993\n2,9223372036854775808\n", 2),
    "csv-mixed": ("csv", "id,a\n1,1.5\n2,\n3, -9007199254740993\n", 4),
    "csv-quoted": ("csv", 'id,a\n1,1.5\n2,"9007199254740993"\n', 3),
    "csv-later": ("csv", "id,a\n" + "".join(f"{at},1.5\n" for at in range(200_000)) + "-1,9007199254740993\n", 200_002),
    "json-key": ("jsonl", '{"id":1}\n{"id":12345678901234567890}\n{"id":12345678901234567891}\n', 2),
    "json-val": ("jsonl", '{"id":1,"a":9007199254740993}\n{"id":2,"a":1.5}\n', 1),
    "json-list": ("jsonl", '{"id":1,"a":[1.5]}\n{"id":2,"a":[9007199254740993]}\n', 2),
    "json-struct": ("jsonl", '{"id":1,"a":{"b":1.5}}\n{"id":2,"a":{"b":9007199254740993}}\n', 2),
    "json-slash": ("jsonl", '{"id":1,"a\\/b":1.5}\n{"id":2,"a\\/b":9007199254740993}\n', 2),
    "json-long": ("jsonl", '{"id":1,"a":1.5}\n{"id":2,"a":' + "9" * 5_001 + "}\n", 2),
    "json-name": ("jsonl", '{"id":1,"a":1.5}\n{"id":2,"\\u0061":9007199254740993}\n', 2),
}


@pytest.mark.parametrize(("kind", "content", "line"), NOT_KEPT.values(), ids=NOT_KEPT)
def test_a_whole_number_that_no_float_is_is_refused_where_no_type_is_named(persist, begun, put, kind, content, line):
    done = put(content, kind=kind)
    assert (done.code, "is not kept by a float" in done.err) == (2, True), done.err
    assert all(each in done.err for each in (f"line {line}", "id:uint64")), done.err
    assert persist("shard", "list", "--json", *begun).json == []


SMALL = {
    "known": '{"id":1,"a":1.5}\n{"id":2,"a":1e-400}\n',
    "negative": '{"id":1,"a":1.5}\n{"id":2,"a":-0.1E-0400}\n',
    "zeros": '{"id":1,"a":1.5}\n{"id":2,"a":0.' + "0" * 400 + "1}\n",
    "list": '{"id":1,"a":[1.5]}\n{"id":2,"a":[0e-999, 1e-400]}\n',
    "struct": '{"id":1,"a":{"b":1.5}}\n{"id":2,"a":{"b":1e-400}}\n',
}


@pytest.mark.parametrize("content", SMALL.values(), ids=SMALL)
def test_a_number_that_is_too_small_for_a_float_is_refused_and_no_zero(persist, begun, put, content):
    done = put(content, kind="jsonl")
    assert (done.code, "out of range" in done.err, "line 2" in done.err) == (2, True, True), done.err


def test_copy_takes_no_number_that_is_too_small_for_a_float_for_zero(persist, begun, put, tmp_path):
    put(SMALL["known"], kind="jsonl")
    made = f"CREATE TABLE s (id bigint, a double precision); COPY s FROM '{tmp_path}/t.jsonl'"
    assert "out of range" in persist("sql", made, *begun).err
    assert persist("sql", "--json", "SELECT * FROM s", *begun).lines == []


def test_a_decimal_can_be_named_as_the_type_of_a_column(persist, begun, put):
    done = put("id,d,e\n1,12.50,3.5\n", "--val", "d:decimal(20,2), e:decimal128(9, 1)")
    assert done.code == 0, done.err
    (row,) = persist("shard", "snapshot", "t", "--json", *begun).lines
    assert (row["d"], row["e"]) == ("12.50", "3.5")
    assert "unknown column type" in put("id,d\n1,2\n", "--val", "d:decimal(200,2)").err


def test_numbers_that_floats_keep_and_long_ids_beside_floats_are_taken(persist, begun, put, tmp_path):
    assert put("id,a\n9007199254740993,1.5\n2,100000000000000000000\n").code == 0
    rows = sorted(persist("shard", "snapshot", "t", "--json", *begun).lines, key=lambda row: row["id"])
    assert [(row["id"], row["a"]) for row in rows] == [(2, 1e20), (9007199254740993, 1.5)]
    path = tmp_path / "u.csv"
    path.write_text("id,a\n9223372036854775809,x\n9223372036854775810,x\n")
    assert persist("shard", "append", "u", path, "--key", "id:uint64", *begun).code == 0
    found = {row["id"] for row in persist("shard", "snapshot", "u", "--json", *begun).lines}
    assert found == {2**63 + 1, 2**63 + 2}


LINES = {
    "blank": ("csv", "id,a\n1,x\n\n\n\nzwei,y\n", "line 6"),
    "blank-first": ("csv", "\n\nid,a\n1,x\nzwei,y\n", "line 5"),
    "quoted": ("csv", 'id,a\n1,"x\ny\nz"\nzwei,y\n', "line 5"),
    "quoted-header": ("csv", 'id,"a"\r\n1,"x\r\ny"\r\nzwei,y\r\n', "line 4"),
    "returns": ("csv", "id,a\r1,x\rzwei,y\r", "line 3"),
    "columns": ("csv", 'id,a\n1,"x\n\n"\n2,y,z\n', "line 5"),
    "time-missing": ("csv", "id,a,ts\n1,x,1\n2,y,\n", "line=3"),
    "time-negative": ("csv", "id,a,ts\n1,x,1\n\n2,y,-5\n", "in line 4"),
    "time-huge": ("csv", "id,a,ts\n1,x,1\n2,y,9223372036854775808\n", "in line 3"),
    "diff-missing": ("csv", "id,a,diff\n1,x,1\n2,y,\n", "line=3"),
    "json-blank": ("jsonl", '{"id":1,"a":"x"}\n\n\n\n{"id":"zwei","a":"x"}\n', "in line 5"),
    "json-field": (
        "jsonl",
        "".join(f'{{"id":{at},"a":"x"}}\n' for at in range(99_999)) + '{"id":7,"b":1}',
        "unexpected field b, in line 100000",
    ),
    "json-float": ("jsonl", '{"id":1,"a":"x"}\n{"id":1.5,"a":"x"}\n', "in column id, in line 2"),
    "json-time": ("jsonl", '{"id":1,"a":"x","ts":1}\n\n{"id":2,"a":"x"}\n', "line=3"),
    "json-negative": ("jsonl", '{"id":1,"a":"x","ts":1}\n\n{"id":2,"a":"x","ts":-1}\n', "in line 3"),
    "json-diff": ("jsonl", '{"id":1,"a":"x","diff":1}\n{"id":2,"a":"x"}\n', "line=2"),
    "json-null": ("jsonl", "null\n", "give one object a line"),
}


@pytest.mark.parametrize(("kind", "content", "said"), LINES.values(), ids=LINES)
def test_what_is_wrong_is_said_with_its_line_in_the_file(put, kind, content, said):
    done = put(content, kind=kind, first=FIRST)
    assert (done.code, said in done.err) == (2, True), done.err


@pytest.mark.parametrize("first", ["", FIRST])
def test_a_header_that_is_there_again_is_no_row(persist, begun, put, first):
    done = put('id,a\n1,"x\nid,a\n"\nid,a\n2,y\n', first=first)
    assert (done.code, "the header is there again, in line 5" in done.err) == (2, True), done.err
    assert len(persist("shard", "list", "--json", *begun).json) == (1 if first else 0)


def test_a_row_that_says_what_the_header_says_has_other_quotes(persist, begun, put):
    assert put('id,a\nid,"a"\n').code == 0
    assert persist("shard", "snapshot", "t", "--json", *begun).lines == [{"id": "id", "a": "a", "diff": 1}]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_breaks_in_quotes_are_kept_in_texts_of_any_size(persist, begun, tmp_path, end):
    rows = {at: f'line one of {at}{end}{at + 10_000_000},line "two" of {at}' for at in range(30_000)}
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator=end)
        writer.writerow(["id", "note"])
        writer.writerows(rows.items())
    assert path.stat().st_size > 1 << 20
    assert persist("shard", "append", "t", path, "--key", "id", *begun).code == 0
    assert {row["id"]: row["note"] for row in persist("shard", "snapshot", "t", "--json", *begun).lines} == rows


@pytest.mark.parametrize("words", [("--key", "id:string"), ("--val", "a:int64"), ("--val", "b"), ("--key", "a")])
def test_a_key_a_val_or_a_type_that_is_not_the_shards_is_refused(persist, begun, tmp_path, words):
    path = tmp_path / "t.csv"
    path.write_text(FIRST)
    assert persist("shard", "append", "t", path, "--key", "id", *begun).code == 0
    done = persist("shard", "append", "t", path, *words, *begun)
    assert (done.code, "has another" in done.err) == (2, True), done.err
    same = persist("shard", "append", "t", path, "--key", "id:int64", "--val", "a:string", *begun)
    assert same.code == 0, same.err


@pytest.mark.parametrize("kind", ["csv", "json", "arrow"])
def test_an_interrupt_ends_the_wait_for_standard_input(begun, kind):
    main, side = pty.openpty()
    words = ("shard", "append", "s", "--format", kind, "--key", "id", *begun)
    # The child says when it reads: the terminal has then what was typed.
    program = (
        # What starts tests may have it ignore interrupts.
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from persist_cli.shard import rows_in; opened = rows_in._open\n"
        "def said(source):\n    sys.stderr.write('reads\\n'); sys.stderr.flush(); return opened(source)\n"
        "rows_in._open = said\n"
        "from persist_cli.app import run; sys.exit(run(sys.argv[1:], os.environ))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdin=side, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert child.stderr is not None
        assert child.stderr.readline() == "reads\n"
        os.write(main, b'{"id":1}\n' if kind == "json" else b"id,v\n1,a\n")
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    finally:
        child.kill()
        child.wait()
        os.close(main)
        os.close(side)
