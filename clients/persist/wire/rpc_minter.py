"""Sources, source times, frontiers and bindings as messages of TimestampMinter, and back.

Whatever arrives is checked: requests raise usage errors, an answer that makes no sense raises Indeterminate.
Source: protos/persist/v1/minter.proto.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypedDict

from google.protobuf.message import Message

from persist.core.binding.binding_log import MintRules
from persist.core.binding.remap import Binding
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier, place
from persist.core.source.source_time import Lsn, Partition, Point, Range, SourceKind, SourceTime
from persist.errors import Indeterminate, InvalidArgument, RequestTooLarge, UsageError
from persist.typed import AnyMessage
from persist.v1 import minter_pb2 as pb
from persist.wire.shard.batch import antichain_to_proto, required_antichain

TIMES_MAX: Final = 10_000
"""Source times in one request."""
EXPORTS_MAX: Final = 1_000
"""Exports in one request."""
INCARNATION_CHARS_MAX: Final = 1_024

_KINDS: Final = {
    SourceKind.LSN: pb.SOURCE_KIND_LSN,
    SourceKind.PARTITIONS: pb.SOURCE_KIND_PARTITIONS,
    SourceKind.FILES: pb.SOURCE_KIND_FILES,
}
_BY_NUMBER: Final[Mapping[int, SourceKind]] = {number: kind for kind, number in _KINDS.items()}


class SourceFields(TypedDict):
    """The fields of a source, ready to be passed by name."""

    remap: ShardId
    kind: SourceKind
    incarnation: str
    rules: MintRules


class StandingFields(TypedDict):
    """How far a source is bound, ready to be passed by name."""

    frontier: SourceFrontier
    upper: Antichain
    since: Antichain


class ResumptionFields(TypedDict):
    """Where something goes on, ready to be passed by name."""

    time: Antichain
    offsets: SourceFrontier | None


@contextlib.contextmanager
def answers() -> Iterator[None]:
    """A block that reads what a minter answered: what it does not understand is Indeterminate."""
    try:
        yield
    except UsageError as error:
        raise Indeterminate("the minter's answer makes no sense to this release", hint="upgrade the client") from error


@contextlib.contextmanager
def requests() -> Iterator[None]:
    """A block that makes a request: values that no message can carry are InvalidArgument."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"a value does not fit its field: {error}", hint="see minter.proto") from error


# ---- sources ---------------------------------------------------------------------------------------------------------


def source_message(kind: SourceKind, incarnation: str, rules: MintRules) -> pb.RemapSource:
    """The message of a source."""
    sent = pb.MintRules(interval_ms=rules.interval_ms, max_jump=rules.max_jump or 0, ahead_ms_max=rules.ahead_ms_max)
    return pb.RemapSource(kind=_KINDS[kind], incarnation=incarnation, rules=sent)


def source_in(request: AnyMessage) -> SourceFields:
    """The source a request is about. Raises InvalidId, InvalidArgument."""
    source = request.source
    if len(source.incarnation) > INCARNATION_CHARS_MAX:
        raise InvalidArgument(
            "the name of an incarnation is too long", chars=len(source.incarnation), limit=INCARNATION_CHARS_MAX
        )
    given = source.rules
    rules: dict[str, int] = {"interval_ms": given.interval_ms} if given.interval_ms else {}
    if given.HasField("ahead_ms_max"):
        rules["ahead_ms_max"] = given.ahead_ms_max
    return SourceFields(
        remap=ShardId.parse(request.shard_id),
        kind=kind_of(source.kind),
        incarnation=source.incarnation,
        rules=MintRules(max_jump=given.max_jump or None, **rules),
    )


def kind_of(number: int) -> SourceKind:
    """The kind an enum stands for. Raises InvalidArgument."""
    kind = _BY_NUMBER.get(number)
    if kind is None:
        raise InvalidArgument("no such kind of source", hint="lsn, partitions or files", got=number)
    return kind


def exports_in(request: AnyMessage) -> dict[str, ShardId]:
    """The exports of a request. Raises InvalidId, RequestTooLarge."""
    _check_count("exports", len(request.exports), EXPORTS_MAX)
    return {name: ShardId.parse(shard) for name, shard in request.exports.items()}


# ---- times and frontiers ---------------------------------------------------------------------------------------------


def time_message(time: SourceTime) -> pb.SourceTime:
    """The message of a source time. Raises InvalidArgument for values that are none of ours."""
    if isinstance(time, Point):
        return pb.SourceTime(point=pb.SourcePoint(partition=_partition(time.partition), offset=time.offset))
    if isinstance(time, Lsn):
        return pb.SourceTime(lsn=time.position)
    if isinstance(time, Range):
        message = pb.SourceTime(range=pb.SourceRange(offset=time.offset))
        if time.lo is not None:
            message.range.after.CopyFrom(_partition(time.lo))
        if time.hi is not None:
            message.range.before.CopyFrom(_partition(time.hi))
        return message
    raise InvalidArgument("this source time has no message", got=str(time)[:80])


def time_of(message: pb.SourceTime) -> SourceTime:
    """The source time of a message. Raises InvalidArgument."""
    match message.WhichOneof("time"):
        case "point":
            return Point(_key(message.point.partition), message.point.offset)
        case "lsn":
            return Lsn(message.lsn)
        case "range":
            given = message.range
            lo = _key(given.after) if given.HasField("after") else None
            hi = _key(given.before) if given.HasField("before") else None
            return Range(lo, hi, given.offset)
    raise InvalidArgument("a source time must be set", hint="an lsn, a point or a range")


