"""What one Spark operation asks for, as values.

Source: architecture.md section 8; spark.md section 3.
"""

from dataclasses import dataclass
from typing import Final

from persist_ingest.location import Target

METADATA_TABLES: Final = ("batches", "frontiers", "history", "parts", "readers", "writers")
SNAPSHOT: Final = "snapshot"
DIFFS: Final = "diffs"
CHANGES: Final = "changes"
METADATA: Final = "metadata"

TARGET_PARTITION_BYTES: Final = 96 << 20
HOLD_TTL_SECONDS: Final = 3600
HOLD_MAX_SECONDS: Final = 86_400
TIMEOUT_MS: Final = 120_000
METADATA_LETTERS: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Rows and columns to read: ``where`` text, key bounds ``[key_min, key_max)`` as text, columns in order."""

    columns: tuple[str, ...] | None = None
    where: str | None = None
    key_min: str | None = None
    key_max: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Times asked for, inclusive at both ends; ``start`` may name a place instead of a time, None means default."""

    start: int | str | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Soft limits of one micro-batch: parts, bytes, rows, times. None: no limit."""

    files: int | None = None
    bytes: int | None = None
    rows: int | None = None
    times: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changefeed:
    """How changes are shown: pre and post images paired by key, and whether intermediate changes are dropped."""

    compute_updates: bool = False
    net: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioning:
    """How a read is cut, for how long its plan stays readable when no job runs, and for how long at most.

    ``cores``: how many tasks run at once, for which a read is cut where nothing else was asked for.
    """

    min_partitions: int = 1
    partition_bytes: int = TARGET_PARTITION_BYTES
    cores: int = 1
    hold_ttl_seconds: int = HOLD_TTL_SECONDS
    hold_max_seconds: int = HOLD_MAX_SECONDS


ALL_ROWS: Final = Filters()
DEFAULT_PARTITIONING: Final = Partitioning()
NO_FEED_OPTIONS: Final = Changefeed()
UNLIMITED: Final = Admission()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """One read. ``shape`` is snapshot, diffs, changes or metadata; ``as_of`` None means the newest complete time."""

    target: Target
    shape: str
    as_of: int | None = None
    interval: Interval | None = None
    filters: Filters = ALL_ROWS
    feed: Changefeed = NO_FEED_OPTIONS
    admission: Admission = UNLIMITED
    metadata_table: str | None = None
    partitioning: Partitioning = DEFAULT_PARTITIONING
    wait_ms: int = 0
    pushdown: bool = False
    fail_on_data_loss: bool = True
    ignore_deletes: bool = False
    downgrade_since: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """One write. At most one of ``commit_time`` and the pair ``expected_upper``, ``new_upper`` pins where it lands."""

    target: Target
    commit_time: int | None = None
    expected_upper: int | None = None
    new_upper: int | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    txn_new_since: int = 0
    key_columns: tuple[str, ...] = ()
    merge_schema: bool = False
    user_metadata: str | None = None
