"""What became of a statement."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from persist.client.collections.plain import values_of
from persist.typed import SqlRow


@dataclass(frozen=True, slots=True)
class Result:
    """``tag``: such as ``SELECT 3`` or ``CREATE TABLE``; ``table``: its rows, None for statements without any.

    ``ts``: the time it was read, or written, at. ``notice``: what the user should know.
    """

    tag: str
    table: pa.Table | None = None
    ts: int | None = None
    notice: str = ""

    @property
    def rows(self) -> list[SqlRow]:
        """The rows as tuples; none for statements without any."""
        if self.table is None:
            return []
        columns = [values_of(column) for column in self.table.columns]
        return list(zip(*columns, strict=True)) if columns else [()] * self.table.num_rows

    @property
    def columns(self) -> tuple[str, ...]:
        """What the columns are called."""
        return () if self.table is None else tuple(self.table.schema.names)

    def to_arrow(self) -> pa.Table:
        """The rows; without any, a table without columns."""
        return pa.table({}) if self.table is None else self.table

    def __iter__(self) -> Iterator[SqlRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return 0 if self.table is None else self.table.num_rows

    def __repr__(self) -> str:
        """What became of it, its columns, and when; its rows are not in it."""
        columns = f" of {', '.join(self.columns)}" if self.columns else ""
        return f"<Result {self.tag}{columns}{'' if self.ts is None else f' at {self.ts}'}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows, for libraries that take Arrow streams. Source: the Arrow PyCapsule interface."""
        stream: object = self.to_arrow().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]  # of Arrow
        return stream
