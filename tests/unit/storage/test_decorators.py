"""Caching, metering and retrying, over real memory stores with injected faults."""

import secrets

import pytest

from persist.core.ids import ShardId, WriterId, part_key
from persist.errors import Determinate, Indeterminate, LocationError, StoreFull, UsageError
from persist.runtime import SystemRuntime
from persist.settings import Settings
from persist.storage.blob_memory import MemoryBlob, MemoryValues
from persist.storage.cached import CachedBlob
from persist.storage.consensus_memory import MemoryConsensus, MemoryLog
from persist.storage.metered import Meter, MeteredBlob, MeteredConsensus
from persist.storage.ports import Entry
from persist.storage.retrying import RetryingBlob, RetryingConsensus
from persist.testing.faults import Faults, Quadrant, UnreliableBlob, UnreliableConsensus

T = 5.0
KEY = ShardId.named("decorators")


class FastRuntime(SystemRuntime):
    """A clock that jumps: sleeping takes no time, but counts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def random(self) -> float:
        return 0.5

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def blob_key() -> str:
    return part_key(KEY, WriterId.named("w"), 1, secrets.token_bytes(16))


def faults(happens: float, told: float, seed: int = 1) -> Faults:
    return Faults(seed, happens=happens, told=told)


# ---- cached


async def test_cache_answers_repeated_gets_and_ranges_from_memory() -> None:
    meter = Meter()
    blob = MeteredBlob(MemoryBlob("", MemoryValues()), meter, SystemRuntime())
    cached = CachedBlob(blob, bytes_max=1000)
    key = blob_key()
    assert await cached.get(key, timeout=T) is None
    await cached.set(key, b"0123456789", timeout=T)
    for _ in range(3):
        assert await cached.get(key, timeout=T) == b"0123456789"
        assert await cached.get(key, byte_range=(2, 5), timeout=T) == b"234"
    assert meter.tallies["blob.get"].calls == 2
    assert (cached.hits, cached.misses, cached.bytes) == (5, 2, 10)


async def test_cache_stays_within_its_bytes_and_forgets_the_least_recently_used() -> None:
    cached = CachedBlob(MemoryBlob("", MemoryValues()), bytes_max=1000)
    keys = [blob_key() for _ in range(10)]
    for key in keys:
        await cached.set(key, bytes(200), timeout=T)
    for key in keys[:5]:
        await cached.get(key, timeout=T)
    await cached.get(keys[0], timeout=T)
    await cached.get(keys[5], timeout=T)
    assert cached.bytes == 1000
    misses = cached.misses
    await cached.get(keys[0], timeout=T)
    assert cached.misses == misses
    await cached.get(keys[1], timeout=T)
    assert cached.misses == misses + 1


async def test_cache_does_not_keep_what_would_push_out_everything_else() -> None:
    cached = CachedBlob(MemoryBlob("", MemoryValues()), bytes_max=1000)
    key = blob_key()
    await cached.set(key, bytes(251), timeout=T)
    assert len(await cached.get(key, timeout=T) or b"") == 251
    assert cached.bytes == 0


async def test_cache_forgets_what_is_deleted() -> None:
    cached = CachedBlob(MemoryBlob("", MemoryValues()), bytes_max=1000)
    key = blob_key()
    await cached.set(key, b"0123456789", timeout=T)
    await cached.get(key, byte_range=(0, 3), timeout=T)
    await cached.get(key, timeout=T)
    assert await cached.delete(key, timeout=T) == 10
    assert await cached.get(key, timeout=T) is None
    assert await cached.get(key, byte_range=(0, 3), timeout=T) is None
    assert cached.bytes == 0


# ---- metered


async def test_meter_tallies_calls_bytes_failures_and_time() -> None:
    meter, runtime = Meter(), FastRuntime()
    blob = MeteredBlob(UnreliableBlob(MemoryBlob("", MemoryValues()), failing := faults(1, 1)), meter, runtime)
    key = blob_key()
    await blob.set(key, memoryview(bytes(800)).cast("Q"), timeout=T)
    await blob.get(key, byte_range=(0, 100), timeout=T)
    assert [size async for _, size in blob.list("", timeout=T)] == [800]
    failing._default = (0.0, 1.0)
    with pytest.raises(Determinate):
        await blob.delete(key, timeout=T)
    tallies = meter.tallies
    assert (tallies["blob.set"].calls, tallies["blob.set"].bytes) == (1, 800)
    assert (tallies["blob.get"].calls, tallies["blob.get"].bytes) == (1, 100)
    assert (tallies["blob.delete"].calls, tallies["blob.delete"].failures) == (1, 1)
    assert tallies["blob.list"].calls == 1


async def test_meter_tells_lost_comparisons_apart() -> None:
    meter = Meter()
    consensus = MeteredConsensus(MemoryConsensus("", MemoryLog()), meter, SystemRuntime())
    assert await consensus.compare_and_set(KEY, -1, b"12345", timeout=T)
    assert not await consensus.compare_and_set(KEY, -1, b"12345", timeout=T)
    assert await consensus.head(KEY, timeout=T) == Entry(seqno=0, data=b"12345")
    assert len(await consensus.scan(KEY, 0, 5, timeout=T)) == 1
    assert [key async for key in consensus.list_keys(timeout=T)] == [KEY]
    assert meter.tallies["consensus.compare_and_set"].calls == 2
    assert meter.tallies["consensus.mismatch"].calls == 1
    assert meter.tallies["consensus.scan"].bytes == 5


def test_meter_quantiles_bound_the_truth_from_above() -> None:
    meter = Meter()
    for number in range(1, 1001):
        meter.record("x", number / 1000, 0, None)
    tally = meter.tallies["x"]
    for share in (0.5, 0.9, 0.99):
        assert share * 1000 <= tally.quantile_ms(share) <= share * 1000 * 1.42
    assert tally.seconds == pytest.approx(500.5)


# ---- retrying


async def test_reads_are_retried_with_growing_pauses_until_they_work() -> None:
    runtime, failing = FastRuntime(), faults(0, 1)
    blob = RetryingBlob(UnreliableBlob(MemoryBlob("", MemoryValues()), failing), Settings(), runtime)
    with pytest.raises(Determinate):
        await blob.get(blob_key(), timeout=1.0)
    assert runtime.slept == pytest.approx([0.003 * 2**n for n in range(len(runtime.slept))])
    assert 5 < len(runtime.slept) < 12
    assert sum(runtime.slept) <= 1.0


async def test_blob_set_and_delete_are_repeated_after_lost_answers() -> None:
    runtime, failing = FastRuntime(), faults(0.5, 0.5, seed=5)
    store = MemoryValues()
    blob = RetryingBlob(UnreliableBlob(MemoryBlob("", store), failing), Settings(), runtime)
    keys = [blob_key() for _ in range(50)]
    for key in keys:
        await blob.set(key, key.encode(), timeout=1000)
    assert store.values == {key: key.encode() for key in keys}
    for key in keys:
        await blob.delete(key, timeout=1000)
    assert store.values == {}
    assert {quadrant for _, quadrant in failing.fired} == set(Quadrant)


async def test_blob_set_given_up_after_a_lost_answer_is_indeterminate() -> None:
    class FirstLost(Faults):
        def draw(self, method: str) -> Quadrant:
            self.fired[method, Quadrant.MISSED_TOLD] += 1
            return Quadrant.HAPPENED_LOST if self.fired.total() == 1 else Quadrant.MISSED_TOLD

    store = MemoryValues()
    blob = RetryingBlob(UnreliableBlob(MemoryBlob("", store), FirstLost(1)), Settings(), FastRuntime())
    with pytest.raises(Indeterminate):
        await blob.set(blob_key(), b"x", timeout=1.0)
    assert len(store.values) == 1


async def test_cas_is_retried_when_it_did_not_happen_and_never_when_nobody_knows() -> None:
    log = MemoryLog()
    runtime, failing = FastRuntime(), faults(0.5, 0.7, seed=9)
    consensus = RetryingConsensus(UnreliableConsensus(MemoryConsensus("", log), failing), Settings(), runtime)
    unknown = 0
    for attempt in range(300):
        before = log.heads.get(KEY, -1)
        lost = sum(count for (_, quadrant), count in failing.fired.items() if "lost" in quadrant.value)
        try:
            assert await consensus.compare_and_set(KEY, before, b"%d" % attempt, timeout=60)
            assert log.heads[KEY] == before + 1
        except Indeterminate:
            unknown += 1
            now = sum(count for (_, quadrant), count in failing.fired.items() if "lost" in quadrant.value)
            assert now == lost + 1
            assert log.heads.get(KEY, -1) in (before, before + 1)
    assert unknown > 20
    assert runtime.slept


async def test_what_a_person_must_mend_is_not_retried() -> None:
    class Full(MemoryConsensus):
        async def compare_and_set(self, key: str, expected: int, data: bytes, *, timeout: float) -> bool:
            raise StoreFull("no room left")

    runtime = FastRuntime()
    consensus = RetryingConsensus(Full("", MemoryLog()), Settings(), runtime)
    with pytest.raises(StoreFull):
        await consensus.compare_and_set(KEY, -1, b"x", timeout=T)
    with pytest.raises(UsageError):
        await consensus.truncate(KEY, 5, timeout=T)
    assert runtime.slept == []


# ---- faults


async def test_faults_strike_in_all_quadrants_and_act_as_they_say() -> None:
    log, failing = MemoryLog(), faults(0.6, 0.6, seed=3)
    consensus = UnreliableConsensus(MemoryConsensus("", log), failing)
    for attempt in range(400):
        before = log.heads.get(KEY, -1)
        fired = failing.fired.copy()
        try:
            await consensus.compare_and_set(KEY, before, b"%d" % attempt, timeout=T)
            outcome: type[LocationError] | None = None
        except LocationError as error:
            outcome = type(error)
        [(_, quadrant)] = failing.fired - fired
        happened = log.heads.get(KEY, -1) == before + 1
        assert happened == (quadrant in (Quadrant.HAPPENED_TOLD, Quadrant.HAPPENED_LOST))
        assert (
            outcome
            == {
                Quadrant.HAPPENED_TOLD: None,
                Quadrant.MISSED_TOLD: Determinate,
                Quadrant.HAPPENED_LOST: Indeterminate,
                Quadrant.MISSED_LOST: Indeterminate,
            }[quadrant]
        )
    assert {quadrant for _, quadrant in failing.fired} == set(Quadrant)


def test_faults_of_one_seed_are_the_same_and_can_be_set_by_method() -> None:
    first, second, other = Faults(1), Faults(1), Faults(2)
    names = ["set", "get"] * 200
    drawn = [first.draw(name) for name in names]
    assert drawn == [second.draw(name) for name in names]
    assert drawn != [other.draw(name) for name in names]
    certain = Faults(1, per_method={"get": (0.0, 1.0)})
    assert {certain.draw("get") for _ in range(20)} == {Quadrant.MISSED_TOLD}
    certain.enabled = False
    assert certain.draw("get") is Quadrant.HAPPENED_TOLD
