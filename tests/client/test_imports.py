"""Importing persist: quick, light, and with the names it promises."""

import json
from typing import Any

from client.support import run_python

import persist

HEAVY = ("grpc", "boto3", "botocore", "redis", "psycopg", "pyspark", "pandas", "pyarrow", "numpy", "asyncio")

UNUSED = (
    "boto3", "google.rpc", "grpc", "opentelemetry", "persist.client.binding", "persist.client.catalog",
    "persist.client.remote", "persist.client.shard.compaction", "persist.core.binding", "persist.core.catalog",
    "persist.core.source", "persist.machine.backup", "persist.machine.compaction.compactor", "persist_host", "psycopg",
    "pyspark", "redis", "uvloop",
)  # fmt: skip
"""What writing to and reading from files has no use for, with all that is inside."""

PROBE = """
import json, sys, time
began = time.process_time()
import persist
took = time.process_time() - began
print(json.dumps({"seconds": took, "modules": sorted(sys.modules)}))
"""


def _probe() -> dict[str, Any]:
    done = run_python(PROBE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_import_is_quick_and_loads_no_client_library():
    runs = [_probe() for _ in range(3)]
    assert min(run["seconds"] for run in runs) < 0.15
    assert not set(HEAVY) & set(runs[0]["modules"])


def test_embedded_use_loads_only_what_it_needs(tmp_path):
    program = (
        "import sys, persist, pyarrow as pa\n"
        f"client = persist.embedded({str(tmp_path)!r})\n"
        "writer, reader = client.open(persist.ShardId.new(), schema=persist.Schema(key={'k': pa.int64()}))\n"
        "writer.append([(({'k': 1}, None), 0, 1)], 1)\n"
        "assert reader.snapshot(0).to_pylist() == [{'k': 1, 'diff': 1}]\n"
        "client.close()\n"
        "print(*sys.modules)\n"
    )
    done = run_python(program)
    assert done.stderr == ""
    assert not [name for name in done.stdout.split() if f"{name}.".startswith(tuple(f"{each}." for each in UNUSED))]


def test_all_is_sorted_and_every_name_resolves():
    assert persist.__all__ == sorted(persist.__all__)
    assert len(set(persist.__all__)) == len(persist.__all__)
    for name in persist.__all__:
        assert getattr(persist, name) is not None
    assert set(persist.__all__) <= set(dir(persist))


def test_unknown_name_is_an_attribute_error():
    assert not hasattr(persist, "finalize_everything")
