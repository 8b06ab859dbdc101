"""Tables whose rows a session put without an answer: it finds out what came of them before its next statement.

Until then they may still come, and who looks for them, sees none and puts them again has them twice. Rows of tables in
a log come with its next write or never. Source: docs/adr/0012-numbered-calls.md; docs/guarantees.md, guarantee 12.
"""

from typing import Final

from persist.client.shard.write.doubts import Resolved
from persist.client.sql.errors import SqlFailed
from persist.client.table.table import Table
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import Id
from persist.errors import Determinate, LocationError, PersistError

_HAPPENED: Final = "the rows put into {} before, without an answer, are there"
_NOT: Final = "the rows put into {} before, without an answer, are not there, and will not be"
_FORGOTTEN: Final = "whether the rows put into {} before, without an answer, are there is not known: no more will come"


class TablesInDoubt:
    """Of one session."""

    def __init__(self) -> None:
        self._open: dict[Id, tuple[Described, Table]] = {}
        self._news: dict[Id, str] = {}

    def add(self, described: Described, table: Table) -> None:
        """A write into this table ended without an answer."""
        self._open[described.id] = described, table

    async def settle(self, timeout: float | None) -> str:
        """Find out what came of all; what the user should know. Raises Determinate: it is not known yet of one."""
        told: list[str] = []
        self._news = {}
        for id, (described, table) in list(self._open.items()):
            resolved: tuple[Resolved, ...] | None
            try:
                resolved = await table.resolve(timeout=timeout)
            except LocationError as error:
                raise Determinate(
                    "rows of a statement before this one may still come into a table: nothing of this one happened",
                    hint="repeat it: what came of those is looked for first",
                    table=described.name,
                    detail=error,
                ) from error
            except PersistError:
                # The table was dropped, or the location restored: nothing more comes.
                resolved = None
            del self._open[id]
            if resolved is None or any(each.forgotten for each in resolved):
                self._news[id] = _FORGOTTEN.format(described.name)
            elif any(each.appended is not None for each in resolved):
                self._news[id] = _HAPPENED.format(described.name)
            else:
                told.append(_NOT.format(described.name))
        return "; ".join([*told, *self._news.values()])

    def check(self, described: Described) -> None:
        """Raise SqlFailed where a statement puts rows into a table just when rows put before came to light there.

        It may be the same rows again, by a user who does not know that yet.
        """
        if described.id in self._news:
            raise SqlFailed(
                self._news[described.id],
                hint="nothing of this statement happened: look, and repeat it if you want these rows besides",
                table=described.name,
            )
