import pytest

from persist import InvalidArgument, InvalidId, ShardId
from pyspark_persist.options.names import OPTIONS, SINK, WRITE
from pyspark_persist.options.options import CHANGES, DIFFS, METADATA, SNAPSHOT
from pyspark_persist.options.parsing import epoch_ms, parse_read, parse_stream, parse_write
from pyspark_persist.read.planning import split_count

SHARD = str(ShardId.of(bytes(16)))
BASE = {"location": "/data", "shard": SHARD}


def test_read_options_keys_in_any_case_are_understood() -> None:
    options = parse_read({"LOCATION": "/data", "shard": SHARD, "asof": "12", "minpartitions": "3", "COLUMNS": "a, b"})
    assert (options.as_of, options.partitioning.min_partitions, options.filters.columns) == (12, 3, ("a", "b"))
    assert options.shape == SNAPSHOT
    assert options.target.shard == SHARD


@pytest.mark.parametrize(
    ("given", "mebibytes", "count"),
    [
        ({}, 0, 1), ({}, 15, 1), ({}, 16, 2), ({}, 95, 6), ({}, 200, 6), ({}, 700, 8),
        ({"minPartitions": "3"}, 95, 3), ({"targetPartitionBytes": "64m"}, 95, 2),
    ],
)  # fmt: skip
def test_read_is_cut_for_the_cores_there_are_unless_told_how(given: dict[str, str], mebibytes: int, count: int) -> None:
    assert split_count(mebibytes << 20, parse_read(BASE | given, cores=6)) == count
    assert split_count(mebibytes << 20, parse_read(BASE | given)) <= count


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"versionAsOf": "7"}, 7),
        ({"timestampAsOf": "1970-01-01T00:00:02Z"}, 2000),
        ({"timestampAsOf": "1970-01-02T00:00Z"}, 86_400_000),
        ({"timestampAsOf": "1970-01-01T01:00:00+01:00"}, 0),
    ],
)
def test_as_of_under_its_aliases_is_a_time(given: dict[str, str], expected: int) -> None:
    assert parse_read(BASE | given).as_of == expected


def test_unknown_option_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown option minPartition.*did you mean minPartitions\?"):
        parse_read(BASE | {"minPartition": "2"})


