"""Forks of a process whose client has a directory open: what a child has written stays, whatever the parent does.

Each program runs in an interpreter of its own, and is the parent. Source: sqlite.org/howtocorrupt.html, section 2.6.
"""

import os
from pathlib import Path

import pytest
from client.support import run_python

import persist

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

START = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
import asyncio, ctypes, multiprocessing, os, sqlite3, sys, threading, time
import pyarrow as pa
import persist
import persist.aio
from persist import forks
where, how = sys.argv[1], sys.argv[2]
schema = persist.Schema(key={"id": pa.int64()}, val={"by": pa.string()})
def insert(client, *numbers):
    table = client.table("t", schema=schema)
    for number in numbers:
        table.insert([{"id": number, "by": str(os.getpid())}])
def in_child(work, fork=os.fork):
    "What ``work`` comes to in a child: its text, or that of its error."
    inlet, said = os.pipe()
    child = fork()
    if child == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(said, str(answer).encode())
        os._exit(0)
    os.close(said)
    with os.fdopen(inlet, "rb") as file:
        answer = file.read().decode()
    os.waitpid(child, 0)
    return answer
def own():
    with persist.embedded(where) as mine:
        insert(mine, os.getpid())
    return "written"
client = persist.embedded(where)
insert(client, 0)
"""

OUTLIVES = """
inlet, say = os.pipe()
awaited, said = os.pipe()
children = []
for first in (10, 20):
    children.append(os.fork())
    if children[-1] == 0:
        mine = client if first == 10 else persist.embedded(where)
        insert(mine, *range(first, first + 3))
        os.write(say, b".")
        os.read(awaited, 1)
        insert(mine, *range(first + 3, first + 6))
        os._exit(0)
for _ in children:
    assert os.read(inlet, 1) == b"."
insert(client, 1)
if how == "closes":
    client.close()
    # The last one that closes takes the log away: these are others.
    assert os.path.exists(os.path.join(where, "consensus.db-wal"))
elif os.fork() == 0:
    # A child that ends with what it inherited is no last one either.
    sys.exit(0)
os.write(said, b"..")
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
print("ended", flush=True)
if how == "dies":
    os._exit(0)
"""


def rows_at(where: Path) -> list[int]:
    with persist.embedded(where) as client:
        return sorted(row["id"] for row in client.table("t").snapshot().to_pylist())


@pytest.mark.parametrize("how", ["closes", "dies"])
def test_what_children_wrote_stays_when_their_parent_closes_or_ends(how: str, tmp_path: Path):
    done = run_python(START + OUTLIVES, str(tmp_path), how)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["ended"], "")
    assert rows_at(tmp_path) == [0, 1, *range(10, 16), *range(20, 26)]


AMID = """
written = []
ended = threading.Event()
def write(first):
    for number in range(first, first + 1_000_000):
        insert(client, number)
        written.append(number)
        if ended.is_set():
            return
threads = [threading.Thread(target=write, args=(each * 1_000_000,)) for each in range(1, 5)]
for each in threads:
    each.start()
def work(number):
    with persist.embedded(where) as mine:
        insert(mine, number)
    insert(client, number + 100)
    return number
numbers = range(1, 17)
with multiprocessing.get_context("fork").Pool(4, maxtasksperchild=1) as pool:
    assert pool.map(work, numbers, chunksize=1) == list(numbers)
ended.set()
for each in threads:
    each.join()
found = {row["id"] for row in client.table("t").snapshot().to_pylist()}
assert found == {0, *written, *numbers, *(each + 100 for each in numbers)}, found
assert len(written) >= 8
print("whole", flush=True)
"""


def test_a_pool_writes_while_threads_of_the_parent_do(tmp_path: Path):
    done = run_python(START + AMID, str(tmp_path), "")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["whole"], "")


REFUSED = """
async def inherited():
    opened = await persist.aio.embedded(where)
    await opened.table("t", schema=schema)
    return opened
def used():
    async def use():
        await other.open_reader("t", timeout=5)
    asyncio.run(use())
def amid():
    with forks.apart():
        return in_child(own)
def beside():
    "Another thread is within a call that does not end."
    forks.FORK_SECONDS = 0.01
    began, may_end = threading.Event(), threading.Event()
    def hang():
        with forks.apart():
            began.set()
            may_end.wait()
    thread = threading.Thread(target=hang)
    thread.start()
    began.wait()
    answer = in_child(own)
    may_end.set()
    thread.join()
    return answer
def of_another_library():
    path = os.path.join(where, "consensus.db")
    kept = sqlite3.connect(path)
    kept.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    answer = in_child(own)
    kept.close()
    return answer
def unprepared():
    "A fork that is not Python's, which is informed of it afterwards, as servers in C do."
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return child
other = asyncio.run(inherited())
said = {"inherited": in_child(used), "amid": amid(), "beside": beside(), "another": of_another_library()}
insert(client, 2)
said["unprepared"] = in_child(own, unprepared)
# The parent goes on, and so do children that are forked when nothing stands in the way.
insert(client, 1)
said["python"] = in_child(own)
asyncio.run(other.close())
client.close()
said["closed"] = in_child(own, unprepared)
for name, answer in said.items():
    print(name, answer, flush=True)
"""


def test_what_could_not_be_closed_before_a_fork_is_refused_in_the_child(tmp_path: Path):
    done = run_python(START + REFUSED, str(tmp_path), "")
    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said.pop("python") == said.pop("closed") == "written"
    assert list(said) == ["inherited", "amid", "beside", "another", "unprepared"]
    for answer in said.values():
        assert answer.startswith("UsageError: this ")
        assert "forked" in answer
    assert len(rows_at(tmp_path)) == 5


SINKS = """
import persist.sinks
first = persist.sinks.FilesSink(os.path.join(where, "out"))
first.begin("k", 1, schema.updates)
inlet, say = os.pipe()
awaited, said = os.pipe()
child = os.fork()
if child == 0:
    try:
        first.write("k", 1, None, None, 1)
    except persist.errors.InvalidArgument:
        os.write(say, b"refused")
    os.read(awaited, 1)
    os._exit(0)
assert os.read(inlet, 7) == b"refused"
first.close()
# The child has no part in the lock, and lives.
persist.sinks.FilesSink(os.path.join(where, "out")).begin("k", 1, schema.updates)
os.write(said, b".")
assert os.waitpid(child, 0)[1] == 0
print("owned", flush=True)
"""


def test_a_child_does_not_own_the_folder_of_its_parents_sink(tmp_path: Path):
    done = run_python(START + SINKS, str(tmp_path), "")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["owned"], "")
