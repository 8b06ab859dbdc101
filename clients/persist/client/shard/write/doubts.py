"""Doubts: the writes of one owner, from before anything is sent until the frame that asked has the answer.

The owner is the outermost handle: of an append its WriteHandle, of a table's row the Table or the log of its timeline,
for which a write is not over when it is in a shard. When the caller is gone before that (after an error, a cancelled
await, an interrupt in another thread), what the write came to, known or not, stays for ``resolve``.
Source: docs/adr/0012-numbered-calls.md; reliability.md I4 and I9.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from persist.client.shard.receiver import Receiver, receiver
from persist.core.frontier import Antichain
from persist.core.ids import Token
from persist.core.shard.commands import Appended
from persist.errors import Indeterminate, LeaseExpired, UsageError
from persist.retry.deadline import Deadline

RESOLVED_MAX: Final = 10_000
"""Resolved calls that an owner keeps for callers that ask; the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The outcome of a call that ended without an answer. Nothing more comes of it.

    ``call`` is ``details["call"]`` of its Indeterminate error; ``token`` and ``[lower, upper)`` are what it was called
    with. ``appended``: it is in the shard. None: it is not, and never will be, unless ``forgotten``: then it is not
    known whether it is there, so read the shard.
    """

    call: str
    token: Token | None
    lower: Antichain
    upper: Antichain
    appended: Appended | None = None
    forgotten: bool = False


class Resolver(Protocol):
    """The sender of a call, which can find out what came of it."""

    async def resolve(self, deadline: Deadline) -> None:
        """Find out what came of all its calls in doubt. Raises LocationError: repeat it."""
        ...


class OwnCall:
    """One write of an owner. Its sender records here what becomes of it."""

    def __init__(self, owners: "Sequence[Doubts]") -> None:
        self.name = ""
        self.resolver: Resolver | None = None
        self.resolved: Resolved | None = None
        self.ended = asyncio.Event()
        """The awaited call has returned, or raised."""
        self.waited = True
        """A caller waits for its answer. An interrupted caller does not: see ``left``."""
        self._owners = owners
        self._receiver: Receiver | None = receiver()
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._asked: Resolved | None = None
        self._handed_over = False

    @property
    def received(self) -> bool:
        """Mark it as called from another thread, where returning is not yet answering."""
        return self._receiver is not None

    @property
    def taken(self) -> bool:
        """The frame in another thread has the answer."""
        return self._receiver is not None and self._receiver.took

    @property
    def left(self) -> bool:
        """Its caller was interrupted, or is being cancelled: what is under way goes on without its caller."""
        if self._receiver is not None:
            return self._receiver.left
        return self._task is not None and not self.ended.is_set() and self._task.cancelling() > self._cancelling

    def begins(self, resolver: Resolver, asked: Resolved) -> None:
        """Record, before anything is sent, that it may happen, under the name and with the bounds of ``asked``.

        Raises CancelledError when the caller has left: then nothing is sent.
        """
        if self._receiver is not None and self._receiver.left:
            raise asyncio.CancelledError
        self.drop()
        self.name, self.resolver, self._asked, self.resolved = asked.call, resolver, asked, None
        self._keep()

    def drop(self) -> None:
        """Forget it: it did not happen and will not."""
        for owner in self._owners:
            owner.remove(self)

    def settle(self, appended: Appended | None, *, forgotten: bool = False) -> None:
        """Record its final outcome, which ``resolve`` reports when its caller has left."""
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
        self._keep()

    def end(self) -> None:
        """Make a write whose caller has left end soon."""
        if self._receiver is not None:
            self._receiver.end()

    def hand_over(self, to: Receiver | None) -> None:
        """Return its outcome as the answer of a call that returns now."""
        self._receiver, self._task, self.waited, self._handed_over = to, None, True, True
        self._give()

    def over(self, error: BaseException | None = None) -> None:
        """Record that its caller returns, or raises. A final error is an answer, too."""
        self.ended.set()
        if self._handed_over:
            return
        final = self.resolved is not None and (self.resolved.forgotten or isinstance(error, UsageError))
        if error is None or final:
            self._give()
        else:
            self.waited = False

    def _keep(self) -> None:
        for owner in self._owners:
            owner.add(self)

    def _give(self) -> None:
        """Its caller has the answer now; one in another thread, once it says so."""
        for owner in self._owners:
            if self._receiver is None:
                owner.remove(self)
            else:
                owner.give(self)


class Doubts:
    """The writes of one owner whose answer no caller has."""

    def __init__(self, finish: Callable[[list[Appended], Deadline], Awaitable[None]] | None = None) -> None:
        """``finish``: what must follow an append before it counts as done for its caller. May be repeated."""
        self._finish = finish
        self._calls: dict[str, OwnCall] = {}
        self._given: list[OwnCall] = []

    def call(self) -> AbstractContextManager[OwnCall]:
        """One write, as long as its caller waits. An Indeterminate error of it says which it is."""
        return call_of([self])

    def knows(self, call: OwnCall) -> bool:
        """Whether what came of it is still to be returned to a caller."""
        return self._calls.get(call.name) is call

    async def resolve(self, deadline: Deadline) -> tuple[Resolved, ...]:
        """The outcome of writes whose callers do not have it, each reported once; again if this call is interrupted.

        One RPC for each that is in doubt, all at once. Raises LocationError: repeat it.
        """
        unknown = [call for call in self._calls.values() if call.resolved is None]
        await ended((call for call in unknown if call.left), deadline)
        resolvers = {id(call.resolver): call.resolver for call in unknown if call.resolver and not call.waited}
        for resolver in resolvers.values():
            await resolver.resolve(deadline)
        self.look()
        found = [(call, call.resolved) for call in self._calls.values() if call.resolved and self._is_unreported(call)]
        appended = [each.appended for _, each in found if each.appended]
        if appended and self._finish is not None:
            try:
                await self._finish(appended, deadline)
            except LeaseExpired:
                # The location was restored: what happened before that may be there, or not.
                for call, resolved in found:
                    if resolved.appended:
                        call.settle(None, forgotten=True)
        reported = []
        to = receiver()
        for call, _ in found:
            # Or another one has returned it meanwhile.
            if self.knows(call) and self._is_unreported(call) and call.resolved is not None:
                reported.append(call.resolved)
                call.hand_over(to)
        return tuple(reported)

    def add(self, call: OwnCall) -> None:
        """Keep a write that may happen, or has. Of too many that are settled and not asked for, the oldest go."""
        self._calls[call.name] = call
        if len(self._calls) > RESOLVED_MAX:
            oldest = next((each for each in self._calls.values() if each.resolved and not each.waited), None)
            if oldest is not None:
                self.remove(oldest)

    def remove(self, call: OwnCall) -> None:
        """Remove a write: it need not be reported any more."""
        if self._calls.get(call.name) is call:
            del self._calls[call.name]

    def give(self, call: OwnCall) -> None:
        """Note that it was returned to another thread."""
        if self._calls.get(call.name) is call:
            self._given.append(call)

    def look(self) -> None:
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
    def _is_unreported(call: OwnCall) -> bool:
        return call.left or not call.waited


@contextmanager
def call_of(owners: Sequence[Doubts]) -> Iterator[OwnCall]:
    """One write of several owners: each of them can be asked what came of it, and the first that is returns it."""
    for owner in owners:
        owner.look()
    call = OwnCall(owners)
    try:
        yield call
    except BaseException as error:
        call.over(error)
        if type(error) is Indeterminate and "call" not in error.details and owners[0].knows(call):
            hint = "await the handle's resolve(): it completes this call"
            raise Indeterminate(error.message, hint=hint, **{**error.details, "call": call.name}) from error
        raise
    call.over()


async def ended(calls: Iterable[OwnCall], deadline: Deadline) -> None:
    """Return when calls whose callers have left have ended, and what came of them is known or in doubt.

    Raises Determinate when that takes too long.
    """
    ending = list(calls)
    for call in ending:
        call.end()
    async with deadline.within("a call that was interrupted is still ending", hint="repeat it"):
        for call in ending:
            await call.ended.wait()
