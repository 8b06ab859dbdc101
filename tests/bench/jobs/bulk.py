"""One system appends or reads many rows in a fresh process: `python -m bench.jobs.bulk REQUEST`.

Prints seconds and the peak of memory above what was resident before: the interpreter, its libraries and the input.
"""

import json
import sys
from typing import Any

import pyarrow as pa

from bench import peers
from bench.floor.parts import Bulk
from bench.measure import Peak
from bench.rows import Sum


def main(request: dict[str, Any]) -> None:
    system, operation = request["system"], request["operation"]
    if system == "persist":
        import uvloop

        answer = uvloop.run(_persist(request))
    elif operation == "append":
        table = _input(request)
        target = _target(request)
        data = peers.lake_rows(table) if system == "deltalake" else table
        del table
        with Peak() as peak:
            target.append(data)
        answer = {"seconds": peak.seconds, "peak_mb": peak.mb}
    else:
        target = _target(request)
        with Peak() as peak:
            found = target.read()
        answer = {"seconds": peak.seconds, "peak_mb": peak.mb, **_summed(found)}
    print(json.dumps(answer), flush=True)


def _target(request: dict[str, Any]) -> Any:
    if request["system"] == "floor":
        return Bulk(request["s3"], request["redis"], request["table"])
    return peers.Delta(request["s3"], request["table"], create=request["operation"] == "append")


def _input(request: dict[str, Any]) -> pa.Table:
    with pa.OSFile(request["input"], "r") as file:
        return pa.ipc.open_file(file).read_all()


async def _persist(request: dict[str, Any]) -> dict[str, Any]:
    from bench import ours

    async with ours.client(request["endpoint"]) as client:
        if request["operation"] == "append":
            writer = await client.open_writer(request["table"], schema=ours.SCHEMA)
            table = _input(request)
            with Peak() as peak:
                await writer.compare_and_append(table, 0, 1)
            return {"seconds": peak.seconds, "peak_mb": peak.mb}
        reader = await client.open_reader(request["table"])
        snapshot = await reader.snapshot(0)
        if request["operation"] == "read":
            with Peak() as peak:
                found = await snapshot.to_arrow()
            return {"seconds": peak.seconds, "peak_mb": peak.mb, **_summed(found)}
        with Peak() as peak:
            async for _ in snapshot.to_batches():
                pass
        total = Sum()
        async for batch in snapshot.to_batches():
            total.add(batch)
        return {"seconds": peak.seconds, "peak_mb": peak.mb, "rows": total.rows, "digest": total.digest}


def _summed(table: pa.Table) -> dict[str, int]:
    total = Sum.of(table)
    return {"rows": total.rows, "digest": total.digest}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
