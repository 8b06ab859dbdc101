"""The option table: every name the data source knows, its aliases, where it applies, and what to do about the rest.

Names are matched without case. Source: architecture.md section 8; spark.md section 3.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument
from persist_ingest.given import Given

READ: Final = "batch read"
FEED: Final = "change feed"
STREAM: Final = "streaming read"
WRITE: Final = "batch write"
SINK: Final = "streaming write"

_READS: Final = frozenset({READ, FEED, STREAM})
_WRITES: Final = frozenset({WRITE, SINK})
_ALL: Final = _READS | _WRITES


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its canonical spelling, other accepted spellings, and the operations it means something to."""

    name: str
    uses: frozenset[str]
    aliases: tuple[str, ...] = ()


OPTIONS: Final = (
    Option(name="location", uses=_ALL),
    Option(name="endpoint", uses=_ALL),
    Option(name="blob", uses=_ALL),
    Option(name="consensus", uses=_ALL),
    Option(name="shard", uses=_ALL),
    Option(name="table", uses=_ALL),
    Option(name="path", uses=_ALL),
    Option(name="timeoutMs", uses=_ALL),
    Option(name="mode", uses=_READS),
    Option(name="columns", uses=_READS, aliases=("select",)),
    Option(name="where", uses=_READS),
    Option(name="keyMin", uses=_READS),
    Option(name="keyMax", uses=_READS),
    Option(name="minPartitions", uses=_READS),
    Option(name="targetPartitionBytes", uses=_READS),
    Option(name="holdTtlSeconds", uses=_READS),
    Option(name="holdMaxSeconds", uses=frozenset({READ, FEED})),
    Option(name="waitForUpperMs", uses=frozenset({READ, FEED})),
    Option(name="pushdown", uses=frozenset({READ})),
    Option(name="asOf", uses=frozenset({READ}), aliases=("versionAsOf",)),
    Option(name="timestampAsOf", uses=frozenset({READ})),
    Option(name="readChangeFeed", uses=frozenset({FEED, STREAM}), aliases=("readChangeData",)),
    Option(name="startingVersion", uses=_READS),
    Option(name="startingTimestamp", uses=_READS),
    Option(name="endingVersion", uses=frozenset({READ, FEED})),
    Option(name="endingTimestamp", uses=frozenset({READ, FEED})),
    Option(name="startingBoundInclusive", uses=_READS),
    Option(name="endingBoundInclusive", uses=frozenset({READ, FEED})),
    Option(name="deduplicationMode", uses=frozenset({FEED, STREAM})),
    Option(name="computeUpdates", uses=frozenset({FEED, STREAM})),
    Option(name="withSnapshot", uses=frozenset({STREAM})),
    Option(name="maxFilesPerTrigger", uses=frozenset({STREAM})),
    Option(name="maxBytesPerTrigger", uses=frozenset({STREAM})),
    Option(name="maxRowsPerTrigger", uses=frozenset({STREAM})),
    Option(name="maxTimesPerTrigger", uses=frozenset({STREAM})),
    Option(name="failOnDataLoss", uses=frozenset({STREAM})),
    Option(name="ignoreDeletes", uses=frozenset({STREAM})),
    Option(name="downgradeSince", uses=frozenset({STREAM})),
    Option(name="skipChangeCommits", uses=frozenset({STREAM})),
    Option(name="commitTime", uses=frozenset({WRITE})),
    Option(name="expectedUpper", uses=frozenset({WRITE})),
    Option(name="newUpper", uses=frozenset({WRITE})),
    Option(name="txnAppId", uses=_WRITES),
    Option(name="txnVersion", uses=frozenset({WRITE})),
    Option(name="txnNewSince", uses=_WRITES),
    Option(name="keyColumns", uses=_WRITES),
    Option(name="userMetadata", uses=_WRITES),
    Option(name="mergeSchema", uses=_WRITES),
)

_BY_NAME: Final = {spelling.lower(): option for option in OPTIONS for spelling in (option.name, *option.aliases)}

# Spark's own keys, handed to every source or sink; and the list form of ``path``.
_FROM_SPARK: Final = frozenset(
    {"checkpointlocation", "queryname", "outputmode", "serialization.format", "provider", "paths"}
)

VIEW: Final = "use CREATE TEMPORARY VIEW name USING persist OPTIONS (location '/data', table 'flights')"
"""What to do instead of CREATE TABLE: Spark keeps a table's options, and hands none of them to Python sources."""

_DECLINED: Final = {
    "maxrecordsperfile": "parts are cut by bytes: set PERSIST_PART_BYTES_MAX",
    "targetpartbytes": "set PERSIST_PART_BYTES_MAX in the environment of driver and executors",
    "partitionoverwritemode": "a shard has no partitions: mode('overwrite') replaces its content at the commit time",
    "replacewhere": "PersistTable.overwrite(df, where=) replaces the rows for which a condition holds",
    "overwriteschema": "a schema may only gain nullable columns: use mergeSchema, or write to a new shard",
}

NAMES_OF_SHARDS: Final = ("shard", "table", "path")
"""The options that say which shard is meant."""


def check_names(raw: Mapping[str, str], use: str) -> Given:
    """The options under their canonical names. Raises InvalidArgument for unknown, misplaced and doubled ones."""
    if any(key.lower() == "owner" or key.lower().startswith("option.") for key in raw):
        raise InvalidArgument("persist has no tables in Spark's catalog: Spark would not find them again", hint=VIEW)
    values: dict[str, str] = {}
    for key, text in raw.items():
        lower = key.lower()
        if lower in _FROM_SPARK:
            continue
        option = _BY_NAME.get(lower)
        if option is None:
            raise _unknown(key, use)
        if use not in option.uses:
            raise InvalidArgument(
                f"option {option.name} does not apply to a {use}",
                hint=f"it belongs to: {', '.join(sorted(option.uses))}",
            )
        if option.name in values:
            raise InvalidArgument(
                f"option {option.name} is given twice, under two names", hint="keep one of them", got=key
            )
        values[option.name] = text
    return Given(use=use, values=values)


def _unknown(key: str, use: str) -> InvalidArgument:
    declined = _DECLINED.get(key.lower())
    if declined is not None:
        return InvalidArgument(f"option {key} is not supported", hint=declined)
    if key.lower().startswith("s3."):
        return InvalidArgument(
            f"option {key} is not supported", hint="configure S3 through the blob URI or the AWS_* environment"
        )
    close = difflib.get_close_matches(key.lower(), _BY_NAME, n=1, cutoff=0.6)
    if close:
        hint = f"did you mean {_BY_NAME[close[0]].name}?"
    else:
        hint = f"known for a {use}: {', '.join(sorted(_known(use)))}"
    return InvalidArgument(f"unknown option {key}", hint=hint)


def _known(use: str) -> Iterable[str]:
    return (option.name for option in OPTIONS if use in option.uses)
