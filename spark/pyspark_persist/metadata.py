"""Metadata tables: what a shard's state says, as rows (``shard`` plus ``table=parts|batches|frontiers|…``).

Times are signed here, as everywhere in Spark; a closed frontier is null.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

_LONG: Final = pa.int64()
_TEXT: Final = pa.string()


def _schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in fields.items()])


_BATCH: Final = {"lower": _LONG, "upper": _LONG, "since": _LONG, "rows": _LONG, "encoded_bytes": _LONG, "parts": _LONG}

METADATA_SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "frontiers": _schema(since=_LONG, upper=_LONG, seqno=_LONG),
    "batches": _schema(**_BATCH),
    "history": _schema(version=_LONG, **_BATCH),
    "parts": _schema(
        lower=_LONG,
        upper=_LONG,
        run=_LONG,
        key=_TEXT,
        rows=_LONG,
        encoded_bytes=_LONG,
        decoded_bytes=_LONG,
        min_ts=_LONG,
        max_ts=_LONG,
        diffs_sum=_LONG,
        schema_id=_LONG,
        inline=pa.bool_(),
    ),
    "readers": _schema(id=_TEXT, kind=_TEXT, since=_LONG, purpose=_TEXT, detail=_TEXT),
    "writers": _schema(id=_TEXT, detail=_TEXT),
}


def metadata_table(name: str, state: Mapping[str, Any]) -> pa.Table:
    """The rows of one metadata table from what ``client.inspect`` tells."""
    return pa.Table.from_pylist(list(_ROWS[name](state)), schema=METADATA_SCHEMAS[name])
