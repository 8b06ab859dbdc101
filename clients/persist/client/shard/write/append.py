"""One append, until its answer is the last word: what a caller is told is so, and stays so.

Every attempt carries the call's number, so a repeated one tells what the first did. What is not final by itself is
made so before anybody hears of it: a refusal that a late attempt might still overturn is closed first. What ended
without a last word stays in doubt until the handle appends again, or is asked to resolve it.
Source: docs/adr/0012-numbered-calls.md; reliability.md I4 and I9.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from persist.client.shard.location import Location
from persist.client.shard.numbers import Caller, Session
from persist.client.shard.write.batch import BatchBuilder, Bounds
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain, Description
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


@dataclass(slots=True)
class TokenUse:
    """How a handle used a token: what it had heard of before it first did, and for how many calls until now."""

    known_seqno: int
    calls: int = 0


@dataclass(frozen=True, kw_only=True)
class Append:
    """What to append. ``builder`` made the parts and may delete them; None: they belong to somebody else.

    ``known_seqno``: the newest seqno heard of before the token was first used; ``token_use``: by which of its calls.
    ``definite``: whoever appends these bounds appends these updates.
    """

    writer_id: WriterId
    runs: tuple[Run, ...]
    bounds: Bounds
    builder: BatchBuilder | None = None
    truncated: bool = False
    definite: bool = False
    rebase: bool = False
    token: Token | None = None
    token_use: TokenUse | None = None
    known_seqno: int = 0
    body: bytes = b""
    transaction: Transaction | None = None

    def command(self, session: Session, number: int, lease_ms: int) -> CompareAndAppend:
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
        """What to do when it ends in doubt."""
        if self.token or self.transaction or self.definite:
            return "repeat the same call"
        return "await the handle's resolve(): it tells whether this call happened"

    async def discard(self) -> None:
        """Delete the parts. Only after an answer that is the last word on every attempt that named them."""
        if self.builder is not None:
            await self.builder.discard()


RESOLVED_MAX: Final = 10_000
"""Resolved calls that a handle keeps in mind for whoever asks; the newest."""


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


Answer = Appended | UpperMismatch | Append
"""What one call came to; another ``Append`` is to be tried under another number."""


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
        self._doubts: dict[str, tuple[Append, _Numbered]] = {}
        self._resolved: deque[Resolved] = deque(maxlen=RESOLVED_MAX)
        self._resolving = asyncio.Lock()
        self.closed: Appended | None = None
        """The append of definite updates with which this handle closed the shard, where it ended in doubt at first."""

    async def commit(self, append: Append, deadline: Deadline) -> Appended | UpperMismatch:
        """The last word on an append. UpperMismatch: nothing was appended, and nothing of it ever will be.

        Raises UsageError (nor was anything then; its parts are deleted), LeaseExpired (nor then), LocationError:
        OutcomeForgotten when nothing more comes of it, and whether anything had is forgotten. After any other
        Indeterminate it is in doubt: see ``resolve``.
        """
        await self._check_parts(append)
        while True:
            await self.resolve_earlier(deadline)
            session = await self._caller.session(deadline)
            if not await session.room(deadline):
                continue
            async with session.number(deadline) as number:
                it = _Numbered(session=session, number=number, heard=self._caller.seqno, deadline=deadline)
                answer = await self._certain(append, it)
            if not isinstance(answer, Append):
                return answer
            append = answer

    async def _check_parts(self, append: Append) -> None:
        """Refuse what no server takes before anything is sent: once it was, ending the call would take more calls."""
        count, limit = sum(len(run.parts) for run in append.runs), self._location.settings.parts_per_append_max
        if count <= limit:
            return
        await append.discard()
        raise RequestTooLarge(
            "too many parts in one append",
            hint="nothing happened: append fewer and larger ones",
            parts=count,
            limit=limit,
        )

    async def resolve(self, deadline: Deadline) -> tuple[Resolved, ...]:
        """What came of the calls in doubt, once nothing more can. Also of those that later appends resolved.

        One RPC for each, all at once. Raises LocationError: repeat it.
        """
        await self._resolve(deadline)
        resolved = tuple(self._resolved)
        self._resolved.clear()
        return resolved

    async def resolve_earlier(self, deadline: Deadline) -> None:
        """``resolve`` for whoever asks later. Raises Determinate: nothing is done on top of doubts.

        SUBTLE: before a number is taken. What is acknowledged later would have the shard forget what they came to.
        """
        if not self._doubts:
            return
        try:
            await self._resolve(deadline)
        except LocationError as error:
            raise Determinate(
                f"nothing was sent: {error.message}", hint="retry: it begins with resolve()", **error.details
            ) from error

    async def _resolve(self, deadline: Deadline) -> None:
        try:
            async with asyncio.timeout(deadline.remaining()), self._resolving:
                doubts = [self._resolve_one(append, it, deadline) for append, it in self._doubts.values()]
                failures = await asyncio.gather(*doubts, return_exceptions=True)
        except TimeoutError:
            raise Determinate("resolving the calls in doubt took too long", hint="repeat it") from None
        for failure in failures:
            if isinstance(failure, LocationError):
                message = f"a call is still in doubt: {failure.message}"
                raise Indeterminate(message, hint="repeat resolve()", **failure.details) from failure
            if failure is not None:
                raise failure

    async def _resolve_one(self, append: Append, it: "_Numbered", deadline: Deadline) -> None:
        appended, forgotten = None, False
        try:
            appended = await self._close(append, replace(it, deadline=deadline))
        except (OutcomeForgotten, LeaseExpired, InvalidArgument):
            forgotten = True
        if appended is None and not forgotten:
            await append.discard()
        if appended is not None and append.definite and appended.upper.is_empty:
            self.closed = appended
        del self._doubts[it.name]
        it.session.release(it.number)
        lower, upper = append.bounds
        self._resolved.append(
            Resolved(call=it.name, token=append.token, lower=lower, upper=upper, appended=appended, forgotten=forgotten)
        )

    async def _certain(self, append: Append, it: "_Numbered") -> Answer:
        """One call's answer. Without one it may happen yet, however the step failed: then it is kept in mind."""
        try:
            return await self._call(append, it)
        except _Final as final:
            raise final.error from None
        except OutcomeForgotten:
            raise
        except (LocationError, UsageError, LeaseExpired) as error:
            # SUBTLE: whatever says nothing of the attempts before it is not the last word, whichever layer raised it.
            if not it.doubt.maybe_applied and getattr(error, "determinate", True):
                raise
            self._in_doubt(append, it)
            raise Indeterminate(error.message, hint=append.remedy, **{**error.details, "call": it.name}) from error
        except BaseException:
            # Cancelled, most likely: what was sent goes on without its caller.
            if it.sent:
                self._in_doubt(append, it)
            raise

    def _in_doubt(self, append: Append, it: "_Numbered") -> None:
        it.session.hold(it.number)
        self._doubts[it.name] = append, it

    async def _call(self, append: Append, it: "_Numbered") -> Answer:
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
                self._caller.heard(outcome.seqno)
                return outcome
            case UpperMismatch() if append.bounds[0].less_than(outcome.upper):
                self._caller.heard(outcome.seqno)
                return outcome
            case UpperMismatch():
                # SUBTLE: the upper may reach the batch's lower before a late attempt does.
                settled = await self._close(append, it)
                return outcome if settled is None else settled
            case CannotTell():
                return await self._forgotten(append, outcome, it)
            case _:
                raise _unknowable(append)

    async def _attempt(self, append: Append, it: "_Numbered") -> tuple[Append, AnyOutcome]:
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

    async def _refused(self, append: Append, it: "_Numbered", error: UsageError) -> Appended:
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

    async def _close(self, append: Append, it: "_Numbered") -> Appended | None:
        """Make sure that nothing more comes of a call. None: nothing had. Raises LocationError.

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
                self._caller.heard(outcome.seqno)
                return outcome
            case Closed():
                self._caller.heard(outcome.seqno)
            case CannotTell():
                # SUBTLE: the session is dead, so nothing more comes of it. But what was refused may have happened after
                # that, when it arrived again, and before the session was forgotten.
                self._caller.leave(it.session, outcome.seqno)
                if not _undone(append, outcome, it.heard):
                    return _by_anybody(append, outcome)
            case _:
                raise InvalidArgument("this number was another call's", hint="report it")
        return None

    async def _forgotten(self, append: Append, told: CannotTell, it: "_Numbered") -> Answer:
        """The append again, if it is certain that it did not happen. Raises OutcomeForgotten otherwise."""
        if told.token:
            return await self._token_forgotten(append, it)
        if told.transaction:
            return await self._application_forgotten(append, told, it)
        self._caller.leave(it.session, told.seqno)
        return append if _undone(append, told, it.heard) else _by_anybody(append, told)

    async def _token_forgotten(self, append: Append, it: "_Numbered") -> Answer:
        appended = await self._close(append, it)
        if appended is not None:
            return appended
        if append.token_use is None or append.token_use.calls > 1:
            # SUBTLE: as of now. What came of it under another number, this call cannot know, although it was the first.
            raise _unknowable(append)
        return replace(append, known_seqno=self._caller.seqno)

    async def _application_forgotten(self, append: Append, told: CannotTell, it: "_Numbered") -> Appended:
        """SUBTLE: closed first. A late attempt may find its application known, if somebody says that it is new."""
        appended = await self._close(append, it)
        if appended is not None:
            return appended
        await append.discard()
        assert append.transaction is not None
        raise OutcomeForgotten(
            "the shard does not know this application, and has forgotten others: nothing was appended now, and nobody"
            " can tell whether this version was before",
            hint="read whether its rows are there; if the application committed nothing yet, give the transaction this"
            " new_since",
            app_id=append.transaction.app_id,
            version=append.transaction.version,
            new_since=told.forgotten,
        )


_ELSEWHERE: Final = (ShardNotFound, VersionMismatch, UnsafeConfiguration)
"""What a server says that does not see the shard's state: nothing about a call, and closing it helps as little."""


