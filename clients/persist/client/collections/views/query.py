"""What maintaining a view needs of what runs queries: text and contents at one time in, rows out.

Source: collections: queries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from persist.client.shard.read.snapshot import Snapshot
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import Id, KnownColumns
from persist.errors import UsageError

if TYPE_CHECKING:
    from persist.client.collections.views.kept import KeptRows


class QueryFailed(UsageError):
    """The query cannot be answered over these rows: a division by zero, a value out of range. Correct the rows."""

    reason = "QUERY_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAt:
    """A SELECT with every name in full, as items have it, over ``inputs``, all at the time ``as_of``.

    ``items``: what it names, and what the views that it names do: the inputs, and views that are not stored.
    ``known``: the columns that it was made of where what it names has got more since.
    """

    query: str
    as_of: int
    items: tuple[Described, ...] = ()
    known: tuple[KnownColumns, ...] = ()
    inputs: Mapping[Id, Snapshot] = field(default_factory=dict)


class Refresher(Protocol):
    """Takes a materialized view to its next result: computes its query, and appends what differs.

    For one refresh time there is one result, from any process: the append says where the view stood.
    """

    async def refresh(self, asked: QueryAt, kept: "KeptRows", lower: int, upper: int | None) -> bool:
        """Whether it was this process that took the view from ``lower``, 0 where it has no rows, to ``upper``, with the
        rows of the query at ``asked.as_of``, which lies between. Cancelling it ends the query.

        Raises as ``QueryRunner.run``.
        """
        ...

    def close(self) -> None:
        """Release what it has. Another refresh takes it again."""
        ...


class QueryRunner(Protocol):
    """Runs queries. Whatever the rows and the query are, the same ones give the same rows."""

    async def run(self, asked: QueryAt) -> pa.Table:
        """The rows, in no order; one that is there several times comes several times.

        Cancelling it ends the query. Raises QueryFailed (it would always), and others that may pass: LocationError,
        LeaseExpired, a limit.
        """
        ...

    def close(self) -> None:
        """Release its memory. Another query takes it again."""
        ...
