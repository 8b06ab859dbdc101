"""Bytes as texts, as PostgreSQL writes them: DuckDB writes those that are letters as letters.

Source: docs/sql.md, queries; the documentation of PostgreSQL, binary data types.
"""

import functools
from collections.abc import Iterator
from typing import Final

from persist.client.sql.bind.matching.kinds import Kinds
from persist.client.sql.bind.typed import TEXTS, Change, put, word_of
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_WRITTEN: Final = "'\\x' || lower(hex(x))"


class Bytes:
    """Of one query; see ``checks.Finder``."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def changes(self, query: exp.Expr) -> Iterator[Change]:
        """Bytes that are cast to texts, and counted."""
        for node in query.find_all(exp.Length, exp.Anonymous):
            if isinstance(node, exp.Length) and self._kinds.of(node.this) == "bytes":
                yield node, functools.partial(_count, node, "octet_length", node.this)
            elif node.name.lower() == "octet_length" and len(counted := node.expressions) == 1:
                is_text = self._kinds.of(counted[0]) in ("text", "literal")
                yield from [(node, functools.partial(_count, node, "strlen", counted[0]))] if is_text else []
        for node in query.find_all(exp.Cast):
            if word_of(node.to) in TEXTS - {"USERDEFINED"} and self._kinds.of(node.this) == "bytes":
                yield node.this, functools.partial(_write, node)


def _count(node: exp.Expr, name: str, counted: exp.Expr) -> None:
    """The bytes of a value, which DuckDB calls otherwise for each type."""
    node.replace(exp.Anonymous(this=name, expressions=[counted]))


def _write(cast: exp.Cast) -> None:
    cast.set("this", exp.paren(put(_WRITTEN, x=cast.this)))
