"""Variables of the environment as commands and servers see them: a misspelt one is seen, an infinite number refused."""

import asyncio
import functools
import inspect
import os
import sys
from typing import Any

import pytest
import typer

from persist.settings import OPTIONS, PREFIX, Settings
from persist_cli.options import finite
from persist_cli.tree import tree

MISSPELT = {"PERSIST_ROLUP_EVERY": "10"}


@functools.cache
def parameters() -> list[Any]:
    """Of all commands."""

    def of(command: Any) -> list[Any]:
        return [*command.params, *(each for inside in getattr(command, "commands", {}).values() for each in of(inside))]

    return of(typer.main.get_command(tree()))


def test_every_variable_of_an_option_is_known() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in [*OPTIONS, *Settings.__dataclass_fields__]}
    named = {str(each.envvar) for each in parameters() if each.envvar}
    assert len(named) > 15
    assert named <= known


def test_no_option_takes_an_infinite_number(persist, here) -> None:
    numbers = [each for each in parameters() if each.type_descriptor.annotation is float]
    assert len(numbers) > 10
    assert [each.name for each in numbers if not each.callback or inspect.unwrap(each.callback) is not finite] == []
    for text in ("inf", "nan"):
        done = persist("shard", "list", *here, "--timeout", text)
        assert (done.code, "--timeout" in done.err) == (2, True)
        assert persist("shard", "list", *here, PERSIST_TIMEOUT=text).code == 2


def test_a_command_says_what_it_passed_over_and_goes_on(persist, here, people) -> None:
    done = persist("shard", "append", "table", people, "--key", "id", *here, **MISSPELT)
    assert done.code == 0, done.err
    assert "PERSIST_ROLUP_EVERY is no setting, and passed over: did you mean PERSIST_ROLLUP_EVERY?" in done.err
    done = persist("shard", "list", *here, PERSIST_SERVICE_HOST="10.0.0.1")
    assert (done.code, done.err) == (0, "")


@pytest.mark.timeout_s(60)
@pytest.mark.parametrize("kind", ["shard", "compaction", "minter", "catalog", "webhook"])
def test_a_server_is_refused(persist, tmp_path, kind) -> None:
    stores = ("--blob", f"file:{tmp_path}/blob", "--consensus", f"sqlite:{tmp_path}/consensus.db")
    words = ("--location", str(tmp_path), "source") if kind == "webhook" else stores
    done = persist("serve", kind, "--listen", "127.0.0.1:0", *words, **MISSPELT)
    assert done.code == 2, done.err
    assert "PERSIST_ROLUP_EVERY is no setting (did you mean PERSIST_ROLLUP_EVERY? otherwise unset it)" in done.err


def test_so_is_the_bare_server(tmp_path) -> None:
    async def ended() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "persist_shard", "127.0.0.1:0", f"file:{tmp_path}/b", f"sqlite:{tmp_path}/c.db",
            env={**os.environ, **MISSPELT}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
        return process.returncode, said.decode()

    code, said = asyncio.run(ended())
    assert (code, "did you mean PERSIST_ROLLUP_EVERY" in said) == (2, True)
