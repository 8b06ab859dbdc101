"""Who plays in a fleet: writers with hundreds of overlapping calls, holders of critical sinces, readers."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from simulation.fleet.fleet import Fleet

from persist.client.client import Client
from persist.client.shard.read.listen import Updates
from persist.client.shard.write.handle import WriteHandle
from persist.core.ids import ShardId, Token, WriterId
from persist.errors import LeaseExpired, LocationError, PersistError, UsageError
from persist.testing.accounts import Account, Told
from persist.testing.ledger import Update, Violation
from persist.testing.world.sample import SCHEMA, rows_of, table, time_of

T = TypeVar("T")

Story = Callable[[Client, random.Random], Coroutine[Any, Any, None]]
"""What an actor does with a client of its own."""

GRID = 10
"""Appends by compare and append lie between multiples of it, so that one writer's fill what another's left open."""
LIMITS = (1.0, 5.0, 20.0, None)
"""Timeouts of calls, in seconds."""


class FleetCast(Fleet):
    """The stories of all actors."""

    released: set[str]
    """Names of holds that were released, and acknowledged so."""

    def strike(self, *, amid: bool = False) -> None:
        """Something breaks."""
        raise NotImplementedError

    def stories(self) -> dict[str, Story]:
        """All actors'."""
        return {
            "chain": self._chain,
            "run ahead": self._run_ahead,
            "fill": self._fill,
            "move": self._move,
            "move agelessly": self._move_agelessly,
            "hold": self._hold,
            "read": self._read,
        }

    def cast(self) -> "dict[str, asyncio.Task[None]]":
        """Begin the stories of those who play."""
        work = {}
        for name, story in self.stories().items():
            if not self.plot.cast or name in self.plot.cast:
                machine, client = self.client(name)
                work[name] = machine.start(story(client, self.loop.stream(f"{name}/story")))
        return work

    async def until_it_answers(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await call()
            except (UsageError, LeaseExpired):
                raise
            except Exception as error:
                self.strange(error)
                self.fired["call failed"] += 1
                await asyncio.sleep(0.5)

    def strange(self, error: Exception) -> None:
        """Go on after what a store may have raised; anything else is a bug. Corruption always is."""
        if isinstance(error, LocationError) or (self.plot.strange and not isinstance(error, PersistError)):
            return
        raise error

    async def _writer(self, client: Client, shard: ShardId, writer_id: WriterId | None = None) -> WriteHandle:
        return await self.until_it_answers(lambda: client.open_writer(shard, schema=SCHEMA, writer_id=writer_id))

    async def _upper(self, client: Client, shard: ShardId) -> int:
        upper = await self.until_it_answers(lambda: client.recent_upper(shard))
        return time_of(upper)

    def _did(self, what: str) -> None:
        self.operations += 1
        self.loop.log(what)

    def expect_trouble(self, entropy: random.Random) -> None:
        """Calls are about to be made: a good moment for something to break."""
        if entropy.random() < 0.7:
            self.wires.later(entropy.choice([0.002, 0.01, 0.1]), self.strike, amid=True)

    # ---- appends between given bounds ----------------------------------------------------------------------------

    async def _chain(self, client: Client, entropy: random.Random) -> None:
        """One handle, as many calls at once as there are, each beginning where the one before it ends."""
        writer = await self._writer(client, self.chained)
        for _ in range(self.plot.rounds):
            count, limit = entropy.choice(self.plot.overlapping), entropy.choice(LIMITS)
            begin = await self._upper(client, self.chained)
            self.expect_trouble(entropy)
            await asyncio.gather(*(self._compare(writer, begin + at * GRID, limit, entropy) for at in range(count)))
            await asyncio.sleep(entropy.uniform(0, 60.0))
            if entropy.random() < 0.1:
                writer = await self._writer(client, self.chained)

    async def _run_ahead(self, client: Client, entropy: random.Random) -> None:
        """Appends that nothing leads up to: they are refused, and must never be there."""
        writer = await self._writer(client, self.chained)
        for _ in range(self.plot.rounds * 4):
            begin = await self._upper(client, self.chained)
            ahead = entropy.choice([1, 1, 2, 5]) * GRID
            await self._compare(writer, begin + ahead, entropy.choice(LIMITS), entropy)
            await asyncio.sleep(entropy.uniform(0, 12.0))

    async def _fill(self, client: Client, entropy: random.Random) -> None:
        """One append after the other."""
        writer = await self._writer(client, self.chained)
        while not self.done:
            begin = await self._upper(client, self.chained)
            await self._compare(writer, begin, entropy.choice(LIMITS), entropy)
            await asyncio.sleep(entropy.uniform(0, 12.0))

    async def _compare(self, writer: WriteHandle, lower: int, limit: float | None, entropy: random.Random) -> None:
        account = self.accounts[self.chained].open(self.row())
        upper = lower + GRID
        rows = table([(account.row, "compared", upper - 1, 1)])
        token = Token.of(entropy.randbytes(16)) if entropy.random() < 0.5 else None
        for attempt in range(3 if token else 1):
            try:
                outcome = await writer.compare_and_append(rows, lower, upper, token=token, timeout=limit)
            except Exception as error:
                account.failed(error, repeated=attempt > 0)
                if not isinstance(error, UsageError | LeaseExpired):
                    self.strange(error)
            else:
                account.answered(outcome)
            self._did(f"compared {lower} {account.answers[-1]}")
            if account.told is not Told.NOTHING:
                return

    # ---- appends at the upper ------------------------------------------------------------------------------------

    async def _move(self, client: Client, entropy: random.Random) -> None:
        await self._move_as(client, entropy, lambda: None)

    async def _move_agelessly(self, client: Client, entropy: random.Random) -> None:
        """Under an id that does not contain when its writer began."""
        await self._move_as(client, entropy, lambda: WriterId.of(b"\0" * 6 + b"\x40" + entropy.randbytes(9)))

    async def _move_as(self, client: Client, entropy: random.Random, new_id: Callable[[], WriterId | None]) -> None:
        writer = await self._writer(client, self.moved, new_id())
        before: list[tuple[Account, Token]] = []
        for _ in range(self.plot.rounds * 2):
            calls = []
            for _ in range(entropy.choice([count for count in self.plot.overlapping if count <= 100])):
                account, token = self.accounts[self.moved].open(self.row()), Token.of(entropy.randbytes(16))
                before.append((account, token))
                calls.append(self._move_once(writer, account, token, entropy.choice(LIMITS)))
            if entropy.random() < 0.5:
                # Again, under the token it had: whatever was returned, it must not happen twice.
                recent = before[-30:]
                again = entropy.sample(recent, min(len(recent), self.plot.repeated))
                calls += [self._move_once(writer, *each, None) for each in again]
            self.expect_trouble(entropy)
            await asyncio.gather(*calls)
            await asyncio.sleep(entropy.uniform(0, 30.0))
            if entropy.random() < 0.1:
                before.clear()
                writer = await self._writer(client, self.moved, new_id())

    async def _move_once(self, writer: WriteHandle, account: Account, token: Token, limit: float | None) -> None:
        rows = table([(account.row, "moved", 0, 1)])
        repeated = bool(account.answers)
        try:
            outcome = await writer.append_at_upper(rows, token=token, timeout=limit)
        except Exception as error:
            account.failed(error, repeated=True)
            if not isinstance(error, UsageError | LeaseExpired):
                self.strange(error)
        else:
            account.answered(outcome)
        self._did(f"moved {account.answers[-1]} {repeated}")

    # ---- holds and readers ---------------------------------------------------------------------------------------

    async def _hold(self, client: Client, entropy: random.Random) -> None:
        """Critical holds: expired ones that were registered before must not come back."""
        await self._writer(client, self.chained)
        number = 0
        while not self.done:
            number += 1
            name = f"hold-{number}"
            try:
                hold = await client.open_since(name, self.chained, timeout=entropy.choice(LIMITS))
                await asyncio.sleep(entropy.choice([0.0, 0.1, 3.0]))
                await hold.expire(timeout=entropy.choice(LIMITS))
            except (LocationError, LeaseExpired):
                # The latter where the shard may have forgotten the call: it is not known whether the hold is there.
                self.fired["hold failed"] += 1
            except Exception as error:
                self.strange(error)
            else:
                self.released.add(name)
                self._did(f"released {name}")
            await asyncio.sleep(entropy.uniform(0, 12.0))

    async def _read(self, client: Client, entropy: random.Random) -> None:
        """Whatever was acknowledged before is there."""
        for shard in self.accounts:
            await self._writer(client, shard)
        failures: tuple[type[Exception], ...] = (LocationError, *self._strange_kinds())
        while not self.done:
            shard = entropy.choice(list(self.accounts))
            try:
                await self._read_once(client, shard)
            except LeaseExpired:
                self.fired["reader expired"] += 1
            except failures as error:
                self.fired[f"read failed: {type(error).__name__}"] += 1
            await asyncio.sleep(entropy.uniform(10.0, 100.0))

    def _strange_kinds(self) -> tuple[type[Exception], ...]:
        return (ValueError, KeyError, OSError, RuntimeError, AssertionError, MemoryError) if self.plot.strange else ()

    async def _read_once(self, client: Client, shard: ShardId) -> None:
        accounts = self.accounts[shard]
        before = list(accounts.known().values())
        updates, upper = await self.updates(client, shard)
        found: Counter[int] = Counter()
        for row, _, _, diff in updates:
            found[row] += diff
        accounts.seen(upper - 1, before, found)
        self._did(f"read {upper} {len(updates)}")

    async def updates(self, client: Client, shard: ShardId) -> tuple[list[Update], int]:
        """Everything in a shard before its upper, and the upper.

        Listened for, which is quicker than a snapshot of hundreds of batches and gives the time of each update.
        """
        upper = time_of(await client.recent_upper(shard))
        reader = await client.open_reader(shard)
        if time_of(reader.since) != 0:
            raise Violation(f"I3: {shard} forgot times that are held: since is {reader.since}")
        found: list[Update] = []
        listen = await reader.listen(0)
        async for event in listen:
            if isinstance(event, Updates):
                found += rows_of(event.table)
            elif time_of(event.upper) >= upper:
                break
        await listen.aclose()
        await reader.expire()
        return [update for update in found if update[2] < upper], upper
