"""The programs of docs/examples run as a user runs them, and print what they should."""

import ast
import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from forked import child_environment
from pages.fences import ROOT
from pages.running import reading

from persist.testing import servers

EXAMPLES = ROOT / "docs/examples"
OURS_FOR_USERS = {"persist", "persist.catalog", "persist_ingest", "pyspark_persist"}
STUBS = {"persist.v1", "persist.v1.shard_pb2_grpc"}


def run(name: str, *words: object) -> list[str]:
    """The lines a program printed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, words)],
        env=child_environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_plain_python(tmp_path: Path) -> None:
    assert run("embedded.py", tmp_path) == [
        "at 10: {'Oslo': 3, 'Rome': 17}",
        "at 20: {'Oslo': 5, 'Rome': 17}",
        "-1 Oslo 3",
        "+1 Oslo 5",
    ]


def test_generated_stubs_alone(tmp_path: Path) -> None:
    with reading(tmp_path, {}, {}) as reader:
        endpoint = reader.serve()
        assert run("grpc_stubs.py", endpoint) == [
            "upper [5], again: False",
            "upper [5], again: True",
            "upper_mismatch: [5]",
            "{'id': 1, 'name': 'Ada', 'ts': 3, 'diff': 1}",
            "{'id': 2, 'name': 'Grace', 'ts': 3, 'diff': 1}",
            "watched 2 rows before [5]",
        ]


def test_catalog(tmp_path: Path) -> None:
    assert run("catalog.py", tmp_path) == ["['sales']", "fenced by epoch 3", "['orders']"]


@pytest.fixture
def shop_dsn() -> Iterator[str]:
    with servers.start_postgres({"wal_level": "logical", "fsync": "off"}) as server:
        with contextlib.closing(psycopg.connect(server.uri, autocommit=True)) as connection:
            connection.execute("CREATE DATABASE shop")
        yield f"host=127.0.0.1 port={server.port} user=postgres dbname=shop"


def test_source_from_postgres(tmp_path: Path, shop_dsn: str) -> None:
    assert run("postgres_source.py", tmp_path, shop_dsn) == [
        "public.orders [(1, 30), (2, 5)]",
        "public.items [(1, 1, 10), (2, 1, 20), (3, 2, 5)]",
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_use_what_users_may(path: Path) -> None:
    named = itertools.chain.from_iterable(
        [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    ours = {name for name in named if name.partition(".")[0].startswith(("persist", "pyspark_persist", "examples"))}
    assert ours
    assert ours <= (STUBS if path.name == "grpc_stubs.py" else OURS_FOR_USERS)
