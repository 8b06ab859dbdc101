"""When a handle goes on under a new writer id, and when it must not."""

from persist.client.shard.write.writer_ids import WriterIds
from persist.core.ids import WriterId
from persist.runtime import SystemRuntime
from persist.settings import Settings

FIRST = WriterId.born(1_000, bytes(16))


class Clock(SystemRuntime):
    """Time as the test says, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


def ids(clock: Clock, *, owned: bool = True) -> WriterIds:
    return WriterIds(FIRST, owned=owned, fence_ms=0, settings=Settings(writer_lease_ms=10_000), runtime=clock)


def test_idle_writer_is_renewed_after_half_of_its_lease_with_an_id_that_tells_its_age() -> None:
    clock = Clock()
    writer = ids(clock)
    clock.now += 4.9
    assert writer.for_append() == FIRST
    clock.now += 0.2
    renewed = writer.for_append()
    assert (renewed != FIRST, renewed.born_ms) == (True, int(clock.now * 1000))
    assert writer.for_append() == renewed


def test_appends_that_commit_keep_the_id_and_others_do_not() -> None:
    clock = Clock()
    writer = ids(clock)
    for _ in range(5):
        clock.now += 4.0
        begun = writer.begin()
        assert writer.for_append() == FIRST
        writer.end(begun, committed=True)
    clock.now += 4.0
    writer.end(writer.begin(), committed=False)
    clock.now += 4.0
    assert writer.for_append() != FIRST


def test_lease_counts_from_when_the_append_was_sent() -> None:
    clock = Clock()
    writer = ids(clock)
    begun = writer.begin()
    clock.now += 5.0
    writer.end(begun, committed=True)
    assert writer.for_append() != FIRST


def test_id_that_others_know_is_never_given_up() -> None:
    clock = Clock()
    shared, told = ids(clock, owned=False), ids(clock)
    assert told.fixed() == FIRST
    clock.now += 1e9
    shared.renew()
    assert (shared.for_append(), told.for_append()) == (FIRST, FIRST)
