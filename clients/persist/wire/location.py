"""What a location's programs agree on, as it stands in Consensus under a key of its own.

The frame is read by programs of any age, so that one that is too old can say so: it is in format 1 for ever, and fields
of later releases are passed over. Source: docs/formats.md, Location; docs/adr/0013.
"""

from dataclasses import dataclass
from typing import Final

from persist.core.ids import LOCATION_KEY, LocationId
from persist.errors import check
from persist.v1 import state_pb2 as pb
from persist.wire.frame import framed, unframed

_MAGIC: Final = b"pLOC"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationRecord:
    """The newest format that may be written at a location, and which release said so, when and where.

    ``id``: which location it is, None until one is given. ``named``: its Blob names it, too, and no other.
    """

    write_version: int
    release: str = ""
    walltime_ms: int = 0
    hostname: str = ""
    id: LocationId | None = None
    named: bool = False


def encode_location(record: LocationRecord, seqno: int) -> bytes:
    """The record as it stands in Consensus at ``seqno``."""
    message = pb.StateLocation(
        write_version=record.write_version,
        release=record.release,
        walltime_ms=record.walltime_ms,
        hostname=record.hostname,
        id=b"" if record.id is None else record.id.raw,
        named=record.named,
    )
    return framed(_MAGIC, _FORMAT, _binding(seqno), message)


def decode_location(data: bytes, seqno: int) -> LocationRecord:
    """The record at ``seqno``. Raises CorruptData, VersionMismatch."""
    message = unframed(
        pb.StateLocation, _MAGIC, _FORMAT, _binding(seqno), data, unknown_fields=True, key=LOCATION_KEY, seqno=seqno
    )
    check(message.write_version > 0, "a location has a write-version", seqno=seqno)
    check(len(message.id) in (0, 16), "a location's id has 16 bytes", seqno=seqno)
    return LocationRecord(
        write_version=message.write_version,
        release=message.release,
        walltime_ms=message.walltime_ms,
        hostname=message.hostname,
        id=LocationId.of(message.id) if message.id else None,
        named=message.named,
    )


def _binding(seqno: int) -> bytes:
    return LOCATION_KEY.encode() + seqno.to_bytes(8, "little")
