"""The order of a table's primary key, in which its pieces lie: as the server compares, which knows collations alone.

A key is written as text that says all of it: bytes and texts in hexadecimal. Whole numbers are compared here, as their
order is the same everywhere; all else is asked of the server, under the character set and the collation of its column.
Source: MariaDB documentation, character sets and collations, comparison operators.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from persist_ingest.sources.mysql import catalog
from persist_ingest.sources.mysql.column_types import ColumnKind, MySqlType, ZeroDates
from persist_ingest.sources.mysql.definition import Table
from persist_ingest.sources.mysql.session import MySqlConnection, quoted
from persist_ingest.sources.tables.gathering import Bools

_WHOLE: Final = frozenset({ColumnKind.INT, ColumnKind.YEAR})
_ROWS_ASKED: Final = 500
"""Comparisons of one question."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key. ``called``: in the export; ``kind``: how its values are written; ``scale``: of decimals.

    ``charset``, ``collation``: of texts.
    """

    name: str
    called: str
    kind: str = "whole"
    digits: int = 0
    scale: int = 0
    charset: str = ""
    collation: str = ""

    @property
    def shown(self) -> str:
        """What a SELECT gives its text by."""
        name = quoted(self.name)
        if self.kind == "text":
            return f"HEX(CONVERT({name} USING utf8mb4))"
        return f"HEX({name})" if self.kind == "bytes" else f"CAST({name} AS CHAR)"

    def literal(self, text: str) -> str:
        """A value, in SQL, as the column would have it."""
        if self.kind == "text":
            charset = f"CONVERT(_utf8mb4 X'{_hex(text)}' USING {_word(self.charset)})"
            return f"{charset} COLLATE {_word(self.collation)}"
        if self.kind == "bytes":
            return f"X'{_hex(text)}'"
        if self.kind == "whole":
            return str(int(text))
        # Digits, signs and what is between them: nothing that could end a text.
        plain = "".join(each for each in text if each in "0123456789-:. ")
        kinds = {"decimal": f"DECIMAL({self.digits},{self.scale})", "date": "DATE"}
        return f"CAST('{plain}' AS {kinds.get(self.kind, 'DATETIME(6)')})"

    def texts(self, rows: pa.RecordBatch) -> list[str]:
        """Its value in each row."""
        write = _WRITTEN[self.kind]
        return [write(value) for value in rows.column(self.called).to_pylist()]


_WRITTEN: Final[Mapping[str, Callable[[object], str]]] = {
    "whole": lambda value: str(value),
    "text": lambda value: str(value).encode().hex(),
    "bytes": lambda value: value.hex() if isinstance(value, bytes) else "",
    "decimal": lambda value: f"{value:f}",
    "date": lambda value: str(value),
    "datetime": lambda value: str(value).partition("+")[0],
}


def _hex(text: str) -> str:
    return bytes.fromhex(text).hex()


def _word(text: str) -> str:
    assert text.replace("_", "").isalnum(), text
    return text


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order in which a table is read: that of its primary key."""

    columns: tuple[KeyColumn, ...]

    @staticmethod
    def of(session: MySqlConnection, table: Table) -> "KeyOrder | None":
        """None: it has no primary key, or one whose values have no text here, or of which a part orders the rows."""
        columns = {column.name: column for column in table.columns}
        there = catalog.key_columns(session, table.database, table.name)
        if not table.key or tuple(each.name for each in there) != table.key or any(each.is_part for each in there):
            return None
        found = []
        for each in there:
            kind = _kind(columns[each.name].type)
            if not kind or (kind == "text" and not (each.charset and each.collation)):
                return None
            declared = columns[each.name]
            found.append(
                KeyColumn(
                    name=each.name,
                    called=declared.called,
                    kind=kind,
                    digits=declared.type.size if kind == "decimal" else 0,
                    scale=declared.type.scale,
                    charset=each.charset if kind == "text" else "",
                    collation=each.collation if kind == "text" else "",
                )
            )
        return KeyOrder(tuple(found))

    @staticmethod
    def from_json(given: Sequence[Sequence[object]] | None) -> "KeyOrder | None":
        """What ``to_json`` gave, also after JSON; of earlier releases names of whole numbers."""
        if given is None:
            return None
        columns = []
        for name, called, *rest in given:
            kind, digits, scale, charset, collation = rest or ("whole", 0, 0, "", "")
            columns.append(
                KeyColumn(
                    str(name), str(called), str(kind), int(str(digits)), int(str(scale)), str(charset), str(collation)
                )
            )
        return KeyOrder(tuple(columns))

    def to_json(self) -> list[list[object]]:
        """JSON-ready."""
        return [
            [each.name, each.called, each.kind, each.digits, each.scale, each.charset, each.collation]
            for each in self.columns
        ]

    @property
    def names(self) -> str:
        """The columns, in SQL."""
        return ", ".join(quoted(each.name) for each in self.columns)

    @property
    def shown(self) -> str:
        """What a SELECT gives a key by."""
        return ", ".join(each.shown for each in self.columns)

    def where(self, after: Sequence[str] | None, last: Sequence[str] | None) -> str:
        """Which rows lie behind a key and up to another, in SQL."""
        limits = [] if after is None else [self._is(">", after)]
        limits += [] if last is None else [self._is("<=", last)]
        return " AND ".join(limits)

    def _is(self, how: str, key: Sequence[str]) -> str:
        """Whether rows lie there, <= or >, in a form by which the server finds a range of its index."""
        values = [each.literal(text) for each, text in zip(self.columns, key, strict=True)]
        names = [quoted(each.name) for each in self.columns]
        found = _compared(how, list(zip(names, values, strict=True)))
        return f"{names[0]} {how[0]}= {values[0]} AND {found}" if len(names) > 1 else found

    def reach(self, session: MySqlConnection, rows: pa.RecordBatch, key: Sequence[str]) -> Bools:
        """Which of these rows lie at that key or before."""
        if all(each.kind == "whole" for each in self.columns):
            return self._reach_of_numbers(rows, key)
        limits = [each.literal(text) for each, text in zip(self.columns, key, strict=True)]
        texts = list(zip(*(each.texts(rows) for each in self.columns), strict=True))
        found = [answer for some in _some(sorted(set(texts))) for answer in self._asked(session, some, limits)]
        known = dict(zip(sorted(set(texts)), found, strict=True))
        return np.fromiter((known[each] for each in texts), np.bool_, len(texts))

    def _asked(self, session: MySqlConnection, keys: Sequence[Sequence[str]], limits: Sequence[str]) -> list[bool]:
        questions = [
            _compared(
                "<=",
                [(each.literal(text), limit) for each, text, limit in zip(self.columns, key, limits, strict=True)],
            )
            for key in keys
        ]
        return [bool(answer) for answer in session.row(f"SELECT {', '.join(questions)}")]

    def _reach_of_numbers(self, rows: pa.RecordBatch, key: Sequence[str]) -> Bools:
        less, same = np.zeros(rows.num_rows, np.bool_), np.ones(rows.num_rows, np.bool_)
        for each, text in zip(self.columns, key, strict=True):
            values = np.asarray(rows.column(each.called))
            value = values.dtype.type(int(text))
            less |= same & (values < value)
            same &= values == value
        return less | same


