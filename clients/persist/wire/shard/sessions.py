"""The sessions of a state and what changed in them <-> messages of state.proto."""

from dataclasses import replace

from persist.core.ids import SessionId
from persist.core.shard.diff import SessionChange
from persist.core.shard.state import CallOutcome, CallSession, Verdict
from persist.errors import check
from persist.v1 import state_pb2 as pb
from persist.wire.shard.batch import required_antichain
from persist.wire.shard.holders import id_to_bytes


def session_to_proto(session_id: str, session: CallSession) -> pb.StateSession:
    """The message of a session and of all that is remembered of it."""
    message = _bare_to_proto(session)
    message.session_id = id_to_bytes(session_id)
    message.outcomes.extend(map(_outcome_to_proto, session.outcomes))
    return message


def session_from_proto(message: pb.StateSession) -> tuple[str, CallSession]:
    """Id and session of a message."""
    outcomes = tuple([_outcome_from_proto(each) for each in message.outcomes])
    return SessionId.of(message.session_id), replace(_bare_from_proto(message), outcomes=outcomes)


def change_to_proto(session_id: str, change: SessionChange) -> pb.StateSessionChange:
    """The message of what happened to a session."""
    message = pb.StateSessionChange(session_id=id_to_bytes(session_id))
    if change.old is not None:
        message.old.CopyFrom(_bare_to_proto(change.old))
    if change.new is not None:
        message.new.CopyFrom(_bare_to_proto(change.new))
    message.gone.extend(map(_outcome_to_proto, change.gone))
    message.come.extend(map(_outcome_to_proto, change.come))
    return message


def change_from_proto(message: pb.StateSessionChange) -> tuple[str, SessionChange]:
    """Id and change of a message."""
    return SessionId.of(message.session_id), SessionChange(
        old=_bare_from_proto(message.old) if message.HasField("old") else None,
        new=_bare_from_proto(message.new) if message.HasField("new") else None,
        gone=tuple([_outcome_from_proto(each) for each in message.gone]),
        come=tuple([_outcome_from_proto(each) for each in message.come]),
    )


def _bare_to_proto(session: CallSession) -> pb.StateSession:
    return pb.StateSession(
        first=session.first, seqno=session.seqno, heartbeat_ms=session.heartbeat_ms, lease_ms=session.lease_ms
    )


def _bare_from_proto(message: pb.StateSession) -> CallSession:
    return CallSession(
        first=message.first, seqno=message.seqno, heartbeat_ms=message.heartbeat_ms, lease_ms=message.lease_ms
    )


def _outcome_to_proto(outcome: CallOutcome) -> pb.StateCallOutcome:
    message = pb.StateCallOutcome(number=outcome.number, verdict=int(outcome.verdict), seqno=outcome.seqno)
    if outcome.upper is not None:
        message.upper.SetInParent()
        message.upper.elements.extend(outcome.upper.elements)
    return message


def _outcome_from_proto(message: pb.StateCallOutcome) -> CallOutcome:
    check(message.verdict in set(Verdict), "a call came to something known", verdict=message.verdict)
    return CallOutcome(
        number=message.number,
        verdict=Verdict(message.verdict),
        upper=required_antichain(message, "upper") if message.HasField("upper") else None,
        seqno=message.seqno,
    )
