"""The rows behind the golden parts, and the writer of a new set: ``python sample.py NAME`` beside this file.

A set that is committed is never written again: what it holds must stay readable for ever.
"""

import dataclasses
import datetime
import decimal
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from persist.core.data.schema import Schema
from persist.core.data.update import consolidate, normalise
from persist.core.shard.batch import Block, ColumnStats, Part
from persist.wire.columnar import encode_inline, encode_parts

FOLDER = Path(__file__).resolve().parent

SCHEMA = Schema(
    {"id": pa.int64(), "place": pa.struct([("x", pa.int32()), ("name", pa.string())])},
    {
        "text": pa.string(),
        "raw": pa.binary(),
        "number": pa.float64(),
        "price": pa.decimal128(12, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "second": pa.timestamp("s"),
        "took": pa.duration("ms"),
        "clock": pa.time32("s"),
        "flag": pa.bool_(),
        "code": pa.binary(3),
        "tags": pa.list_(pa.string()),
        "pair": pa.list_(pa.int16(), 2),
        "counts": pa.map_(pa.string(), pa.int64()),
    },
)


def rows() -> pa.Table:
    """60 consolidated updates with nulls, NaN, negative zeros and unsorted maps among them."""

    def sometimes(value: Any, at: int) -> Any:
        return None if at % 7 == 3 else value

    numbers = [0.0, -0.0, 1.5, float("nan"), float("-inf"), -2.25]
    ids = [None, *range(-30, 29)]
    columns: dict[str, list[Any]] = {
        "id": ids,
        "place": [sometimes({"x": at % 4, "name": f"p{at % 5}\0"}, at) for at in range(60)],
        "text": [sometimes("é" * (at % 9), at + 1) for at in range(60)],
        "raw": [sometimes(bytes([at, 0, 255]), at + 2) for at in range(60)],
        "number": [numbers[at % 6] for at in range(60)],
        "price": [sometimes(decimal.Decimal(at - 30).scaleb(-2), at) for at in range(60)],
        "day": [sometimes(datetime.date(1969, 12, 1) + datetime.timedelta(days=at), at) for at in range(60)],
        "at": [at * 10**12 - 10**13 for at in range(60)],
        "second": [at * 10**7 - 10**8 for at in range(60)],
        "took": [sometimes(at * 1000, at) for at in range(60)],
        "clock": [at * 60 for at in range(60)],
        "flag": [sometimes(at % 2 == 0, at) for at in range(60)],
        "code": [bytes([at, at + 1, at + 2]) for at in range(60)],
        "tags": [sometimes(["a", None][: at % 3], at) for at in range(60)],
        "pair": [sometimes([at, -at], at) for at in range(60)],
        "counts": [sometimes([("z", at), ("a", None)], at) for at in range(60)],
        "ts": [2**64 - 60 + at for at in range(60)],
        "diff": [at % 5 - 2 or 9 for at in range(60)],
    }
    raw = pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in SCHEMA.updates], schema=SCHEMA.updates)
    return consolidate(normalise(raw, SCHEMA), SCHEMA)


def encoded() -> tuple[bytes, Part, Part]:
    """The file, its description, and the inline part of the same rows."""
    [found] = encode_parts([rows()], SCHEMA, 7, row_group_rows=25)
    return bytes(found.data), found.part, encode_inline(rows(), SCHEMA, 7)


def to_json(part: Part) -> str:
    def plain(value: Any) -> Any:
        return {"hex": value.hex()} if isinstance(value, bytes) else value

    return json.dumps(dataclasses.asdict(part), default=plain, indent=1, sort_keys=True)


def from_json(text: str) -> Part:
    def bytes_back(item: dict[str, Any]) -> Any:
        return bytes.fromhex(item["hex"]) if set(item) == {"hex"} else item

    fields = json.loads(text, object_hook=bytes_back)
    fields["stats"] = tuple(ColumnStats(**item) for item in fields["stats"])
    fields["blocks"] = tuple(Block(**item) for item in fields["blocks"])
    return Part(**fields)


def main(name: str) -> None:
    if (FOLDER / f"{name}.parquet").exists():
        raise SystemExit(f"{name} is there: golden bytes are never replaced")
    data, part, inline = encoded()
    (FOLDER / f"{name}.parquet").write_bytes(data)
    (FOLDER / f"{name}.part.json").write_text(to_json(part) + "\n")
    (FOLDER / f"{name}.inline.json").write_text(to_json(inline) + "\n")
    (FOLDER / f"{name}.schema").write_bytes(SCHEMA.to_bytes())


if __name__ == "__main__":
    main(sys.argv[1])
