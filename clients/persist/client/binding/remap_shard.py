"""One remap shard as a minter holds it: what is committed, kept up to date, and the one place that appends to it.

Source: catalog-semantics.md sections 4.2 (mint loop) and 5.2; reliability.md I18, I19.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from persist.client.binding.port import REMAP_SINCE, RemapSource
from persist.client.shard.client import ShardClient
from persist.client.shard.read.handle import ReadHandle
from persist.client.shard.read.since import SinceHandle
from persist.client.shard.same_history import newest
from persist.client.shard.write.handle import WriteHandle
from persist.client.timeline.steady_clock import SteadyClock
from persist.core.binding.binding_log import Append, BindingLog, Covered, MintRules
from persist.core.binding.remap import RemapTrace
from persist.core.binding.remap_rows import REMAP_SCHEMA, check_current, from_table, to_table
from persist.core.frontier import MINIMUM, Antichain
from persist.core.shard.commands import Appended
from persist.core.source.source_frontier import SourceFrontier
from persist.errors import Determinate, Indeterminate, LeaseExpired, NotReadable, Overloaded, PersistError
from persist.machine.shards import ShardInfo
from persist.retry.deadline import Backoff, Deadline

BINDINGS_MAX: Final = 100_000
"""Bindings between since and upper beyond which no more are minted: the source's writers do not follow."""
GATHER_FROM: Final = 2
GATHER_SECONDS: Final = 0.001
GATHER_PAUSES_MAX: Final = 40
CONFIRM_SECONDS: Final = 1.0
"""How old an answer from memory may be."""
EVERY_MS: Final = MintRules(interval_ms=1)
LET_GO_SECONDS: Final = 5.0
"""How often the reader of a minter releases what it has read."""


@dataclass(slots=True)
class MinterCounts:
    """Counts of one minter, over all its sources. ``mismatches``: appends that another minter was faster than."""

    minted: int = 0
    mismatches: int = 0


@dataclass(eq=False, slots=True)
class Ask:
    """A caller waits until everything before ``wanted`` is bound; None: until the tick at asking is complete."""

    wanted: SourceFrontier | None
    high: SourceFrontier | None
    rules: MintRules
    asked_ms: int = 0
    settled: bool = False
    refusal: PersistError | None = None

    def is_covered(self, log: BindingLog) -> bool:
        """Whether nothing needs to be appended for it. Raises what keeps it from being bound."""
        own = dataclasses.replace(log, rules=self.rules)
        if self.wanted is None:
            return isinstance(own.advance(self.asked_ms), Covered)
        if own.covers(self.wanted):
            return True
        own.check_jump(self.wanted, self.high)
        return False


