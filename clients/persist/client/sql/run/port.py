"""The port of an engine that runs queries beside DuckDB: implemented where that engine is known, never here.

Source: collections: queries.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from persist.client.shard.write.prepared import PreparedBatch
    from persist.client.sql.run.runner import PlannedQuery, PlannedRefresh


class Runner(Protocol):
    """An engine outside this package. ``name``: what SET runner and WITH (RUNNER = …) call it.

    It is asked on the event loop and waits elsewhere; what is cancelled ends its work. Raises SqlFailed and QueryFailed
    for what is wrong with the query or its rows, which it would be again, and other errors for what may pass.
    """

    name: str

    async def run(self, query: "PlannedQuery") -> pa.Table:
        """The rows of a query, with the columns of its ``schema``; in its order where it has one."""
        ...

    async def plan(self, query: "PlannedQuery") -> str:
        """How it would run a query."""
        ...

    async def refresh(self, refresh: "PlannedRefresh") -> "Sequence[PreparedBatch]":
        """Parts, in Blob, whose rows with their diffs make the view's new rows of its current ones. Appends nothing."""
        ...
