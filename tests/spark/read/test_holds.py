"""A planned read stays readable for as long as its tasks take, however short the lease and whatever is collected."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.machine.compaction.compactor import Compactor
from persist.runtime import system
from persist_ingest.location import Location, Target
from pyspark_persist import DefaultSource, register
from pyspark_persist.read.keeper import Keeper, ask

LEASE_SECONDS = 8
"""Long enough for a busy machine to renew it in time."""
PARTITIONS = 8
SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
KEYS = 400


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hold a task slot for a while: tasks that come after it begin late."""
    yield from batches
    time.sleep(4.2)


def changed(at: int) -> pa.Table:
    """Every key's row, replaced."""
    updates = [(key, f"{key} at {at}", at, 1) for key in range(KEYS)]
    updates += [(key, f"{key} at {at - 1}", at, -1) for key in range(KEYS) if at]
    columns = {name: [row[place] for row in updates] for place, name in enumerate(("id", "name", "ts", "diff"))}
    return pa.table(columns).cast(SCHEMA.updates)


def compact(client: Any, shard: persist.ShardId) -> None:
    """Replace every part there is by one, so that whatever was planned before names garbage."""
    loop, core = client._loop, client._inner
    shards = core._location.shards
    compactor = Compactor(shards, shards)
    loop.run(compactor.compact(shard, compactor.new_owner(), whole=True))


def test_tasks_that_take_many_leases_find_every_part_while_all_is_compacted_and_collected(
    spark: Any, location: str
) -> None:
    settings = persist.Settings(rollup_every=4, inline_part_bytes_max=0, row_group_rows=64)
    with persist.embedded(location, settings=settings) as client:
        shard = persist.ShardId.new()
        writer = client.open_writer(shard, schema=SCHEMA)
        for at in range(10):
            writer.append(changed(at), at + 1)
        options = {"location": location, "shard": str(shard), "holdTtlSeconds": str(LEASE_SECONDS)}

        def load() -> Any:
            return spark.read.format("persist").options(**options).option("minPartitions", PARTITIONS).load()

        frame = load().mapInArrow(slow, "id bigint, name string")
        over, plans = threading.Event(), []

        def go_on() -> None:
            at = 10
            while not over.wait(0.2):
                writer.append(changed(at), at + 1)
                at += 1
                if at % 5 == 0:
                    compact(client, shard)
                if at % 10 == 0:  # other plans must not release the first one's parts
                    plans.append(load().rdd.getNumPartitions())

        working = threading.Thread(target=go_on)
        began = system().monotonic()
        planned = frame.rdd.getNumPartitions()
        working.start()
        try:
            rows = sorted(tuple(row) for row in frame.collect())
        finally:
            over.set()
            working.join()
        assert planned == PARTITIONS
        assert system().monotonic() - began > 2 * LEASE_SECONDS
        assert rows == [(key, f"{key} at 9") for key in range(KEYS)]
        assert plans


def settled(met: Any, seconds: int = 60) -> None:
    """Wait for what other processes do."""
    for _ in range(seconds * 10):
        if met():
            return
        time.sleep(0.1)
    raise AssertionError("nothing happened")


def kill_planners() -> int:
    """End every process of this test's Spark that plans reads, without notice, as Spark does; how many."""
    planners = [pid for pid in descendants(os.getpid()) if plans(pid)]
    # Their parent is the daemon that starts them: Spark wants it to live.
    ended = [pid for pid in planners if parent_of(pid) in planners]
    for pid in ended:
        os.kill(pid, signal.SIGKILL)
    return len(ended)


