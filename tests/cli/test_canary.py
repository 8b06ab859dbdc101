"""No secret comes out of any command, however it is given and whatever goes wrong."""

import io
import json as stdjson
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main
from cli.conftest import Done

from persist import redaction
from persist_cli.tree import tree
from persist_host import logs

CANARY = "C4nary"
PIECES = re.compile(rf"{CANARY}|Tw1tter|W4rble")
UNREACHABLE = "127.0.0.1:1"
HASTY = {f"PERSIST_{name}_MS": "200" for name in ("TIMEOUT", "STORE_TIMEOUT", "FIRST_CONNECTION")}
"""No server is there, now or later."""
FORMS = {
    "plain": f"postgres://bob:{CANARY}@{UNREACHABLE}/shop",
    "hash": f"postgres://bob:{CANARY}#Tw1tter@{UNREACHABLE}/shop",
    "question mark": f"postgres://bob:{CANARY}?Tw1tter@{UNREACHABLE}/shop",
    "colon": f"postgres://bob:{CANARY}:Tw1tter@{UNREACHABLE}/shop",
    "encoded": f"postgres://bob:{CANARY}%2FTw1tter%40@{UNREACHABLE}/shop",
    "slash": f"postgres://bob:{CANARY}/Tw1tter@{UNREACHABLE}/shop",
    "at": f"postgres://bob:{CANARY}@Tw1tter@{UNREACHABLE}/shop",
    "at first": f"postgres://bob:@{CANARY}@{UNREACHABLE}/shop",
    "percent": f"postgres://bob:{CANARY}%Tw1tter@{UNREACHABLE}/shop",
    "all": f"postgres://bob:{CANARY}/#?Tw1tter%@W4rble@{UNREACHABLE}/shop",
    "query": f"postgres://bob@{UNREACHABLE}/shop?password={CANARY}&sslmode=disable",
    "query with at": f"postgres://bob@{UNREACHABLE}/shop?password={CANARY}@Tw1tter",
    "ssl key": f"postgres://bob@{UNREACHABLE}/shop?sslpassword={CANARY}&sslmode=disable",
    "words": f"host=127.0.0.1 port=1 user=bob password={CANARY} dbname=shop",
    "quoted words": rf"host=127.0.0.1 port=1 password = '{CANARY} \'Tw1tter W4rble'",
    "bad option": f"postgres://bob:{CANARY}@{UNREACHABLE}/shop?nonsense={CANARY}",
    "redis": f"redis://:{CANARY}@{UNREACHABLE}/0",
    "redis hash": f"redis://:{CANARY}#Tw1tter@{UNREACHABLE}/0",
    "redis slash": f"redis://bob:{CANARY}/Tw1tter@{UNREACHABLE}/0",
    "typo": f"postgers://bob:{CANARY}/Tw1tter@{UNREACHABLE}/shop",
}


