"""The blocking façade: same answers, no hanging threads, forks, closing, interpreter exit.

What takes ``client`` runs embedded, through a server process, and through one with the stores to fall back on. What
starts, forks or ends clients of its own is about this process alone, and embedded.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from client.support import SCHEMA, rows_of, run_python, table
from forked import Fork
from sure import as_a, put, sure

import persist
from persist import Antichain, Appended, Progress, ShardId, Updates, UpperMismatch
from persist.errors import Indeterminate, UsageError


@pytest.fixture(params=["local", "remote", "failover"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[persist.Client]:
    root = tmp_path / "data with blank"
    if request.param == "local":
        with persist.embedded(root) as client:
            yield client
        return
    stores: dict[str, Any] = {
        "blob": f"file:{quote(str(root / 'blob'))}",
        "consensus": f"sqlite:{quote(str(root / 'consensus.db'))}",
    }
    with (
        server_process(*stores.values()) as endpoint,
        persist.connect(endpoint, **(stores if request.param == "failover" else {})) as client,
    ):
        yield client


@contextmanager
def server_process(blob: str, consensus: str) -> Iterator[str]:
    """A server over these stores; its HOST:PORT."""
    server = Fork("persist_shard", "127.0.0.1:0", blob, consensus, heard=["output"])
    try:
        assert server.output is not None
        yield server.output.readline().decode().split()[-1]
    finally:
        server.close()


def test_blocking_client_does_all_the_asynchronous_one_does(client: persist.Client):
    writer, reader = client.open(ShardId.new(), schema=SCHEMA)
    assert writer.upper == reader.since == Antichain.of(0)
    assert isinstance(writer.append(table([(1, "a", 3, 1)]), new_upper=10), Appended)
    assert isinstance(writer.compare_and_append([], expected_upper=9, new_upper=12), UpperMismatch)
    assert writer.compare_and_append(table([(2, "b", 11, 1)]), expected_upper=10, new_upper=12).upper == Antichain.of(
        12
    )
    snapshot = reader.snapshot(as_of=11)
    assert snapshot.as_of == 11
    assert snapshot.upper == Antichain.of(12)
    assert snapshot.rows_estimate == 2
    assert snapshot.to_pylist() == [{"id": 1, "name": "a", "diff": 1}, {"id": 2, "name": "b", "diff": 1}]
    assert snapshot.to_pandas().shape == (2, 3)
    assert isinstance(snapshot.to_batches(), pa.RecordBatchReader)
    assert snapshot.to_batches(columns=["id"]).read_all().column_names == ["id", "diff"]
    assert reader.diffs(4, 12).to_arrow().column("ts").to_pylist() == [11]
    assert [batch.upper for batch in reader.changes_since(10)] == [Antichain.of(12)]
    assert reader.downgrade_since(5) == reader.since == Antichain.of(5)
    hold = client.open_since("hold", writer.shard, opaque=b"x")
    assert hold.compare_and_downgrade(b"x", 5).since == Antichain.of(5)
    assert client.recent_upper(writer.shard) == Antichain.of(12)
    assert list(client.list_shards()) == [writer.shard]
    assert client.schema(writer.shard) == SCHEMA
    assert client.inspect(writer.shard)["shard"] == writer.shard
    reader.heartbeat()
    reader.expire()
    writer.expire()


def test_listen_is_an_iterator_that_ends_when_idle(client: persist.Client):
    writer, reader = client.open(ShardId.new(), schema=SCHEMA)
    writer.append(table([(1, "a", 3, 1), (2, "b", 0, 1)]), new_upper=10)
    with reader.listen(as_of=0, timeout=0.1) as listen:
        events = list(listen)
    assert [type(event) for event in events] == [Updates, Progress]
    assert rows_of(as_a(Updates, events[0]).table) == [(1, "a", 3, 1)]
    assert listen.frontier == Antichain.of(10)
    subscribed = [event for event in reader.subscribe(as_of=3, timeout=0.1) if isinstance(event, Updates)]
    assert [rows_of(event.table) for event in subscribed] == [[(1, "a", 3, 1), (2, "b", 3, 1)]]


def test_listen_can_be_left_and_dropped_at_any_point(client: persist.Client):
    writer, reader = client.open(ShardId.new(), schema=SCHEMA)
    for time in range(5):
        writer.append(table([(time, "a", time, 1)]), new_upper=time + 1)
    for _ in reader.listen(as_of=0):
        break
    batches = reader.snapshot(as_of=4).to_batches()
    batches.read_next_batch()
    del batches
    assert reader.snapshot(as_of=4).to_arrow().num_rows == 5


def test_many_threads_share_one_client(client: persist.Client):
    writer, reader = client.open(ShardId.new(), schema=SCHEMA)

    def add(number: int) -> int:
        own = client.open_writer(writer.shard)
        while True:
            at = sure(own.upper.time)
            if isinstance(own.compare_and_append(table([(number, "a", at, 1)]), at, at + 1), Appended):
                return at

    with ThreadPoolExecutor(8) as pool:
        times = list(pool.map(add, range(40)))
    assert sorted(times) == list(range(40))
    assert reader.snapshot(as_of=39).to_arrow().num_rows == 40


def test_close_ends_the_thread_and_expires_readers(tmp_path: Path):
    before = set(threading.enumerate())
    client = persist.embedded(tmp_path)
    writer, _ = client.open(ShardId.new(), schema=SCHEMA)
    client.close()
    client.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("persist-loop")]
    with pytest.raises(UsageError):
        writer.append([], 1)
    with persist.embedded(tmp_path) as again:
        assert not again.inspect(writer.shard)["leased_readers"]


def test_dropped_client_ends_its_thread(tmp_path: Path):
    before = set(threading.enumerate())
    client = persist.embedded(tmp_path)
    loop = client._loop
    client.open(ShardId.new(), schema=SCHEMA)
    del client
    assert not loop.alive
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "persist-loop"]


def test_several_processes_use_one_directory(client: persist.Client, tmp_path: Path):
    writer, reader = client.open(ShardId.new(), schema=SCHEMA)
    program = (
        "import sys, persist\n"
        "client = persist.embedded(sys.argv[1])\n"
        "writer = client.open_writer(sys.argv[2])\n"
        "writer.append([(({'id': 1}, {'name': 'a'}), 0, 1)], 1)\n"
    )
    location = str(tmp_path / "data with blank")
    done = run_python(program, location, writer.shard)
    assert (done.returncode, done.stderr) == (0, "")
    assert reader.snapshot(as_of=0).to_arrow().num_rows == 1


EXIT = """
import sys, persist
client = persist.embedded(sys.argv[1])
writer, reader = client.open(sys.argv[2], schema=persist.Schema(key={"id": __import__("pyarrow").int64()}))
writer.append([(({"id": number}, None), 0, 1) for number in range(100_000)], 1)
idle = reader.listen(0)
listen = reader.subscribe(0)
next(listen)
batches = reader.snapshot(0).to_batches()
batches.read_next_batch()
split = reader.snapshot(0).splits(1)[0].read().read_all()
print("done", flush=True)
"""


def test_interpreter_exit_is_quick_quiet_and_lets_readers_go(tmp_path: Path):
    shard = ShardId.new()
    done = run_python(EXIT, str(tmp_path), shard)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    with persist.embedded(tmp_path) as client:
        assert not client.inspect(shard)["leased_readers"]


FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
import os, sys, persist
client = persist.embedded(sys.argv[1])
writer, reader = client.open(sys.argv[2], schema=persist.Schema(key={"id": __import__("pyarrow").int64()}))
writer.append([(({"id": 1}, None), 0, 1)], 1)
split = reader.snapshot(0).splits(1)[0]
child = os.fork()
if child == 0:
    try:
        writer.append([], 2)
    except persist.UsageError:
        own = client.open_writer(sys.argv[2])
        own.append([(({"id": 2}, None), 1, 1)], 2)
        assert split.read().read_all().num_rows == 1
        print("child", flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert reader.snapshot(1).to_arrow().num_rows == 2
print("parent", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_reopens_its_client_and_refuses_inherited_handles(tmp_path: Path):
    done = run_python(FORK, str(tmp_path), ShardId.new())
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["child", "parent"], "")


FORK_AFTER_WORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
import multiprocessing, os, signal, sys, persist
import pyarrow as pa
where, shard, closed = sys.argv[1], sys.argv[2], sys.argv[3] == "closed"
def rows(count):
    return pa.table({"id": pa.array(range(count), pa.int64()), "name": [str(n) for n in range(count)]})
client = persist.embedded(where)
schema = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
writer, reader = client.open(shard, schema=schema)
writer.append_at_upper(rows(100_000))
assert reader.snapshot().to_arrow().num_rows == 100_000
if closed:
    client.close()
def work(count):
    signal.alarm(50)
    with persist.embedded(where) as own:
        own.open_writer(shard).append_at_upper(rows(count))
        return own.open_reader(shard).snapshot().to_arrow().num_rows
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.apply_async(work, (50_000,)).get(50), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("parent", ["open", "closed"])
def test_forked_child_encodes_and_decodes_although_its_parent_did(parent: str, tmp_path: Path):
    done = run_python(FORK_AFTER_WORK, str(tmp_path), ShardId.new(), parent, seconds=120)
    assert (done.returncode, done.stdout.split()) == (0, ["100000"]), done.stderr


def test_close_during_a_call_leaves_in_doubt_what_was_sent(tmp_path: Path):
    shard, sent, told = ShardId.new(), threading.Event(), list[BaseException]()
    with persist.embedded(tmp_path) as client:
        writer = client.open_writer(shard, schema=SCHEMA)
        shards = client._inner.location.shards
        right = shards.apply

        async def lost(*arguments: Any, **more: Any) -> None:
            await right(*arguments, **more)
            sent.set()
            await asyncio.Event().wait()

        put(shards, "apply", lost)

        def call() -> None:
            try:
                writer.compare_and_append(table([(1, "a", 0, 1)]), 0, 1, timeout=60)
            except BaseException as error:
                told.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        assert sent.wait(60)
    caller.join(60)
    [error] = told
    assert isinstance(error, Indeterminate)
    with persist.embedded(tmp_path) as client:
        assert client.recent_upper(shard) == Antichain.of(1)


CLOSE = """
import gc, sys, threading, persist
import pyarrow as pa
where, shard = sys.argv[1:3]
with persist.embedded(where) as client:
    client.open_writer(shard, schema=persist.Schema(key={"id": pa.int64()}))
