"""From the text of options to values, with every contradiction named.

Every mistake is an InvalidArgument with the next step, raised on the driver before anything happens.
Source: architecture.md section 8; spark.md section 3.
"""

import datetime
import json
from collections.abc import Mapping
from typing import Final

import persist
from persist import InvalidArgument
from persist.digits import whole_number
from persist_ingest.given import Given
from persist_ingest.location import Location, Target
from pyspark_persist.options.names import FEED, READ, STREAM, VIEW, WRITE, check_names
from pyspark_persist.options.options import (
    CHANGES,
    DIFFS,
    HOLD_MAX_SECONDS,
    HOLD_TTL_SECONDS,
    METADATA,
    METADATA_LETTERS,
    METADATA_TABLES,
    SNAPSHOT,
    TARGET_PARTITION_BYTES,
    TIMEOUT_MS,
    Admission,
    Changefeed,
    Filters,
    Interval,
    Partitioning,
    ReadOptions,
    WriteOptions,
)


def parse_schema_target(raw: Mapping[str, str]) -> ReadOptions:
    """Options when Spark asks for the schema, which does not distinguish batch from streaming: either will do."""
    lower = {key.lower() for key in raw}
    only_streams = {"withsnapshot", "failondataloss", "ignoredeletes", "downgradesince", "skipchangecommits"}
    if lower & only_streams or any(key.startswith("max") and key.endswith("pertrigger") for key in lower):
        return parse_stream(raw)
    try:
        return parse_read(raw)
    except InvalidArgument as batch:
        try:
            return parse_stream(raw)
        except InvalidArgument:
            raise batch from None


def parse_read(raw: Mapping[str, str], *, cores: int = 1) -> ReadOptions:
    """The options of ``spark.read.format("persist")``, in a session that runs ``cores`` tasks at once."""
    feed = _is_true(raw, "readChangeFeed") or _is_true(raw, "readChangeData")
    given = check_names(raw, FEED if feed else READ)
    target, metadata_table = _target(given)
    if metadata_table is not None:
        return ReadOptions(target=target, shape=METADATA, metadata_table=metadata_table)
    diffs = _diffs_asked(given)
    if feed and diffs:
        raise InvalidArgument("options readChangeFeed and mode=diffs exclude each other", hint="keep one of them")
    interval = _interval(given, ("earliest", "latest"))
    if interval is not None and not feed and not diffs:
        raise InvalidArgument(
            "startingVersion asks for changes, this read is of a snapshot",
            hint="add readChangeFeed=true (or mode=diffs), or use asOf",
        )
    if feed and interval is None:
        raise InvalidArgument("readChangeFeed needs a start", hint="add startingVersion (a time, or earliest)")
    as_of = _one_time(given, "asOf", "timestampAsOf")
    if as_of is not None and interval is not None:
        raise InvalidArgument("options asOf and startingVersion exclude each other", hint="keep one of them")
    shape = _shape(feed, diffs)
    return ReadOptions(
        target=target,
        shape=shape,
        as_of=as_of,
        interval=interval,
        filters=_filters(given),
        feed=_changefeed(given),
        pushdown=given.flag("pushdown", False),
        wait_ms=given.whole("waitForUpperMs") or 0,
        partitioning=_partitioning(given, cores),
    )


