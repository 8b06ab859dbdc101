"""What a location's programs agree on, as it stands in Consensus under a key of its own.

The frame is read by programs of any age, so that one that is too old can say so: it is in format 1 for ever, and fields
of later releases are passed over. Source: docs/formats.md, Location; docs/adr/0013.
"""

from dataclasses import dataclass
from typing import Final

from persist.core.ids import LOCATION_KEY
from persist.errors import check
from persist.v1 import state_pb2 as pb
from persist.wire.frame import framed, unframed

_MAGIC: Final = b"pLOC"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationRecord:
    """The newest format that may be written at a location, and which release said so, when and where."""

    write_version: int
    release: str = ""
    walltime_ms: int = 0
    hostname: str = ""


def encode_location(record: LocationRecord, seqno: int) -> bytes:
    """The record as it stands in Consensus at ``seqno``."""
    message = pb.StateLocation(
        write_version=record.write_version,
        release=record.release,
        walltime_ms=record.walltime_ms,
        hostname=record.hostname,
    )
    return framed(_MAGIC, _FORMAT, _binding(seqno), message)


def decode_location(data: bytes, seqno: int) -> LocationRecord:
    """The record at ``seqno``. Raises CorruptData, VersionMismatch."""
    message = unframed(
        pb.StateLocation, _MAGIC, _FORMAT, _binding(seqno), data, unknown_fields=True, key=LOCATION_KEY, seqno=seqno
    )
    check(message.write_version > 0, "a location has a write-version", seqno=seqno)
    return LocationRecord(
        write_version=message.write_version,
        release=message.release,
        walltime_ms=message.walltime_ms,
        hostname=message.hostname,
    )


def _binding(seqno: int) -> bytes:
    return LOCATION_KEY.encode() + seqno.to_bytes(8, "little")