answers = {}
def append(writer, first, some):
    for n in range(first, first + 10_000):
        try:
            answers[n] = writer.append_at_upper([(({"id": n}, None), 0, 1)], timeout=60)
        except BaseException as error:
            answers[n] = error
            return
        some.release()
for turn in range(4):
    client = persist.embedded(where)
    writer, some = client.open_writer(shard), threading.Semaphore(0)
    places = [(turn * 16 + n) * 10_000 for n in range(16)]
    threads = [threading.Thread(target=append, args=(writer, place, some)) for place in places]
    for thread in threads:
        thread.start()
    for _ in range(40):
        some.acquire()
    client.close()
    for thread in threads:
        thread.join(60)
    gc.collect()
with persist.embedded(where) as client:
    upper = client.recent_upper(shard).elements[0]
    there = {row["id"] for row in client.open_reader(shard).snapshot(upper - 1).to_pylist()} if upper else set()
assert len([answer for answer in answers.values() if isinstance(answer, Exception)]) == 64
for n, answer in answers.items():
    untrue = n in there if isinstance(answer, (persist.UsageError, persist.Determinate)) else False
    lost = isinstance(answer, persist.Appended) and n not in there
    assert not untrue and not lost, (n, answer)
print("done", flush=True)
"""


def test_close_during_appends_of_many_threads_tells_the_truth_and_prints_nothing(tmp_path: Path):
    done = run_python(CLOSE, str(tmp_path), ShardId.new(), seconds=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_blocking_call_inside_the_loop_is_refused(client: persist.Client):
    async def inside() -> None:
        client.list_shards()

    with pytest.raises(UsageError):
        client._loop.run(inside())


MANY = """
import sys, threading, persist
import pyarrow as pa
schema = persist.Schema(key={"id": pa.int64()})
def loops():
    return [thread.name for thread in threading.enumerate()].count("persist-loop")
