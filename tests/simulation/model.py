"""Random steps of several processes that embed the machine, against a model of a few lists: reliability.md B1."""

import asyncio
import contextlib
import dataclasses
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulation.universe import Process, Universe

from persist.client.shard.read.handle import ReadHandle
from persist.client.shard.write.handle import WriteHandle
from persist.core.frontier import Antichain
from persist.core.ids import Token
from persist.core.shard.commands import Appended, ApplyMerge, Command, UpperMismatch
from persist.errors import LeaseExpired, NotReadable, UsageError
from persist.machine.versions import Versions
from persist.retry.deadline import Deadline
from persist.testing.ledger import Update, Violation
from persist.testing.simulation.simulator import SimulatedRuntime, simulation
from persist.testing.world.cluster import SETTINGS
from persist.testing.world.sample import SCHEMA, contents, table
from persist.wire.shard.state import encode_rollup

SMALL = dataclasses.replace(SETTINGS, rollup_every=8, inline_part_bytes_max=150, sort_rows=8)
PROCESSES = 3

processes = st.integers(0, PROCESSES - 1)
rows = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from("ab"), st.integers(0, 3), st.sampled_from([1, 1, -1, 2])), max_size=9
)


class Machine(RuleBasedStateMachine):
    """One shard, three processes."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = contextlib.ExitStack()
        self.loop = self.closing.enter_context(simulation(1))
        self.universe = Universe(self.loop, SMALL)
        self.processes = [self.universe.process() for _ in range(PROCESSES)]
        self.writers: dict[int, WriteHandle] = {}
        self.readers: list[tuple[Process, ReadHandle]] = []
        self.appends: list[tuple[int, list[Update], Token, Appended]] = []
        self.replayable: list[Command[Any]] = []
        self.upper = 0
        self.steps = 0
        for process in self.processes:
            self._record(process)

    def _record(self, process: Process) -> None:
        """Remember what is committed: any command may arrive again."""
        apply = process.shards.apply

        async def recorded(shard: Any, command: Command[Any], *, timeout: float) -> Any:
            if isinstance(command, ApplyMerge):
                self.replayable.append(command)
            return await apply(shard, command, timeout=timeout)

        process.shards.apply = recorded  # type: ignore[method-assign]

    def teardown(self) -> None:
        try:
            if self.upper:
                self._read_all()
        finally:
            self.closing.close()

    @initialize()
    def opened(self) -> None:
        for number, process in enumerate(self.processes):
            self.writers[number] = self.universe.run(process, lambda: self._writer(process))  # noqa: B023

    async def _writer(self, process: Process) -> WriteHandle:
        return await process.client.open_writer(self.universe.shard, schema=SCHEMA)

    # ---- writing -------------------------------------------------------------------------------------------------

    @rule(number=processes, found=rows)
    def append_at_upper(self, number: int, found: list[Update]) -> None:
        writer, token = self.writers[number], Token.of(self.loop.random.randbytes(16))
        outcome = self.universe.run(
            self.processes[number],
            lambda: writer.append_at_upper(table([(k, v, 0, d) for k, v, _, d in found]), token=token),
        )
        assert not outcome.already_committed
        self._moved(outcome)
        self.universe.ledger.add([(key, val, self.upper - 1, diff) for key, val, _, diff in found])
        self.appends.append((number, found, token, outcome))

    @rule(number=processes, found=rows, stale=st.integers(0, 2))
    def compare_and_append(self, number: int, found: list[Update], stale: int) -> None:
        lower = max(0, self.upper - stale)
        moved = [(key, val, lower + ts, diff) for key, val, ts, diff in found]
        outcome = self.universe.run(
            self.processes[number],
            lambda: self.writers[number].compare_and_append(table(moved), lower, lower + 4),
        )
        if isinstance(outcome, UpperMismatch):
            assert lower != self.upper
            assert outcome.upper == Antichain.of(self.upper)
            return
        assert lower == self.upper
        self._moved(outcome)
        self.universe.ledger.add(moved)

    @rule(number=processes, found=rows, back=st.integers(1, 3))
    def append_what_others_may_have_appended(self, number: int, found: list[Update], back: int) -> None:
        """The times that are there already must stay as they are."""
        writer = self.writers[number]
        upper, first = self.upper + back, max(writer.upper.time or 0, self.upper - 2)
        moved = [(key, val, first + ts % (upper - first), diff) for key, val, ts, diff in found]
        outcome = self.universe.run(self.processes[number], lambda: writer.append(table(moved), upper))
        self.universe.ledger.add([row for row in moved if row[2] >= self.upper])
        self._moved(outcome)

    @precondition(lambda self: self.appends)
    @rule(data=st.data())
    def repeat_an_append(self, data: st.DataObject) -> None:
        number, found, token, before = data.draw(st.sampled_from(self.appends[-20:]))
        writer = self.writers[number]
        outcome = self.universe.run(
            self.processes[number],
            lambda: writer.append_at_upper(table([(k, v, 0, d) for k, v, _, d in found]), token=token),
        )
        assert outcome.already_committed
        assert (outcome.upper, outcome.seqno) == (before.upper, before.seqno)

    def _moved(self, outcome: Appended) -> None:
        assert outcome.upper.time is not None
        assert outcome.upper.time > self.upper
        self.upper = outcome.upper.time

    # ---- reading -------------------------------------------------------------------------------------------------

    @rule(number=processes)
    def open_reader(self, number: int) -> None:
        process = self.processes[number]
        reader = self.universe.run(process, lambda: process.client.open_reader(self.universe.shard, schema=SCHEMA))
        self.readers.append((process, reader))

    @precondition(lambda self: self.readers and self.upper)
    @rule(data=st.data(), slow=st.booleans())
    def read(self, data: st.DataObject, slow: bool) -> None:
        process, reader = data.draw(st.sampled_from(self.readers))
        as_of = data.draw(st.integers(0, self.upper - 1))

        async def read() -> None:
            snapshot = await reader.snapshot(as_of)
            if slow:
                await asyncio.sleep(2)
            self.universe.ledger.saw(as_of, contents(await snapshot.to_arrow()), "reader")

        readable = reader.since.less_equal(Antichain.of(as_of))
        try:
            self.universe.run(process, read)
            assert readable
        except NotReadable:
            assert not readable
        self.universe.ledger.judge()

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), back=st.integers(0, 6))
    def downgrade(self, data: st.DataObject, back: int) -> None:
        process, reader = data.draw(st.sampled_from(self.readers))
        self.universe.run(process, lambda: reader.downgrade_since(max(0, self.upper - back)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        process, reader = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        self.universe.run(process, reader.expire)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def stopped_for_three_leases(self, data: st.DataObject) -> None:
        """A reader that slept through its lease gets an error, and reads nothing."""
        process, _ = data.draw(st.sampled_from(self.readers))
        process.host.pause()
        self.loop.run_until_complete(asyncio.sleep(3 * SMALL.reader_lease_ms / 1000))
        awake = next((each for each in self.processes if each is not process), process)
        if awake is not process:
            writer = self.universe.run(awake, lambda: self._writer(awake))
            outcome = self.universe.run(awake, lambda: writer.append_at_upper([]))
            self._moved(outcome)
        process.host.resume()
        gone = [each for each in self.readers if each[0] is process]
        self.readers = [each for each in self.readers if each[0] is not process]
        for _, each in gone:
            try:
                self.universe.run(process, each.heartbeat)
            except LeaseExpired:
                continue
            raise Violation("I10: a reader that slept through its lease goes on")

    @precondition(lambda self: self.upper > 1)
    @rule(number=processes)
    def follow(self, number: int) -> None:
        process = self.processes[number]
        self.universe.run(process, lambda: self.universe.changes(process.client))
        self.universe.ledger.judge()

    # ---- maintenance ---------------------------------------------------------------------------------------------

    @rule(number=processes, times=st.integers(1, 3))
    def compact(self, number: int, times: int) -> None:
        process = self.processes[number]
        for _ in range(times):
            compactor = process.compactor
            with contextlib.suppress(LeaseExpired):
                self.universe.run(
                    process,
                    lambda: compactor.compact(self.universe.shard, compactor.new_owner(), whole=True),  # noqa: B023
                )

    @precondition(lambda self: self.upper)
    @rule(number=processes)
    def compact_before_and_after_since_moves(self, number: int) -> None:
        process = self.processes[number]

        async def twice() -> None:
            for _ in range(2):
                await process.compactor.compact(self.universe.shard, process.compactor.new_owner(), whole=True)
                reader = await process.client.open_reader(self.universe.shard, schema=SCHEMA)
                await reader.downgrade_since(self.upper - 1)
                await reader.expire()

        with contextlib.suppress(LeaseExpired):
            self.universe.run(process, twice)

    @precondition(lambda self: self.replayable)
    @rule(data=st.data(), number=processes)
    def merge_arrives_again(self, data: st.DataObject, number: int) -> None:
        command, process = data.draw(st.sampled_from(self.replayable[-8:])), self.processes[number]
        with contextlib.suppress(UsageError, LeaseExpired):
            self.universe.run(process, lambda: process.shards.apply(self.universe.shard, command, timeout=5))

    @rule(number=processes)
    def collect(self, number: int) -> None:
        process = self.processes[number]
        runtime = process.shards.runtime

        async def collect() -> None:
            await process.shards.open(self.universe.shard, timeout=5)
            collector = process.shards._of(self.universe.shard).maintenance.collector
            await collector.collect(Deadline(runtime, 20))

        self.universe.run(process, collect)

    @rule(seconds=st.sampled_from([0.1, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(number=processes)
    def crash(self, number: int) -> None:
        self.processes[number].host.crash()
        gone = self.processes[number]
        self.readers = [each for each in self.readers if each[0] is not gone]
        process = self.processes[number] = self.universe.process()
        self._record(process)
        old = self.writers[number]
        self.writers[number] = self.universe.run(
            process,
            lambda: process.client.open_writer(self.universe.shard, schema=SCHEMA, writer_id=old.writer_id),
        )

    # ---- laws ----------------------------------------------------------------------------------------------------

    @invariant()
    def witnessed(self) -> None:
        self.universe.witness.check()
        state = self.universe.witness.states.get(self.universe.shard)
        if state is not None:
            assert state.upper == Antichain.of(self.upper)

    @invariant()
    def rebuilt_as_it_lives(self) -> None:
        self.steps += 1
        if self.steps % 5 or self.universe.shard not in self.universe.witness.states:
            return
        fresh = self.universe.process()
        versions = Versions(
            self.universe.blob(),
            self.universe.consensus(),
            settings=SMALL,
            runtime=SimulatedRuntime(self.loop, fresh.host),
        )
        runtime = fresh.shards.runtime
        found = self.universe.run(fresh, lambda: versions.load(self.universe.shard, Deadline(runtime, 5)))
        assert found is not None
        known = self.universe.witness.recent[self.universe.shard].get(found.seqno)
        assert known is not None
        assert encode_rollup(found.state) == encode_rollup(known)
        for process in self.processes:
            cached = process.shards._of(self.universe.shard).applier.cached
            known = cached and self.universe.witness.recent[self.universe.shard].get(cached.seqno)
            assert cached is None or known is None or encode_rollup(cached) == encode_rollup(known)

    def _read_all(self) -> None:
        process = self.processes[0]
        state = self.universe.witness.states[self.universe.shard]
        for as_of in range(state.since.time or 0, self.upper):
            self.universe.run(process, lambda: self.universe.snapshot(process.client, as_of))  # noqa: B023
        self.universe.run(process, lambda: self.universe.changes(process.client))
        self.universe.ledger.judge()
