"""What is done about bad rows: fail, or put them into the export ``errors``.

Source: design 003; sources.md section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from persist import Schema
from persist_ingest.sources.port import ERRORS, BadRows, Changes

FAIL: Final = "fail"
DIVERT: Final = "divert"
PAYLOAD_BYTES_MAX: Final = 64 << 10
"""As much of a bad payload is kept."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A message that has not the declared form. ``payload``: its bytes, where there are some."""

    partition: Any
    offset: int
    error: str
    payload: bytes | None


def errors_schema(partition: pa.DataType) -> Schema:
    """The schema of the export ``errors``: key export, partition, offset; val error, payload."""
    return Schema(
        key={
            "export": pa.field("export", pa.string(), nullable=False),
            "partition": pa.field("partition", partition, nullable=False),
            "offset": pa.field("offset", pa.int64(), nullable=False),
        },
        val={"error": pa.field("error", pa.string(), nullable=False), "payload": pa.binary()},
    )


def diverted(export: str, bad: Sequence[BadRow], policy: str, partition: pa.DataType) -> Changes:
    """The bad rows of an export as rows of ``errors``; at least one. Raises BadRows when the policy is to fail."""
    if policy != DIVERT:
        first = bad[0]
        raise BadRows(
            f"a message has not the declared form: {first.error}",
            hint="make another source, with a declaration that fits or with badRows=divert, and drop this one",
            export=export,
            partition=first.partition,
            offset=first.offset,
            payload=(first.payload or b"")[:200],
        )
    schema = errors_schema(partition)
    payloads = [None if each.payload is None else each.payload[:PAYLOAD_BYTES_MAX] for each in bad]
    columns = [
        pa.array([export] * len(bad), pa.string()),
        pa.array([each.partition for each in bad], partition),
        pa.array([each.offset for each in bad], pa.int64()),
        pa.array([each.error for each in bad], pa.string()),
        pa.array(payloads, pa.binary()),
    ]
    return Changes(
        export=ERRORS,
        rows=pa.RecordBatch.from_arrays(columns, schema=pa.schema([*schema.key, *schema.val])),
        offsets=pa.array([each.offset for each in bad], pa.uint64()),
        partitions=pa.array([each.partition for each in bad], partition),
        diffs=pa.array([1] * len(bad), pa.int64()),
    )
