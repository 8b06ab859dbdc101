"""Tables written by processes that are killed, at any moment and at the worst: transfers are whole or not there."""

import asyncio
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from client.support import Place
from client.table.table_processes import start, told, whole

import persist


@pytest.mark.between_processes
async def test_processes_killed_at_any_moment_leave_whole_transfers(place: Place, tmp_path: Path):
    files = [tmp_path / f"told-{number}" for number in range(4)]
    processes = [await start(place, number, 15, file) for number, file in enumerate(files[:3])]
    try:
        while len(told(files[0])) < 4:
            assert processes[0].returncode is None
            await asyncio.sleep(0.002)
        processes[0].send_signal(signal.SIGKILL)
        processes.append(await start(place, 3, 10, files[3]))
        assert [await process.wait() for process in processes] == [-signal.SIGKILL, 0, 0, 0]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
    found, acknowledged = await whole(place), told(*files)
    assert len(acknowledged) >= 4 + 15 + 15 + 10
    # One transfer of the process that was killed may have happened unreported.
    assert acknowledged <= found
    assert len(found - acknowledged) <= 1


@pytest.mark.between_processes
@pytest.mark.parametrize("where", ["append", "copy", "copied", "forget"])
async def test_a_process_killed_between_log_and_tables_leaves_its_transfer_whole(
    place: Place, where: str, tmp_path: Path
):
    file = tmp_path / "told"
    process = await start(place, 0, 2, file, where)
    assert await process.wait() == -signal.SIGKILL
    assert told(file) == {0, 1}
    # The log had it, so it happened, whichever process copies it.
    assert await whole(place) == {0, 1, 2}


def test_blocking_tables_do_all_the_asynchronous_ones_do(tmp_path: Path):
    schema = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
    with persist.embedded(tmp_path) as client:
        for mode in ("direct", "wal"):
            table = client.table(f"t {mode}", schema=schema, timeline="U.t", mode=mode)
            assert (table.mode, table.schema, str(table.timeline)) == (mode, schema, "U.t")
            first = table.insert([{"id": 1, "name": "a"}])
            table.upsert(pa.table({"id": [1, 2], "name": ["b", "c"]}))
            table.delete([{"id": 2}])
            assert table.snapshot(first).to_pylist() == [{"id": 1, "name": "a", "diff": 1}]
            assert table.snapshot().to_pylist() == [{"id": 1, "name": "b", "diff": 1}]
            table.retract([{"id": 1, "name": "b"}], transaction=persist.Transaction(app_id="x", version=1))
            assert table.snapshot().to_pylist() == []
            assert client.recent_upper(table.shard).elements[0] > first
        with client.transaction("U.t") as txn:
            txn.insert(table, [{"id": 3, "name": "d"}, {"id": 4, "name": "e"}])
            txn.retract(table, [{"id": 4, "name": "e"}])

        def move(txn: persist.TableTransaction) -> int:
            held = txn.snapshot(table).to_arrow().num_rows
            txn.upsert(table, [{"id": 5, "name": str(held)}])
            txn.delete(table, [{"id": 3}])
            return held

        assert client.transact(move, "U.t") == 1
        assert table.snapshot().to_pylist() == [{"id": 5, "name": "1", "diff": 1}]
        client.settle("U.t")
        assert txn.ts is not None
        assert table.snapshot(txn.ts).to_pylist() == [{"id": 3, "name": "d", "diff": 1}]
        table.downgrade_since(txn.ts)
        table.expire()