def plans(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "plan_data_source_read".startswith(Path(f"/proc/{pid}/comm").read_text().rstrip())
    return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descendants(root: int) -> list[int]:
    """Every process that ``root`` started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found, rest = [], [root]
    while rest:
        rest += (new := children.get(rest.pop(), []))
        found += new
    return found


@pytest.fixture
def grown(location: str) -> Iterator[tuple[Any, persist.ShardId, Any]]:
    """A client whose shards collect early, a shard of ten batches, and its writer."""
    settings = persist.Settings(rollup_every=4, inline_part_bytes_max=0, row_group_rows=64)
    with persist.embedded(location, settings=settings) as client:
        shard = persist.ShardId.new()
        writer = client.open_writer(shard, schema=SCHEMA)
        for at in range(10):
            writer.append(changed(at), at + 1)
        yield client, shard, writer


def age(client: Any, shard: persist.ShardId, writer: Any, *, first: int, times: int = 6) -> None:
    """Write and compact, so that nothing is left of what was there but what is held."""
    for at in range(first, first + times):
        writer.append(changed(at), at + 1)
        compact(client, shard)


def parts(location: str, shard: persist.ShardId) -> set[Path]:
    return set((Path(location) / "blob" / shard).glob("n*/p*"))


def live(client: Any, location: str, shard: persist.ShardId) -> set[Path]:
    """What the shard consists of now. There may be more parts: replaced, and not collected yet."""
    batches = [batch for each in client.inspect(shard)["spine"] for batch in each["batches"]]
    return {Path(location) / "blob" / part["key"] for batch in batches for run in batch["runs"] for part in run}


def options(location: str, shard: persist.ShardId, **more: object) -> dict[str, str]:
    return {"location": location, "shard": str(shard), **{name: str(value) for name, value in more.items()}}


def holders(client: Any, shard: persist.ShardId) -> dict[str, Any]:
    return dict(client.inspect(shard)["leased_readers"])


def forgotten(client: Any, shard: persist.ShardId, writer: Any) -> bool:
    """Whether nothing is held any more. Leases end by commits."""
    upper = client.recent_upper(shard).time
    writer.append([], upper + 1)
    return not holders(client, shard)


def gated(gate: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Tasks that hold their slots until the gate is there: those that come after them begin then."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        while not gate.exists():
            time.sleep(0.05)

    return wait


AT_NINE = [(key, f"{key} at 9") for key in range(KEYS)]


def test_driver_holds_what_a_killed_planner_planned_for_as_long_as_jobs_run(
    spark: Any, location: str, grown: tuple[Any, persist.ShardId, Any], tmp_path: Path
) -> None:
    client, shard, writer = grown
    lease = 8
    reading = spark.read.format("persist").options(**options(location, shard, holdTtlSeconds=lease))
    table = reading.option("minPartitions", PARTITIONS).load()
    frame = table.mapInArrow(gated(tmp_path / "gate"), "id bigint, name string")
    assert frame.rdd.getNumPartitions() == PARTITIONS
    assert kill_planners()
    before = live(client, location, shard)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as ended:
        ended.callback((tmp_path / "gate").touch)  # whatever happens: tasks that wait for it would wait for ever
        collecting = pool.submit(frame.collect)
        began, at = system().monotonic(), 10
        while system().monotonic() - began < 2.2 * lease:
            age(client, shard, writer, first=at)
            at += 6
            time.sleep(0.5)  # what is aged without a pause takes this machine's time from all others
        assert not collecting.done()
        assert before <= parts(location, shard), "held by the driver alone"
        (tmp_path / "gate").touch()
        assert sorted(map(tuple, collecting.result())) == AT_NINE
    # Nothing runs any more: the driver releases its holds, and a late task gets that error.
    settled(lambda: forgotten(client, shard, writer))
    age(client, shard, writer, first=client.recent_upper(shard).time)
    settled(lambda: forgotten(client, shard, writer) and not before & parts(location, shard))
    with pytest.raises(Exception, match=r"(?s)LeaseExpired.*holdMaxSeconds"):
        table.collect()


def test_plan_without_a_keeper_ends_with_its_lease_and_says_so(
    spark: Any, location: str, grown: tuple[Any, persist.ShardId, Any]
) -> None:
    client, shard, writer = grown
    spark.dataSource.register(DefaultSource)
    try:
        table = spark.read.format("persist").options(**options(location, shard, holdTtlSeconds=1)).load()
        assert table.count() == KEYS
        before = live(client, location, shard)
        kill_planners()
        settled(lambda: forgotten(client, shard, writer))
        age(client, shard, writer, first=client.recent_upper(shard).time)
        settled(lambda: forgotten(client, shard, writer) and not before & parts(location, shard))
        with pytest.raises(Exception, match=r"(?s)LeaseExpired.*load the DataFrame again"):
            table.collect()
    finally:
        register(spark)


def test_part_that_is_gone_though_it_is_held_is_corruption(
    spark: Any, location: str, grown: tuple[Any, persist.ShardId, Any]
) -> None:
    _, shard, _ = grown
    table = spark.read.format("persist").options(**options(location, shard)).load()
    assert table.rdd.getNumPartitions() == 1
    # Compaction may write beside it: its folder stays.
    for file in (Path(location) / "blob" / shard).rglob("*"):
        if file.is_file():
            file.unlink(missing_ok=True)
    with pytest.raises(Exception, match="a part is missing") as refused:
        table.collect()
    assert "LeaseExpired" not in str(refused.value)


# ---- the keeper without Spark: a process that holds what others plan -----------------------------------------------


def target_of(location: str, shard: persist.ShardId) -> Target:
    return Target(location=Location(directory=location), shard=str(shard), timeout=30.0)


@pytest.mark.parametrize(
    ("running", "limits"),
    [(lambda: True, {"ttl_seconds": 60, "max_seconds": 1}), (lambda: False, {"ttl_seconds": 1, "max_seconds": 60})],
    ids=["jobs run on", "no job runs"],
)
def test_keeper_lets_go_in_time(
    location: str, grown: tuple[Any, persist.ShardId, Any], running: Callable[[], bool], limits: dict[str, int]
) -> None:
    client, shard, _ = grown
    keeper = Keeper(running)
    held = ask(keeper.address, target_of(location, shard), **limits)
    assert held is not None
    assert holders(client, shard)[held.reader_id]["seqno"] <= held.seqno
    settled(lambda: held.reader_id not in holders(client, shard))
    keeper.close()


def test_keeper_gives_everything_back_when_the_session_has_stopped(
    location: str, grown: tuple[Any, persist.ShardId, Any]
) -> None:
    client, shard, _ = grown
    stopped = threading.Event()
    keeper = Keeper(lambda: None if stopped.is_set() else True)
    where, limits = target_of(location, shard), {"ttl_seconds": 3600, "max_seconds": 86_400}
    first, second = ask(keeper.address, where, **limits), ask(keeper.address, where, **limits)
    assert first is not None
    assert second is not None
    assert first.reader_id == second.reader_id, "one reader for all plans of a kind"
    assert list(holders(client, shard)) == [first.reader_id]
    stopped.set()
    settled(lambda: keeper.closed and not holders(client, shard))
    assert ask(keeper.address, where, **limits) is None


def test_keeper_answers_only_those_who_know_its_secret(location: str, grown: tuple[Any, persist.ShardId, Any]) -> None:
    client, shard, _ = grown
    keeper = Keeper(lambda: True)
    host, port, _ = keeper.address
    assert ask((host, port, "guess"), target_of(location, shard), ttl_seconds=9, max_seconds=9) is None
    assert ask(keeper.address, target_of(location, persist.ShardId.new()), ttl_seconds=9, max_seconds=9) is None
    assert not holders(client, shard)
    keeper.close()


HOLDS_AND_ENDS = """
import sys
from pyspark_persist.read.keeper import Keeper
from persist_ingest.location import Location, Target

keeper = Keeper(lambda: True)
target = Target(location=Location(directory=sys.argv[1]), shard=sys.argv[2], timeout=30.0)
print(keeper.hold(target, ttl_seconds=3600, max_seconds=86400).reader_id, flush=True)
sys.stdin.readline()
"""


def test_driver_that_ends_gives_its_holds_back(location: str, grown: tuple[Any, persist.ShardId, Any]) -> None:
    client, shard, _ = grown
    command = [sys.executable, "-c", HOLDS_AND_ENDS, location, str(shard)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        reader_id = driver.stdout.readline().strip()
        assert list(holders(client, shard)) == [reader_id]
        driver.communicate("\n", timeout=60)
    assert driver.returncode == 0
    assert not holders(client, shard)
