"""What an engine that runs queries and refreshes views is given, in one place: for those who bring one.

``pyspark_persist.SparkRunner`` is one. Source: collections: queries; docs/sql.md.
"""

from persist.client.collections.views.query import QueryFailed
from persist.client.shard.write.prepared import PreparedBatch
from persist.client.sql.errors import SqlError, SqlFailed, SqlLimit, SqlNotSupported
from persist.client.sql.run.port import Runner
from persist.client.sql.run.runner import Piece, PlannedQuery, PlannedRefresh, PlannedRows
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.update import consolidate, normalise

__all__ = [
    "DIFF",
    "TS",
    "Piece",
    "PlannedQuery",
    "PlannedRefresh",
    "PlannedRows",
    "PreparedBatch",
    "QueryFailed",
    "Runner",
    "Schema",
    "SqlError",
    "SqlFailed",
    "SqlLimit",
    "SqlNotSupported",
    "consolidate",
    "normalise",
]