def _compared(how: str, pairs: Sequence[tuple[str, str]]) -> str:
    """A comparison of two keys, <= or >. Not of rows: the server finds no range of its index by that."""
    less, said = how[0], ""
    for one, other in reversed(pairs):
        said = f"{one} {how} {other}" if not said else f"({one} {less} {other} OR ({one} = {other} AND {said}))"
    return said


def _some(keys: Sequence[Sequence[str]]) -> Iterator[Sequence[Sequence[str]]]:
    for first in range(0, len(keys), _ROWS_ASKED):
        yield keys[first : first + _ROWS_ASKED]


def _kind(declared: MySqlType) -> str:
    """How values of a type are written and compared; empty: in no way that is sure to be the server's."""
    if declared.kind in _WHOLE:
        return "whole"
    if declared.kind is ColumnKind.DECIMAL:
        return "decimal" if pa.types.is_decimal(declared.arrow) else ""
    if declared.kind in (ColumnKind.TEXT, ColumnKind.BYTES):
        return str(declared.kind.value)
    if declared.zero is not ZeroDates.FAIL:
        return ""
    dated = {ColumnKind.DATE: "date", ColumnKind.DATETIME: "datetime", ColumnKind.TIMESTAMP: "datetime"}
    found: str = dated.get(declared.kind, "")
    return found
