"""SinceHandle: a since that no lease bounds, guarded by a token.

Source: persist-semantics.md feature row 14 and section 2.3; reliability.md I16.
"""

from persist.client.shard.location import Location
from persist.client.shard.numbers import Caller
from persist.core.frontier import Antichain, AntichainLike
from persist.core.ids import ShardId
from persist.core.shard.commands import (
    CompareAndDowngradeSince,
    CriticalDowngraded,
    ExpireCriticalReader,
    OpaqueMismatch,
    RegisterCriticalReader,
)
from persist.machine.shards import ShardInfo


async def open_since(
    location: Location, name: str, info: ShardInfo, *, opaque: bytes, purpose: str, timeout: float | None
) -> "SinceHandle":
    """The critical since called ``name``, made if there is none yet. See Client.open_since."""
    caller = _caller(location, info)
    deadline = location.attempts.deadline(timeout)
    session = await caller.session(deadline)
    # Numbered: no late attempt brings back what somebody removed meanwhile.
    async with session.number(deadline) as number:
        command = RegisterCriticalReader(critical_id=name, opaque=opaque, purpose=purpose, call=session.call(number))
        answer = await location.attempts.repeat(
            deadline, lambda seconds: location.shards.apply(info.shard, command, timeout=seconds)
        )
    return SinceHandle(location, caller, name=name, shard=info.shard, since=answer.since, opaque=answer.opaque)


def _caller(location: Location, info: ShardInfo) -> Caller:
    """One for all holds of a client on a shard: whoever asks again closes what was asked before and got no answer."""
    known = location.callers.get(info.shard)
    if known is None or known.incarnation != info.incarnation:
        known = Caller(location, info.shard, seqno=info.seqno, incarnation=info.incarnation)
        location.callers[info.shard] = known
    return known


class SinceHandle:
    """Holds a shard's since until someone says otherwise. Whoever changes ``opaque`` takes it over from the rest.

    It survives every process; only ``expire`` removes it.
    """

    name: str
    """The hold's name."""
    shard: ShardId
    """The shard."""

    def __init__(
        self, location: Location, caller: Caller, *, name: str, shard: ShardId, since: Antichain, opaque: bytes
    ) -> None:
        self.name = name
        self.shard = shard
        self._location = location
        self._caller = caller
        self._since = since
        self._opaque = opaque

    @property
    def since(self) -> Antichain:
        """What is held, as last told. No RPC."""
        return self._since

    @property
    def opaque(self) -> bytes:
        """The token, as last told. No RPC."""
        return self._opaque

    async def compare_and_downgrade(
        self, expected: bytes, since: AntichainLike, *, opaque: bytes | None = None, timeout: float | None = None
    ) -> CriticalDowngraded | OpaqueMismatch:
        """Move the since forward, and the token to ``opaque`` if given, iff the token is ``expected``.

        The outcome is a value; a mismatch changed nothing and tells what stands. One RPC. Raises InvalidArgument when
        the handle was expired, LocationError: after Indeterminate ask again with the same arguments (a mismatch that
        names your own ``opaque`` means that it happened).
        """
        command = CompareAndDowngradeSince(
            critical_id=self.name,
            expected=expected,
            opaque=expected if opaque is None else opaque,
            since=Antichain.coerce(since),
            incarnation=self._caller.incarnation,
        )
        location = self._location
        location.check_open()
        outcome = await location.attempts.repeat(
            location.attempts.deadline(timeout),
            lambda seconds: location.shards.apply(self.shard, command, timeout=seconds),
        )
        self._since, self._opaque = outcome.since, outcome.opaque
        return outcome

    async def expire(self, *, timeout: float | None = None) -> bool:
        """Remove the hold for everybody; whether it was there. One RPC. Raises LeaseExpired: look, and ask anew."""
        location = self._location
        location.check_open()
        deadline = location.attempts.deadline(timeout)
        session = await self._caller.session(deadline)
        async with session.number(deadline) as number:
            command = ExpireCriticalReader(critical_id=self.name, call=session.call(number))
            outcome = await location.attempts.repeat(
                deadline, lambda seconds: location.shards.apply(self.shard, command, timeout=seconds)
            )
        return outcome.existed

    def __repr__(self) -> str:
        return f"<SinceHandle {self.name} of {self.shard} since={self._since}>"