def parse_stream(raw: Mapping[str, str]) -> ReadOptions:
    """The options of ``spark.readStream.format("persist")``."""
    given = check_names(raw, STREAM)
    target, metadata_table = _target(given)
    if metadata_table is not None:
        raise InvalidArgument(
            "a metadata table cannot be streamed", hint="read it with spark.read", table=metadata_table
        )
    feed = given.flag("readChangeFeed", False)
    diffs = _diffs_asked(given)
    if feed and diffs:
        raise InvalidArgument("options readChangeFeed and mode=diffs exclude each other", hint="keep one of them")
    if given.flag("skipChangeCommits", False) and not (feed or diffs):
        raise InvalidArgument(
            "skipChangeCommits is not supported: it would silently drop whole commits",
            hint="use readChangeFeed=true or mode=diffs, or ignoreDeletes=true",
        )
    shape = _shape(feed, diffs)
    return ReadOptions(
        target=target,
        shape=shape,
        interval=_stream_start(given),
        filters=_filters(given),
        feed=_changefeed(given),
        admission=Admission(
            files=given.whole("maxFilesPerTrigger", least=1),
            bytes=_size(given, "maxBytesPerTrigger"),
            rows=given.whole("maxRowsPerTrigger", least=1),
            times=given.whole("maxTimesPerTrigger", least=1),
        ),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        ignore_deletes=given.flag("ignoreDeletes", False),
        downgrade_since=given.flag("downgradeSince", False),
        partitioning=_partitioning(given),
    )


def parse_write(raw: Mapping[str, str], use: str) -> WriteOptions:
    """The options of ``df.write`` (``use`` is names.WRITE) or ``df.writeStream`` (names.SINK)."""
    given = check_names(raw, use)
    target, metadata_table = _target(given)
    if metadata_table is not None:
        raise InvalidArgument("a metadata table cannot be written", hint="drop the table option", table=metadata_table)
    given.requires("newUpper", "expectedUpper")
    given.requires("expectedUpper", "newUpper", "commitTime")
    if "commitTime" in given.values and "newUpper" in given.values:
        raise InvalidArgument(
            "options commitTime and newUpper exclude each other", hint="commitTime t moves the upper to t + 1: keep one"
        )
    _check_order(given, "commitTime", "must not lie below expectedUpper", least=0)
    _check_order(given, "newUpper", "must lie beyond expectedUpper", least=1)
    app_id = given.get("txnAppId")
    if use == WRITE and (app_id is None) != ("txnVersion" not in given.values):
        raise InvalidArgument("txnAppId and txnVersion go together", hint="give both, or neither")
    if use == WRITE:
        given.requires("txnNewSince", "txnAppId")
    if app_id is not None:
        persist.Transaction(app_id=app_id, version=0)  # or it would be refused only once all tasks have written
    return WriteOptions(
        target=target,
        commit_time=given.whole("commitTime"),
        expected_upper=given.whole("expectedUpper"),
        new_upper=given.whole("newUpper"),
        txn_app_id=app_id,
        txn_version=given.whole("txnVersion"),
        txn_new_since=given.whole("txnNewSince") or 0,
        key_columns=tuple(_names(given.get("keyColumns"))),
        merge_schema=given.flag("mergeSchema", False),
        user_metadata=_metadata(given),
    )


def _metadata(given: Given) -> str | None:
    text = given.get("userMetadata")
    if text is not None and len(text) > METADATA_LETTERS:
        raise InvalidArgument("userMetadata is too long", hint=f"{METADATA_LETTERS} letters at most", letters=len(text))
    return text


def _check_order(given: Given, name: str, must: str, *, least: int) -> None:
    """A time that is given beside expectedUpper lies at least so far beyond it."""
    time, expected = given.whole(name), given.whole("expectedUpper")
    if time is not None and expected is not None and time < expected + least:
        raise InvalidArgument(
            f"{name} {must}", hint="expectedUpper is where the shard ends now", got=time, expected_upper=expected
        )


def _shape(feed: bool, diffs: bool) -> str:
    if feed:
        return CHANGES
    return DIFFS if diffs else SNAPSHOT


def epoch_ms(text: str, name: str) -> int:
    """A time from a timestamp that says its zone, or a word: milliseconds since 1970. Raises InvalidArgument."""
    if text.strip().isdecimal():
        raise InvalidArgument(f"option {name} must be an ISO timestamp", hint="e.g. 2013-07-01T12:00:00Z", got=text)
    return _moment(text, name)


def check_time(given: object, name: str) -> None:
    """Refuse what is no time. Raises InvalidArgument."""
    if type(given) is not int or given < 0:
        raise InvalidArgument(f"{name} is a time: a whole number, from 0", got=given)


