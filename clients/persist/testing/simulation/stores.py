"""Stores behind a simulated network: late, lost and reordered, with a witness that sees what really happens.

A call has two sides, as in ``faults``; here the effect also has its own moment, which may come after the caller was
notified that the answer is lost. The witness follows every commit and every deletion in the order in which they take
effect, and speaks up at once. Source: reliability.md section 2, I1, I3, I8, I13, I14.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence, Set
from functools import partial
from typing import Any, TypeVar

from persist.core.ids import LOCATION_KEY, ShardId
from persist.core.shard.diff import Splice, apply_diff
from persist.core.shard.invariants import check_cheap, check_state
from persist.core.shard.state import State
from persist.errors import CorruptData, Determinate, Indeterminate, PersistError
from persist.machine.garbage.collector import named_by
from persist.storage.blob.memory import MemoryBlob, MemoryValues
from persist.storage.consensus.memory import MemoryConsensus, MemoryLog
from persist.storage.ports import Entry, Finding
from persist.testing.faults import Faults, Quadrant
from persist.testing.ledger import Violation
from persist.testing.simulation.simulator import VirtualLoop
from persist.wire.checksum import crc32c
from persist.wire.shard.state import decode_diff, decode_rollup, encode_rollup

T = TypeVar("T")


STRANGE = (ValueError, KeyError, OSError, RuntimeError, AssertionError, MemoryError, TimeoutError)
"""What a driver may raise that no port allows."""


class Network:
    """Carries calls: each way takes a while, some take long, some are lost. ``slow`` is the chance of a long way.

    ``strange`` is the chance that a call, whether it happens or not, raises what no port allows.
    """

    def __init__(self, loop: VirtualLoop, faults: Faults, *, slow: float = 0.02, strange: float = 0.0) -> None:
        self.loop = loop
        self.faults = faults
        self.slow = slow
        self.strange = strange
        self.counts: Counter[str] = Counter()
        self._random = loop.stream("network")

    def delay(self) -> float:
        """Seconds for one way."""
        if self.faults.enabled and self._random.random() < self.slow:
            self.counts["slow"] += 1
            return self._random.uniform(0.05, 1.5)
        return self._random.uniform(0.0005, 0.005)

    async def call(self, method: str, effect: Callable[[], T], *, timeout: float, mutation: bool) -> T:
        """Let ``effect`` happen over there. Raises Determinate, and Indeterminate for a mutation that may happen."""
        quadrant = self.faults.draw(method)
        happens = quadrant in (Quadrant.HAPPENED_TOLD, Quadrant.HAPPENED_LOST)
        told = quadrant in (Quadrant.HAPPENED_TOLD, Quadrant.MISSED_TOLD)
        answer: asyncio.Future[T] = self.loop.create_future()
        there, back = self.delay(), self.delay()
        later = partial(self.loop.call_later, context=self.loop.elsewhere)
        if self.strange and self.faults.enabled and self._random.random() < self.strange:
            self.counts["strange exception"] += 1
            told, error = False, self._random.choice(STRANGE)(f"simulated: {method}")
            later(there + back, _fail, answer, error)
        if happens:
            later(there, self._take_effect, method, effect, answer, told, back)
        if not told:
            # Its caller sees the connection break, perhaps before the call even arrives; or nothing.
            if self._random.random() < 0.7:
                later(self.delay(), _fail, answer, _lost(method, mutation))
        elif not happens:
            later(there + back, _fail, answer, Determinate(f"simulated: no {method}"))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            self.counts["timeout"] += 1
            raise _lost(method, mutation) from None

    def _take_effect(
        self, method: str, effect: Callable[[], T], answer: "asyncio.Future[T]", told: bool, back: float
    ) -> None:
        if answer.done():
            self.counts["late effect"] += 1
        try:
            result = effect()
        except PersistError as error:
            if told:
                self.loop.call_later(back, _fail, answer, error, context=self.loop.elsewhere)
            return
        if told:
            self.loop.call_later(back, _answer, answer, result, context=self.loop.elsewhere)


def _lost(method: str, mutation: bool) -> PersistError:
    if mutation:
        return Indeterminate(f"simulated: the answer of {method} was lost")
    return Determinate(f"simulated: {method} failed")


def _answer(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def at_once(work: Coroutine[object, object, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waits")


class Witness:
    """Sees every commit and deletion of all shards as it takes effect.

    ``failure`` is the first broken promise; ``alarm`` is called with it.
    """

    def __init__(self, values: MemoryValues, log: MemoryLog) -> None:
        self.states: dict[str, State] = {}
        self.recent: dict[str, dict[int, State]] = {}
        self.failure: BaseException | None = None
        self.alarm: Callable[[], object] = lambda: None
        self.commits = 0
        self.deleted: Counter[str] = Counter()
        self.merges = 0
        self.joins = 0
        self.steps = 0
        self.cuts = 0
        self._values = values
        self._log = log
        self._named_until: dict[str, dict[str, int]] = {}
        self._named: dict[str, Set[str]] = {}

    def check(self) -> None:
        """Raise what was seen first."""
        if self.failure is not None:
            raise self.failure

    def committed(self, key: str, seqno: int, data: bytes) -> None:
        """A diff stands."""
        if key == LOCATION_KEY:
            return
        try:
            self._committed(ShardId.parse(key), seqno, data)
        except (Violation, CorruptData) as error:
            self._broken(error)

    def deleting(self, key: str) -> None:
        """A blob goes."""
        shard = key.split("/", 1)[0]
        state = self.states.get(shard)
        if state is None:
            return
        until = self._named_until[shard].get(key)
        read_from = min((reader.seqno for reader in state.leased_readers.values()), default=state.seqno)
        if until is not None and until >= read_from:
            self._broken(
                Violation(f"I8: {key} is deleted, named until {until}, read from {read_from} on (head {state.seqno})")
            )
        self.deleted["rollup" if "/rollup/" in key else "part"] += 1

    def _broken(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.alarm()

    def _committed(self, shard: ShardId, seqno: int, data: bytes) -> None:
        self.commits += 1
        change = decode_diff(data, shard, seqno)
        known = self.states.get(shard)
        if known is None:
            first = change.latest_rollup[1]
            blob = self._values.values.get(first.key)
            if seqno != 0 or blob is None:
                raise Violation(f"I8: the first state of {shard} has no rollup")
            bare = decode_rollup(blob, shard, 0)
            state = State(**{**vars(bare), "rollups": {0: first}})
            check_state(state)
            self._named_until[shard] = {}
            self.recent[shard] = {}
        else:
            if seqno != known.seqno + 1:
                raise Violation(f"I1: commit {seqno} after {known.seqno}")
            state = apply_diff(known, change)
            check_cheap(known, state)
            # What the two share was looked into when it came.
            check_state(state, after=known)
            _check_readers(known, state)
            self._check_rollups(known, state)
            self._count(change.spine.splices if change.spine else ())
        self._follow(shard, known, state)
        self.states[shard] = state

    def _count(self, splices: Sequence[Splice]) -> None:
        """Merges of whole batches, and what becomes of those that are too large: joins, steps, and cut parts."""
        self.merges += any(each.gone and each.come for each in splices)
        for change in (each.changed for each in splices if each.changed is not None):
            self.joins += change.count > 1
            self.steps += change.count == 1 and len(change.runs) > 1
            self.cuts += any(each.run and each.count and each.come for each in change.runs)

    def _check_rollups(self, before: State, state: State) -> None:
        oldest = min(self._log.entries[state.shard])
        if min(state.rollups) > oldest:
            raise Violation(f"I8: the diffs from {oldest} on have no rollup before them at {state.seqno}")
        for seqno, rollup in state.rollups.items():
            if seqno in before.rollups or seqno == 0:
                continue
            blob = self._values.values.get(rollup.key)
            if blob is None or len(blob) != rollup.encoded_bytes or crc32c(blob) != rollup.checksum:
                raise Violation(f"I8: the rollup of {seqno} is not as the state at {state.seqno} names it")
            kept = self.recent[state.shard].get(seqno)
            if kept is not None and blob != encode_rollup(kept):
                raise Violation(f"I14: the rollup of {seqno} is not the state that was rebuilt from diffs")

    def _follow(self, shard: ShardId, before: State | None, state: State) -> None:
        self.recent[shard][state.seqno] = state
        self.recent[shard].pop(state.seqno - _RECENT, None)
        if before is not None and state.trace.spine is before.trace.spine and state.rollups is before.rollups:
            return
        until = self._named_until[shard]
        named, named_before = named_by(state), self._named.get(shard, frozenset())
        self._named[shard] = named
        if before is not None:
            for key in named_before - named:
                until[key] = before.seqno
        # What was named before is named still, and was looked at when it came.
        for key in named - named_before:
            if until.get(key, _FOR_EVER) != _FOR_EVER:
                self._broken(Violation(f"I9: the state at {state.seqno} names {key} again, released before"))
            if until.get(key, -2) != _FOR_EVER and key not in self._values.values:
                self._broken(Violation(f"I8: the state at {state.seqno} names {key}, which is not there"))
            until[key] = _FOR_EVER


def _check_readers(before: State, state: State) -> None:
    for name, reader in state.leased_readers.items():
        was = before.leased_readers.get(name)
        if was is None:
            if reader.seqno < state.seqno or not state.since.less_equal(reader.since):
                raise Violation(f"I10: {name} comes to hold what is gone: {reader} at {state.seqno}")
        elif not was.since.less_equal(reader.since) or reader.seqno < was.seqno:
            raise Violation(f"I3: {name} goes back: {was} to {reader}")


_FOR_EVER = 1 << 62
_RECENT = 64


class SimulatedBlob:
    """A Blob over a network."""

    def __init__(self, network: Network, values: MemoryValues, witness: Witness) -> None:
        self._network = network
        self._inner = MemoryBlob("sim", values)
        self._witness = witness

    @property
    def uri(self) -> str:
        """``mem:sim``."""
        return self._inner.uri

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """A read."""

        def effect() -> bytes | None:
            return at_once(self._inner.get(key, byte_range=byte_range, timeout=1))

        return await self._network.call("get", effect, timeout=timeout, mutation=False)

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """A mutation."""
        data = bytes(value)

        def effect() -> None:
            self._network.loop.log(f"set {key} {len(data)}")
            at_once(self._inner.set(key, data, timeout=1))

        await self._network.call("set", effect, timeout=timeout, mutation=True)

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """A mutation."""

        def effect() -> int | None:
            self._network.loop.log(f"delete {key}")
            self._witness.deleting(key)
            return at_once(self._inner.delete(key, timeout=1))

        return await self._network.call("delete", effect, timeout=timeout, mutation=True)

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """A mutation for each: whatever breaks, some may be gone."""
        for key in keys:
            await self.delete(key, timeout=timeout)

    async def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """A read of one moment."""

        def effect() -> Sequence[tuple[str, int]]:
            values = self._inner._store.values
            return sorted((key, len(value)) for key, value in values.items() if key.startswith(prefix))

        for entry in await self._network.call("list", effect, timeout=timeout, mutation=False):
            yield entry

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """There are no unfinished uploads."""
        return await self._inner.abort_uploads(prefix, older_than_ms=older_than_ms, dry_run=dry_run, timeout=timeout)

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Memory keeps nothing deleted."""
        await self._inner.restore(key, dry_run=dry_run, timeout=timeout)

    async def findings(self) -> Sequence[Finding]:
        """None."""
        return ()

    async def close(self) -> None:
        """The data stays."""


