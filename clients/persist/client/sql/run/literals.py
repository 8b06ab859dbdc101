"""Rows of literals as Arrow, without a query of their size: of what types they are, DuckDB says of a few of them."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from persist.client.sql.parse.literals import Literals
from persist.client.sql.run.engine import Engine
from persist.core.data.types import T
from persist.typed import Offload

Column: TypeAlias = "pa.Array[Any]"

_KINDS: Final = {"'": "text", "t": "truth", "f": "truth", "n": ""}
"""Of literals by what they begin with; others are numbers, and nulls are of every kind."""


async def rows_of(literals: Literals, engine: Engine, offload: Offload) -> pa.Table | None:
    """The rows, as DuckDB gives those of a query. None: only a query shows that (columns of several kinds, or wide).

    Raises SqlLimit.
    """
    few: str | None = await offload(_representative, literals)
    if few is None:
        return None
    types = (await engine.table(f"SELECT * FROM (VALUES {few}) AS v", {})).schema
    found: pa.Table | None = await offload(_table, literals, types)
    return found


def _representative(literals: Literals) -> str | None:
    """Rows of which the columns have the same types: of each column one value of every form. None: of several kinds."""
    columns = [_forms(column) for column in literals.columns]
    count = max(map(len, columns))
    if any(not column for column in columns):
        return None
    rows = ([column[min(at, len(column) - 1)] for column in columns] for at in range(count))
    return ", ".join(f"({', '.join(row)})" for row in rows)


def _forms(column: Sequence[str]) -> list[str]:
    """One value of every form, of numbers of one form the one that is furthest from zero; empty: of several kinds."""
    kinds: set[str] = set()
    forms: dict[object, str] = {}
    for literal in column:
        kind = _KINDS.get(literal[0].lower(), "number")
        kinds.add(kind)
        form: object = kind
        if kind == "number":
            form = (literal[0] == "-", literal.find("."), len(literal))
            # As many digits with the same sign: they stand in the order of texts.
            literal = max(literal, forms.get(form, literal))
        forms[form] = "''" if kind == "text" else literal
    return list(forms.values()) if len(kinds - {""}) <= 1 else []


def _table(literals: Literals, types: pa.Schema) -> pa.Table | None:
    try:
        columns = [_column(column, kind) for column, kind in zip(literals.columns, types.types, strict=True)]
    except (pa.ArrowException, ValueError):
        # Nothing that this says is what a query would say of it.
        return None
    given = [column for column in columns if column is not None]
    return pa.Table.from_arrays(given, schema=types) if len(given) == len(columns) else None


def _column(column: Sequence[str], kind: pa.DataType) -> "Column | None":
    if T.is_null(kind):
        return pa.nulls(len(column))
    texts = [None if literal[0] in "nN" else literal for literal in column]
    if T.is_string(kind):
        return pa.array([None if text is None else text[1:-1].replace("''", "'") for text in texts], kind)
    if T.is_boolean(kind):
        return pa.array([None if text is None else text[0] in "tT" for text in texts], kind)
    if T.is_integer(kind) or T.is_decimal128(kind):
        return pa.array(texts, pa.string()).cast(kind)
    return None