class _Final(Exception):
    """A refusal that is the last word on every attempt of its call. What is not wrapped in it is not."""

    def __init__(self, error: UsageError) -> None:
        self.error = error


@dataclass(kw_only=True, eq=False)
class _Numbered:
    """One call under its number. ``heard``: the newest seqno before it was sent; ``doubt``: about all sent under it."""

    session: Session
    number: int
    heard: int
    deadline: Deadline
    doubt: Doubt = field(default_factory=Doubt)
    sent: bool = False

    @property
    def name(self) -> str:
        """What tells this call from all others."""
        return f"{self.session.id}.{self.number}"


def _undone(append: Append, told: CannotTell, heard: int) -> bool:
    """Whether a call of a forgotten session did not happen for sure. ``heard``: the newest seqno before it was sent."""
    lower, upper = append.bounds
    beyond = not append.rebase and (lower == upper or not upper.less_equal(told.upper))
    return beyond or told.forgotten <= heard


def _by_anybody(append: Append, told: CannotTell) -> Appended:
    """Definite updates that the upper has passed are in the shard, whoever wrote them. Raises OutcomeForgotten.

    ``[]`` has passed nothing: the shard may have been closed or finalized by somebody who did not have them.
    """
    if not append.definite or told.upper.is_empty:
        raise _unknowable(append)
    return Appended(upper=append.bounds[1], seqno=told.seqno, already_committed=True)


def _unknowable(append: Append) -> OutcomeForgotten:
    return OutcomeForgotten(
        "the shard may have forgotten this append: nothing more comes of it, and nobody can tell whether it happened",
        hint="read whether it is there, and append it again if not",
        writer=append.writer_id,
        token=append.token or "",
    )