class RemapShard:
    """The bindings of one incarnation of a source. Many tasks may ask at once: one append serves them all."""

    def __init__(self, client: ShardClient, source: RemapSource, counts: MinterCounts) -> None:
        self._client = client
        self._counts = counts
        self._location = client.location
        self._source = source
        self._clock = SteadyClock(client.location.runtime)
        self._turn = asyncio.Lock()
        self._asks: list[Ask] = []
        self._doubtful = False
        self._served = 0
        self._let_go = 0.0
        self._confirmed = float("-inf")
        self._log: BindingLog | None = None
        self._writer: WriteHandle | None = None
        self._reader: ReadHandle | None = None
        self._since: SinceHandle | None = None

    @property
    def is_busy(self) -> bool:
        """A caller waits for it."""
        return self._turn.locked() or bool(self._asks)

    @property
    def log(self) -> BindingLog:
        """What is known to be committed, after ``open``."""
        assert self._log is not None
        return self._log

    async def open(self, deadline: Deadline) -> None:
        """Read what is committed unless that was done. Raises UpstreamReplaced, CorruptData, LocationError."""
        if self._log is not None:
            return
        async with self._my_turn(deadline):
            if self._log is None:
                await self._load(deadline)

    async def sync(self, deadline: Deadline) -> BindingLog:
        """Read what is committed now."""
        async with self._my_turn(deadline):
            return await self._sync(deadline)

    async def confirm(self, deadline: Deadline) -> None:
        """Check that what is in memory is still there, unless checked within ``CONFIRM_SECONDS``.

        What is committed stays, but for a restore, which a minter that only answers from memory would never meet.
        """
        if self._location.runtime.monotonic() - self._confirmed >= CONFIRM_SECONDS:
            async with self._my_turn(deadline):
                if self._location.runtime.monotonic() - self._confirmed >= CONFIRM_SECONDS:
                    await self._sync(deadline)

    async def bind(self, ask: Ask, deadline: Deadline) -> None:
        """Return when the ask is covered by what is committed. Raises what its plan does, Overloaded, LocationError."""
        ask.asked_ms = self._clock.now_ms()
        self._asks.append(ask)
        try:
            async with self._my_turn(deadline):
                while not ask.settled:
                    await self._round(deadline)
        finally:
            self._asks.remove(ask)
        if ask.refusal is not None:
            raise ask.refusal

    async def compact(self, since: Antichain, deadline: Deadline) -> Antichain:
        """Let the shard forget what lies before ``since``; the critical since afterwards."""
        async with self._my_turn(deadline):
            handle = self._since
            assert handle is not None
            if handle.since.less_than(since):
                await handle.compare_and_downgrade(handle.opaque, since, timeout=deadline.slice())
            self._forget(handle.since)
            return handle.since

    async def close(self) -> None:
        """Release the reader's lease."""
        reader, self._reader, self._log = self._reader, None, None
        if reader is not None:
            with contextlib.suppress(PersistError):
                await reader.expire(timeout=1.0)

    @contextlib.asynccontextmanager
    async def _my_turn(self, deadline: Deadline) -> AsyncIterator[None]:
        """No other call appends or reads on meanwhile. Raises Indeterminate when it does not come about in time."""
        async with deadline.within("the minter is busy with this source", hint="ask again", error=Indeterminate):
            await self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    async def _gather(self) -> None:
        """Wait a moment for more asks, where several came at once lately.

        A server takes in few requests while it is busy appending: without a pause each append would serve two of them.
        """
        if max(self._served, len(self._asks)) < GATHER_FROM:
            return
        for _ in range(GATHER_PAUSES_MAX):
            before = len(self._asks)
            await self._location.runtime.sleep(GATHER_SECONDS)
            if len(self._asks) == before:
                return

    async def _round(self, deadline: Deadline) -> None:
        """Settle the calls that need no append; otherwise append for all that may be."""
        await self._gather()
        if self._doubtful:
            await self._sync(deadline)
        log = self.log
        wanted, waiting = log.trace.frontier, list[Ask]()
        for ask in self._asks:
            if ask.settled:
                continue
            try:
                ask.settled = ask.is_covered(log)
            except PersistError as error:
                ask.refusal, ask.settled = error, True
            if not ask.settled:
                waiting.append(ask)
                wanted = wanted if ask.wanted is None else wanted.join(ask.wanted)
        self._served = len(waiting)
        if waiting and await self._append(wanted, self._latest_tick(waiting), deadline):
            for ask in waiting:
                ask.settled = True

    def _latest_tick(self, waiting: list[Ask]) -> int:
        """The time that completes what each asked for. SUBTLE: the clock may have been set back since one asked."""
        now_ms = max(self._clock.now_ms(), *(ask.asked_ms for ask in waiting))
        return max(ask.rules.rounded(now_ms) for ask in waiting)

    async def _append(self, wanted: SourceFrontier, tick_ms: int, deadline: Deadline) -> bool:
        """Append up to ``wanted``; whether all before it is bound and the tick complete. If not, look again.

        It always does one or the other: a round that changed nothing would be repeated for ever.
        """
        # Each ask was checked by itself against what the upstream has, and the tick is rounded as its ask wants it.
        log = dataclasses.replace(self.log, rules=EVERY_MS)
        if len(log.trace.bindings) > BINDINGS_MAX:
            raise Overloaded("too many bindings wait for the source's writers", hint="let them catch up")
        plan = log.ensure(wanted, tick_ms, high=wanted)
        if isinstance(plan, Covered):
            plan = log.advance(tick_ms)
        return isinstance(plan, Covered) or await self._commit(plan, deadline)

    async def _commit(self, plan: Append, deadline: Deadline) -> bool:
        source, log = self._source, self.log
        assert self._writer is not None
        rows = to_table(source.kind, source.incarnation, plan.updates) if plan.updates else []  # type: ignore[var-annotated]  # narrower than Arrow is
        self._doubtful = True
        try:
            outcome = await self._writer.compare_and_append(
                rows, plan.expected_upper, plan.new_upper, timeout=deadline.slice()
            )
        except LeaseExpired:
            # The shard forgot this writer, which was silent for long, or a process's clock is far ahead.
            await self._load(deadline)
            return False
        if isinstance(outcome, Appended):
            self._confirmed = self._location.runtime.monotonic()
            self._log = log.appended(plan)
            self._doubtful = False
            self._counts.minted += bool(plan.updates)
            return True
        self._counts.mismatches += 1
        await self._sync(deadline)
        return False

    async def _sync(self, deadline: Deadline) -> BindingLog:
        if self._log is None:
            await self._load(deadline)
            return self.log
        try:
            info = await self._info(deadline)
            if info.upper != self.log.trace.upper:
                await self._read_on(info.upper, deadline)
        except (LeaseExpired, NotReadable):
            # This minter was away for longer than its lease, or the location was restored: nothing it knows counts.
            await self._load(deadline)
            info = await self._info(deadline)
        self._confirmed = self._location.runtime.monotonic()
        self._doubtful = False
        self._forget(info.since)
        await self._release(deadline)
        return self.log

    async def _load(self, deadline: Deadline) -> None:
        """Read everything anew. A lease that ends meanwhile (a clock somewhere is far ahead) is taken again."""
        backoff = Backoff(self._location.runtime, self._location.settings, deadline)
        while True:
            try:
                await self._load_once(deadline)
                return
            except LeaseExpired as error:
                if not await backoff.pause():
                    raise Determinate("the leases of this minter end at once", hint="check the clocks") from error

    async def _load_once(self, deadline: Deadline) -> None:
        source, client = self._source, self._client
        self._writer = await client.open_writer(source.remap, schema=REMAP_SCHEMA, timeout=deadline.slice())
        # SUBTLE: before any lease that moves, as nothing else keeps the shard's since where the bindings begin.
        self._since = await client.open_since(
            REMAP_SINCE, source.remap, purpose="bindings of a source", timeout=deadline.slice()
        )
        self._reader = reader = await client.open_reader(
            source.remap,
            schema=REMAP_SCHEMA,
            purpose="minter",
            use_critical_since=True,
            timeout=deadline.slice(),
        )
        info = await self._info(deadline)
        trace = RemapTrace(kind=source.kind)
        as_of = reader.since.time
        if info.upper != MINIMUM and as_of is not None:
            snapshot = await reader.snapshot(as_of, timeout=deadline.slice())
            trace = await self._trace_of(reader, await snapshot.to_arrow(), as_of, info.upper, deadline)
        self._log = BindingLog(trace=trace, incarnation=source.incarnation)
        self._doubtful = False

    async def _trace_of(
        self, reader: ReadHandle, rows: pa.Table, as_of: int, upper: Antichain, deadline: Deadline
    ) -> RemapTrace:
        source = self._source
        times = pa.repeat(pa.scalar(as_of, pa.uint64()), rows.num_rows)
        first = rows.append_column(REMAP_SCHEMA.updates.field("ts"), times).select(REMAP_SCHEMA.updates.names)
        later = await reader.diffs([as_of + 1], upper, timeout=deadline.slice())
        found = pa.concat_tables([first, (await later.to_arrow()).select(REMAP_SCHEMA.updates.names)])
        updates = from_table(source.kind, source.incarnation, found)
        check_current(source.incarnation, found)
        return RemapTrace.of(source.kind, updates, Antichain.of(as_of), upper)

    async def _read_on(self, upper: Antichain, deadline: Deadline) -> None:
        source, reader, log = self._source, self._reader, self.log
        if reader is None or log.trace.upper == MINIMUM:
            await self._load(deadline)
            return
        found = await reader.diffs(log.trace.upper, upper, timeout=deadline.slice())
        updates = from_table(source.kind, source.incarnation, await found.to_arrow())
        self._log = dataclasses.replace(log, trace=log.trace.extended(updates, upper))

    def _forget(self, since: Antichain) -> None:
        """The cached trace need not reach further back than the shard."""
        trace = self.log.trace
        if trace.since.less_than(since) and since.less_than(trace.upper) and since.time is not None:
            self._log = dataclasses.replace(self.log, trace=trace.compacted(since))

    async def _release(self, deadline: Deadline) -> None:
        """Hold no more of the shard than the next reading needs: only the critical since is to hold it."""
        now, upper, reader = self._location.runtime.monotonic(), self.log.trace.upper.time, self._reader
        if reader is None or not upper or now - self._let_go < LET_GO_SECONDS:
            return
        self._let_go = now
        with contextlib.suppress(LeaseExpired):
            await reader.downgrade_since([upper - 1], timeout=deadline.slice())

    async def _info(self, deadline: Deadline) -> ShardInfo:
        assert self._writer is not None
        return await newest(self._location, self._source.remap, self._writer.incarnation, deadline)
