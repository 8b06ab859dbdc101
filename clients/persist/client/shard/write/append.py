"""One append, until its answer is final: what is returned is true, and stays true.

Every attempt carries the call's number, so a repeated one returns what the first did. What is not final by itself is
made so before it is returned: a refusal that a late attempt might still overturn is closed first. What ended
without a final answer stays in doubt until the handle appends again, or its owner is asked to resolve it.
Source: docs/adr/0012-numbered-calls.md; reliability.md I4 and I9.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from persist.client.shard.location import Location
from persist.client.shard.numbers import Caller, CallNumbers
from persist.client.shard.write.batch import BatchBuilder, Bounds, check_count
from persist.client.shard.write.doubts import OwnCall, Resolved, ended
from persist.core.data.schema import Schema
from persist.core.frontier import Description
from persist.core.ids import ShardId, Token, WriterId
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.commands import (
    Appended,
    CannotTell,
    CloseCall,
    Closed,
    CompareAndAppend,
    InlineBackpressure,
    Transaction,
    UpperMismatch,
)
from persist.errors import (
    Determinate,
    Indeterminate,
    InvalidArgument,
    LeaseExpired,
    LocationError,
    OutcomeForgotten,
    RequestTooLarge,
    ShardClosed,
    ShardNotFound,
    UnsafeConfiguration,
    UsageError,
    VersionMismatch,
)
from persist.retry.attempts import Doubt, RefusedInDoubt
from persist.retry.deadline import Deadline
from persist.typed import AnyOutcome

DISCARD_SECONDS: Final = 1.0
"""So long a call that failed may last beyond its time, for the parts of it to be deleted."""


@dataclass(slots=True)
class TokenUse:
    """How a handle used a token: what it had seen before it first did, and for how many calls until now."""

    known_seqno: int
    calls: int = 0


class Parts(Protocol):
    """Who made the parts of an append: a ``BatchBuilder``, or a ``KeptBatch`` that other appends may name, too."""

    async def spill(
        self, runs: tuple[Run, ...], schema_of: Callable[[int], Awaitable[Schema]], deadline: Deadline
    ) -> tuple[Run, ...]:
        """The runs without inline parts."""

    async def discard(self, *, seconds: float | None = None) -> None:
        """Delete what only this append named, as much as that long allows. Nothing of it happened, nor will."""


@dataclass(frozen=True, kw_only=True)
class Appending:
    """What to append. ``builder`` made the parts and may delete them; None: they belong to another owner.

    ``known_seqno``: the newest seqno seen before the token was first used; ``token_use``: by which of its calls.
    ``definite``: every writer of these bounds appends these updates.
    """

    writer_id: WriterId
    runs: tuple[Run, ...]
    bounds: Bounds
    builder: Parts | None = None
    truncated: bool = False
    definite: bool = False
    rebase: bool = False
    token: Token | None = None
    token_use: TokenUse | None = None
    known_seqno: int = 0
    body: bytes = b""
    transaction: Transaction | None = None

    def command(self, session: CallNumbers, number: int, lease_ms: int) -> CompareAndAppend:
        """The command of an attempt."""
        lower, upper = self.bounds
        batch = HollowBatch(desc=Description(lower=lower, upper=upper), runs=self.runs, truncated=self.truncated)
        return CompareAndAppend(
            writer_id=self.writer_id,
            batch=batch,
            call=session.call(number),
            token=self.token,
            body=self.body,
            known_seqno=self.known_seqno,
            lease_ms=lease_ms,
            transaction=self.transaction,
            rebase=self.rebase,
        )

    @property
    def remedy(self) -> str:
        """The hint for an append that may have been applied."""
        if self.token or self.transaction or self.definite:
            return "repeat the same call"
        return "await the handle's resolve(): it reports whether this call happened"

    async def discard(self, *, seconds: float | None = None) -> None:
        """Delete the parts. Only after an answer that is final for every attempt that named them."""
        if self.builder is not None:
            await self.builder.discard(seconds=seconds)


Answer = Appended | UpperMismatch | Appending
"""The outcome of one call; an ``Appending`` is to be tried next, under another number."""


class Appender:
    """Commits the appends of one handle, any number of them at once."""

    def __init__(
        self, location: Location, shard: ShardId, caller: Caller, builder_for: Callable[[WriterId], BatchBuilder]
    ) -> None:
        """``builder_for`` makes a builder for inline parts that must go to Blob after all."""
        self._location = location
        self._shard = shard
        self._caller = caller
        self._builder_for = builder_for
        self._doubts: dict[str, tuple[Appending, _Numbered]] = {}
        self._received: dict[str, OwnCall] = {}
        """Appends under way for callers in other threads, which may leave at any time."""
        self._resolving = asyncio.Lock()
        self.closed: Appended | None = None
        """The append of definite updates with which this handle closed the shard, if its outcome was unknown."""

    async def commit(self, append: Appending, deadline: Deadline, call: OwnCall) -> Appended | UpperMismatch:
        """The final outcome of an append, recorded in ``call``, too. UpperMismatch: nothing was appended, nor will be.

        Raises UsageError, LeaseExpired or Determinate (nor was anything then, and the parts of what was sent are
        deleted), Indeterminate: OutcomeForgotten when nothing more comes of it, and whether anything had is forgotten.
        After any other it is in doubt: see ``resolve``.
        """
        await self._check_parts(append)
        while True:
            await self.resolve_earlier(deadline)
            session = await self._caller.session(deadline)
            if not await session.room(deadline):
                continue
            async with session.number(deadline) as number:
                it = _Numbered(
                    session=session, number=number, seen_seqno=self._caller.seqno, deadline=deadline, call=call
                )
                answer = await self._certain(append, it)
            if not isinstance(answer, Appending):
                return answer
            append = answer

    async def _check_parts(self, append: Appending) -> None:
        """Refuse what no server takes before anything is sent: once it was, ending the call would take more calls."""
        try:
            check_count(sum(len(run.parts) for run in append.runs), self._location.settings)
        except RequestTooLarge:
            await append.discard()
            raise

    async def resolve_earlier(self, deadline: Deadline) -> None:
        """``resolve`` before something new is sent. Raises Determinate when calls stay unresolved: nothing new is sent
        then.

        SUBTLE: before a number is taken. What is acknowledged later would have the shard forget what they came to.
        """
        left = [call for call in self._received.values() if call.left]
        if not (left or self._doubts):
            return
        try:
            await ended(left, deadline)
            await self.resolve(deadline)
        except LocationError as error:
            raise Determinate(
                f"nothing was sent: {error.message}", hint="retry: it begins with resolve()", **error.details
            ) from error

    async def resolve(self, deadline: Deadline) -> None:
        """Settle the calls that may have applied, so that none can still happen: their owners report the outcome.

        One RPC for each, all at once. Raises LocationError: repeat it.
        """
        async with deadline.within("resolving the calls in doubt took too long", hint="repeat it"), self._resolving:
            doubts = [self._resolve_one(append, it, deadline) for append, it in self._doubts.values()]
            failures = await asyncio.gather(*doubts, return_exceptions=True)
        for failure in failures:
            if isinstance(failure, LocationError):
                message = f"a call is still in doubt: {failure.message}"
                raise Indeterminate(message, hint="repeat resolve()", **failure.details) from failure
            if failure is not None:
                raise failure

    async def _resolve_one(self, append: Appending, it: "_Numbered", deadline: Deadline) -> None:
        appended, forgotten = None, False
        try:
            appended = await self._close(append, replace(it, deadline=deadline))
        except (OutcomeForgotten, LeaseExpired, InvalidArgument, ShardClosed):
            forgotten = True
        if appended is None and not forgotten:
            await append.discard()
        if appended is not None and append.definite and appended.upper.is_empty:
            self.closed = appended
        del self._doubts[it.name]
        it.session.release(it.number)
        it.call.settle(appended, forgotten=forgotten)

    async def _certain(self, append: Appending, it: "_Numbered") -> Answer:
        """One call's final answer. Without one it may still happen, and is kept for ``resolve``."""
        lower, upper = append.bounds
        it.call.begins(self, Resolved(call=it.name, token=append.token, lower=lower, upper=upper))
        if it.call.received:
            self._received[it.name] = it.call
        try:
            answer = await self._call(append, it)
        except _Final as final:
            it.call.drop()
            raise final.error from None
        except OutcomeForgotten:
            it.call.settle(None, forgotten=True)
            raise
        except (LocationError, UsageError, LeaseExpired) as error:
            # SUBTLE: an error that says nothing of earlier attempts is not final, whichever layer raised it.
            if not it.doubt.maybe_applied and getattr(error, "determinate", True):
                it.call.drop()
                # Who repeats it makes parts of its own. For a short while only: its time may be over.
                await append.discard(seconds=DISCARD_SECONDS)
                raise
            self._maybe_applied(append, it)
            raise Indeterminate(error.message, hint=append.remedy, **{**error.details, "call": it.name}) from error
        except BaseException:
            # Cancelled, most likely: what was sent goes on without its caller.
            if it.sent:
                self._maybe_applied(append, it)
            else:
                it.call.drop()
            raise
        finally:
            self._received.pop(it.name, None)
        if isinstance(answer, Appended):
            it.call.settle(answer)
        else:
            it.call.drop()
        return answer

    def _maybe_applied(self, append: Appending, it: "_Numbered") -> None:
        it.session.hold(it.number)
        self._doubts[it.name] = append, it

    async def _call(self, append: Appending, it: "_Numbered") -> Answer:
        try:
            append, outcome = await self._attempt(append, it)
        except RefusedInDoubt as error:
            outcome = error.refusal
            if isinstance(outcome, _ELSEWHERE):
                raise
        except _ELSEWHERE:
            raise
        except UsageError as error:
            outcome = error
        match outcome:
            case ShardClosed():
                # For good: whatever arrives late finds it closed, too.
                await append.discard()
                raise _Final(outcome)
            case UsageError():
                return await self._refused(append, it, outcome)
            case Appended():
                self._caller.saw(outcome.seqno)
                return outcome
            case UpperMismatch() if append.bounds[0].less_than(outcome.upper):
                self._caller.saw(outcome.seqno)
                return outcome
            case UpperMismatch():
                # SUBTLE: the upper may reach the batch's lower before a late attempt does.
                settled = await self._close(append, it)
                return outcome if settled is None else settled
            case CannotTell():
                return await self._forgotten(append, outcome, it)
            case _:
                raise _unknowable(append)

    async def _attempt(self, append: Appending, it: "_Numbered") -> tuple[Appending, AnyOutcome]:
        while True:
            command = append.command(it.session, it.number, self._location.settings.writer_lease_ms)
            outcome = await self._sent(command, it)
            if not isinstance(outcome, InlineBackpressure):
                return append, outcome
            it.doubt.maybe_applied = True
            builder = append.builder or self._builder_for(append.writer_id)
            schema_of = functools.partial(self._schema, it.deadline)
            append = replace(append, runs=await builder.spill(append.runs, schema_of, it.deadline))

    async def _schema(self, deadline: Deadline, schema_id: int) -> Schema:
        """A schema of the shard that is not this handle's. One RPC. Raises InvalidArgument, LocationError."""
        location = self._location
        info = await location.attempts.repeat(
            deadline, lambda seconds: location.shards.open(self._shard, create=False, timeout=seconds)
        )
        for entry in info.schemas:
            if entry.schema_id == schema_id:
                return Schema.from_bytes(entry.schema)
        raise InvalidArgument("unknown schema", hint="register the schema first", schema_id=schema_id)

    async def _sent(self, command: CompareAndAppend | CloseCall, it: "_Numbered") -> AnyOutcome:
        location = self._location
        it.sent = True
        # One doubt for all that is sent under a number: an answer to it holds for every attempt before.
        return await location.attempts.repeat(
            it.deadline, lambda seconds: location.shards.apply(self._shard, command, timeout=seconds), doubt=it.doubt
        )

    async def _refused(self, append: Appending, it: "_Numbered", error: UsageError) -> Appended:
        """Raise a refusal once it is final: the state that refused it may change before a late attempt arrives."""
        try:
            appended = await self._close(append, it)
        except OutcomeForgotten:
            raise
        except LocationError as failure:
            raise Indeterminate(f"refused, perhaps not for good: {error.message}") from failure
        except UsageError:
            raise _Final(error) from None
        if appended is not None:
            return appended
        await append.discard()
        raise _Final(error)

    async def _close(self, append: Appending, it: "_Numbered") -> Appended | None:
        """Make sure that nothing more comes of a call. None: it had not happened. Raises LocationError.

        Raises ShardClosed and InvalidArgument, which a state says of the call itself.
        """
        it.doubt.maybe_applied = True
        try:
            outcome = await self._sent(CloseCall(call=it.session.call(it.number)), it)
        except RefusedInDoubt as error:
            if isinstance(error.refusal, ShardClosed | InvalidArgument):
                raise error.refusal from None
            raise
        match outcome:
            case Appended():
                self._caller.saw(outcome.seqno)
                return outcome
            case Closed():
                self._caller.saw(outcome.seqno)
            case CannotTell():
                # SUBTLE: the session is dead, so nothing more comes of it. But what was refused may have happened after
                # that, when it arrived again, and before the session was forgotten.
                self._caller.leave(it.session, outcome.seqno)
                if not _undone(append, outcome, it.seen_seqno):
                    return _by_any_writer(append, outcome)
            case _:
                raise InvalidArgument("this number was another call's", hint="report it")
        return None

    async def _forgotten(self, append: Appending, cannot_tell: CannotTell, it: "_Numbered") -> Answer:
        """The append again, if it is certain that it did not happen. Raises OutcomeForgotten otherwise."""
        if cannot_tell.token:
            return await self._token_forgotten(append, it)
        if cannot_tell.transaction:
            return await self._application_forgotten(append, cannot_tell, it)
        self._caller.leave(it.session, cannot_tell.seqno)
        return append if _undone(append, cannot_tell, it.seen_seqno) else _by_any_writer(append, cannot_tell)

    async def _token_forgotten(self, append: Appending, it: "_Numbered") -> Answer:
        appended = await self._close(append, it)
        if appended is not None:
            return appended
        if append.token_use is None or append.token_use.calls > 1:
            # SUBTLE: as of now. What came of it under another number, this call cannot know, although it was the first.
            raise _unknowable(append)
        return replace(append, known_seqno=self._caller.seqno)

    async def _application_forgotten(self, append: Appending, cannot_tell: CannotTell, it: "_Numbered") -> Appended:
        """SUBTLE: closed first. A late attempt may find its application known, if a caller says that it is new."""
        appended = await self._close(append, it)
        if appended is not None:
            return appended
        await append.discard()
        assert append.transaction is not None
        raise OutcomeForgotten(
            "the shard does not know this application, and has forgotten others: nothing was appended now, and it is"
            " not known whether this version was before",
            hint="read whether its rows are there; if the application committed nothing yet, give the transaction this"
            " new_since",
            app_id=append.transaction.app_id,
            version=append.transaction.version,
            new_since=cannot_tell.forgotten,
        )


