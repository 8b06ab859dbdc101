"""Doubts: the writes of one owner, from before anything is sent until the frame that asked has the answer.

The owner is the outermost handle: of an append its WriteHandle, of a table's row the Table or the log of its timeline,
for which a write is not over when it is in a shard. Whatever takes the caller away before that (an error, a cancelled
await, an interrupt in another thread), what is known of the write, or is still to be found out, stays for ``resolve``.
Source: docs/adr/0012-numbered-calls.md; reliability.md I4 and I9.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from persist.client.shard.receiver import Receiver, receiver
from persist.core.frontier import Antichain
from persist.core.ids import Token
from persist.core.shard.commands import Appended
from persist.errors import Determinate, Indeterminate, UsageError
from persist.retry.deadline import Deadline

RESOLVED_MAX: Final = 10_000
"""Resolved calls that an owner keeps in mind for whoever asks; the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a call that ended in doubt came to. Nothing more comes of it.

    ``call`` is ``details["call"]`` of its Indeterminate error; ``token`` and ``[lower, upper)`` are what it was called
    with. ``appended``: it is in the shard. None: it is not, and never will be, unless ``forgotten``: then nobody can
    tell whether it is, so read it.
    """

    call: str
    token: Token | None
    lower: Antichain
    upper: Antichain
    appended: Appended | None = None
    forgotten: bool = False


class Resolver(Protocol):
    """Who sent a call, and can find out what came of it."""

    async def resolve(self, deadline: Deadline) -> None:
        """Find out what came of all its calls in doubt. Raises LocationError: repeat it."""
        ...


class OwnCall:
    """One write of an owner. Whoever sends it says here what becomes of it."""

    def __init__(self, owner: "Doubts") -> None:
        self.name = ""
        self.resolver: Resolver | None = None
        self.resolved: Resolved | None = None
        self.ended = asyncio.Event()
        """What its caller awaits has returned, or raised."""
        self.waited = True
        """Somebody waits for its answer. Who was interrupted does not: see ``left``."""
        self._owner = owner
        self._receiver: Receiver | None = receiver()
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._asked: Resolved | None = None
        self._told = False

    @property
    def received(self) -> bool:
        """It is another thread's: to return is not yet to have answered."""
        return self._receiver is not None

    @property
    def taken(self) -> bool:
        """The frame in another thread has the answer."""
        return self._receiver is not None and self._receiver.took

    @property
    def left(self) -> bool:
        """Whoever waited was interrupted, or is being cancelled: what is under way goes on without its caller."""
        if self._receiver is not None:
            return self._receiver.left
        return self._task is not None and not self.ended.is_set() and self._task.cancelling() > self._cancelling

    def begins(self, resolver: Resolver, asked: Resolved) -> None:
        """From now on it may happen, under the name and with the bounds of ``asked``. Before anything is sent.

        Raises CancelledError when whoever waited has left: nothing is sent for nobody.
        """
        if self._receiver is not None and self._receiver.left:
            raise asyncio.CancelledError
        self.drop()
        self.name, self.resolver, self._asked, self.resolved = asked.call, resolver, asked, None
        self._owner.add(self)

    def drop(self) -> None:
        """Nothing came of it, and nothing will."""
        self._owner.remove(self)

    def settle(self, appended: Appended | None, *, forgotten: bool = False) -> None:
        """What came of it, for good: what is told of it when its caller has left."""
        asked = self._asked
        assert asked is not None
        self.resolved = Resolved(
            call=asked.call,
            token=asked.token,
            lower=asked.lower,
            upper=asked.upper,
            appended=appended,
            forgotten=forgotten,
        )
        self.resolver = None
        self._owner.add(self)

    def end(self) -> None:
        """Have what nobody waits for end soon."""
        if self._receiver is not None:
            self._receiver.end()

    def hand_over(self, to: Receiver | None) -> None:
        """What came of it is the answer of a call that returns now."""
        self._receiver, self._task, self.waited, self._told = to, None, True, True
        self._give()

    def over(self, error: BaseException | None = None) -> None:
        """Its caller returns, or raises. An error that is the last word is an answer, too."""
        self.ended.set()
        if self._told:
            return
        final = self.resolved is not None and (self.resolved.forgotten or isinstance(error, UsageError))
        if error is None or final:
            self._give()
        else:
            self.waited = False

    def _give(self) -> None:
        """Its caller has the answer now; one in another thread, once it says so."""
        if self._receiver is None:
            self._owner.remove(self)
        else:
            self._owner.give(self)


