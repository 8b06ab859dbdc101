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
    from persist.client.blocking.client import Client, connect, embedded
    from persist.client.blocking.oracle import Oracle
    from persist.client.blocking.read import Diffs, Listen, ReadHandle, Snapshot
    from persist.client.blocking.table import Table, TableTransaction
    from persist.client.blocking.write import SinceHandle, WriteHandle
    from persist.client.shard.finalizing import Emptied
    from persist.client.shard.read.handle import BatchSummary
    from persist.client.shard.read.listen import Progress, Updates
    from persist.client.shard.read.split import Split
    from persist.client.shard.times import time_of
    from persist.client.shard.write.doubts import Resolved
    from persist.client.shard.write.prepared import BatchSpec, PreparedBatch
    from persist.client.shard_id import ShardId
    from persist.core.data.codec import ArrowCodec, BytesCodec, Codec, Codec64, JsonCodec
    from persist.core.data.predicate import Predicate
    from persist.core.data.schema import Schema
    from persist.core.data.splits import KeyRange
    from persist.core.frontier import Antichain
    from persist.core.ids import ReaderId, Token, WriterId
    from persist.core.shard.commands import Appended, CriticalDowngraded, OpaqueMismatch, Transaction, UpperMismatch
    from persist.core.time.errors import ClockAhead, JumpTooLarge, UpstreamLost, UpstreamRegressed, UpstreamReplaced
    from persist.core.time.timeline import CounterTimeline, EpochMilliseconds, ExternalTimeline, UserTimeline
    from persist.errors import (
        AlreadyCommitted,
        AmbiguousName,
        CodecMismatch,
        CorruptData,
        Determinate,
        EmptyInterval,
        ExportStalled,
        HistoryRewound,
        Indeterminate,
        InvalidArgument,
        InvalidBounds,
        InvalidId,
        InvalidUri,
        LeaseExpired,
        LocationError,
        LocationReplaced,
        MissingDeadline,
        MissingExtra,
        NoServer,
        NotReadable,
        NotYetAvailable,
        OutcomeForgotten,
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
    from persist.machine.garbage.sweeper import Swept
    from persist.settings import Settings

__all__ = [
    "AlreadyCommitted",
    "AmbiguousName",
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
    "Emptied",
    "EmptyInterval",
    "EpochMilliseconds",
    "ExportStalled",
    "ExternalTimeline",
    "HistoryRewound",
    "Indeterminate",
    "InvalidArgument",
    "InvalidBounds",
    "InvalidId",
    "InvalidUri",
    "JsonCodec",
    "JumpTooLarge",
    "KeyRange",
    "LeaseExpired",
    "Listen",
    "LocationError",
    "LocationReplaced",
    "MissingDeadline",
    "MissingExtra",
    "NoServer",
    "NotReadable",
    "NotYetAvailable",
    "OpaqueMismatch",
    "Oracle",
    "OutcomeForgotten",
    "Overloaded",
    "PersistError",
    "Predicate",
    "PreparedBatch",
    "Progress",
    "ReadHandle",
    "ReaderId",
    "RequestTooLarge",
    "Resolved",
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
    "Swept",
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
    "time_of",
]

_MODULES = {
    "Resolved": "persist.client.shard.write.doubts",
    "Client": "persist.client.blocking.client",
    "connect": "persist.client.blocking.client",
    "embedded": "persist.client.blocking.client",
    "Oracle": "persist.client.blocking.oracle",
    "Diffs": "persist.client.blocking.read",
    "Listen": "persist.client.blocking.read",
    "ReadHandle": "persist.client.blocking.read",
    "Snapshot": "persist.client.blocking.read",
    "Table": "persist.client.blocking.table",
    "TableTransaction": "persist.client.blocking.table",
    "SinceHandle": "persist.client.blocking.write",
    "WriteHandle": "persist.client.blocking.write",
    "Progress": "persist.client.shard.read.listen",
    "Updates": "persist.client.shard.read.listen",
    "ShardId": "persist.client.shard_id",
    "Emptied": "persist.client.shard.finalizing",
    "BatchSpec": "persist.client.shard.write.prepared",
    "PreparedBatch": "persist.client.shard.write.prepared",
    "BatchSummary": "persist.client.shard.read.handle",
    "Split": "persist.client.shard.read.split",
    "ArrowCodec": "persist.core.data.codec",
    "BytesCodec": "persist.core.data.codec",
    "Codec": "persist.core.data.codec",
    "Codec64": "persist.core.data.codec",
    "JsonCodec": "persist.core.data.codec",
    "Predicate": "persist.core.data.predicate",
    "Swept": "persist.machine.garbage.sweeper",
    "time_of": "persist.client.shard.times",
    "Schema": "persist.core.data.schema",
    "KeyRange": "persist.core.data.splits",
    "Antichain": "persist.core.frontier",
    "ReaderId": "persist.core.ids",
    "Token": "persist.core.ids",
    "WriterId": "persist.core.ids",
    "Appended": "persist.core.shard.commands",
    "CriticalDowngraded": "persist.core.shard.commands",
    "OpaqueMismatch": "persist.core.shard.commands",
    "Transaction": "persist.core.shard.commands",
    "UpperMismatch": "persist.core.shard.commands",
    "ClockAhead": "persist.core.time.errors",
    "JumpTooLarge": "persist.core.time.errors",
    "UpstreamLost": "persist.core.time.errors",
    "UpstreamRegressed": "persist.core.time.errors",
    "UpstreamReplaced": "persist.core.time.errors",
    "CounterTimeline": "persist.core.time.timeline",
    "EpochMilliseconds": "persist.core.time.timeline",
    "ExternalTimeline": "persist.core.time.timeline",
    "UserTimeline": "persist.core.time.timeline",
    "CodecMismatch": "persist.errors",
    "CorruptData": "persist.errors",
    "Determinate": "persist.errors",
    "EmptyInterval": "persist.errors",
    "ExportStalled": "persist.errors",
    "HistoryRewound": "persist.errors",
    "Indeterminate": "persist.errors",
    "InvalidArgument": "persist.errors",
    "InvalidBounds": "persist.errors",
    "InvalidId": "persist.errors",
    "InvalidUri": "persist.errors",
    "LeaseExpired": "persist.errors",
    "LocationError": "persist.errors",
    "LocationReplaced": "persist.errors",
    "MissingDeadline": "persist.errors",
    "MissingExtra": "persist.errors",
    "NoServer": "persist.errors",
    "NotReadable": "persist.errors",
    "NotYetAvailable": "persist.errors",
    "OutcomeForgotten": "persist.errors",
    "Overloaded": "persist.errors",
    "PersistError": "persist.errors",
    "RequestTooLarge": "persist.errors",
    "SchemaMismatch": "persist.errors",
    "ShardClosed": "persist.errors",
    "ShardNotFound": "persist.errors",
    "StoreFull": "persist.errors",
    "StoreReadOnly": "persist.errors",
    "TypeNotSupported": "persist.errors",
    "AlreadyCommitted": "persist.errors",
    "AmbiguousName": "persist.errors",
    "UnsafeConfiguration": "persist.errors",
    "UsageError": "persist.errors",
    "VersionMismatch": "persist.errors",
    "Settings": "persist.settings",
}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("persist.aio")
    if name == "__version__":
        from importlib.metadata import version

        return version("persist-tvc")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