def test_unknown_option_like_no_other_lists_what_is_known() -> None:
    with pytest.raises(InvalidArgument, match="known for a batch read: asOf"):
        parse_read(BASE | {"zzzzzz": "2"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"asOf": "3", "timestampAsOf": "2013-01-01"}, "exclude each other"),
        ({"asOf": "3", "versionAsOf": "3"}, "twice"),
        ({"asOf": "-3"}, "whole number"),
        ({"asOf": "three"}, "whole number"),
        ({"timestampAsOf": "yesterday"}, "ISO timestamp"),
        ({"timestampAsOf": "1969-01-01T00:00Z"}, "before 1970"),
        ({"timestampAsOf": "2026-06-01 12:00:00"}, "must say its zone"),
        ({"timestampAsOf": "2026-06-01"}, "must say its zone"),
        ({"startingVersion": "3"}, "readChangeFeed=true"),
        ({"readChangeFeed": "true"}, "needs a start"),
        ({"readChangeFeed": "true", "startingVersion": "3", "mode": "diffs"}, "exclude each other"),
        ({"readChangeFeed": "true", "startingVersion": "3", "asOf": "4"}, "does not apply"),
        ({"readChangeFeed": "true", "startingVersion": "5", "endingVersion": "3"}, "ends before it starts"),
        ({"readChangeFeed": "true", "startingVersion": "5", "deduplicationMode": "some"}, "netChanges"),
        ({"mode": "snapshots"}, "must be snapshot or diffs"),
        ({"columns": "a,,b"}, "empty name"),
        ({"targetPartitionBytes": "64x"}, "must be a size"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"commitTime": "4"}, "does not apply to a batch read"),
        ({"endpoint": "localhost:7100"}, "exclude each other"),
        ({"table": "flights"}, "more than once"),
        ({"s3.endpoint": "http://x"}, "AWS_"),
    ],
)
def test_read_options_that_contradict_are_refused_with_a_next_step(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_read(BASE | given)
    assert message in str(caught.value)


def test_read_without_a_shard_or_location_says_what_to_add() -> None:
    with pytest.raises(InvalidArgument, match="no shard is named"):
        parse_read({"location": "/data"})
    with pytest.raises(InvalidArgument, match="no persist location"):
        parse_read({"shard": SHARD})


def test_location_comes_from_the_environment_when_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_ENDPOINT", "host:7100")
    assert parse_read({"shard": SHARD}).target.location.endpoint == "host:7100"
    assert parse_read(BASE).target.location.endpoint is None


def test_shard_names_are_ids_and_tables_are_derived_from_their_name() -> None:
    table = parse_read({"location": "/data", "table": "flights"}).target.shard
    assert table == parse_read({"location": "/data", "path": "flights"}).target.shard
    assert parse_read({"location": "/data", "path": SHARD}).target.shard == SHARD
    with pytest.raises(InvalidId):
        parse_read({"location": "/data", "shard": "flights"})
    with pytest.raises(InvalidId):
        parse_read({"location": "/data", "path": "/tmp/flights"})


def test_table_beside_a_shard_names_a_metadata_table() -> None:
    options = parse_read(BASE | {"table": "Parts"})
    assert (options.shape, options.metadata_table) == (METADATA, "parts")


@pytest.mark.parametrize(
    ("given", "start", "end"),
    [
        ({"startingVersion": "3", "endingVersion": "5"}, 3, 5),
        ({"startingVersion": "3", "startingBoundInclusive": "false"}, 4, None),
        ({"startingVersion": "3", "endingVersion": "5", "endingBoundInclusive": "false"}, 3, 4),
        ({"startingTimestamp": "1970-01-01T00:00:01Z"}, 1000, None),
        ({"startingVersion": "earliest"}, "earliest", None),
        ({"startingVersion": "2026-11-22T06:00Z"}, 1_795_327_200_000, None),
    ],
)
def test_change_feed_bounds_are_inclusive_times(given: dict[str, str], start: object, end: object) -> None:
    interval = parse_read(BASE | {"readChangeFeed": "true"} | given).interval
    assert interval is not None
    assert (interval.start, interval.end) == (start, end)


def test_change_feed_options_say_how_changes_are_shown() -> None:
    given = {
        "readChangeFeed": "true",
        "startingVersion": "0",
        "computeUpdates": "true",
        "deduplicationMode": "netChanges",
    }
    options = parse_read(BASE | given)
    assert options.shape == CHANGES
    assert options.feed.compute_updates
    assert options.feed.net


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({}, "snapshot"),
        ({"startingVersion": "latest"}, "latest"),
        ({"withSnapshot": "false"}, "latest"),
        ({"withSnapshot": "true"}, "snapshot"),
        ({"startingVersion": "17"}, 17),
    ],
)
def test_stream_start_defaults_to_the_snapshot(given: dict[str, str], start: object) -> None:
    interval = parse_stream(BASE | given).interval
    assert interval is not None
    assert interval.start == start


def test_stream_limits_are_read_with_units() -> None:
    given = {"maxFilesPerTrigger": "3", "maxBytesPerTrigger": "64m", "maxRowsPerTrigger": "10", "mode": "diffs"}
    options = parse_stream(BASE | given)
    assert (options.admission.files, options.admission.bytes, options.admission.rows) == (3, 64 << 20, 10)
    assert options.shape == DIFFS


def test_stream_that_would_drop_whole_commits_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="readChangeFeed=true"):
        parse_stream(BASE | {"skipChangeCommits": "true"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"newUpper": "5"}, "needs expectedUpper"),
        ({"expectedUpper": "5"}, "needs newUpper"),
        ({"expectedUpper": "5", "newUpper": "5"}, "beyond expectedUpper"),
        ({"commitTime": "5", "newUpper": "6", "expectedUpper": "1"}, "exclude each other"),
        ({"txnAppId": "app"}, "go together"),
        ({"txnAppId": "persist.wal:x", "txnVersion": "1"}, "begin with"),
        ({"asOf": "5"}, "does not apply to a batch write"),
        ({"userMetadata": "x" * 65_537}, "65536 letters"),
    ],
)
def test_write_options_that_contradict_are_refused_with_a_next_step(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_write(BASE | given, WRITE)
    assert message in str(caught.value)


def test_sink_options_of_spark_itself_are_let_through() -> None:
    options = parse_write(BASE | {"checkpointLocation": "/c", "queryName": "q", "txnAppId": "app"}, SINK)
    assert options.txn_app_id == "app"


def test_sink_with_a_pinned_time_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="does not apply to a streaming write"):
        parse_write(BASE | {"commitTime": "5"}, SINK)


def test_option_table_spells_every_name_once() -> None:
    spellings = [s.lower() for option in OPTIONS for s in (option.name, *option.aliases)]
    assert len(spellings) == len(set(spellings))


def test_epoch_ms_is_exact_far_from_now() -> None:
    assert epoch_ms("2262-01-01T00:00:00.123Z", "x") == 9_214_646_400_123
