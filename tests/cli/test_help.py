"""What a person sees without having read anything: help, near names, names completed, narrow screens."""

import re
import socket
from pathlib import Path

import pytest
from cli.terminals import on_a_terminal
from forked import child_environment, run_fork

import persist as library
from persist_cli import completion
from persist_cli.options import LocationTarget

IDS = re.compile(r"\bs[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4}\b")


def screen(*words: object, columns: int) -> list[str]:
    # What moves the cursor begins another line: a slow machine sees a bar there, which is taken away again.
    written = re.sub(r"\x1b\[[0-9;?]*[A-HJK]", "\n", on_a_terminal(*words, columns=columns))
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).splitlines()


def test_help_fits_a_screen_and_groups_every_command():
    shown = screen("--help", columns=80)
    assert len(shown) <= 40
    assert max(map(len, shown)) <= 80
    named = [line.split()[1] for line in shown if re.match("│ [a-z]", line)]
    wanted = "dev doctor sql hold shard source sink view catalog serve backup usage fsck admin"
    assert named == wanted.split()
    assert not any("Commands" in line for line in shown)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("shrad", "list"), "'shard'"),
        (("shard", "lst"), "'list'"),
        (("admin", "swep"), "'sweep'"),
        (("shard", "list", "--endpont", "x"), "--endpoint"),
        (("serve", "shard", "--consesus", "x"), "--consensus"),
        (("hold", "advance", "audit", "2031-01-01"), "did you mean --to 2031-01-01?"),
    ],
)
def test_the_near_command_or_option_is_named(persist, words, near):
    done = persist(*words)
    assert done.code == 2
    assert near in done.err


@pytest.mark.parametrize("when", [(), ("--time", 0)], ids=["dates", "counts"])
@pytest.mark.parametrize(("columns", "blocks"), [(60, True), (80, False), (160, False)])
def test_no_id_is_broken_on_a_narrow_screen(persist, here, people, columns, blocks, when):
    for table in ("one", "two"):
        assert persist("shard", "append", table, people, "--key", "id", *when, *here).code == 0
    shown = screen("shard", "list", *here, columns=columns)
    assert sum(len(IDS.findall(line)) for line in shown) == 2
    assert max(map(len, shown)) <= columns
    assert any(line.split() == ["seqno", "2"] for line in shown) is blocks
    assert shown[-1] == "2 shards"


def test_no_id_is_broken_in_what_is_told_of_one_thing(persist, here, people):
    assert persist("shard", "append", "one", people, "--key", "id", *here).code == 0
    shown = screen("shard", "inspect", "one", *here, columns=60)
    assert sum(len(IDS.findall(line)) for line in shown) == 1
    assert max(map(len, shown)) <= 60
    assert any(line.split() == ["seqno", "2"] for line in shown)


def completed(*words: str, **environ: str) -> tuple[int, list[str], str]:
    """What the shell gets for the last word."""
    asked = {"_PERSIST_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = run_fork("persist_cli", environment=child_environment(**asked, **environ))
    return done.returncode, done.stdout.split(), done.stderr


def test_kinds_and_types_are_completed():
    assert completed("persist", "catalog", "edit", "data") == (0, ["database"], "")
    assert completed("persist", "source", "create", "x", "--type", "k") == (0, ["kafka"], "")


def test_names_of_a_location_are_found(persist, here, people):
    target = LocationTarget(endpoint=None, location=here[1], blob=None, consensus=None)
    assert persist("shard", "append", "people", people, "--key", "id", *here).code == 0
    assert completion.shard_ids(target) == [str(library.ShardId.named("table", "people"))]
    options = ("--type", "loadgen", "-o", "generator=counter", "-o", "rate=1", "--no-spark")
    assert persist("source", "create", "many", *options, *here).code == 0
    assert completion.source_names(target) == ["many"]
    [export] = persist("source", "list", *here, "--json").json["sources"][0]["exports"]
    assert completion.export_names(target) == [f"many.{export}"]


def test_items_are_found_by_name_and_named_alone_in_the_schema_of_everybody(persist, here):
    target = LocationTarget(endpoint=None, location=here[1], blob=None, consensus=None)
    script = "create table flights (a int); create schema own; create table own.deep (a int)"
    assert persist("sql", script, *here).code == 0
    assert sorted(completion.item_names(target)) == ["flights", "persist.own.deep", "persist.public.flights"]
    for words in (("shard", "inspect", "fl"), ("shard", "snapshot", "fl"), ("hold", "create", "h", "fl")):
        code, offered, said = completed("persist", *words, PERSIST_LOCATION=here[1])
        # A machine that is busy has not found them in time: what it offers is never anything else.
        assert (code, said) == (0, "")
        assert offered in ([], ["flights"])


@pytest.mark.parametrize("words", [("shard", "inspect", "s"), ("shard", "inspect", "many."), ("source", "run", "m")])
def test_completion_is_silent_where_nothing_answers(tmp_path: Path, words: tuple[str, ...]):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        places: tuple[dict[str, str], ...] = (
            {"PERSIST_ENDPOINT": f"127.0.0.1:{silent.getsockname()[1]}"},
            {"PERSIST_ENDPOINT": "127.0.0.1:1"},
            {"PERSIST_ENDPOINT": "no address:x"},
            {"PERSIST_LOCATION": str(tmp_path / "none")},
            {"PERSIST_BLOB": "mem:x", "PERSIST_CONSENSUS": "nonsense"},
            {},
        )
        for place in places:
            assert completed("persist", *words, **place) == (0, [], "")
    assert not (tmp_path / "none").exists()