def times_in(kind: SourceKind, messages: Sequence[pb.SourceTime]) -> list[SourceTime]:
    """The times of messages of a source. Raises InvalidArgument (a range, or of another kind), RequestTooLarge."""
    _check_count("source times", len(messages), TIMES_MAX)
    times = [time_of(message) for message in messages]
    for time in times:
        place(kind, time)
    return times


def source_frontier_message(frontier: SourceFrontier) -> pb.SourceFrontier:
    """The message of a source frontier."""
    places = zip(frontier.keys, frontier.bounds, strict=True)
    if frontier.is_closed:
        elements = []
    elif frontier.kind is SourceKind.LSN:
        elements = [pb.SourceTime(lsn=bound) for _, bound in places]
    else:
        elements = [
            pb.SourceTime(point=pb.SourcePoint(partition=_partition(key), offset=bound)) for key, bound in places
        ]
    return pb.SourceFrontier(kind=_KINDS[frontier.kind], elements=elements, closed=frontier.is_closed)


def source_frontier_of(kind: SourceKind, message: pb.SourceFrontier) -> SourceFrontier:
    """The frontier of a message, which must be of this kind. Raises InvalidArgument."""
    if kind_of(message.kind) is not kind:
        raise InvalidArgument("the frontier is of another kind of source", kind=kind.value, got=message.kind)
    if message.closed:
        if message.elements:
            raise InvalidArgument("a closed source frontier has no elements", elements=len(message.elements))
        return SourceFrontier.closed(kind)
    places = [place(kind, time_of(element)) for element in message.elements]
    bounds = dict(places)
    if len(bounds) != len(places):
        raise InvalidArgument("a source frontier names each partition once", elements=len(places))
    return SourceFrontier.at(kind, bounds)


def source_frontier_in(kind: SourceKind, request: Message, name: str) -> SourceFrontier | None:
    """The frontier in a field that may be unset. Raises InvalidArgument."""
    return source_frontier_of(kind, getattr(request, name)) if request.HasField(name) else None


def _partition(key: Partition) -> pb.SourcePartition:
    return pb.SourcePartition(path=key) if isinstance(key, str) else pb.SourcePartition(number=key)


def _key(message: pb.SourcePartition) -> Partition:
    match message.WhichOneof("key"):
        case "number":
            return message.number
        case "path":
            return message.path
    raise InvalidArgument("a partition must be set", hint="a number or a path")


# ---- answers ---------------------------------------------------------------------------------------------------------


def bindings_message(bindings: Sequence[Binding]) -> pb.GetBindingResponse:
    """The answer with these bindings, each sent once however often it is among them."""
    places: dict[int, int] = {}
    response = pb.GetBindingResponse()
    for binding in bindings:
        if binding.ts not in places:
            places[binding.ts] = len(places)
            response.bindings.append(pb.Binding(ts=binding.ts, frontier=source_frontier_message(binding.frontier)))
    response.indexes.extend(places[binding.ts] for binding in bindings)
    return response


def bindings_of(kind: SourceKind, response: pb.GetBindingResponse) -> list[Binding]:
    """The bindings of an answer, one for each time that was asked for. Raises InvalidArgument."""
    each = [Binding(sent.ts, source_frontier_of(kind, sent.frontier)) for sent in response.bindings]
    if any(index >= len(each) for index in response.indexes):
        raise InvalidArgument("an index lies beyond the bindings", bindings=len(each))
    return [each[index] for index in response.indexes]


def standing_message(frontier: SourceFrontier, upper: Antichain, since: Antichain) -> pb.MintResponse:
    """The answer that says how far a source is bound."""
    return pb.MintResponse(
        frontier=source_frontier_message(frontier), upper=antichain_to_proto(upper), since=antichain_to_proto(since)
    )


def standing_of(kind: SourceKind, response: pb.MintResponse) -> StandingFields:
    """How far a source is bound. Raises InvalidArgument."""
    return StandingFields(
        frontier=source_frontier_of(kind, response.frontier),
        upper=required_antichain(response, "upper"),
        since=required_antichain(response, "since"),
    )


def resumption_message(time: Antichain, offsets: SourceFrontier | None) -> pb.Resumption:
    """The message of where something goes on."""
    sent = pb.Resumption(time=antichain_to_proto(time))
    if offsets is not None:
        sent.offsets.CopyFrom(source_frontier_message(offsets))
    return sent


def resumption_of(kind: SourceKind, message: pb.Resumption) -> ResumptionFields:
    """Where something goes on. Raises InvalidArgument."""
    offsets = source_frontier_in(kind, message, "offsets")
    return ResumptionFields(time=required_antichain(message, "time"), offsets=offsets)


def exports_of(
    kind: SourceKind, wanted: Iterable[str], sent: Mapping[str, pb.Resumption]
) -> dict[str, ResumptionFields]:
    """Where these exports go on. Raises InvalidArgument when one is missing."""
    names = list(wanted)
    if missing := [name for name in names if name not in sent]:
        raise InvalidArgument("an export is missing", missing=missing)
    return {name: resumption_of(kind, sent[name]) for name in names}


def _check_count(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise RequestTooLarge(f"too many {what} in one request", hint="ask several times", count=count, limit=limit)
