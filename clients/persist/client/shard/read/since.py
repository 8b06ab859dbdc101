"""SinceHandle: a since that no lease bounds, guarded by a token.

Source: persist-semantics.md feature row 14 and section 2.3; reliability.md I16.
"""

import contextlib
from collections.abc import Iterator

from persist.client.shard.handles import Stays
from persist.client.shard.location import Location
from persist.client.shard.numbers import Caller
from persist.client.shard.times import FrontierLike, since_of
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import (
    CannotTell,
    CloseCall,
    CompareAndDowngradeSince,
    CriticalDowngraded,
    CriticalRegistered,
    Done,
    ExpireCriticalReader,
    OpaqueMismatch,
    RegisterCriticalReader,
)
from persist.errors import InvalidArgument, LeaseExpired, OutcomeForgotten
from persist.machine.shards import ShardInfo
from persist.retry.attempts import Doubt
from persist.retry.deadline import Deadline


async def open_since(
    location: Location, name: str, info: ShardInfo, *, opaque: bytes, purpose: str, timeout: float | None
) -> "SinceHandle":
    """The critical since called ``name``, made if there is none yet. See Client.open_since."""
    caller = _caller(location, info)
    deadline = location.attempts.deadline(timeout)
    session = await caller.session(deadline)
    # Numbered: no late attempt brings back what another process removed meanwhile.
    async with session.number(deadline) as number:
        command = RegisterCriticalReader(critical_id=name, opaque=opaque, purpose=purpose, call=session.call(number))
        with _new_session_after_refusal(caller):
            answer = await location.attempts.repeat(
                deadline, lambda seconds: location.shards.apply(info.shard, command, timeout=seconds)
            )
    return SinceHandle(location, caller, name=name, shard=info.shard, registered=answer)


@contextlib.contextmanager
def _new_session_after_refusal(caller: Caller) -> Iterator[None]:
    """After a refusal the next call uses another session, as this one may be forgotten."""
    try:
        yield
    except LeaseExpired:
        caller.doubt()
        raise


def _caller(location: Location, info: ShardInfo) -> Caller:
    """One session for all holds of a client on a shard: a new call closes earlier calls that got no answer."""
    known = location.callers.get(info.shard)
    if known is None or known.incarnation != info.incarnation:
        known = Caller(location, info.shard, seqno=info.seqno, incarnation=info.incarnation)
        location.callers[info.shard] = known
    return known


class SinceHandle(Stays):
    """Holds a shard's since until it is moved or removed. A process that changes ``opaque`` takes the hold over.

    It survives every process; only ``expire`` removes it. A hold that is registered under its name after that is
    another one, which this handle neither moves nor removes.
    """

    name: str
    """The hold's name."""
    shard: ShardId
    """The shard."""

    def __init__(
        self, location: Location, caller: Caller, *, name: str, shard: ShardId, registered: CriticalRegistered
    ) -> None:
        self.name = name
        self.shard = shard
        self._location = location
        self._caller = caller
        self._registered = registered.registered
        self._since = registered.since
        self._opaque = registered.opaque

    @property
    def since(self) -> Antichain:
        """What is held, as last returned. No RPC."""
        return self._since

    @property
    def opaque(self) -> bytes:
        """The token, as last returned. No RPC."""
        return self._opaque

    async def compare_and_downgrade(
        self, expected: bytes, since: FrontierLike, *, opaque: bytes | None = None, timeout: float | None = None
    ) -> CriticalDowngraded | OpaqueMismatch:
        """Move the since forward, and the token to ``opaque`` if given, iff the token is ``expected``.

        The outcome is a value, and final; a mismatch changed nothing, and never will, and has the values that stand.
        ``since``: as ReadHandle.downgrade_since takes it. One RPC.
        Raises InvalidArgument when the hold is gone, LeaseExpired when another one has its name or the
        location was restored (nothing happened: open it again), OutcomeForgotten, LocationError: after Indeterminate
        ask again with the same arguments (a mismatch that names your own ``opaque`` means that it happened).
        """
        location = self._location
        location.check_open()
        to = since_of(since)
        deadline = location.attempts.deadline(timeout)
        while True:
            session, seen_seqno = await self._caller.session(deadline), self._caller.seqno
            async with session.number(deadline) as number:
                command = CompareAndDowngradeSince(
                    critical_id=self.name,
                    expected=expected,
                    opaque=expected if opaque is None else opaque,
                    since=to,
                    call=session.call(number),
                    registered=self._registered,
                )
                outcome = await self._moved(command, deadline)
            if not isinstance(outcome, CannotTell):
                self._since, self._opaque = outcome.since, outcome.opaque
                return outcome
            self._caller.leave(session, outcome.seqno)
            if outcome.forgotten > seen_seqno:
                raise OutcomeForgotten(
                    "the shard may have forgotten this call: nothing more comes of it, and it is not known whether it"
                    " happened",
                    hint="open the hold again: it has the values that stand",
                    critical_id=self.name,
                )

    async def _moved(
        self, command: CompareAndDowngradeSince, deadline: Deadline
    ) -> CriticalDowngraded | OpaqueMismatch | CannotTell:
        # Both outcomes hold for all attempts under the number: none is in doubt after an answer.
        location, doubt = self._location, Doubt()
        try:
            return await location.attempts.repeat(
                deadline, lambda seconds: location.shards.apply(self.shard, command, timeout=seconds), doubt=doubt
            )
        except InvalidArgument as error:
            # SUBTLE: it may be registered again before a late attempt arrives.
            assert command.call is not None
            fence = CloseCall(call=command.call)
            closed = await location.attempts.repeat(
                deadline, lambda seconds: location.shards.apply(self.shard, fence, timeout=seconds)
            )
            if isinstance(closed, Done):
                return CriticalDowngraded(since=command.since, opaque=command.opaque)
            if isinstance(closed, CannotTell) and doubt.maybe_applied:
                return closed
            raise error from None

    async def expire(self, *, expected: bytes | None = None, timeout: float | None = None) -> bool:
        """Remove the hold for all handles; whether it was there. One RPC. Raises LeaseExpired: look, and ask anew.

        ``expected``: only while this is its token; a process that took it over keeps it.
        """
        location = self._location
        location.check_open()
        deadline = location.attempts.deadline(timeout)
        session = await self._caller.session(deadline)
        async with session.number(deadline) as number:
            command = ExpireCriticalReader(
                critical_id=self.name, call=session.call(number), registered=self._registered, expected=expected
            )
            with _new_session_after_refusal(self._caller):
                outcome = await location.attempts.repeat(
                    deadline, lambda seconds: location.shards.apply(self.shard, command, timeout=seconds)
                )
        return outcome.existed

    def __repr__(self) -> str:
        return f"<SinceHandle {self.name} of {self.shard} since={self._since}>"
