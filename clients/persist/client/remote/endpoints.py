"""Several endpoints of one service: which to ask, and where to go when one does not answer.

A call here is one attempt at one server; who makes it repeats it. A server that failed is left to the others until it
says that it is well, and a read that takes long is asked of another one as well: what may be is a table.
Connections belong to the event loop and the process that made them. After a fork, in another loop and after ``close``
the next call makes new ones.
Source: architecture.md section 5; reliability.md section 5.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

import grpc.aio

from persist.client.remote.absence import Absence
from persist.client.remote.addresses import endpoints_of
from persist.client.remote.channel import Channel, refuse_after_fork
from persist.core.ids import ShardId
from persist.errors import Determinate, Indeterminate, LocationError, Overloaded, StoreFull, StoreReadOnly
from persist.retry.attempts import Attempts
from persist.retry.deadline import Backoff, Deadline
from persist.retry.methods import RULES, Rule
from persist.retry.twice import HEDGE_SECONDS, HedgeBudget
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import AnyMessage, AnyStub

R = TypeVar("R")
Attempt = Callable[[Channel, float], Awaitable[R]]
"""One attempt at one server, and the seconds it may take."""

ATTEMPT_SECONDS_MIN: Final = 0.5
LOOK_SECONDS: Final = 0.125
"""How often a call checks whether its server is silent."""


class Endpoints:
    """The endpoints of one service. ``endpoints``: ``HOST`` or ``HOST:PORT``, comma separated. Each shard prefers one.

    For calls that may be repeated. ``sessions`` False: unary calls only.
    ``watched``: a silent server is left within two seconds even when it is the only one, as the caller has another way.
    ``hasty``: for people, who should see soon that nothing listens at the address they named: until a server was
    there, calls end with NoServer after ``settings.first_connection_ms``. Raises InvalidArgument (no endpoint).
    """

    def __init__(
        self,
        endpoints: str,
        stub_of: Callable[[grpc.aio.Channel], AnyStub],
        *,
        settings: Settings,
        runtime: Runtime,
        sessions: bool = False,
        watched: bool = False,
        hasty: bool = False,
        vet: Attempt[None] | None = None,
    ) -> None:
        """``vet``: a check of a server before any other call, once for each connection."""
        self.endpoints = endpoints_of(endpoints)
        self._stub_of = stub_of
        self._settings = settings
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._runtime = runtime
        self._sessions = sessions
        self._watched = watched or len(self.endpoints) > 1
        self._vet = vet
        self._budget = HedgeBudget()
        self._absence = Absence(self.endpoints, settings=settings, runtime=runtime, hasty=hasty)
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._connections: tuple[Channel, ...] = ()

    @property
    def away(self) -> bool:
        """Whether no server is known to be well. Not known before the first call."""
        return bool(self._connections) and all(channel.down for channel in self._connections)

    async def once(
        self, rpc: str, shard: ShardId | None, attempt: Attempt[R], seconds: float, *, reads: bool = True
    ) -> R:
        """One attempt, at the server to be preferred; for a read, at another one, too, when that one takes long.

        ``reads`` False: this call of a method that may read does more. Raises what the attempt raises.
        """
        rule = RULES[rpc]
        twice = rule.twice and reads
        if len(self.endpoints) == 1:
            return await self._ask(self.choose(shard), attempt, seconds)
        if not (twice and rule.whole):
            seconds = min(seconds, max(ATTEMPT_SECONDS_MIN, seconds / 2))
        first = self.choose(shard)
        if not twice:
            return await self._ask(first, attempt, seconds)
        return await self._hedge(rule, shard, first, attempt, seconds)

    async def repeat(self, rpc: str, shard: ShardId | None, attempt: Attempt[R], timeout: float) -> R:
        """``once``, repeated until it is answered or the time is up: for calls of users.

        Raises what an attempt raises; a LocationError only when there is no time for another attempt.
        """
        deadline = Deadline(self._runtime, timeout)
        return await self._attempts.repeat(deadline, lambda seconds: self.once(rpc, shard, attempt, seconds))

    async def at(self, endpoint: str, attempt: Attempt[R], seconds: float) -> R:
        """One attempt at this very server, for what not every one can do. Raises what the attempt raises."""
        return await self._ask(self.channel(endpoint), attempt, seconds)

    async def stream(
        self,
        rpc: str,
        request: AnyMessage,
        shard: ShardId | None,
        seconds: float,
        *,
        quiet: bool = False,
        endless: bool = False,
    ) -> AsyncGenerator[AnyMessage, None]:
        """The messages of a stream at one server, which is left when it breaks off. Raises LocationError then.

        ``quiet``: that its time is up is an ordinary end. ``endless``: the server ends it only when it stops.
        """
        channel, turn = self.choose(shard), Deadline(self._runtime, seconds)
        try:
            if self._absence.possible:
                await self._absence.check(channel, turn)
                seconds = turn.slice()
            seconds = await self._vetted(channel, seconds)
            async with aclosing(channel.stream(rpc, request, shard, seconds, quiet=quiet)) as messages:
                async for message in messages:
                    channel.answered()
                    yield message
        except LocationError:
            channel.leave()
            raise
        if endless and not turn.passed:
            channel.leave()

    def backoff(self, deadline: Deadline) -> Backoff:
        """Pauses between attempts."""
        return self._attempts.backoff(deadline)

    def choose(self, shard: ShardId | None, *, besides: Channel | None = None) -> Channel:
        """The shard's preferred endpoint among those not known to be down; the same for every client.

        When all are down: the one that failed longest ago. ``besides``: any but this one, if there is another.
        """
        endpoints = self._connected()
        if len(endpoints) == 1:
            return endpoints[0]
        ranked = sorted(endpoints, key=lambda channel: _rank(channel.endpoint, shard))
        ranked = [channel for channel in ranked if channel is not besides]
        well = (channel for channel in ranked if channel.well)
        return next(well, None) or min(ranked, key=lambda channel: (channel.down, channel.left_at))

    def channel(self, endpoint: str) -> Channel:
        """The server at one of the endpoints."""
        return self._connected()[self.endpoints.index(endpoint)]

    async def close(self) -> None:
        """Cancel what is under way and close the connections. A later call makes new ones."""
        endpoints, self._connections, owner, self._owner = self._connections, (), self._owner, None
        if owner == self._here():
            for channel in endpoints:
                await channel.close()

    async def _ask(self, channel: Channel, attempt: Attempt[R], seconds: float) -> R:
        try:
            if self._absence.possible:
                ends = Deadline(self._runtime, seconds)
                await self._absence.check(channel, ends)
                seconds = ends.slice()
            answer = await attempt(channel, await self._vetted(channel, seconds))
        except (Overloaded, StoreFull, StoreReadOnly):
            # The server is well, whatever became of its store.
            raise
        except LocationError:
            channel.leave()
            raise
        channel.answered()
        return answer

    async def _vetted(self, channel: Channel, seconds: float) -> float:
        """The seconds left after vetting the server. Raises Determinate: nothing was sent."""
        if self._vet is None or channel.vetted:
            return seconds
        deadline = Deadline(self._runtime, seconds)
        try:
            await self._vet(channel, seconds)
        except Indeterminate as error:
            raise Determinate("the server does not say where it stores", hint="retry", detail=error) from error
        channel.vetted = True
        return max(deadline.remaining(), 0.001)

    async def _hedge(self, rule: Rule, shard: ShardId | None, first: Channel, attempt: Attempt[R], seconds: float) -> R:
        ends = Deadline(self._runtime, seconds)
        slow = asyncio.ensure_future(self._ask(first, attempt, seconds))
        asked = {slow}
        try:
            other = await self._after_long(rule, shard, first, slow, ends)
            if other is not None:
                asked.add(asyncio.ensure_future(self._ask(other, attempt, ends.remaining())))
            answer = await _first_answer(asked)
            if not slow.done():
                # It lost by far: the next call begins where this one was answered.
                first.leave()
            return answer
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _after_long(
        self, rule: Rule, shard: ShardId | None, first: Channel, answer: "asyncio.Future[R]", ends: Deadline
    ) -> Channel | None:
        """Wait for an answer. Returns the server to ask as well, when this one is silent or the budget allows it.

        Asking one that is well instead of one that says nothing costs little. Where none says anything at
        once, all are loaded.
        """
        if not rule.patient:
            self._budget.earn()
        patience, hedges = Deadline(self._runtime, HEDGE_SECONDS), not rule.patient
        while ends.remaining() > LOOK_SECONDS:
            done, _ = await asyncio.wait({answer}, timeout=LOOK_SECONDS)
            if done:
                return None
            other = self.choose(shard, besides=first)
            if first.late and other.well:
                return other
            if hedges and patience.passed:
                hedges = False
                if self._budget.spend():
                    return other
        return None

    @staticmethod
    def _here() -> tuple[int, asyncio.AbstractEventLoop]:
        return os.getpid(), asyncio.get_running_loop()

    def _connected(self) -> tuple[Channel, ...]:
        here = self._here()
        if self._owner != here:
            refuse_after_fork()
            self._owner = here
            self._connections = tuple(
                Channel(
                    endpoint,
                    self._stub_of,
                    settings=self._settings,
                    runtime=self._runtime,
                    sessions=self._sessions,
                    watched=self._watched,
                )
                for endpoint in self.endpoints
            )
        return self._connections


async def _first_answer(asked: "set[asyncio.Task[R]] | set[asyncio.Future[R]]") -> R:
    """The first answer, or an error that must be raised at once; a failure of the location only when all failed.

    Of failures one that leaves it open whether anything was done, if there is one.
    """
    waiting: set[asyncio.Future[R]] = set(asked)
    failed: dict[bool, asyncio.Future[R]] = {}
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            failure = task.exception()
            if not isinstance(failure, LocationError):
                return task.result()
            failed[isinstance(failure, Indeterminate)] = task
    return failed[max(failed)].result()


def _rank(endpoint: str, shard: ShardId | None) -> bytes:
    return hashlib.sha256(f"{endpoint}\0{shard or ''}".encode()).digest()
