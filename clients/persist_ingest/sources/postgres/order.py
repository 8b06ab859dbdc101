"""The order in which a table is read piece by piece: that of its primary key, as the server has it.

Keys are compared by the server alone, as nothing else knows the order of a type and its collation.
Source: PostgreSQL documentation, row-wise comparison, operator classes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowArray
from persist.typed import Fields
from persist_ingest.sources.postgres.catalog import literal, quoted
from persist_ingest.sources.postgres.definition import PublishedTable
from persist_ingest.sources.postgres.session import UpstreamConnection
from persist_ingest.sources.tables.gathering import Bools

# The operators <, <=, = and > of what the key's index sorts by: those of an extension's type are not found by name.
_KEYS: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), n.nspname, c.collname, (
    SELECT array_agg(format('OPERATOR(%%I.%%s)', s.nspname, p.oprname) ORDER BY m.amopstrategy)
    FROM pg_opclass o
    JOIN pg_amop m ON m.amopfamily = o.opcfamily AND m.amoplefttype = o.opcintype AND m.amoprighttype = o.opcintype
    JOIN pg_operator p ON p.oid = m.amopopr JOIN pg_namespace s ON s.oid = p.oprnamespace
    WHERE o.oid = k.class AND m.amopstrategy IN (1, 2, 3, 5)
      AND m.amopmethod = (SELECT oid FROM pg_am WHERE amname = 'btree'))
FROM pg_index i CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[]) WITH ORDINALITY k(number, class, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE i.indrelid = %(table)s::int8::oid AND i.indisprimary AND k.place <= i.indnkeyatts ORDER BY k.place
"""
_PLAIN: Final = tuple(f"OPERATOR(pg_catalog.{name})" for name in ("<", "<=", "=", ">"))


@dataclass(frozen=True, slots=True)
class Ordered:
    """A column of a primary key, what the export calls it, and how SQL casts text to it.

    ``operators``: how its values are compared: <, <=, = and >.
    """

    name: str
    called: str
    cast: str
    operators: tuple[str, ...] = _PLAIN


@dataclass(frozen=True, slots=True)
class Order:
    """The primary key of a table, and the order that its values have."""

    columns: tuple[Ordered, ...]

    @staticmethod
    def of(session: UpstreamConnection, table: PublishedTable) -> "Order | None":
        """None: there is no such order, or its values are not given as text here."""
        columns = {column.name: column for column in table.columns}
        found = []
        for name, shown, space, collation, operators in session.rows(_KEYS, {"table": table.oid}):
            column = columns.get(name)
            if column is None or not _is_told(column.type.arrow):
                return None
            cast = f"::{shown}" + ("" if collation is None else f" COLLATE {quoted(space, collation)}")
            known = operators is not None and len(operators) == len(_PLAIN)
            found.append(Ordered(name, column.called, cast, tuple(operators) if known else _PLAIN))
        return Order(tuple(found)) if found else None

    @staticmethod
    def from_json(given: Sequence[Fields] | None) -> "Order | None":
        """What ``to_json`` gave, also after JSON."""
        if given is None:
            return None
        return Order(tuple(Ordered(**{**each, "operators": tuple(each["operators"])}) for each in given))

    def to_json(self) -> list[dict[str, object]]:
        """JSON-ready."""
        return [asdict(each) for each in self.columns]

    @property
    def names(self) -> str:
        """The columns, in SQL."""
        return ", ".join(quoted(each.name) for each in self.columns)

    def values(self, key: Sequence[str]) -> list[str]:
        """A key, in SQL."""
        return [literal(text) + each.cast for text, each in zip(key, self.columns, strict=True)]

    def where(self, after: Sequence[str] | None, last: Sequence[str] | None) -> str:
        """Which rows lie behind a key and up to another, in SQL."""
        names = [quoted(each.name) for each in self.columns]
        limits = [] if after is None else [self._is(names, ">", self.values(after))]
        limits += [] if last is None else [self._is(names, "<=", self.values(last))]
        return " AND ".join(limits)

    def _is(self, left: Sequence[str], how: str, right: Sequence[str]) -> str:
        """A comparison of two keys, <= or >, in SQL."""
        if all(each.operators == _PLAIN for each in self.columns):
            return f"({', '.join(left)}) {how} ({', '.join(right)})"
        # A comparison of rows finds operators by their names alone, in the schemas where it is made.
        told = ""
        for one, other, each in reversed(list(zip(left, right, self.columns, strict=True))):
            less, most, same, more = each.operators
            if not told:
                told = f"{one} {most if how == '<=' else more} {other}"
            else:
                told = f"({one} {less if how == '<=' else more} {other} OR {one} {same} {other} AND {told})"
        return told

    def reach(self, session: UpstreamConnection, rows: pa.RecordBatch, keys: Sequence[Sequence[str]]) -> list[Bools]:
        """For each of these keys which rows lie at it or before."""
        given = {f"k{at}": _texts(rows.column(each.called)) for at, each in enumerate(self.columns)}
        arrays = ", ".join(f"%({name})s::text[]" for name in given)
        row = [f"t.k{at}{each.cast}" for at, each in enumerate(self.columns)]
        # Values of keys are texts of any kind, in which a percent sign means nothing.
        tests = ", ".join(
            f"coalesce({self._is(row, '<=', self.values(key))}, false)".replace("%", "%%") for key in keys
        )
        answers = session.rows(
            f"SELECT {tests} FROM unnest({arrays}) WITH ORDINALITY AS t({', '.join(given)}, o) ORDER BY t.o", given
        )
        columns = list(zip(*answers, strict=True)) or [()] * len(keys)
        return [np.array(column, np.bool_) for column in columns]


def _is_told(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _texts(array: ArrowArray) -> list[str | None]:
    """Values in a form that the server reads as the same ones."""
    if pa.types.is_binary(array.type):
        return [None if value is None else "\\x" + value.hex() for value in array.to_pylist()]
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64()).cast(pa.timestamp("us"))
    texts: list[str | None] = array.cast(pa.string()).to_pylist()
    return texts
