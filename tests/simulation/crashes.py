"""A story in which everything happens once: appends, rollups, compactions, garbage, the end of a shard.

It is run by one process after the other: the successor of one that crashed goes on with the step that was under way.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from simulation.universe import Process, Universe

from persist.core.frontier import Antichain
from persist.core.ids import Token, WriterId, part_key
from persist.core.shard.commands import CriticalDowngraded, Finalize
from persist.errors import ShardClosed
from persist.machine.garbage.collector import named_by
from persist.machine.garbage.inventory import Inventory
from persist.machine.garbage.sweeper import Sweeper
from persist.machine.upkeep.fsck import Fsck
from persist.testing.ledger import Violation
from persist.testing.simulation.simulator import simulation
from persist.testing.simulation.stores import Network
from persist.testing.world.cluster import SETTINGS
from persist.testing.world.sample import SCHEMA, table
from persist.wire.shard.state import encode_rollup

STORY = dataclasses.replace(SETTINGS, rollup_every=5, inline_part_bytes_max=120, part_bytes_max=1 << 16, sort_rows=16)
RESTART_SECONDS = 5.0
LEAKED_MAX = 8
"""Blobs one crash may leave behind: what an append, a merge and a rollup under way had written."""


@dataclass(frozen=True)
class Point:
    """Before or after the ``number``-th change that the first process makes to a store."""

    number: int
    after: bool
    step: str
    method: str


class Armed(Network):
    """A network on which a host crashes at one point; without one, it lists all points."""

    def __init__(self, network: Network, universe: Universe) -> None:
        super().__init__(network.loop, network.faults, slow=0.0)
        self.universe = universe
        self.process: Process | None = None
        self.point: Point | None = None
        self.step = ""
        self.seen: list[tuple[str, str]] = []

    async def call(self, method: str, effect: Callable[[], Any], *, timeout: float, mutation: bool) -> Any:
        if not mutation or self.process is None or not self.process.host.alive:
            return await super().call(method, effect, timeout=timeout, mutation=mutation)
        self.seen.append((self.step, method))
        here = self.point is not None and self.point.number == len(self.seen)
        if not here:
            return await super().call(method, effect, timeout=timeout, mutation=mutation)
        assert self.point is not None
        if self.point.after:
            effect()
        self.process.host.crash()
        return await self.loop.create_future()


class Story:
    """The steps and what was acknowledged."""

    def __init__(self, universe: Universe, appends: int) -> None:
        self.universe = universe
        self.steps: list[tuple[str, Callable[[Process], Coroutine[Any, Any, None]]]] = []
        for number in range(appends):
            self.steps.append(("append", self._append(number)))
            if number % 8 == 7:
                self.steps += [("compact", self._compact), ("since", self._since(number))]
        self.steps += [("compact", self._compact), ("settle", self._settle), ("verify", self._verify)]
        self.steps += [("sweep", self._sweep), ("verify", self._verify)]
        self.steps += [("close", self._close), ("finalize", self._finalize), ("settle", self._settle)]
        # What the last commits made due ends within a step, too: a crash amid it is another point.
        self.steps += [("gone", self._gone), ("settle", self._settle)]

    def _append(self, number: int) -> Callable[[Process], Coroutine[Any, Any, None]]:
        entropy = self.universe.loop.stream(f"append{number}")
        count, token = [1, 40, 0, 3][number % 4], Token.of(entropy.randbytes(16))
        rows = [(entropy.randrange(200), "x", 0, entropy.choice([1, 1, 1, -1])) for _ in range(count)]

        async def append(process: Process) -> None:
            writer = await process.client.open_writer(
                self.universe.shard, schema=SCHEMA, writer_id=WriterId.of(bytes(15) + b"w")
            )
            outcome = await writer.append_at_upper(table(rows), token=token)
            time = (outcome.upper.time or 0) - 1
            self.universe.ledger.add([(key, val, time, diff) for key, val, _, diff in rows])

        return append

    def _since(self, number: int) -> Callable[[Process], Coroutine[Any, Any, None]]:
        async def since(process: Process) -> None:
            hold = await process.client.open_since("job", self.universe.shard)
            outcome = await hold.compare_and_downgrade(b"", number - 4)
            assert isinstance(outcome, CriticalDowngraded)

        return since

    async def _settle(self, process: Process) -> None:
        """What runs beside the commits ends; claims of crashed processes grow old, and are taken over."""
        for _ in range(2):
            await asyncio.sleep(70)
            await process.client.open_since("tick", self.universe.shard)
            hold = await process.client.open_since("tick", self.universe.shard)
            await hold.expire()

    async def _compact(self, process: Process) -> None:
        await asyncio.sleep(5)
        await process.compactor.compact(self.universe.shard, process.compactor.new_owner(), whole=True)

    async def _verify(self, process: Process) -> None:
        state = self.universe.witness.states[self.universe.shard]
        for as_of in range(state.since.time or 0, state.upper.time or 0, 3):
            await self.universe.snapshot(process.client, as_of)
        await self.universe.changes(process.client)
        self.universe.ledger.judge()

    async def _sweep(self, process: Process) -> None:
        """What a crashed writer left is found and goes; nothing else does."""
        stray = part_key(self.universe.shard, process.compactor.new_owner(), 1, bytes(16))
        await self.universe.blob().set(stray, b"left behind", timeout=5)
        await asyncio.sleep(30)
        versions = process.shards._versions
        runtime = process.shards.runtime
        sweeper = Sweeper(
            process.shards, Inventory(versions, settings=STORY, runtime=runtime), settings=STORY, runtime=runtime
        )
        await sweeper.sweep(self.universe.shard, safe_age_ms=20_000, commit=True)
        assert stray not in self.universe.values.values

    async def _close(self, process: Process) -> None:
        # A reader that crashed holds since until its lease is gone, and expiry alone does not move since.
        await asyncio.sleep(10)
        writer = await process.client.open_writer(self.universe.shard, schema=SCHEMA)
        with contextlib.suppress(ShardClosed):
            await writer.append([], [])
        hold = await process.client.open_since("job", self.universe.shard)
        if not hold.since.is_empty:
            await hold.compare_and_downgrade(b"", Antichain())

    async def _finalize(self, process: Process) -> None:
        while not (await process.shards.apply(self.universe.shard, Finalize(), timeout=5)).done:
            continue

    async def _gone(self, process: Process) -> None:
        """What is left when a shard is gone: its tombstone, for all and for ever."""
        try:
            writer = await process.client.open_writer(self.universe.shard, schema=SCHEMA)
            await writer.append_at_upper([])
        except ShardClosed:
            return
        raise Violation("I11: a tombstone takes an append")


def points(appends: int) -> list[Point]:
    """Every point of the story."""
    seen = tell(None, appends)
    return [Point(number, after, *what) for number, what in enumerate(seen, 1) for after in (False, True)]


def tell(point: Point | None, appends: int) -> list[tuple[str, str]]:
    """Run the story, crashing at a point. The names of the changes the first process made."""
    with simulation(7) as loop:
        universe = Universe(loop, STORY)
        network = universe.network = Armed(universe.network, universe)
        network.point = point
        story = Story(universe, appends)
        process = network.process = universe.process()
        at = 0
        while at < len(story.steps):
            network.step, step = story.steps[at]
            task = process.host.start(step(process))
            loop.run_until_complete(_ended(task, process))
            universe.witness.check()
            if process.host.alive:
                task.result()
                at += 1
            else:
                process = universe.process()
                universe.run(process, lambda: _restarted(universe, process))  # noqa: B023  # called at once
        _audit(universe, process)
        universe.run(process, lambda: _checked(universe, process))
        return network.seen


async def _ended(task: "asyncio.Task[None]", process: Process) -> None:
    while not task.done() and process.host.alive:
        await asyncio.wait({task}, timeout=0.5)


async def _restarted(universe: Universe, process: Process) -> None:
    """The successor of a crashed process serves in time, and finds nothing wrong."""
    async with asyncio.timeout(RESTART_SECONDS):
        await process.shards.open(universe.shard, timeout=RESTART_SECONDS)
    await _checked(universe, process)


async def _checked(universe: Universe, process: Process) -> None:
    runtime = process.shards.runtime
    survey = Inventory(process.shards._versions, settings=STORY, runtime=runtime)
    problems = await Fsck(survey, settings=STORY, runtime=runtime).check(universe.shard, deep=True)
    # What a crash leaves behind is counted at the end.
    if wrong := [problem for problem in problems if problem.invariant != "I12"]:
        raise Violation(f"fsck says {wrong[:3]}")


def _audit(universe: Universe, process: Process) -> None:
    state = universe.witness.states[universe.shard]
    live = process.shards._of(universe.shard).applier.cached
    assert live is not None
    if encode_rollup(live) != encode_rollup(state):
        raise Violation("I14: the state in memory is not the one its diffs make")
    if not state.is_tombstone or any(True for batch in state.trace.batches for _ in batch.parts):
        raise Violation("I11: something is left in a finalized shard")
    named = named_by(state)
    if not named <= set(universe.values.values):
        raise Violation("I8: a tombstone names a blob that is not there")
    leaked = set(universe.values.values) - named
    if len(leaked) > LEAKED_MAX:
        raise Violation(f"I12: one crash left {len(leaked)} blobs behind: {sorted(leaked)[:12]}")
