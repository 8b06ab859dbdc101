"""One of several writers of one table: `python -m bench.jobs.writer REQUEST`. Says ready, waits for a line, writes.

No caller says at which time: the server places each append at the upper, the table format at its newest version.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench import peers, rows


def main(request: dict[str, Any]) -> None:
    tables = [
        rows.make(request["rows"], start=step * request["rows"], salt=request["number"] + 1)
        for step in range(request["commits"])
    ]
    append = {"persist": _persist, "deltalake": _deltalake}[request["system"]](request)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    taken, milliseconds, moved, failures = rows.Sum(), [], 0, []
    began = time.monotonic()
    for table in tables:
        start = time.perf_counter()
        try:
            moved += append(table)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}"[:200])
            continue
        milliseconds.append((time.perf_counter() - start) * 1e3)
        taken.add(table)
    answer = {"began": began, "ended": time.monotonic(), "ms": milliseconds, "moved": moved, "failures": failures}
    print(json.dumps({**answer, "rows": taken.rows, "digest": taken.digest}), flush=True)


def _persist(request: dict[str, Any]) -> Callable[[pa.Table], int]:
    import persist

    client = persist.connect(request["endpoint"], settings=persist.Settings(inline_part_bytes_max=0))
    writer = client.open_writer(request["table"])

    def append(table: pa.Table) -> int:
        writer.append_at_upper(table)
        return 0

    return append


def _deltalake(request: dict[str, Any]) -> Callable[[pa.Table], int]:
    table = peers.Delta(request["s3"], request["table"], create=False)

    def append(data: pa.Table) -> int:
        table.append(peers.lake_rows(data))
        return 0

    return append


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