def leaves(command: typer.core.TyperCommand, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every command, and how it is called."""
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = dict[tuple[str, ...], Any](leaves(cast(Any, typer.main.get_command(tree()))))


@pytest.fixture(autouse=True)
def process_as_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What earlier tests let this process know would hide what this one lets out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(redaction, "_secrets", set())
    monkeypatch.setattr(redaction, "_pattern", None)
    names = ("persist", "asyncio", "grpc")
    before = [(logging.getLogger(name), logging.getLogger(name).handlers[:]) for name in names]
    yield
    for logger, handlers in before:
        logger.handlers[:] = handlers
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def words(path: tuple[str, ...], uri: str, tmp_path: object) -> tuple[str, ...]:
    """A command line of that command about a store with a secret; nonsense where it wants something else."""
    command = COMMANDS[path]
    options = {name for each in command.params for name in each.opts}
    needed = [each for each in command.params if each.required and each.param_type_name == "argument"]
    line = [*path, *(["s" + "0" * 8] * len(needed))]
    if "--stash" in options:
        line += ["--stash", uri]
    elif "--consensus" in options:
        line += ["--consensus", uri, "--blob", f"file:{tmp_path}/blob"]
    if "--timeout" in options:
        line += ["--timeout", "0.2"]
    if "--all" in options:
        line += ["--all"]
    if "--listen" in options:
        line += ["--listen", "127.0.0.1:0"]
    return tuple(line)


def check(done: Done) -> None:
    assert PIECES.findall(done.out + done.err) == []
    assert done.out + done.err


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", [("doctor",), ("serve", "shard"), ("usage",), ("catalog", "epoch")], ids=" ".join)
def test_no_form_of_a_secret_comes_out(persist, tmp_path, path, form):
    done = persist(*words(path, FORMS[form], tmp_path), **HASTY)
    check(done)
    assert done.code in (1, 2)


@pytest.mark.parametrize("form", ["hash", "slash"])
@pytest.mark.parametrize("path", [path for path in COMMANDS if path != ("dev",)], ids=" ".join)
def test_no_command_tells_a_secret(persist, tmp_path, path, form):
    check(persist("--debug", *words(path, FORMS[form], tmp_path), **HASTY, PERSIST_TIMEOUT="0.2"))


@pytest.mark.parametrize(
    "line",
    [
        ("usage", FORMS["slash"], "--location", "nowhere"),
        ("usage", "--over", FORMS["slash"], "--location", "nowhere"),
        ("usage", "--blob", FORMS["hash"], "--consensus", "file:/nowhere"),
        ("usage", "--location", FORMS["at"]),
        ("shard", "list", "--endpoint", FORMS["at"]),
        ("usage", f"--consensus={FORMS['all']}", "--unknown"),
        ("source", "create", "s", "--type", "postgres", "-o", f"dsn={FORMS['words']}", "--location", "nowhere"),
    ],
    ids=["extra", "number", "swapped", "directory", "endpoint", "typo", "dsn"],
)
def test_secret_in_the_wrong_place_does_not_come_out(persist, line):
    done = persist("--debug", *line, PERSIST_TIMEOUT="0.2")
    check(done)
    assert done.code in (1, 2)


def test_secret_of_the_environment_does_not_come_out(persist, tmp_path):
    environ = {"PGPASSWORD": f"{CANARY}/Tw1tter", **HASTY}
    line = words(("usage",), f"postgres://bob@{CANARY}%2FTw1tter:1/shop", tmp_path)
    check(persist("--debug", *line, **environ))


@pytest.mark.parametrize("secret", ["error", "message", "INVALID_ID", "persist", "create", "details"])
def test_secret_that_is_a_word_of_ours_changes_no_names_and_no_advice(persist, begun, tmp_path, secret):
    done = persist("shard", "inspect", "s0-0-0-0-000000000000000000000000000000", "--json", *begun, X_TOKEN=secret)
    told = stdjson.loads(done.err)
    assert set(told) == {"error", "message", "details", "hint"}
    assert told["error"] == "INVALID_ID"
    (tmp_path / "none").mkdir()
    done = persist("backup", "verify", tmp_path / "none", X_TOKEN=secret)
    assert done.err == "persist: there is no finished backup here (persist backup create makes one)\n"


def test_secret_in_json_does_not_come_out_and_json_stays_json(persist, tmp_path):
    line = words(("usage",), f"postgres://bob@{CANARY}%2FTw1tter:1/shop", tmp_path)
    done = persist(*line, "--json", PGPASSWORD=f"{CANARY}/Tw1tter", **HASTY)
    check(done)
    assert stdjson.loads(done.err)["error"]


def test_secret_that_is_a_name_in_log_lines_does_not_rename_it(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", redaction.Scrubbed(said))
    redaction.learn_environment({"X_TOKEN": "logger"})
    logs.configure()
    logging.getLogger("persist.x").warning("the logger")
    line = stdjson.loads(said.getvalue())
    assert (line["logger"], line["message"]) == ("persist.x", "the ***")
