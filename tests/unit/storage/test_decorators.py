"""Metering, over real memory stores with injected faults."""

import secrets

import pytest
from unit.retry.clocks import FastRuntime

from persist.core.ids import ShardId, WriterId, part_key
from persist.errors import Determinate, Indeterminate, LocationError
from persist.runtime import SystemRuntime
from persist.storage.blob.memory import MemoryBlob, MemoryValues
from persist.storage.consensus.memory import MemoryConsensus, MemoryLog
from persist.storage.metered import Meter, MeteredBlob, MeteredConsensus
from persist.storage.ports import Entry
from persist.testing.faults import Faults, Quadrant, UnreliableBlob, UnreliableConsensus

T = 5.0
KEY = ShardId.named("decorators")


def blob_key() -> str:
    return part_key(KEY, WriterId.named("w"), 1, secrets.token_bytes(16))


def faults(happens: float, told: float, seed: int = 1) -> Faults:
    return Faults(seed, happens=happens, told=told)


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


def test_a_meter_adds_seconds_up() -> None:
    meter = Meter()
    for number in range(1, 1001):
        meter.record("x", number / 1000, 0, None)
    assert meter.tallies["x"].seconds == pytest.approx(500.5)


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