def _moment(text: str, name: str) -> int:
    """A time as people give one, in any form. A date or timestamp says its zone: Spark would read it in its session's,
    which is not known here.
    """
    if (moment := _calendar(text)) is not None and moment.tzinfo is None:
        example = moment.isoformat()
        raise InvalidArgument(f"option {name} must say its zone", hint=f"e.g. {example}Z, or {example}-05:00", got=text)
    try:
        return persist.time_of(text)
    except InvalidArgument as cause:
        hint = "a whole number, or e.g. 2013-07-01T12:00:00Z, now, -5m; none before 1970"
        raise InvalidArgument(f"option {name} must be an ISO timestamp, or a time", hint=hint, got=text) from cause


def _calendar(text: str) -> datetime.datetime | None:
    try:
        return None if text.strip().isdecimal() else datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def _is_true(raw: Mapping[str, str], name: str) -> bool:
    return any(key.lower() == name.lower() and text.strip().lower() == "true" for key, text in raw.items())


def _target(given: Given) -> tuple[Target, str | None]:
    """Where, and the metadata table asked for (``table`` is one only beside a shard)."""
    table = given.get("table")
    metadata = None
    named_otherwise = "shard" in given.values or "path" in given.values
    if table is not None and named_otherwise and table.lower() in METADATA_TABLES:
        metadata, table = table.lower(), None
    named = {"shard": given.get("shard"), "path": given.get("path"), "table": table}
    present = [name for name, text in named.items() if text]
    if len(present) > 1:
        hint = f"keep one; table beside shard names a metadata table: {', '.join(METADATA_TABLES)}"
        raise InvalidArgument(f"options {' and '.join(present)} name the shard more than once", hint=hint)
    if not present:
        hint = 'add .option("shard", "s…") or .option("table", "name")'
        if not given.values:
            hint += f". If this is a table of Spark's catalog: it cannot be used, drop it. {VIEW}"
        raise InvalidArgument("no shard is named", hint=hint)
    given.exclusive("location", "endpoint")
    given.exclusive("location", "consensus")
    given.exclusive("endpoint", "consensus")
    location = Location(
        directory=given.get("location"),
        endpoint=given.get("endpoint"),
        blob=given.get("blob"),
        consensus=given.get("consensus"),
    )
    timeout_ms = given.whole("timeoutMs", least=1) or TIMEOUT_MS
    name = named[present[0]] or ""
    return Target.of(location, name, kind=present[0], timeout=timeout_ms / 1000), metadata


def _diffs_asked(given: Given) -> bool:
    mode = given.get("mode")
    if mode is None or mode.lower() == SNAPSHOT:
        return False
    if mode.lower() != DIFFS:
        raise InvalidArgument(
            "option mode must be snapshot or diffs", hint="changes are read with readChangeFeed", got=mode
        )
    return True


def _filters(given: Given) -> Filters:
    columns = given.get("columns")
    return Filters(
        columns=tuple(_names(columns)) if columns is not None else None,
        where=given.get("where"),
        key_min=given.get("keyMin"),
        key_max=given.get("keyMax"),
    )


def _names(text: str | None) -> list[str]:
    if text is None:
        return []
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError as cause:
            raise InvalidArgument("a list of columns must be names with commas or a JSON list", got=text) from cause
        return [str(name) for name in listed]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidArgument("a list of columns holds an empty name", hint="write a,b,c", got=text)
    return names


def _changefeed(given: Given) -> Changefeed:
    deduplication = given.get("deduplicationMode")
    if deduplication is not None and deduplication.lower() not in {"none", "dropcarryovers", "netchanges"}:
        raise InvalidArgument(
            "unknown deduplicationMode",
            hint="none (rows never carry over here: dropCarryovers is the same) or netChanges",
            got=deduplication,
        )
    net = deduplication is not None and deduplication.lower() == "netchanges"
    return Changefeed(compute_updates=given.flag("computeUpdates", False), net=net)


