"""What the command imports: nothing that the one command at hand does not need, whatever is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist_cli.tree import BRANCHES

HEAVY = ("boto3", "google.rpc", "grpc", "opentelemetry", "pandas", "psycopg", "pyspark", "redis", "uvloop")
NOT_FOR_HELP = (
    *HEAVY, "google", "numpy", "persist.client", "persist.core", "persist.machine", "persist.storage", "persist.wire",
    "persist_host", "persist_ingest", "pyarrow", "sqlite3",
)  # fmt: skip
NOT_FOR_SNAPSHOT = (
    *HEAVY, "pyarrow.acero", "pyarrow.dataset", "persist.client.binding",
    "persist.client.blocking.catalog", "persist.client.blocking.compaction",
    "persist.client.blocking.minter", "persist.client.catalog", "persist.client.remote",
    "persist.client.shard.compaction", "persist.core.binding", "persist.core.catalog", "persist.core.source",
    "persist.machine.backup", "persist.machine.compaction.compactor", "persist.machine.compaction.scheduler",
    "persist.machine.upkeep.fsck", "persist_compaction", "persist_host", "persist_ingest", "persist_shard",
)  # fmt: skip

PROGRAM = """
import sys
from persist_cli.__main__ import main
sys.argv = ["persist", *sys.argv[1:]]
try:
    main()
finally:
    print(*(name for name, module in sys.modules.items() if module is not None), file=sys.stderr)
"""


def imported(*words: str) -> set[str]:
    """The modules a process has after it ran this command, which must succeed."""
    command = [sys.executable, "-c", PROGRAM, *words]
    # A secret there is compared with the words of all commands, to be distinguished from them.
    environ = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def among(modules: set[str], unwanted: tuple[str, ...]) -> list[str]:
    return sorted(name for name in modules if f"{name}.".startswith(tuple(f"{each}." for each in unwanted)))


@pytest.mark.parametrize("words", [("--help",), ("shard", "snapshot", "--help"), ("--version",)], ids=" ".join)
def test_help_imports_nothing_that_works(words: tuple[str, ...]) -> None:
    assert among(imported(*words), NOT_FOR_HELP) == []


def test_snapshot_of_files_imports_neither_pandas_nor_servers_nor_what_compacts(tmp_path: Path) -> None:
    with persist.embedded(tmp_path) as client:
        shard = persist.ShardId.named("table", "people")
        writer = client.open_writer(shard, schema=persist.Schema(key={"id": pa.int64()}))
        writer.append([(({"id": 1}, None), 0, 1)], 1)
    modules = imported("shard", "snapshot", "people", "--as-of", "0", "--location", str(tmp_path))
    assert "pyarrow" in modules
    assert among(modules, NOT_FOR_SNAPSHOT) == []


@pytest.mark.parametrize("words", [("shard", "list"), ("fsck",), ("usage",), ("catalog", "items")], ids=" ".join)
def test_a_command_makes_no_branch_but_its_own(words: tuple[str, ...]) -> None:
    modules = imported(*words, "--help")
    branches = {branch.module for branch in BRANCHES.values()} & modules
    assert branches == {BRANCHES[words[0]].module}


def test_pandas_can_be_had_by_whoever_asks_for_it_after_a_command(tmp_path: Path) -> None:
    with persist.embedded(tmp_path) as client:
        assert not [*client.list_shards()]
    program = (
        "import sys; from persist_cli.app import run; import pyarrow as pa\n"
        "assert run(['shard', 'list', *sys.argv[1:]], {}) == 0\n"
        "assert 'pandas' not in sys.modules\n"
        "assert pa.table({'a': [1]}).to_pandas().shape == (1, 1)\n"
        "import pandas as pd\n"
        "assert pa.array(pd.Series([1.0, float('nan')])).null_count == 1\n"
    )
    command = [sys.executable, "-c", program, "--location", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
