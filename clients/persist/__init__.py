"""Persist: durable, definite time-varying collections on object storage.

    client = persist.embedded("./data")
    schema = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
    writer, reader = client.open(persist.ShardId.new(), schema=schema)
    writer.append([(({"id": 1}, {"name": "a"}), 3, +1)], new_upper=10)
    reader.snapshot(as_of=5).to_arrow()

Names are imported when first used: importing this package is quick and pulls in no gRPC, S3, Redis or PostgreSQL
client.
``persist.aio`` has the same names for asyncio.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persist import aio
    from persist.client.blocking import Client, connect, embedded
    from persist.client.blocking_oracle import Oracle
    from persist.client.blocking_read import Diffs, Listen, ReadHandle, Snapshot
    from persist.client.blocking_table import Table, TableTransaction
    from persist.client.blocking_write import SinceHandle, WriteHandle
    from persist.client.listen import Progress, Updates
    from persist.client.names import ShardId
    from persist.client.prepared import BatchSpec, PreparedBatch
    from persist.client.read import BatchSummary
    from persist.client.split import Split
    from persist.core.data.codec import ArrowCodec, BytesCodec, Codec, Codec64, JsonCodec
    from persist.core.data.schema import Schema
    from persist.core.frontier import Antichain
    from persist.core.ids import ReaderId, Token, WriterId
    from persist.core.shard.commands import Appended, CriticalDowngraded, OpaqueMismatch, Transaction, UpperMismatch
    from persist.core.time.refusals import ClockAhead, JumpTooLarge, UpstreamLost, UpstreamRegressed, UpstreamReplaced
    from persist.core.time.timeline import CounterTimeline, EpochMilliseconds, ExternalTimeline, UserTimeline
    from persist.errors import (
        CodecMismatch,
        CorruptData,
        Determinate,
        EmptyInterval,
        HistoryRewound,
        Indeterminate,
        InvalidArgument,
        InvalidBounds,
        InvalidId,
        InvalidUri,
        LeaseExpired,
        LocationError,
        MissingDeadline,
        NotReadable,
        NotYetAvailable,
        Overloaded,
        PersistError,
        RequestTooLarge,
        SchemaMismatch,
        ShardClosed,
        ShardNotFound,
        StoreFull,
        StoreReadOnly,
        TypeNotSupported,
        UnsafeConfiguration,
        UsageError,
        VersionMismatch,
    )
    from persist.settings import Settings

__all__ = [
    "Antichain",
    "Appended",
    "ArrowCodec",
    "BatchSpec",
    "BatchSummary",
    "BytesCodec",
    "Client",
    "ClockAhead",
    "Codec",
    "Codec64",
    "CodecMismatch",
    "CorruptData",
    "CounterTimeline",
    "CriticalDowngraded",
    "Determinate",
    "Diffs",
    "EmptyInterval",
    "EpochMilliseconds",
    "ExternalTimeline",
    "HistoryRewound",
    "Indeterminate",
    "InvalidArgument",
    "InvalidBounds",
    "InvalidId",
    "InvalidUri",
    "JsonCodec",
    "JumpTooLarge",
    "LeaseExpired",
    "Listen",
    "LocationError",
    "MissingDeadline",
    "NotReadable",
    "NotYetAvailable",
    "OpaqueMismatch",
    "Oracle",
    "Overloaded",
    "PersistError",
    "PreparedBatch",
    "Progress",
    "ReadHandle",
    "ReaderId",
    "RequestTooLarge",
    "Schema",
    "SchemaMismatch",
    "Settings",
    "ShardClosed",
    "ShardId",
    "ShardNotFound",
    "SinceHandle",
    "Snapshot",
    "Split",
    "StoreFull",
    "StoreReadOnly",
    "Table",
    "TableTransaction",
    "Token",
    "Transaction",
    "TypeNotSupported",
    "UnsafeConfiguration",
    "Updates",
    "UpperMismatch",
    "UpstreamLost",
    "UpstreamRegressed",
    "UpstreamReplaced",
    "UsageError",
    "UserTimeline",
    "VersionMismatch",
    "WriteHandle",
    "WriterId",
    "aio",
    "connect",
    "embedded",
]

_MODULES = {
    "Client": "persist.client.blocking",
    "connect": "persist.client.blocking",
    "embedded": "persist.client.blocking",
    "Oracle": "persist.client.blocking_oracle",
    "Diffs": "persist.client.blocking_read",
    "Listen": "persist.client.blocking_read",
    "ReadHandle": "persist.client.blocking_read",
    "Snapshot": "persist.client.blocking_read",
    "Table": "persist.client.blocking_table",
    "TableTransaction": "persist.client.blocking_table",
    "SinceHandle": "persist.client.blocking_write",
    "WriteHandle": "persist.client.blocking_write",
    "Progress": "persist.client.listen",
    "Updates": "persist.client.listen",
    "ShardId": "persist.client.names",
    "BatchSpec": "persist.client.prepared",
    "PreparedBatch": "persist.client.prepared",
    "BatchSummary": "persist.client.read",
    "Split": "persist.client.split",
    "ArrowCodec": "persist.core.data.codec",
    "BytesCodec": "persist.core.data.codec",
    "Codec": "persist.core.data.codec",
    "Codec64": "persist.core.data.codec",
    "JsonCodec": "persist.core.data.codec",
    "Schema": "persist.core.data.schema",
    "Antichain": "persist.core.frontier",
    "ReaderId": "persist.core.ids",
    "Token": "persist.core.ids",
    "WriterId": "persist.core.ids",
    "Appended": "persist.core.shard.commands",
    "CriticalDowngraded": "persist.core.shard.commands",
    "OpaqueMismatch": "persist.core.shard.commands",
    "Transaction": "persist.core.shard.commands",
    "UpperMismatch": "persist.core.shard.commands",
    "ClockAhead": "persist.core.time.refusals",
    "JumpTooLarge": "persist.core.time.refusals",
    "UpstreamLost": "persist.core.time.refusals",
    "UpstreamRegressed": "persist.core.time.refusals",
    "UpstreamReplaced": "persist.core.time.refusals",
    "CounterTimeline": "persist.core.time.timeline",
    "EpochMilliseconds": "persist.core.time.timeline",
    "ExternalTimeline": "persist.core.time.timeline",
    "UserTimeline": "persist.core.time.timeline",
    "CodecMismatch": "persist.errors",
    "CorruptData": "persist.errors",
    "Determinate": "persist.errors",
    "EmptyInterval": "persist.errors",
    "HistoryRewound": "persist.errors",
    "Indeterminate": "persist.errors",
    "InvalidArgument": "persist.errors",
    "InvalidBounds": "persist.errors",
    "InvalidId": "persist.errors",
    "InvalidUri": "persist.errors",
    "LeaseExpired": "persist.errors",
    "LocationError": "persist.errors",
    "MissingDeadline": "persist.errors",
    "NotReadable": "persist.errors",
    "NotYetAvailable": "persist.errors",
    "Overloaded": "persist.errors",
    "PersistError": "persist.errors",
    "RequestTooLarge": "persist.errors",
    "SchemaMismatch": "persist.errors",
    "ShardClosed": "persist.errors",
    "ShardNotFound": "persist.errors",
    "StoreFull": "persist.errors",
    "StoreReadOnly": "persist.errors",
    "TypeNotSupported": "persist.errors",
    "UnsafeConfiguration": "persist.errors",
    "UsageError": "persist.errors",
    "VersionMismatch": "persist.errors",
    "Settings": "persist.settings",
}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("persist.aio")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