class Doubts:
    """The writes of one owner of which nobody has the answer."""

    def __init__(self, finish: Callable[[list[Appended], Deadline], Awaitable[None]] | None = None) -> None:
        """``finish``: what must come after an append for its caller to have it done. May be repeated."""
        self._finish = finish
        self._calls: dict[str, OwnCall] = {}
        self._given: list[OwnCall] = []

    @contextmanager
    def call(self) -> Iterator[OwnCall]:
        """One write, as long as its caller waits. An Indeterminate error of it says which it is."""
        self._look()
        call = OwnCall(self)
        try:
            yield call
        except BaseException as error:
            call.over(error)
            if type(error) is Indeterminate and "call" not in error.details and self._calls.get(call.name) is call:
                hint = "await the handle's resolve(): it completes this call"
                raise Indeterminate(error.message, hint=hint, **{**error.details, "call": call.name}) from error
            raise
        call.over()

    async def resolve(self, deadline: Deadline) -> tuple[Resolved, ...]:
        """What came of the writes whose callers do not have it. Each is told once; again if this call is interrupted.

        One RPC for each that is in doubt, all at once. Raises LocationError: repeat it.
        """
        unknown = [call for call in self._calls.values() if call.resolved is None]
        await ended((call for call in unknown if call.left), deadline)
        resolvers = {id(call.resolver): call.resolver for call in unknown if call.resolver and not call.waited}
        for resolver in resolvers.values():
            await resolver.resolve(deadline)
        self._look()
        found = [(call, call.resolved) for call in self._calls.values() if call.resolved and self._is_untold(call)]
        appended = [each.appended for _, each in found if each.appended]
        if appended and self._finish is not None:
            await self._finish(appended, deadline)
        told = []
        to = receiver()
        for call, resolved in found:
            # Or another one has told it meanwhile.
            if self._calls.get(call.name) is call and self._is_untold(call):
                told.append(resolved)
                call.hand_over(to)
        return tuple(told)

    def add(self, call: OwnCall) -> None:
        """It may happen from now on, or has. Of too many that are known and nobody asks for the oldest go."""
        self._calls[call.name] = call
        if len(self._calls) > RESOLVED_MAX:
            oldest = next((each for each in self._calls.values() if each.resolved and not each.waited), None)
            if oldest is not None:
                self.remove(oldest)

    def remove(self, call: OwnCall) -> None:
        """Nobody need be told of it any more."""
        if self._calls.get(call.name) is call:
            del self._calls[call.name]

    def give(self, call: OwnCall) -> None:
        """It was returned to another thread."""
        if self._calls.get(call.name) is call:
            self._given.append(call)

    def _look(self) -> None:
        """See which answers were taken."""
        given, self._given = self._given, []
        for call in given:
            if call.taken:
                self.remove(call)
            elif call.left:
                call.waited = False
            else:
                self._given.append(call)

    @staticmethod
    def _is_untold(call: OwnCall) -> bool:
        return call.left or not call.waited


async def ended(calls: Iterable[OwnCall], deadline: Deadline) -> None:
    """Return when calls that nobody waits for have ended, and what came of them is known or in doubt.

    Raises Determinate when that takes too long.
    """
    ending = list(calls)
    for call in ending:
        call.end()
    try:
        async with asyncio.timeout(deadline.remaining()):
            for call in ending:
                await call.ended.wait()
    except TimeoutError:
        raise Determinate("a call that was interrupted is still ending", hint="repeat it") from None
