"""What a command did is said, and its exit code says that it happened, whatever becomes of its output afterwards."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sure import sure

import persist as library
from persist.errors import Determinate, Indeterminate, InvalidArgument
from persist_cli.partly import happened

Persist = Callable[..., Any]

MADE = "create table t (id bigint primary key, n int); insert into t values (1, 10), (2, 20)"
FULL = Path("/dev/full")


def ended(*words: object, pipe: bool) -> tuple[int, str]:
    """The exit code and standard error of a process whose standard output is full, or a pipe without a reader."""
    if pipe:
        read, out = os.pipe()
        os.close(read)
    else:
        out = os.open(FULL, os.O_WRONLY)
    try:
        command = [sys.executable, "-m", "persist_cli", *map(str, words)]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    finally:
        os.close(out)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stderr


OUTPUTS = pytest.mark.parametrize("pipe", [True, False], ids=["closed pipe", "full"])


@OUTPUTS
def test_statements_that_happened_are_said_where_their_output_fails(here, pipe: bool):
    code, said = ended("sql", *here, MADE, pipe=pipe)
    assert code == 3
    assert "CREATE TABLE\nINSERT 2\n" in said
    with library.embedded(here[1]) as client:
        assert sure(client.sql("select count(*) as n from t")[0].table).to_pylist() == [{"n": 2}]
    code, said = ended("sql", *here, "--json", "insert into t values (3, 0); select * from t", pipe=pipe)
    assert code == 3
    assert "before it took effect: 1. INSERT 1" in said or '"took_effect": ["1. INSERT 1"]' in said
    assert ended("sql", *here, "select * from t", pipe=pipe)[0] == 1


@OUTPUTS
@pytest.mark.parametrize("json_", [True, False])
def test_rows_that_were_appended_are_said_where_their_output_fails(here, people: Path, pipe: bool, json_: bool):
    options = ("--json",) if json_ else ()
    code, said = ended("shard", "append", *here, *options, "people", people, "--key", "id", pipe=pipe)
    if json_:
        assert code == 3
        assert json.loads(said[said.index("{") :])["rows"] == 2
    else:
        assert code == 0  # all that it says stands on standard error anyway
    assert ended("shard", "snapshot", *here, "people", pipe=pipe)[0] == 1


def test_statement_that_fails_names_what_took_effect_before_it(persist: Persist, here):
    assert persist("sql", *here, MADE).code == 0
    failed = persist("sql", *here, "insert into t values (3, 1); insert into t values (3, 2); delete from t")
    assert failed.code == 3
    assert "before it took effect: 1. INSERT 1" in failed.err
    assert "it did not happen" in failed.err
    told = persist("sql", *here, "--json", "update t set n = 0 where id = 1; select nope from t")
    assert told.code == 3
    assert json.loads(told.err)["took_effect"] == ["1. UPDATE 1"]
    assert "happened" not in json.loads(told.err)
    alone = persist("sql", *here, "insert into t values (3, 2)")
    assert alone.code == 2
    assert alone.err.rstrip().endswith("it did not happen")


def test_statements_of_a_transaction_take_effect_with_its_commit(persist: Persist, here):
    assert persist("sql", *here, MADE).code == 0
    cut = persist("sql", *here, "begin; insert into t values (4, 4); select nope from t; commit")
    assert cut.code == 2
    assert "took effect" not in cut.err
    behind = persist("sql", *here, "begin; insert into t values (4, 4); commit; rollback; select nope from t")
    assert behind.code == 3
    assert "before it took effect: 2. INSERT 1" in behind.err
    undone = persist("sql", *here, "begin; insert into t values (5, 5); rollback; select nope from t")
    assert undone.code == 2


def test_failed_write_of_one_commit_says_whether_it_happened(persist: Persist, here, people: Path):
    assert persist("shard", "append", *here, "people", people, "--key", "id").code == 0
    failed = persist("shard", "append", *here, "people", people, "--time", "3")
    assert failed.code == 2
    assert failed.err.rstrip().endswith("it did not happen")
    told = persist("shard", "append", *here, "--json", "people", people, "--time", "3")
    assert json.loads(told.err)["happened"] == "no"
    assert [happened(each("why", hint="what")) for each in (Determinate, Indeterminate, InvalidArgument)] == [
        "no",
        "maybe",
        "no",
    ]


def test_query_whose_reader_has_gone_ends_without_a_word(tmp_path: Path, persist: Persist):
    """Also not of its engine, which counts what is left of it when the process ends."""
    here = ("--location", tmp_path / "data")
    assert persist("sql", *here, MADE).code == 0
    many = "select a.id from t a, " + ", ".join(f"t t{number}" for number in range(14))
    command = shlex.join([sys.executable, "-m", "persist_cli", "sql", *map(str, here), "--csv", many])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} | head -1"], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ('"id"\n', "")


def test_why_output_fails_is_said_once():
    code, said = ended("--version", pipe=False)
    assert (code, said.count("persist: standard output")) == (1, 1)
