"""What maintaining a view needs of what runs queries: text and contents at one time in, rows out.

Source: collections: queries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from persist.client.shard.read.snapshot import Snapshot
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import Id, KnownColumns
from persist.errors import UsageError


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
