"""What came of rows that a session put into tables without an answer: said with an answer, or before they come twice.

Source: docs/adr/0012-numbered-calls.md; docs/guarantees.md, guarantee 12.
"""

from collections.abc import Collection

import pyarrow as pa

from persist.client.sql.errors import SqlFailed
from persist.client.sql.parse.statements import Dml, Insert
from persist.client.table.in_doubt import InDoubt, TablesInDoubt, named
from persist.client.table.table import Table
from persist.core.catalog.ddl.described import Described
from persist.core.ids import ShardId
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp


class OwnDoubts:
    """Those of one session, among those of its client."""

    def __init__(self, doubts: TablesInDoubt) -> None:
        self._doubts = doubts
        self._telling: list[InDoubt] = []

    async def settle(self, timeout: float | None) -> None:
        """Find out what came of all rows that this session put. Raises Determinate: it is not known yet of some."""
        await self._doubts.settle((), timeout, owner=self)

    def notice(self, shards: Collection[ShardId], *, own: bool = True) -> str:
        """What an answer that read these tables has to say besides. Until ``tell`` it counts as not said."""
        news = [each for each in self._doubts.news(shards, self) if own or each.owner is None]
        self._telling += [each for each in news if each not in self._telling]
        return "; ".join(dict.fromkeys(each.news for each in news))

    def tell(self) -> None:
        """The answers are handed over."""
        told, self._telling = self._telling, []
        if told:
            self._doubts.tell(told)

    def lose(self) -> None:
        """The answers are not handed over: an error is."""
        self._telling.clear()

    async def check(self, described: Described, rows: pa.Table, statement: Dml, timeout: float | None) -> None:
        """Raise SqlFailed where rows that were put before, and may be there, would be put again by who does not know.

        Raises Determinate: it is not known yet what came of rows before.
        """
        if not self._doubts or described.data is None:
            return
        await self._doubts.settle([described.data], timeout)
        found = self._doubts.repeated(described.data, self, named(rows), said(statement))
        if found is not None:
            raise SqlFailed(
                found.news,
                hint="nothing of this statement happened: look, and repeat it if you want these rows besides",
                table=described.name,
            )

    def add(self, described: Described, table: Table, rows: pa.Table, statement: Dml) -> None:
        """A write into this table ended without an answer."""
        assert described.data is not None
        doubt = InDoubt(
            shard=described.data,
            name=str(described.name),
            table=table,
            owner=self,
            put=named(rows),
            said=said(statement),
        )
        self._doubts.add(doubt)

    def release(self) -> None:
        """The session ends, or goes to another caller."""
        self._doubts.release(self)


def said(statement: Dml) -> str:
    """A statement whose rows may be others each time, as what it says."""
    if not isinstance(statement, Insert) or not isinstance(statement.query, exp.Expr):
        return ""
    return f"{statement.columns} {statement.query.sql()}"
