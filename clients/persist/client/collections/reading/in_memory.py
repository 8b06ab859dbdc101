"""Rows in memory, as what is stored is read.

Source: collections: queries.
"""

from collections.abc import AsyncGenerator, Sequence

import pyarrow as pa

from persist.core.data.predicate import Predicate
from persist.core.data.schema import DIFF, Schema
from persist.core.frontier import CLOSED, Antichain
from persist.errors import InvalidArgument


class Computed:
    """Rows in memory, with what a snapshot has."""

    def __init__(self, schema: Schema, rows: pa.Table) -> None:
        self.schema = schema
        self._rows = rows.append_column(DIFF, pa.repeat(pa.scalar(1, DIFF.type), rows.num_rows))

    @property
    def upper(self) -> Antichain:
        """Nothing is waited for."""
        return CLOSED

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._rows.num_rows

    def output(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The columns of the rows when reading ``columns``. Raises InvalidArgument for unknown ones."""
        return self._chosen(columns).schema

    async def to_arrow(self, columns: Sequence[str] | None = None, where: object = None) -> pa.Table:
        """The rows."""
        return self.table(columns, where)

    def to_batches(
        self, columns: Sequence[str] | None = None, where: object = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows, in batches."""
        return _batches(self.table(columns, where))

    def table(self, columns: Sequence[str] | None = None, where: object = None) -> pa.Table:
        """The rows. Raises InvalidArgument."""
        found = self._rows if where is None else Predicate.parse(where).filter(self._rows)
        return found.select(self._chosen(columns).column_names)

    def _chosen(self, columns: Sequence[str] | None) -> pa.Table:
        names = self._rows.column_names if columns is None else [*columns, DIFF.name]
        unknown = [name for name in names if name not in self._rows.column_names]
        if unknown:
            raise InvalidArgument(
                "no such column", hint=f"the columns are {self._rows.column_names}", columns=", ".join(unknown)
            )
        return self._rows.select(names)


async def _batches(table: pa.Table) -> AsyncGenerator[pa.RecordBatch, None]:
    for batch in table.to_batches():
        yield batch
