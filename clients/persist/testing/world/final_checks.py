"""The end of a simulated world: it must serve again, hold what was acknowledged, and keep nothing that is not needed.

Source: reliability.md bar B3; section 2, I5 to I8, I13, I14 and I25.
"""

import asyncio
from functools import partial

from persist.client.client import Client
from persist.client.shard.read.listen import Updates
from persist.core.ids import ShardId
from persist.machine.garbage.sweeper import Sweeper
from persist.machine.upkeep.fsck import Fsck
from persist.testing.ledger import Ledger, Violation
from persist.testing.simulation.simulator import Host
from persist.testing.world.cluster import CONVERGE_SECONDS
from persist.testing.world.nemesis import Nemesis
from persist.testing.world.sample import contents, definite, table, time_of
from persist.wire.checksum import crc32c
from persist.wire.shard.state import encode_rollup

SWEEPS_MAX = 4
"""Sweeps, with some commits in between, after which nothing may be left."""


class FinalChecks(Nemesis):
    """What is checked when all is healed."""

    async def _judge(self) -> None:
        await self._converge()
        definite_upper = time_of(self.witness.states[self.definite].upper)
        self.ledgers[self.definite].updates = [row for time in range(definite_upper) for row in definite(time)]
        for shard, ledger in self.ledgers.items():
            ledger.judge()
            await self._read_all(shard, ledger)
        await self._quiesce()
        await self._clean()
        self._audit()
        for shard, ledger in self.ledgers.items():
            await self._read_all(shard, ledger)

    async def _converge(self) -> None:
        """Every server takes an append in time."""
        for server in self.servers:
            host, client = self.client(f"last-{server.name}", server)
            try:
                async with asyncio.timeout(CONVERGE_SECONDS):
                    await host.start(self._append_once(client))
            except TimeoutError:
                raise Violation(f"I25: {server.name} takes no append in {CONVERGE_SECONDS} s of peace") from None

    async def _append_once(self, client: Client) -> None:
        """One more append for each shard, and a listener gets it."""
        for shard in self.ledgers:
            reader = await self._reader(client, shard)
            listen = await reader.listen(time_of(await client.recent_upper(shard)))
            writer = await self._writer(client, shard)
            if shard == self.mixed:
                await self._until_it_answers(partial(writer.append_at_upper, []))
            else:
                upper = time_of(writer.upper)
                rows = definite(upper)
                await self._until_it_answers(partial(writer.append, table(rows), upper + 1))
            async for event in listen:
                if not isinstance(event, Updates):
                    break
            await listen.aclose()
            await reader.expire()

    async def _read_all(self, shard: ShardId, ledger: Ledger) -> None:
        host, client = self.client(f"judge-{self.loop.time()}")
        await host.start(self._read_times(client, shard, ledger))

    async def _read_times(self, client: Client, shard: ShardId, ledger: Ledger) -> None:
        reader = await self._reader(client, shard)
        since, upper = time_of(reader.since), time_of(await client.recent_upper(shard))
        entropy = self.loop.stream(f"judge/{shard}")
        for as_of in sorted({since, upper - 1, *(entropy.randrange(since, upper) for _ in range(2))}):
            found = await (await reader.snapshot(as_of)).to_arrow()
            ledger.saw(as_of, contents(found), "judge")
        ledger.judge()
        await reader.expire()

    async def _quiesce(self) -> None:
        """Let leases run out, claims grow old and garbage be collected."""
        host, client = self.client("housekeeper")
        await asyncio.sleep(2 * self.plot.settings.writer_lease_ms / 1000)
        for _ in range(3):
            await host.start(self._tick(client))
            await asyncio.sleep(6)

    async def _tick(self, client: Client) -> None:
        for shard, ledger in self.ledgers.items():
            writer = await self._writer(client, shard)
            for _ in range(self.plot.settings.rollup_every):
                if shard == self.mixed:
                    await writer.append_at_upper([])
                else:
                    upper = time_of(writer.upper)
                    rows = definite(upper)
                    await writer.append(table(rows), upper + 1)
                    ledger.add(rows)
                await asyncio.sleep(0.05)

    async def _clean(self) -> None:
        """A last sweep leaves nothing that no state names, and a check of the stores finds nothing wrong."""
        host, client = self.client("cleaner")
        settings, runtime, shards = self.plot.settings, client._location.runtime, client._location.shards
        sweeper = Sweeper(shards, self.survey(client), settings=settings, runtime=runtime)
        fsck = Fsck(self.survey(client), settings=settings, runtime=runtime)
        for shard in self.ledgers:
            await self._swept(sweeper, shard, host)
            problems = await host.start(fsck.check(shard, deep=True))
            if problems:
                raise Violation(f"I8: fsck says {problems[:3]}")

    async def _swept(self, sweeper: Sweeper, shard: ShardId, host: Host) -> None:
        """Sweep until nothing is left. A rollup that was never linked goes once the linked ones lie beyond it."""
        _, client = self.client("keeper")
        for _ in range(SWEEPS_MAX):
            await host.start(sweeper.sweep(shard, safe_age_ms=1_000, commit=True))
            # The fence was a commit: what it made due must end before anything counts as left.
            await asyncio.sleep(6)
            left = await host.start(sweeper.sweep(shard, safe_age_ms=1_000))
            if not left.leaked and not left.unlinked:
                return
            await host.start(self._tick(client))
            await asyncio.sleep(2 * self.plot.settings.writer_lease_ms / 1000)
        raise Violation(f"I12: {SWEEPS_MAX} sweeps left {left}")

    def _audit(self) -> None:
        """What is in the stores is what the states need; memory is what the stores say."""
        self.witness.check()
        for shard in self.ledgers:
            state = self.witness.states[shard]
            for batch in state.trace.batches:
                for part in batch.parts:
                    data = self.values.values.get(part.key) if part.key else part.inline
                    if data is None or len(data) != part.encoded_bytes or crc32c(data) != part.checksum:
                        raise Violation(f"I8: the part {part.key} is not as the state names it")
            diffs = len(self.logs.entries[shard])
            if diffs > 3 * self.plot.settings.rollup_every:
                raise Violation(f"I13: {diffs} diffs are left after all is quiet")
            batches = sum(1 for _ in state.trace.batches)
            if batches > 40:
                raise Violation(f"I13: {batches} batches are left after all is quiet")
            for server in self.servers:
                cached = server.shards._of(shard).applier.cached
                known = self.witness.recent[shard].get(cached.seqno) if cached else None
                if cached and known and encode_rollup(cached) != encode_rollup(known):
                    raise Violation(f"I14: {server.name} knows another state {cached.seqno} than its diffs make")
        for error in self.loop.failures:
            if isinstance(error, Violation):
                raise error
