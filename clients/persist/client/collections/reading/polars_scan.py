"""Polars reads the columns and parts that a lazy query needs: what it filters by is passed to the store as far as that
understands it, and applied by Polars again.

Source: Polars, IO plugins; docs/reference of Predicate.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import polars
import pyarrow as pa
import pyarrow.types as types

from persist.core.data.predicate import Predicate
from persist.core.data.predicates.condition import Condition

_OPS: Final = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_TURNED: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

Read = Callable[[Sequence[str] | None, Predicate], pa.RecordBatchReader]


def scan(schema: pa.Schema, read: Read) -> polars.LazyFrame:
    """A LazyFrame of what ``read`` gives for columns and conditions."""

    def batches(
        columns: list[str] | None, predicate: polars.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[polars.DataFrame]:
        left = n_rows
        wanted = schema.names if columns is None else columns
        needed = wanted if predicate is None else [*wanted, *predicate.meta.root_names()]
        for batch in read(_distinct(needed), pushed(schema, predicate)):
            frame = polars.from_arrow(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            frame = frame.select(wanted)
            frame = frame if left is None else frame.head(left)
            left = None if left is None else left - len(frame)
            yield frame
            if left == 0:
                return

    given = polars.from_arrow(schema.empty_table()).schema
    return polars.io.plugins.register_io_source(batches, schema=given, is_pure=True)


def pushed(schema: pa.Schema, predicate: polars.Expr | None) -> Predicate:
    """What of a Polars expression the store understands: no row that it keeps is without it. Never raises."""
    if predicate is None:
        return Predicate()
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except (polars.exceptions.ComputeError, ValueError):
        return Predicate()
    return Predicate(tuple(_conditions(schema, tree)))


def _conditions(schema: pa.Schema, tree: object) -> Iterator[Condition]:
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _conditions(schema, left)
            yield from _conditions(schema, right)
        case {"BinaryExpr": {"left": {"Column": str(column)}, "op": str(op), "right": {"Literal": literal}}}:
            yield from _comparison(schema, column, _OPS.get(op), _value(literal))
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": str(op), "right": {"Column": str(column)}}}:
            yield from _comparison(schema, column, _TURNED.get(_OPS.get(op, "")), _value(literal))


def _comparison(schema: pa.Schema, column: str, op: str | None, value: object) -> Iterator[Condition]:
    """SUBTLE: whole numbers and texts only. Others compare in ways of their own: NaN, decimals, zones, nulls."""
    if op is None or column == "diff" or column not in schema.names:
        return
    stored = schema.field(column).type
    fits = (types.is_integer(stored) and type(value) is int) or (
        (types.is_string(stored) or types.is_large_string(stored)) and isinstance(value, str)
    )
    if fits and (not types.is_integer(stored) or _in_range(stored, value)):
        yield Condition(column, op, value)


def _in_range(stored: pa.DataType, value: object) -> bool:
    if not isinstance(value, int):
        return False
    signed = bool(types.is_signed_integer(stored))
    bits = stored.bit_width - signed
    return bool((-(1 << bits) if signed else 0) <= value < (1 << bits))


def _value(literal: object) -> object:
    match literal:
        case {"Dyn": {"Int": int(value)}}:
            return value
        case {"Scalar": {"String": str(value)} | {"Dyn": {"Str": str(value)}}} | {"Dyn": {"Str": str(value)}}:
            return value
        case {"Scalar": dict(scalar)} if len(scalar) == 1:
            kind, value = next(iter(scalar.items()))
            return value if kind in _INTEGERS and type(value) is int else None
    return None


_INTEGERS: Final = {f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}


def _distinct(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name != "diff"]
