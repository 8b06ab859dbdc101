"""Who plays in a simulated world: writers, readers and a compactor, all with the real client.

Source: reliability.md section 2, I4 to I7 and I10.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from persist.client.client import Client
from persist.client.shard.read.handle import ReadHandle
from persist.client.shard.read.listen import Updates
from persist.client.shard.write.handle import WriteHandle
from persist.core.frontier import Antichain
from persist.core.ids import ShardId, Token
from persist.core.shard.commands import Appended, UpperMismatch
from persist.errors import InvalidArgument, LeaseExpired, LocationError, ShardNotFound
from persist.machine.compaction.compactor import Compactor
from persist.machine.garbage.sweeper import Sweeper
from persist.testing.ledger import Update, Violation
from persist.testing.world.cluster import LEASE_SECONDS, LIMITS, SAFE_AGE_MS, WorldCluster
from persist.testing.world.sample import SCHEMA, contents, definite, rows_of, some_rows, table, time_of

T = TypeVar("T")

Actor = Callable[[Client, random.Random], Coroutine[Any, Any, None]]


class Actors(WorldCluster):
    """The stories of all actors."""

    def _cast(self) -> Mapping[str, Actor]:
        return {
            "writer-a1": self._write_definite,
            "writer-a2": self._write_definite,
            "writer-b1": self._write_compared,
            "writer-b2": self._write_moved,
            "reader-b1": self._read_mixed,
            "reader-b2": self._listen_mixed,
            "reader-a1": self._read_definite,
            "compactor": self._compact,
            "sweeper": self._sweep,
        }

    async def _compact(self, client: Client, entropy: random.Random) -> None:
        """A compactor far from the shards, as a service of its own is."""
        place = client._location
        work = Compactor(place.shards, place)
        owner = work.new_owner()
        while not self.done:
            try:
                shard = entropy.choice([self.definite, self.mixed])
                done = await work.compact(shard, owner, whole=entropy.random() < 0.3)
                self._did(f"compacted {done}")
            except LeaseExpired:
                self.fired["compaction taken over"] += 1
                owner = work.new_owner()
            except (LocationError, ShardNotFound):
                self.fired["compaction failed"] += 1
            await asyncio.sleep(entropy.uniform(0, 1.0))

    async def _sweep(self, client: Client, entropy: random.Random) -> None:
        """Sweeps more often than one should, after an age that a pause outlasts."""
        sweeper = Sweeper(
            client._location.shards, self.survey(client), settings=self.plot.settings, runtime=client._location.runtime
        )
        while not self.done:
            await asyncio.sleep(entropy.uniform(1.0, 5.0))
            try:
                shard = entropy.choice([self.definite, self.mixed])
                swept = await sweeper.sweep(shard, safe_age_ms=SAFE_AGE_MS, commit=True)
                self.fired["swept"] += swept.leaked
                self._did(f"swept {swept}")
            except (LocationError, ShardNotFound, InvalidArgument):
                self.fired["sweep failed"] += 1

    def _actor(self, name: str, story: Actor) -> "asyncio.Task[None]":
        host, client = self.client(name)
        self.clients.append(host)
        return host.start(story(client, self.loop.stream(name + "/story")))

    # ---- writers -------------------------------------------------------------------------------------------------

    async def _until_it_answers(self, call: Callable[[], Coroutine[object, object, T]]) -> T:
        while True:
            try:
                return await call()
            except LocationError:
                self.fired["call failed"] += 1
                await asyncio.sleep(0.05)

    async def _writer(self, client: Client, shard: ShardId) -> WriteHandle:
        return await self._until_it_answers(lambda: client.open_writer(shard, schema=SCHEMA))

    async def _write_definite(self, client: Client, entropy: random.Random) -> None:
        """Append what every writer of this shard would append, too."""
        writer = await self._writer(client, self.definite)
        for _ in range(self.plot.operations):
            lower = time_of(writer.upper)
            upper = lower + entropy.randrange(1, 4)
            rows = [row for time in range(lower, upper) for row in definite(time)]
            limit = entropy.choice(LIMITS)
            try:
                await self._until_it_answers(partial(writer.append, table(rows), upper, timeout=limit))
            except LeaseExpired:
                self.fired["writer expired"] += 1
                writer = await self._writer(client, self.definite)
                continue
            self._did(f"appended {upper}")
            await asyncio.sleep(entropy.uniform(0, 0.1))

    async def _write_compared(self, client: Client, entropy: random.Random) -> None:
        writer, ledger = await self._writer(client, self.mixed), self.ledgers[self.mixed]
        mine: list[int] = []
        for number in range(self.plot.operations):
            if entropy.random() < 0.03:
                writer = await self._writer(client, self.mixed)
            lower = time_of(writer.upper)
            upper = lower + entropy.randrange(1, 6)
            rows = some_rows(entropy, number * 10, "compared", lower, upper, mine)
            token, limit = Token.of(entropy.randbytes(16)), entropy.choice(LIMITS)
            try:
                outcome = await self._until_it_answers(
                    partial(writer.compare_and_append, table(rows), lower, upper, token=token, timeout=limit)
                )
            except LeaseExpired:
                # It did not happen, and never will: the writer was fenced off.
                self.fired["writer expired"] += 1
                writer = await self._writer(client, self.mixed)
                continue
            if isinstance(outcome, Appended):
                if outcome.upper != Antichain.of(upper):
                    raise Violation(f"I4: appended up to {outcome.upper}, not {upper}")
                ledger.add(rows)
                mine += [row[0] for row in rows if row[3] > 0]
            else:
                assert isinstance(outcome, UpperMismatch)
                if outcome.upper.less_equal(Antichain.of(lower)):
                    raise Violation(f"I2: the upper returned is {outcome.upper}, not {lower} as was returned before")
            self._did(f"compared {outcome}")
            await asyncio.sleep(entropy.uniform(0, 0.1))

    async def _write_moved(self, client: Client, entropy: random.Random) -> None:
        """Several appends at a time, none of which knows where it will be placed."""
        writer, mine = await self._writer(client, self.mixed), list[int]()
        number = 0
        while number < self.plot.operations:
            if entropy.random() < 0.03:
                writer = await self._writer(client, self.mixed)
            work = []
            for _ in range(entropy.choice([1, 1, 2, 4])):
                rows = some_rows(entropy, number * 10, "moved", 0, 1, mine)
                token, number = Token.of(entropy.randbytes(16)), number + 1
                work.append(self._move(writer, rows, token, entropy.choice(LIMITS)))
            expired = self.fired["writer expired"]
            for rows in await asyncio.gather(*work):
                mine += [row[0] for row in rows if row[3] > 0]
            if self.fired["writer expired"] > expired:
                writer = await self._writer(client, self.mixed)
            await asyncio.sleep(entropy.uniform(0, 0.1))

    async def _move(self, writer: WriteHandle, rows: list[Update], token: Token, limit: float) -> list[Update]:
        try:
            outcome = await self._until_it_answers(
                partial(writer.append_at_upper, table(rows), token=token, timeout=limit)
            )
        except LeaseExpired:
            self.fired["writer expired"] += 1
            return []
        time = time_of(outcome.upper) - 1
        self.ledgers[self.mixed].add([(key, val, time, diff) for key, val, _, diff in rows])
        self._did(f"moved {outcome}")
        return rows

    def _did(self, what: str) -> None:
        self.operations += 1
        self.loop.log(what)

    # ---- readers -------------------------------------------------------------------------------------------------

    async def _read_mixed(self, client: Client, entropy: random.Random) -> None:
        await self._read(client, entropy, self.mixed)

    async def _read_definite(self, client: Client, entropy: random.Random) -> None:
        await self._read(client, entropy, self.definite)

    async def _reader(self, client: Client, shard: ShardId) -> ReadHandle:
        await self._writer(client, shard)
        return await self._until_it_answers(lambda: client.open_reader(shard, lease=LEASE_SECONDS))

    async def _read(self, client: Client, entropy: random.Random, shard: ShardId) -> None:
        reader, asked = await self._reader(client, shard), dict[str, int]()
        while not self.done:
            try:
                await self._read_once(client, reader, entropy, shard, asked)
            except LeaseExpired:
                self.fired["reader expired"] += 1
                reader = await self._reader(client, shard)
            except LocationError:
                self.fired["read failed"] += 1
            await asyncio.sleep(entropy.uniform(0, 0.3))
        await self._until_it_answers(reader.expire)

    async def _read_once(
        self, client: Client, reader: ReadHandle, entropy: random.Random, shard: ShardId, asked: dict[str, int]
    ) -> None:
        # What was asked for may have happened, even if its answer was lost.
        upper, since = (
            time_of(await client.recent_upper(shard)),
            max(time_of(reader.since), asked.get(reader.reader_id, 0)),
        )
        if upper <= since:
            return
        as_of = entropy.randrange(since, upper)
        snapshot = await reader.snapshot(as_of)
        if entropy.random() < 0.3:
            await asyncio.sleep(entropy.uniform(0, 2.0))
        found = await snapshot.to_arrow()
        self.ledgers[shard].saw(as_of, contents(found), reader.reader_id)
        self._did(f"read {as_of} {found.num_rows}")
        if entropy.random() < 0.6:
            asked[reader.reader_id] = entropy.randrange(since, upper)
            await reader.downgrade_since(asked[reader.reader_id])

    async def _listen_mixed(self, client: Client, entropy: random.Random) -> None:
        resume: int | None = None
        while not self.done:
            reader = await self._reader(client, self.mixed)
            since = time_of(reader.since)
            as_of = since if resume is None or resume < since else resume
            resume = await self._listen(reader, as_of, entropy)

    async def _listen(self, reader: ReadHandle, as_of: int, entropy: random.Random) -> int:
        """Listen for a while. How far it came."""
        ledger, reached = self.ledgers[self.mixed], as_of + 1
        told: list[tuple[int, str, int, int]] = []
        events = entropy.randrange(5, 60)
        listen = await reader.listen(as_of, timeout=2.0, downgrade=True)
        try:
            async for event in listen:
                if isinstance(event, Updates):
                    told += rows_of(event.table)
                    continue
                reached = max(reached, time_of(event.upper))
                self._did(f"received {event.upper} {len(told)}")
                events -= 1
                if not events or self.done:
                    break
        except LeaseExpired:
            self.fired["listener expired"] += 1
        except LocationError:
            self.fired["listen failed"] += 1
        finally:
            await listen.aclose()
        sums: Counter[tuple[int, str, int]] = Counter()
        for key, val, ts, diff in told:
            if ts <= as_of:
                raise Violation(f"I6: received {ts}, listening from {as_of}")
            if ts < reached:
                sums[key, val, ts] += diff
        found = {update: diff for update, diff in sums.items() if diff}
        ledger.heard(as_of + 1, reached, found, reader.reader_id)
        try:
            await reader.expire()
        except LocationError:
            self.fired["expire failed"] += 1
        return reached - 1