class SimulatedConsensus:
    """A Consensus over a network. Hints of commits come late or never."""

    def __init__(self, network: Network, log: MemoryLog, witness: Witness, hints: "Hub") -> None:
        self._network = network
        self._inner = MemoryConsensus("sim", log)
        self._witness = witness
        self._hub = hints

    @property
    def uri(self) -> str:
        """``mem:sim``."""
        return self._inner.uri

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """A read."""
        return await self._network.call(
            "head", lambda: at_once(self._inner.head(key, timeout=1)), timeout=timeout, mutation=False
        )

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """A mutation."""

        def effect() -> bool:
            won = at_once(self._inner.compare_and_set(key, expected, data, after=after, timeout=1))
            self._network.loop.log(f"cas {key} {expected + 1} {won} {crc32c(data)}")
            if won:
                self._witness.committed(key, expected + 1, data)
                self._hub.told(key, expected + 1)
            return won

        return await self._network.call("compare_and_set", effect, timeout=timeout, mutation=True)

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """A read."""
        return await self._network.call(
            "scan",
            lambda: at_once(self._inner.scan(key, from_seqno, limit, timeout=1)),
            timeout=timeout,
            mutation=False,
        )

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """A mutation."""

        def effect() -> int:
            self._network.loop.log(f"truncate {key} {below}")
            return at_once(self._inner.truncate(key, below, after=after, timeout=1))

        return await self._network.call("truncate", effect, timeout=timeout, mutation=True)

    async def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """A read of one moment."""

        def effect() -> Sequence[str]:
            return sorted(self._inner._log.heads)

        for key in await self._network.call("list_keys", effect, timeout=timeout, mutation=False):
            yield key

    async def changes(self, key: str) -> AsyncIterator[int]:
        """Hints, as they get through."""
        async for seqno in self._hub.listen(key):
            yield seqno

    async def findings(self) -> Sequence[Finding]:
        """None."""
        return ()

    async def close(self) -> None:
        """The data stays."""


class Hub:
    """Notifies listeners of commits: late, and some never."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._listeners: dict[int, tuple[str, deque[int], asyncio.Event]] = {}
        self._count = 0

    def told(self, key: str, seqno: int) -> None:
        """A commit happened."""
        for wanted, found, stirred in self._listeners.values():
            if wanted == key and self._network.delay() < 1.0:
                self._network.loop.call_later(
                    self._network.delay(), _push, found, stirred, seqno, context=self._network.loop.elsewhere
                )

    async def listen(self, key: str) -> AsyncIterator[int]:
        """Hints for one key."""
        self._count += 1
        number, found, stirred = self._count, deque[int](maxlen=1), asyncio.Event()
        self._listeners[number] = (key, found, stirred)
        try:
            while True:
                await stirred.wait()
                stirred.clear()
                while found:
                    yield found.popleft()
        finally:
            self._listeners.pop(number, None)


def _push(found: deque[int], stirred: asyncio.Event, seqno: int) -> None:
    found.append(seqno)
    stirred.set()
