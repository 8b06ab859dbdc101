"""What a request may hold: how often each repeated field may come, and how many bytes each method takes.

One table for all services. A method that is not named takes ``SMALL_BYTES``; a repeated field of a request that is not
named keeps its service from starting, so none is forgotten. docs/runbook.md repeats the table (``make docs``).
Source: reliability.md section 5, sizes; docs/runbook.md, limits.
"""

from collections.abc import Mapping
from typing import Final

from persist.core.catalog.ddl.asking.seen import SEEN_MAX
from persist.core.shard.compaction import ASIDE_MAX
from persist.settings import Settings

SMALL_BYTES: Final = 64 << 10
"""What a method takes unless it is named below."""
TINY_BYTES: Final = 8 << 10
"""What every method takes whose answers are a stream: gRPC holds its request as long as that lasts."""
SCHEMA_BYTES: Final = 1 << 20
UNKNOWN_MAX: Final = 64
"""Fields of one message that this release does not know."""
ROWS_MAX: Final = 100_000
ELEMENTS_MAX: Final = 50_000

COUNTS: Final[Mapping[str, int | str]] = {
    "SessionRequest.calls": 256,
    "Antichain.elements": 1,
    "HollowBatch.runs": "parts_per_append_max",
    "Run.parts": "parts_per_append_max",
    "Part.stats": 256,
    "Part.blocks": 64,
    "ClaimCompactionRequest.aside": ASIDE_MAX,
    "ApplyMergeRequest.inputs": 10_000,
    "RangeStep.pieces": 10_000,
    "CatalogUpdates.kinds": ROWS_MAX,
    "CatalogUpdates.keys": ROWS_MAX,
    "CatalogUpdates.values": ROWS_MAX,
    "CatalogUpdates.times": ROWS_MAX,
    "CatalogUpdates.diffs": ROWS_MAX,
    "CatalogFootprint.key_kinds": ROWS_MAX,
    "CatalogFootprint.keys": ROWS_MAX,
    "CatalogFootprint.kinds": 256,
    "CatalogFootprint.name_kinds": ROWS_MAX,
    "CatalogFootprint.names": ROWS_MAX,
    "ExecuteRequest.statements": 1_000,
    "ExecuteRequest.search_path": 64,
    "ExecuteRequest.seen": SEEN_MAX,
    "DescribeRequest.search_path": 64,
    "DescribeRequest.types": 64,
    "TableSchema.columns": 4_000,
    "CreateSourceStatement.options": 256,
    "CreateSourceStatement.exports": 4_000,
    "CreateViewStatement.reads": 1_000,
    "CreateViewStatement.meant": 1_000,
    "CreateMaterializedViewStatement.reads": 1_000,
    "CreateMaterializedViewStatement.meant": 1_000,
    "CreateCursorStatement.reads": 1_000,
    "CreateCursorStatement.meant": 1_000,
    "CreateIndexStatement.columns": 256,
    "AddColumnsStatement.columns": 1_000,
    "CreateHoldStatement.objects": 1_000,
    "CreateHoldStatement.all_of": 2,
    "CreateSinkStatement.options": 256,
    "DropStatement.names": 1_000,
    "GrantStatement.roles": 256,
    "ReadRowsRequest.kinds": 256,
    "DumpRowsRequest.kinds": 256,
    "GetBindingRequest.times": 10_000,
    "SourceFrontier.elements": ELEMENTS_MAX,
    "GetResumptionRequest.exports": 1_000,
    "CompactBindingsRequest.exports": 1_000,
}
"""Elements of each repeated field in one message; a name is that of the setting that says it."""

TOTALS: Final[Mapping[str, int | str]] = {"Run.parts": "parts_per_append_max"}
"""Elements of a field in all of one message, whatever holds them: bounds of each holder alone would multiply."""
TOTAL_MIN: Final = 10_000
"""So many in any case: a frame holds several appends, of 1 MiB together, and a part takes more than 105 bytes."""

BYTES: Final[Mapping[str, int | str]] = {
    "PersistShard/CompareAndAppend": "max_message_bytes",
    "PersistShard/ApplyMerge": "connection_message_bytes",
    "PersistShard/Session": "connection_message_bytes",
    "PersistShard/RegisterSchema": SCHEMA_BYTES,
    "PersistShard/EvolveSchema": SCHEMA_BYTES,
    "PersistShard/Snapshot": TINY_BYTES,
    "PersistShard/Fetch": TINY_BYTES,
    "PersistShard/Inspect": TINY_BYTES,
    "PersistShard/ListShards": TINY_BYTES,
    "PersistShard/Watch": TINY_BYTES,
    "PersistShard/WatchWork": TINY_BYTES,
    "CatalogService/ReadRows": TINY_BYTES,
    "CatalogService/DumpRows": TINY_BYTES,
    "CatalogService/WatchChanges": TINY_BYTES,
    "TimestampMinter/ListBindings": TINY_BYTES,
    "TimestampMinter/WatchBindings": TINY_BYTES,
    "PersistCompaction/Compact": TINY_BYTES,
    "CatalogService/Commit": "max_message_bytes",
    "CatalogService/StageChanges": "max_message_bytes",
    "CatalogService/EditRow": "max_message_bytes",
    "CatalogService/Execute": "max_message_bytes",
    "TimestampMinter/GetBinding": "max_message_bytes",
    "TimestampMinter/Mint": "max_message_bytes",
    "TimestampMinter/GetResumption": SCHEMA_BYTES,
    "TimestampMinter/CompactBindings": SCHEMA_BYTES,
}
"""Bytes of one request of a method (of one frame of a stream); a name is that of the setting that says it."""


def count_of(field: str, settings: Settings) -> int | None:
    """How many elements ``Message.field`` may have in one message. None: not given."""
    return _resolved(COUNTS.get(field), settings)


def total_of(field: str, settings: Settings) -> int | None:
    """How many elements ``Message.field`` may have in one request, whatever holds them. None: no matter."""
    found = _resolved(TOTALS.get(field), settings)
    return None if found is None else max(found, TOTAL_MIN)


def bytes_of(method: str, settings: Settings) -> int:
    """The largest request of ``Service/Method``."""
    found = _resolved(BYTES.get(method), settings)
    return min(settings.connection_message_bytes, SMALL_BYTES if found is None else found)


def _resolved(bound: int | str | None, settings: Settings) -> int | None:
    if isinstance(bound, str):
        said: int = getattr(settings, bound)
        return said
    return bound
