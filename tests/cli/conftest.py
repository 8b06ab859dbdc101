"""Running ``persist`` in this process: exit code, standard output and standard error of one command line."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import persist as library
from persist_cli.app import run


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def persist(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Call with the words of a command line; keyword arguments are environment variables."""

    def call(*words: object, **environ: str) -> Done:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        code = run([str(word) for word in words], environ)
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture
def here(tmp_path: Path) -> tuple[str, str]:
    """The options of a fresh location."""
    return "--location", str(tmp_path / "location")


@pytest.fixture
def begun(here: tuple[str, str]) -> tuple[str, str]:
    """The options of a location without shards."""
    with library.embedded(here[1]) as client:
        assert not [*client.list_shards()]
    return here


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A small CSV file."""
    path = tmp_path / "people.csv"
    path.write_text("id,name\n1,ada\n2,bob\n")
    return path