_ELSEWHERE: Final = (ShardNotFound, VersionMismatch, UnsafeConfiguration)
"""Errors of a server that cannot see the shard's state: they say nothing of a call, and nor does closing it."""


class _Final(Exception):
    """A refusal that is final for every attempt of its call. Other refusals are not."""

    def __init__(self, error: UsageError) -> None:
        self.error = error


@dataclass(kw_only=True, eq=False)
class _Numbered:
    """One call under its number. ``seen_seqno``: the newest seqno seen before; ``doubt``: of all attempts under it."""

    session: CallNumbers
    number: int
    seen_seqno: int
    deadline: Deadline
    call: OwnCall
    doubt: Doubt = field(default_factory=Doubt)
    sent: bool = False

    @property
    def name(self) -> str:
        """Identifies this call among all others."""
        return f"{self.session.id}.{self.number}"


def _undone(append: Appending, cannot_tell: CannotTell, seen_seqno: int) -> bool:
    """Whether a call of a forgotten session did not happen for sure. ``seen_seqno``: the newest seqno seen before."""
    lower, upper = append.bounds
    beyond = not append.rebase and (lower == upper or not upper.less_equal(cannot_tell.upper))
    return beyond or cannot_tell.forgotten <= seen_seqno


def _by_any_writer(append: Appending, cannot_tell: CannotTell) -> Appended:
    """Definite updates that the upper has passed are in the shard, no matter who wrote them. Raises OutcomeForgotten.

    ``[]`` has passed nothing: the shard may have been closed or finalized by a process that did not have them.
    """
    if not append.definite or cannot_tell.upper.is_empty:
        raise _unknowable(append)
    return Appended(upper=append.bounds[1], seqno=cannot_tell.seqno, already_committed=True)


def _unknowable(append: Appending) -> OutcomeForgotten:
    return OutcomeForgotten(
        "the shard may have forgotten this append: nothing more comes of it; it is not known whether it happened",
        hint="read whether it is there, and append it again if not",
        writer=append.writer_id,
        token=append.token or "",
    )