for turn in range(8):
    clients, listens = [persist.connect(sys.argv[1]) for _ in range(6)], []
    for client in clients:
        writer, reader = client.open(persist.ShardId.new(), schema=schema)
        writer.append([(({"id": 1}, None), 0, 1)], 1)
        listens.append(reader.listen(0))
        next(listens[-1])
    assert loops() == 1
    for client in clients if turn % 2 else clients[::-1]:
        client.close()
    assert loops() == 0
left_open = persist.connect(sys.argv[1])
left_open.list_shards()
print("done", flush=True)
"""


def test_many_clients_opened_and_closed_in_one_process_print_nothing():
    with server_process("mem:many", "mem:many") as endpoint:
        done = run_python(MANY, endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_reader_that_nobody_has_lets_go_without_the_collector_of_cycles(tmp_path):
    with persist.embedded(tmp_path) as client:
        writer, reader = client.open(persist.ShardId.new(), schema=persist.Schema(key={"id": pa.int64()}))
        gc.disable()
        try:
            reader.pin().release()
            del reader
            # Leases end by commits, once what releases them has run.
            for upper in range(1, 2_000):
                writer.append([], upper)
                if not client.inspect(writer.shard)["leased_readers"]:
                    break
            else:
                pytest.fail("it is held for ever")
        finally:
            gc.enable()