def _partitioning(given: Given, cores: int = 1) -> Partitioning:
    count, size = given.whole("minPartitions", least=1), _size(given, "targetPartitionBytes")
    return Partitioning(
        min_partitions=count or 1,
        partition_bytes=size or TARGET_PARTITION_BYTES,
        cores=cores if count is None and size is None else 1,
        hold_ttl_seconds=given.whole("holdTtlSeconds", least=1) or HOLD_TTL_SECONDS,
        hold_max_seconds=given.whole("holdMaxSeconds", least=1) or HOLD_MAX_SECONDS,
    )


_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def _size(given: Given, name: str) -> int | None:
    """Bytes from Spark's notation: 1048576, 64m, 1g."""
    text = given.get(name)
    if text is None:
        return None
    lowered = text.strip().lower()
    digits = lowered.rstrip("bkmg")
    unit = lowered[len(digits) :]
    number = whole_number(digits)
    if not number or unit not in _UNITS:
        raise InvalidArgument(f"option {name} must be a size", hint="e.g. 1048576, 64m or 1g", got=text)
    return number * _UNITS[unit]


def _one_time(given: Given, version: str, timestamp: str) -> int | None:
    name = given.exclusive(version, timestamp)
    if name == timestamp:
        return epoch_ms(given.values[timestamp], timestamp)
    text = given.get(version)
    return given.whole(version) if text is None or text.strip().lstrip("-").isdecimal() else _moment(text, version)


def _start(given: Given, places: tuple[str, ...]) -> int | str | None:
    name = given.exclusive("startingVersion", "startingTimestamp")
    if name is None:
        return None
    if name == "startingTimestamp":
        return _after(epoch_ms(given.values[name], name), given.flag("startingBoundInclusive", True))
    text = given.values[name].strip()
    if text.lower() in places:
        return text.lower()
    try:
        time = _moment(text, name)
    except InvalidArgument as cause:
        raise InvalidArgument(
            f"startingVersion must be a time, {' or '.join(places)}", hint=cause.hint, got=text
        ) from cause
    return _after(time, given.flag("startingBoundInclusive", True))


def _after(time: int, inclusive: bool) -> int:
    return time if inclusive else time + 1


def _interval(given: Given, places: tuple[str, ...]) -> Interval | None:
    start = _start(given, places)
    end = _one_time(given, "endingVersion", "endingTimestamp")
    given.requires("endingBoundInclusive", "endingVersion", "endingTimestamp")
    given.requires("startingBoundInclusive", "startingVersion", "startingTimestamp")
    if start is None:
        if end is not None:
            raise InvalidArgument("endingVersion needs a start", hint="add startingVersion (a time, or earliest)")
        return None
    if end is not None and not given.flag("endingBoundInclusive", True):
        if end == 0:
            raise InvalidArgument("no time lies before endingVersion 0", hint="drop endingBoundInclusive")
        end -= 1
    if isinstance(start, int) and end is not None and end < start:
        raise InvalidArgument("the change feed ends before it starts", starting_version=start, ending_version=end)
    return Interval(start=start, end=end)


def _stream_start(given: Given) -> Interval:
    start = _start(given, ("earliest", "latest", "snapshot"))
    with_snapshot = given.get("withSnapshot")
    if with_snapshot is None:
        return Interval(start="snapshot" if start is None else start)
    wanted = given.flag("withSnapshot", True)
    if wanted and start not in (None, "snapshot"):
        raise InvalidArgument(
            "withSnapshot and startingVersion exclude each other", hint="keep one of them", starting=start
        )
    if not wanted and start == "snapshot":
        raise InvalidArgument(
            "withSnapshot=false contradicts startingVersion=snapshot", hint="use startingVersion=latest"
        )
    if wanted:
        return Interval(start="snapshot")
    return Interval(start="latest" if start is None else start)
