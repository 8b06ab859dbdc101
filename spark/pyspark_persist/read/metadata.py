"""Metadata tables: what a shard's state says, as rows (``shard`` plus ``table=parts|batches|frontiers|…``).

Times are signed here, as everywhere in Spark; a closed frontier is null.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import pyarrow as pa

from persist.typed import Fields, Record

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
        min_ts=_LONG,
        max_ts=_LONG,
        diffs_sum=_LONG,
        schema_id=_LONG,
        inline=pa.bool_(),
    ),
    "readers": _schema(id=_TEXT, kind=_TEXT, since=_LONG, purpose=_TEXT, detail=_TEXT),
    "writers": _schema(id=_TEXT, detail=_TEXT),
}


def metadata_table(name: str, state: Mapping[str, object]) -> pa.Table:
    """The rows of one metadata table from what ``client.inspect`` returns."""
    return pa.Table.from_pylist(list(_ROWS[name](state)), schema=METADATA_SCHEMAS[name])


def _frontiers(state: Fields) -> Iterable[Record]:
    yield {"since": _time(state["since"]), "upper": _time(state["upper"]), "seqno": state["seqno"]}


def _batches(state: Mapping[str, object]) -> list[Record]:
    """Oldest first."""
    found = []
    for batch in _all_batches(state):
        parts = [part for run in batch["runs"] for part in run]
        size = sum(part["encoded_bytes"] for part in parts)
        bounds = {name: _time(batch[name]) for name in ("lower", "upper", "since")}
        found.append({**bounds, "rows": batch["rows"], "encoded_bytes": size, "parts": len(parts)})
    return sorted(found, key=lambda row: row["lower"])


def _history(state: Mapping[str, object]) -> Iterable[dict[str, object]]:
    """Newest first; ``version`` is the last time the batch covers, which is what ``asOf`` takes."""
    for row in reversed(_batches(state)):
        yield {"version": None if row["upper"] is None else row["upper"] - 1, **row}


def _parts(state: Mapping[str, object]) -> Iterable[dict[str, object]]:
    for batch in _all_batches(state):
        for run, parts in enumerate(batch["runs"]):
            for part in parts:
                yield {"lower": _time(batch["lower"]), "upper": _time(batch["upper"]), "run": run, **part}


def _readers(state: Fields) -> Iterable[Record]:
    for kind in ("leased", "critical"):
        for name, reader in state[f"{kind}_readers"].items():
            row = {"id": name, "kind": kind, "since": _time(reader["since"]), "purpose": reader["purpose"]}
            yield {**row, "detail": json.dumps(reader)}


def _writers(state: Fields) -> Iterable[Record]:
    for name, writer in state["writers"].items():
        yield {"id": name, "detail": json.dumps(writer)}


def _all_batches(state: Fields) -> Iterable[Fields]:
    return (batch for spine_batch in state["spine"] for batch in spine_batch["batches"])


def _time(frontier: list[int]) -> int | None:
    return frontier[0] if frontier else None


_ROWS: Final[Mapping[str, Callable[[Fields], Iterable[Record]]]] = {
    "frontiers": _frontiers,
    "batches": _batches,
    "history": _history,
    "parts": _parts,
    "readers": _readers,
    "writers": _writers,
}
