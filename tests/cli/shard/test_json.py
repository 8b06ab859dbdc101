"""With --json a program gets JSON: of rows, of failures, and of a command line that is wrong."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

CLI = [sys.executable, "-m", "persist_cli"]


def strict(text: str):
    def refused(token: str):
        raise AssertionError(token)

    return json.loads(text, parse_constant=refused)


def test_floats_that_json_has_no_number_for_are_texts(persist, here):
    assert persist("sql", *here, "create table t (id int primary key)").code == 0
    done = persist("sql", *here, "--json", "select 'Infinity'::float8 as x, 'NaN'::float8 as y, -1.5::float8 as z")
    assert [strict(line) for line in done.out.splitlines()] == [{"x": "Infinity", "y": "NaN", "z": -1.5}]


@pytest.mark.parametrize(
    "words",
    [
        ("shard", "list", "--json", "--nonsense"),
        ("shard", "snapshot", "--json"),
        ("nonsense", "--json"),
        ("shard", "lst", "--json"),
        ("shard", "list", "--json"),
        ("shard", "snapshot", "t", "--json", "--as-of", "tomorrow"),
        ("shard", "snapshot", "t", "--json", "--timeout", "0"),
        ("shard", "snapshot", "t", "--json", "--format", "csv"),
        ("shard", "snapshot", "t", "2026-11-22", "--json"),
    ],
)
def test_a_wrong_command_line_is_one_object_too(persist, words):
    done = persist(*words)
    assert (done.code, done.out) == (2, "")
    assert strict(done.err)["error"] == "USAGE"
    assert strict(done.err)["message"]


def test_a_closed_standard_output_is_said_and_never_a_file_of_the_location(here, people):
    for words, code in ((("append", "people", people, "--key", "id"), 3), (("list",), 1)):
        command = [*CLI, "shard", *map(str, words), *here]
        done = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command], capture_output=True, text=True, check=False
        )
        if code == 3:  # what it did is said on standard error in any case
            assert done.returncode in (0, 3), done.stderr
        else:
            assert done.returncode == code
            assert "standard output: it is closed" in done.stderr
        assert "Traceback" not in done.stderr
    there = subprocess.run([*CLI, "shard", "list", "--json", *here], capture_output=True, text=True, check=True)
    assert len(json.loads(there.stdout)) == 1


def test_nothing_is_bold_where_no_color_says_so(here, begun):
    main, side = pty.openpty()
    for words in (("shard", "--help"), ("sql", *here, "select 1 as a"), ("shard", "inspect", "none", *here)):
        child = subprocess.Popen(
            [*CLI, *words], stdin=side, stdout=side, stderr=side, env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
        )
        child.wait(120)
        said = os.read(main, 1 << 16)
        assert said
        assert not re.search(rb"\x1b\[[0-9;]*[1-9][0-9;]*m", said), said
    os.close(side)
    os.close(main)
