"""Everything a remap shard holds in messages of bounded size, and what has changed since it was last sent.

Source: protos/persist/v1/minter.proto, RemapPiece.
"""

from collections.abc import Iterator

from persist.core.binding.remap import RemapTrace, RemapUpdate, changes
from persist.core.source.source_time import SourceKind
from persist.errors import InvalidArgument
from persist.v1 import minter_pb2 as pb
from persist.wire.rpc_minter import answers, time_message, time_of
from persist.wire.rpc_reads import CHUNK_BYTES
from persist.wire.shard.batch import antichain_to_proto, required_antichain


def trace_pieces(before: RemapTrace | None, trace: RemapTrace, limit: int = CHUNK_BYTES) -> Iterator[pb.RemapPiece]:
    """The trace in pieces of about ``limit`` bytes, for a receiver that has ``before``: only what is new, if possible.

    None: whole.
    """
    known = _known(before, trace)
    piece, size = _begun(trace, afresh=known is None), 0
    for row in _rows(known, trace):
        message = pb.RemapRow(time=time_message(row.time), ts=row.ts, diff=row.diff)
        weight = message.ByteSize()
        if size and size + weight > limit:
            yield piece
            piece, size = _begun(trace), 0
        piece.rows.append(message)
        size += weight
    piece.last = True
    yield piece


class TraceJoiner:
    """Puts traces together from pieces. Raises Indeterminate for pieces that make none."""

    def __init__(self, kind: SourceKind) -> None:
        self._kind = kind
        self._trace: RemapTrace | None = None
        self._rows: list[RemapUpdate] = []
        self._afresh = False

    def add(self, piece: pb.RemapPiece) -> RemapTrace | None:
        """The next piece of the stream; the trace, when this was the last piece of it. Raises CorruptData."""
        with answers():
            if piece.afresh:
                self._rows, self._afresh = [], True
            self._rows.extend(RemapUpdate(time_of(row.time), row.ts, row.diff) for row in piece.rows)
            if not piece.last:
                return None
            rows, self._rows = self._rows, []
            afresh, self._afresh = self._afresh, False
            since, upper = required_antichain(piece, "since"), required_antichain(piece, "upper")
            if afresh:
                self._trace = RemapTrace.of(self._kind, rows, since, upper)
            elif self._trace is None:
                raise InvalidArgument("a stream of bindings began with changes")
            else:
                self._trace = self._trace.compacted(since).extended(rows, upper)
            return self._trace


def _known(before: RemapTrace | None, trace: RemapTrace) -> RemapTrace | None:
    """What a receiver that has ``before`` makes of the new since, if the trace goes on from there."""
    if before is None or before.upper.less_equal(trace.since) or not before.upper.less_equal(trace.upper):
        return None
    known = before.compacted(trace.since)
    count = len(known.bindings)
    new = trace.bindings[count:]
    goes_on = known.since == trace.since and trace.bindings[:count] == known.bindings
    goes_on = goes_on and (not new or before.upper.less_equal_time(new[0].ts))
    return known if goes_on else None


def _begun(trace: RemapTrace, *, afresh: bool = False) -> pb.RemapPiece:
    return pb.RemapPiece(afresh=afresh, since=antichain_to_proto(trace.since), upper=antichain_to_proto(trace.upper))


def _rows(known: RemapTrace | None, trace: RemapTrace) -> Iterator[RemapUpdate]:
    if known is None:
        yield from trace.updates()
        return
    before = known.bindings[-1].frontier if known.bindings else None
    for binding in trace.bindings[len(known.bindings) :]:
        yield from changes(before, binding.frontier, binding.ts)
        before = binding.frontier
