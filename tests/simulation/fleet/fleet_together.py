"""Who makes one thing of it together: writers of the same definite data, and processes that share a token."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from simulation.fleet.fleet_cast import GRID, LIMITS, FleetCast, Story

from persist.client.client import Client
from persist.client.shard.write.handle import WriteHandle
from persist.core.ids import Token
from persist.errors import LeaseExpired, LocationError, UsageError
from persist.testing.accounts import Account
from persist.testing.world.sample import table, time_of

DEFINITE = 1 << 40
"""From here on a row's number gives its time."""
ASKED_MAX = 8
"""How often a process repeats what its predecessor began, before it gives up."""


class TogetherCast(FleetCast):
    """They do not know what became of each other's calls; the shard does."""

    def stories(self) -> dict[str, Story]:
        """All actors', and these."""
        together = {"append": self._append, "append beside": self._append, "relay": self._relay}
        return {**super().stories(), **together}

    # ---- the same data from several writers ----------------------------------------------------------------------

    async def _append(self, client: Client, entropy: random.Random) -> None:
        """The first one writes an interval: one row at most times, the same from every writer."""
        writer = await self._writer(client, self.definite)
        for _ in range(self.plot.rounds * 3):
            begin, calls = time_of(writer.upper), []
            for _ in range(entropy.choice([1, 1, 2, 5])):
                begin += entropy.choice([1, 3, GRID])
                calls.append(self._append_until(writer, begin, entropy.choice(LIMITS)))
            self.expect_trouble(entropy)
            try:
                await asyncio.gather(*calls)
            except LeaseExpired:
                writer = await self._writer(client, self.definite)
            await asyncio.sleep(entropy.uniform(0, 20.0))

    async def _append_until(self, writer: WriteHandle, upper: int, limit: float | None) -> None:
        accounts, lower = self.accounts[self.definite], time_of(writer.upper)
        if upper < lower:
            return
        times = [time for time in range(lower, upper) if time % 4]
        mine = [accounts.all.get(DEFINITE + time) or accounts.open(DEFINITE + time) for time in times]
        rows = table([(account.row, "definite", account.row - DEFINITE, 1) for account in mine])
        try:
            outcome = await writer.append(rows, upper, timeout=limit)
        except LocationError as error:
            self._did(f"append to {upper} {type(error).__name__}")
            return
        except LeaseExpired:
            raise
        except Exception as error:
            self.strange(error)
            return
        self._did(f"append to {upper} {outcome}")
        for account in accounts.all.values():
            # SUBTLE: whatever lies before the returned upper is there, written by the first writer.
            if DEFINITE <= account.row < DEFINITE + time_of(outcome.upper):
                account.appended(account.row - DEFINITE)

    # ---- one token, several processes ----------------------------------------------------------------------------

    async def _relay(self, client: Client, entropy: random.Random) -> None:
        """A process appends under a token and ends, at any moment; the next one makes the same append."""
        for number in range(self.plot.rounds):
            await self._relay_once(f"relay-{number}", entropy)
            await asyncio.sleep(entropy.uniform(0, 20.0))

    async def _relay_once(self, name: str, entropy: random.Random) -> None:
        account = self.accounts[self.named].open(self.row())
        token, began = Token.of(entropy.randbytes(16)), self._seqno()
        count = entropy.choice([2, 2, 3])
        for at in range(count):
            limit, asked = entropy.choice(LIMITS), ASKED_MAX if at else 1
            goes_on = partial(self._repeat, account=account, token=token, limit=limit, asked=asked, began=began)
            self.expect_trouble(entropy)
            await self._process(f"{name}.{at}", goes_on, entropy, lives=at == count - 1)
            if entropy.random() < 0.3:
                usurps = partial(self._usurp, token=token, count=at + 2)
                await self._process(f"{name}.{at}.other", usurps, entropy, lives=True)

    async def _repeat(
        self, client: Client, *, account: Account, token: Token, limit: float | None, asked: int, began: int
    ) -> None:
        writer = await self._writer(client, self.named)
        for _ in range(asked):
            rows = table([(account.row, "relayed", 0, 1)])
            try:
                outcome = await writer.append_at_upper(rows, token=token, timeout=limit)
            except Exception as error:
                # What it says about this attempt it does not say about earlier or later ones.
                account.failed(error, repeated=True)
                if not isinstance(error, UsageError | LeaseExpired):
                    self.strange(error)
            else:
                if self._forgets_tokens_since(began):
                    account.most = 3
                account.answered(outcome)
                self._did(f"relayed {outcome}")
                return

    async def _usurp(self, client: Client, *, token: Token, count: int) -> None:
        """Something else under the same token: refused, or it is there. It is never taken for what was there before.

        ``count``: of what is in Blob only the sum of diffs is compared with other updates.
        """
        writer = await self._writer(client, self.named)
        mine = [self.accounts[self.named].open(self.row()) for _ in range(count)]
        rows = table([(account.row, "usurped", 0, 1) for account in mine])
        try:
            outcome = await writer.append_at_upper(rows, token=token)
        except Exception as error:
            for account in mine:
                account.failed(error)
            if not isinstance(error, UsageError | LeaseExpired):
                self.strange(error)
            self._did(f"usurped {type(error).__name__}")
        else:
            for account in mine:
                account.answered(outcome)
            self._did(f"usurped {outcome}")

    def _seqno(self) -> int:
        state = self.witness.states.get(self.named)
        return -1 if state is None else state.seqno

    def _forgets_tokens_since(self, seqno: int) -> bool:
        """Tokens last an hour of whatever clock: one of a commit after ``seqno`` may be among those forgotten."""
        return self.witness.states[self.named].tokens_forgotten > seqno

    async def _process(
        self,
        name: str,
        work: Callable[[Client], Coroutine[Any, Any, None]],
        entropy: random.Random,
        *,
        lives: bool = False,
    ) -> None:
        """A process from beginning to end, which comes at any moment unless it ``lives`` for as long as it wants."""
        machine, client = self.client(name)
        task = machine.start(work(client))
        patience = 120.0 if lives else entropy.choice([0.01, 0.05, 0.2, 2.0, 30.0]) * entropy.random()
        await asyncio.wait({task}, timeout=patience)
        if task.done():
            task.result()
        else:
            self.fired["process ended amid its work"] += 1
        self.end(machine, quietly=entropy.random() < 0.2)
