"""How many bytes a shard keeps in Blob, and why; and what requests and bytes cost.

Source: persist-semantics.md feature row 52; reliability.md I12.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from persist.core.ids import ShardId
from persist.errors import ShardNotFound
from persist.machine.garbage.inventory import BlobVerdict, Inventory
from persist.retry.deadline import Deadline

SECONDS_PER_YEAR: Final = 365 * 86_400
_GB: Final = 1_000_000_000

_WRITES: Final = frozenset(
    {
        "PutObject",
        "ListObjectsV2",
        "ListObjectVersions",
        "ListMultipartUploads",
        "CreateMultipartUpload",
        "UploadPart",
        "CompleteMultipartUpload",
    }
)
_FREE: Final = frozenset({"DeleteObject", "DeleteObjects", "AbortMultipartUpload"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Blobs and bytes of one shard by what they are to it."""

    shard: ShardId
    blobs: Mapping[BlobVerdict, int]
    bytes: Mapping[BlobVerdict, int]

    @property
    def total(self) -> int:
        """All bytes under the shard's prefix."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What S3 asks for, in one currency: per thousand requests, and per GB and month. Defaults: S3 Standard, USD."""

    put: float = 0.005
    get: float = 0.0004
    storage: float = 0.023

    def of_requests(self, requests: Mapping[str, float]) -> float:
        """What requests cost, by kind: writing and listing, nothing for deleting, reading for all else."""
        total = 0.0
        for kind, count in requests.items():
            if kind not in _FREE:
                total += count / 1000 * (self.put if kind in _WRITES else self.get)
        return total

    def of_bytes(self, size: int) -> float:
        """What keeping so many bytes costs for a year."""
        return size / _GB * self.storage * 12


@dataclass(kw_only=True)
class CountedRequests:
    """Requests by kind that a process sent, and over how many seconds."""

    requests: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def per_year(self) -> dict[str, float]:
        """As many as there will be in a year at this rate; none when the time is unknown."""
        if self.seconds <= 0:
            return {}
        return {kind: count * SECONDS_PER_YEAR / self.seconds for kind, count in self.requests.items()}


async def usage_of(
    survey: Inventory,
    shard: ShardId,
    *,
    fence_ms: int,
    deadline: Deadline,
    report: Callable[[int], None] = lambda blobs: None,
) -> Usage:
    """What a shard keeps; writers born before ``fence_ms`` count as dead unless it knows them. Changes nothing.

    ``report`` is called with each number of blobs counted. Raises ShardNotFound, LocationError, CorruptData.
    """
    names = await survey.names(shard, deadline)
    if names is None:
        raise ShardNotFound("no such shard here", hint="check the id and the location", shard=shard)
    blobs, sizes = dict.fromkeys(BlobVerdict, 0), dict.fromkeys(BlobVerdict, 0)
    async for found in survey.found(names, fence_ms=fence_ms):
        blobs[found.verdict] += 1
        sizes[found.verdict] += found.size
        report(1)
    return Usage(shard=shard, blobs=blobs, bytes=sizes)
