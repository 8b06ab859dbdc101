"""A transaction that is too large for one message: cut into pieces, and put together again.

Source: protos/persist/v1/catalog.proto, StageChanges.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from persist.core.catalog.prepared import LARGE
from persist.core.catalog.rows import Row
from persist.errors import InvalidArgument
from persist.v1 import catalog_pb2 as pb
from persist.wire.catalog.rpc import PIECE_BYTES, REQUEST_ID_BYTES, Changes, changes_in, changes_message, cuts
from persist.wire.catalog.rpc_footprint import ToldFootprint, footprint_in


def is_staged(changes: Changes) -> bool:
    """Whether changes are sent in pieces: one message may not hold them."""
    return len(changes) >= LARGE or sum(len(row.key) + len(row.value) for row, _ in changes) > PIECE_BYTES


def elements_of(piece: pb.StageChangesRequest) -> int:
    """How many elements a piece has."""
    footprint = piece.footprint
    return len(piece.changes.kinds) + len(footprint.keys) + len(footprint.kinds) + len(footprint.names)


def bytes_of(piece: pb.StageChangesRequest) -> int:
    """What a piece counts."""
    return piece.changes.ByteSize() + piece.footprint.ByteSize()


def pieces_of(stage_id: bytes, changes: Changes, footprint: pb.CatalogFootprint) -> list[pb.StageChangesRequest]:
    """All pieces, in order, without a session."""
    pieces = [pb.StageChangesRequest(changes=changes_message(each)) for each in _cut_changes(changes)]
    pieces += [pb.StageChangesRequest(footprint=each) for each in _cut_footprint(footprint)]
    offset, elements, size = 0, sum(map(elements_of, pieces)), sum(map(bytes_of, pieces))
    for piece in pieces:
        piece.stage.stage_id, piece.stage.elements = stage_id, elements
        piece.bytes, piece.offset = size, offset
        offset += elements_of(piece)
    return pieces


def stage_in(message: pb.CatalogStage) -> tuple[bytes, int]:
    """Which stage is meant, and how many elements it has. Raises InvalidArgument."""
    if len(message.stage_id) != REQUEST_ID_BYTES or not message.elements:
        raise InvalidArgument("a stage has an id and elements", hint="16 random bytes, and how many")
    return message.stage_id, message.elements


def whole(pieces: Iterable[pb.StageChangesRequest]) -> tuple[list[tuple[Row, int]], ToldFootprint]:
    """Changes and footprint of all pieces. Raises InvalidArgument."""
    changes, footprint = pb.CatalogUpdates(), pb.CatalogFootprint()
    for piece in pieces:
        changes.MergeFrom(piece.changes)
        footprint.MergeFrom(piece.footprint)
    return changes_in(changes), footprint_in(footprint)


def _cut_changes(changes: Changes) -> Iterator[Changes]:
    ends = list(accumulate(len(row.key) + len(row.value) for row, _ in changes))
    return (changes[part] for part, _ in cuts(ends))


def _cut_footprint(footprint: pb.CatalogFootprint) -> Iterator[pb.CatalogFootprint]:
    if footprint.kinds:
        yield pb.CatalogFootprint(kinds=footprint.kinds)
    for part in _cut(footprint.keys):
        yield pb.CatalogFootprint(key_kinds=footprint.key_kinds[part], keys=footprint.keys[part])
    for part in _cut(footprint.names):
        yield pb.CatalogFootprint(name_kinds=footprint.name_kinds[part], names=footprint.names[part])


def _cut(values: Sequence[bytes]) -> Iterator[slice]:
    return (part for part, _ in cuts(list(accumulate(map(len, values))))) if values else iter(())
