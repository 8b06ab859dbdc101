"""What is said when a package is missing: by name, and never of persist's own modules."""

import importlib
import pickle
import re
import sys
import tomllib
from pathlib import Path

import pytest

from persist import MissingExtra, UsageError
from persist.extras import DISTRIBUTION, extra

ROOT = Path(__file__).resolve().parents[2]


def test_missing_package_is_named_with_the_extra_that_brings_it():
    with pytest.raises(MissingExtra) as raised, extra("redis"):
        importlib.import_module("no_such_client.asyncio")
    assert raised.value.details == {"extra": "redis", "module": "no_such_client"}
    assert str(raised.value).endswith("(pip install 'persist-tvc[redis]')")
    assert isinstance(raised.value, UsageError)
    assert isinstance(raised.value, ImportError)


def test_error_crosses_process_borders():
    with pytest.raises(MissingExtra) as raised, extra("s3"):
        importlib.import_module("no_such_client")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again), again.details) == (MissingExtra, str(raised.value), raised.value.details)


@pytest.mark.parametrize("module", ["persist.no_such_module", "persist_shard.no_such_module"])
def test_missing_module_of_our_own_is_no_missing_extra(module: str):
    with pytest.raises(ModuleNotFoundError, match=re.escape(module)), extra("redis"):
        importlib.import_module(module)


def test_inner_extra_is_the_one_that_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"\[redis\]"), extra("server"), extra("redis"):
        importlib.import_module("redis")


def test_every_extra_that_the_code_names_is_one_that_can_be_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    named = set()
    for path in [path for root in ("clients", "services", "spark") for path in (ROOT / root).rglob("*.py")]:
        text = path.read_text()
        named |= set(re.findall(r'(?:\bextra|\bmissing)\("([a-z0-9-]+)"', text))
        named |= set(re.findall(r"persist-tvc\[([a-z0-9-]+)\]", text))
    assert {"cli", "fast", "grpc", "otlp", "postgres", "redis", "s3", "server", "spark"} <= named
    assert named <= project["optional-dependencies"].keys()
