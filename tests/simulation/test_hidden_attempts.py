"""Shards that repeat a call by themselves: what an earlier attempt did must not be taken for a failure."""

from typing import Any

from simulation.crashes import STORY
from simulation.universe import Process, Universe

from persist.client.remote.failover import FailoverShards
from persist.core.shard.commands import ApplyMerge
from persist.errors import Indeterminate
from persist.machine.compaction.compactor import Compacted, Compactor
from persist.testing.simulation.simulator import simulation
from persist.testing.world.sample import SCHEMA, table


class LosesMerges:
    """Shards behind a connection that breaks once a merge is applied, and for so long that others go on."""

    def __init__(self, process: Process, meanwhile: Any) -> None:
        self._process = process
        self._meanwhile = meanwhile
        self.lost = 0

    async def apply(self, shard: Any, command: Any, *, timeout: float) -> Any:
        outcome = await self._process.shards.apply(shard, command, timeout=timeout)
        if isinstance(command, ApplyMerge):
            self.lost += 1
            await self._meanwhile()
            raise Indeterminate("the connection broke")
        return outcome


def _world(universe: Universe) -> tuple[Process, LosesMerges, Any]:
    """A process whose merges get no answer; meanwhile another process reads their output, and compacts it further."""
    one, other = universe.process(), universe.process()
    readers: list[Any] = []

    async def append(number: int) -> None:
        writer = await other.client.open_writer(universe.shard, schema=SCHEMA)
        await writer.append_at_upper(table([(number * 100 + at, "row", 0, 1) for at in range(40)]))

    async def meanwhile() -> None:
        reader = await other.client.open_reader(universe.shard)
        readers.append((reader, await reader.snapshot((reader.upper.time or 0) - 1)))
        await append(9)
        assert await other.compactor.compact(universe.shard, other.compactor.new_owner(), whole=True) is not None

    async def begin() -> None:
        for number in range(3):
            await append(number)

    universe.run(other, begin)
    return other, LosesMerges(one, meanwhile), readers


def test_merge_refused_after_an_attempt_without_answer_deletes_nothing():
    with simulation(3) as loop:
        universe = Universe(loop, STORY)
        process, lossy, readers = _world(universe)
        runtime = process.shards.runtime
        both: Any = FailoverShards(lossy, process.shards, runtime=runtime)  # type: ignore[arg-type]
        compactor = Compactor(both, process.location)

        async def compact() -> Compacted | None:
            return await compactor.compact(universe.shard, compactor.new_owner(), whole=True)

        compacted = universe.run(process, compact)
        assert lossy.lost == 1
        assert compacted is not None
        assert not compacted.applied
        universe.witness.check()
        [(_, snapshot)] = readers
        assert universe.run(process, snapshot.to_arrow).num_rows == 120
