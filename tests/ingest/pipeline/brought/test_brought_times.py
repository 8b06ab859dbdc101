"""Sources whose messages bring their times, and what timeline each source is in (design 004, variants)."""

import io
import itertools
import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from simulation.budget import seeds

from persist import InvalidArgument
from persist.core.time.timeline import CounterTimeline, ExternalTimeline, timeline_of
from persist.runtime import system
from persist.sources import SourceQuarantined
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, drop, status
from persist_ingest.location import client
from persist_ingest.sources.port import BadRows, SourceFailure

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0, retain_ms=1_000_000)
AVRO = [
    {
        "type": "array",
        "items": {
            "type": "record",
            "name": "update",
            "fields": [
                {
                    "name": "data",
                    "type": {"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}]},
                },
                {"name": "time", "type": "long"},
                {"name": "diff", "type": "long"},
            ],
        },
    },
    {
        "type": "record",
        "name": "progress",
        "namespace": "com.materialize.cdc",
        "fields": [
            {"name": "lower", "type": {"type": "array", "items": "long"}},
            {"name": "upper", "type": {"type": "array", "items": "long"}},
            {
                "name": "counts",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "counts",
                        "fields": [{"name": "time", "type": "long"}, {"name": "count", "type": "long"}],
                    },
                },
            },
        ],
    },
]


def updates(*each: tuple[int, int, int]) -> dict[str, Any]:
    """Of rows ``id``, with time and diff."""
    return {"array": [{"data": {"id": id}, "time": time, "diff": diff} for id, time, diff in each]}


def progress(lower: int, upper: int | None, counts: Mapping[int, int]) -> dict[str, Any]:
    told = [{"time": time, "count": count} for time, count in counts.items()]
    return {"progress": {"lower": [lower], "upper": [] if upper is None else [upper], "counts": told}}


class Drop:
    """A directory that messages are put into, a file each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._numbers = itertools.count()

    def put(self, *messages: Any, name: str = "") -> None:
        temporary = self.path / "next.tmp"
        temporary.write_text("".join(json.dumps(each) + "\n" for each in messages))
        temporary.rename(self.path / (name or f"{next(self._numbers):06d}.json"))

    def options(self, **more: str) -> dict[str, str]:
        return {"path": str(self.path), "schema": "id bigint not null", "key": "id", **more}


@pytest.fixture
def put(tmp_path: Path) -> Drop:
    return Drop(tmp_path / "changes")


def at(here: Location, name: str, time: int) -> Counter[Any]:
    the_client = client(here)
    with the_client.open_reader(Records(the_client).source(name).shards["rows"]) as reader:
        rows = reader.snapshot(time).to_pylist()
    return Counter({row["id"]: row["diff"] for row in rows})


def upper(here: Location, name: str) -> int | None:
    the_client = client(here)
    found: int | None = the_client.recent_upper(Records(the_client).source(name).shards["rows"]).time
    return found


def run(here: Location, name: str, steps: int = 1) -> None:
    with Pipeline(here, name, options=OPTIONS) as pipeline:
        pipeline.run(steps=steps)


def test_updates_are_at_their_own_times_and_the_upper_follows_progress(here: Location, put: Drop) -> None:
    """External(String) for CDCv2 sources with the source's name attached, making a CDCv2 source only joinable with
    itself."""
    source = create(here, "ticks", "cdcv2", put.options())
    other = create(here, "others", "cdcv2", put.options())
    assert isinstance(timeline_of(source.timeline), ExternalTimeline)
    assert source.timeline != other.timeline
    assert upper(here, "ticks") == 0
    put.put(updates((1, 3, 1), (2, 5, 1)))
    run(here, "ticks")
    assert upper(here, "ticks") == 0, "nothing is complete before progress says so"
    put.put(progress(0, 4, {3: 1}), updates((1, 5, -1)))
    run(here, "ticks")
    assert upper(here, "ticks") == 4
    put.put(progress(4, 9, {5: 2}))
    run(here, "ticks")
    assert upper(here, "ticks") == 9
    assert at(here, "ticks", 2) == {}
    assert at(here, "ticks", 4 - 1) == {1: 1}
    assert at(here, "ticks", 8) == {2: 1}
    told = status(here, "ticks")
    assert told.lag_ms is None, "its times are no milliseconds"
    assert told.resume_time == 9
    put.put(progress(9, None, {}))
    run(here, "ticks")
    assert upper(here, "ticks") is None
    drop(here, "ticks")


def test_out_of_order_and_duplicated_messages_and_restarts_come_to_the_same(here: Location, tmp_path: Path) -> None:
    for seed in seeds(4):
        rng = random.Random(seed)
        put = Drop(tmp_path / f"changes{seed}")
        name = f"feed{seed}"
        create(here, name, "cdcv2", put.options())
        live: Counter[int] = Counter()
        history: list[Counter[int]] = []
        messages = []
        for time in range(30):
            said = []
            for id in rng.sample(range(8), rng.randrange(4)):
                diff = -1 if live[id] else 1
                live[id] += diff
                said.append((id, time, diff))
            history.append(+live)
            messages += [updates(*said), progress(time, time + 1, {time: len(said)} if said else {})]
        messages += rng.choices(messages, k=20)
        rng.shuffle(messages)
        with Pipeline(here, name, options=OPTIONS) as pipeline:
            while messages:
                some = [messages.pop() for _ in range(min(len(messages), rng.randrange(1, 9)))]
                put.put(*some)
                if rng.random() < 0.5:
                    pipeline.step()
                elif rng.random() < 0.5:
                    run(here, name)  # another ingester, from the beginning
        run(here, name)
        assert upper(here, name) == 30, f"seed {seed}"
        for time, expected in enumerate(history):
            assert at(here, name, time) == expected, f"seed {seed} at {time}"


def test_avro_container_files(here: Location, tmp_path: Path) -> None:
    place = tmp_path / "avro"
    place.mkdir()
    body = io.BytesIO()
    records = [
        updates((1, 0, 1), (2, 1, 1))["array"],
        ("com.materialize.cdc.progress", progress(0, 2, {0: 1, 1: 1})["progress"]),
    ]
    fastavro.writer(body, fastavro.parse_schema(AVRO), records)
    (place / "one.avro").write_bytes(body.getvalue())
    options = {"path": str(place), "format": "avro", "avroSchema": json.dumps(AVRO), "key": "id"}
    create(here, "avro", "cdcv2", options)
    run(here, "avro")
    assert upper(here, "avro") == 2
    assert at(here, "avro", 1) == {1: 1, 2: 1}
    # What a file says of itself is the sender's: fastavro follows it as deep as it goes, which ends the process.
    inside: dict[str, Any] = {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}
    nothing: dict[str, Any] = {"type": "array", "items": {"type": "fixed", "name": "z", "size": 0}}
    for number, (hostile, datum) in enumerate(((inside, b"\2" * 200_000 + b"\0"), (nothing, b"\x80" * 5 + b"\1"))):
        body = io.BytesIO()
        fastavro.writer(body, fastavro.parse_schema(hostile), [])
        head, size = body.getvalue(), io.BytesIO()
        fastavro.schemaless_writer(size, "long", len(datum))
        (place / f"two{number}.avro").write_bytes(head + b"\2" + size.getvalue() + datum + head[-16:])
        with pytest.raises(BadRows, match="container"):
            run(here, "avro")
        (place / f"two{number}.avro").unlink()
    # The last of the branches, counted from the end.
    body = io.BytesIO()
    fastavro.writer(body, fastavro.parse_schema(AVRO), [], sync_marker=b"s" * 16)
    last = io.BytesIO()
    fastavro.schemaless_writer(last, fastavro.parse_schema(AVRO), records[1])
    assert last.getvalue()[0] == 2
    given = b"\1" + last.getvalue()[1:]
    fastavro.schemaless_writer(size := io.BytesIO(), "long", len(given))
    (place / "three.avro").write_bytes(body.getvalue() + b"\2" + size.getvalue() + given + b"s" * 16)
    with pytest.raises(BadRows, match="container"):
        run(here, "avro")


@pytest.mark.parametrize(
    "message",
    [
        {"arrays": []},
        {"array": [{"data": {"id": 1}, "time": 1}]},
        {"array": [{"data": {"id": 1}, "time": -1, "diff": 1}]},
        {"array": [{"data": {"id": "x"}, "time": 1, "diff": 1}]},
        {"progress": {"lower": [3], "upper": [1], "counts": []}},
        {"progress": {"lower": [0], "upper": [1], "counts": [{"time": "0", "count": 1}]}},
    ],
)
def test_a_message_of_another_form_ends_the_source(here: Location, put: Drop, message: Any) -> None:
    create(here, "bad", "cdcv2", put.options())
    put.put(message)
    with Pipeline(here, "bad", options=OPTIONS) as pipeline, pytest.raises(BadRows):
        pipeline.run(steps=1)
    assert upper(here, "bad") == 0


def test_a_source_can_choose_a_timeline_of_its_own(here: Location, put: Drop) -> None:
    """All sources can specify WITH (timeline='some_name') to choose the User variant."""
    load = {"generator": "counter", "messages": "5"}
    assert create(here, "a", "cdcv2", put.options(timeline="together")).timeline == "U.together"
    assert create(here, "b", "loadgen", {**load, "timeline": "together"}).timeline == "U.together"
    minted = create(here, "c", "loadgen", load)
    assert (minted.timeline, minted.version) == ("M", 1)
    assert create(here, "d", "loadgen", {**load, "timeline": "epoch_ms"}).timeline == "M"
    assert Records(client(here)).source("b").timeline == "U.together"
    run(here, "b")
    assert not Records(client(here)).source("b").claims_epoch


def test_options_that_a_source_does_not_have(here: Location, put: Drop) -> None:
    load = {"generator": "counter", "messages": "5"}
    with pytest.raises(InvalidArgument, match="only sources that bring times"):
        create(here, "a", "loadgen", {**load, "epoch_ms_timeline": "true"})
    with pytest.raises(InvalidArgument, match="true or absent"):
        create(here, "a", "cdcv2", put.options(epoch_ms_timeline="false"))
    with pytest.raises(InvalidArgument, match="exclude each other"):
        create(here, "a", "cdcv2", put.options(epoch_ms_timeline="true", timeline="x"))
    with pytest.raises(InvalidArgument, match="reserved"):
        create(here, "a", "cdcv2", put.options(timeline="persist_x"))
    with pytest.raises(InvalidArgument, match="given twice"):
        create(here, "a", "cdcv2", put.options(timeline="x", TIMELINE="y"))
    assert Records(client(here)).sources() == {}


def test_a_claim_of_milliseconds_is_believed_near_the_clock_only(here: Location, put: Drop) -> None:
    """CDCv2 sources have a special WITH (epoch_ms_timeline=true) syntax to put that source into the EpochMilliseconds
    timeline. Since we don't verify that the timestamps are indeed milliseconds from the epoch in this case, features
    that use this timeline will need to protect against data problems."""
    now = system().now_ms()
    source = create(here, "claims", "cdcv2", put.options(epoch_ms_timeline="true"))
    assert (source.timeline, source.claims_epoch) == ("M", True)
    put.put(updates((1, 5, 1)), progress(0, 1000, {5: 1}))
    with Pipeline(here, "claims", options=OPTIONS) as pipeline:
        with pytest.raises(SourceQuarantined):
            pipeline.step()  # seconds, or from long ago
        assert upper(here, "claims") == 0
        heard: list[Exception] = []

        def mended(error: Exception) -> None:
            heard.append(error)
            put.put(progress(1000, now, {}))

        pipeline._complain = mended  # gets what run waits for
        pipeline.run(steps=1)
        assert isinstance(heard[0], SourceQuarantined)
        assert status(here, "claims").state == "stopped"
        assert upper(here, "claims") == now
        put.put(progress(now, now + 2 * 3_600_000, {}))
        with pytest.raises(SourceQuarantined):
            pipeline.step()
        assert upper(here, "claims") == now, "never a far time"


def test_the_timeline_is_checked_whenever_a_source_is_opened(here: Location, put: Drop) -> None:
    create(here, "ticks", "cdcv2", put.options())
    records = Records(client(here))
    records.change("source", "ticks", lambda before: {**(before or {}), "timeline": "E.another"})
    with Pipeline(here, "ticks", options=OPTIONS) as pipeline, pytest.raises(SourceFailure, match="timeline"):
        pipeline.step()


def transaction(id: str, status: str, **counts: int) -> dict[str, Any]:
    told: dict[str, Any] = {"status": status, "id": id, "event_count": None, "data_collections": None}
    if status == "END":
        each = [{"data_collection": f"public.{name}", "event_count": count} for name, count in counts.items()]
        told |= {"event_count": sum(counts.values()), "data_collections": each}
    return {"payload": told}


def change(id: str, order: int, before: int | None, after: int | None) -> dict[str, Any]:
    op = "c" if before is None else "d" if after is None else "u"
    images = {name: None if each is None else {"id": each} for name, each in (("before", before), ("after", after))}
    return {**images, "op": op, "transaction": {"id": id, "total_order": order, "data_collection_order": order}}


def test_debezium_counts_transactions(here: Location, put: Drop, tmp_path: Path) -> None:
    """Debezium consistency topics start their "timestamp" number at 1 and increment it for each transaction."""
    ends = Drop(tmp_path / "transactions")
    more = {"transactionPath": str(ends.path), "dataCollection": "public.orders"}
    source = create(here, "bank", "debezium", put.options(**more))
    assert timeline_of(source.timeline) == CounterTimeline(str(tmp_path), "transactions")
    put.put(change("tx9", 1, None, 1), change("tx9", 2, None, 2))
    run(here, "bank")
    assert upper(here, "bank") == 0, "the number of this transaction is not known yet"
    ends.put(transaction("tx9", "BEGIN"), transaction("tx9", "END", orders=2, others=1))
    run(here, "bank")
    assert upper(here, "bank") == 2
    assert at(here, "bank", 1) == {1: 1, 2: 1}
    # The next one ends before all of it came; one after that touches another table; both come twice.
    ends.put(transaction("tx4", "BEGIN"), transaction("tx4", "END", orders=2))
    ends.put(transaction("tx5", "BEGIN"), transaction("tx5", "END", others=3))
    ends.put(transaction("tx4", "BEGIN"), transaction("tx4", "END", orders=2))
    put.put(change("tx4", 2, 2, 3))
    run(here, "bank")
    assert upper(here, "bank") == 2
    put.put(change("tx4", 1, 1, None), change("tx4", 2, 2, 3))
    run(here, "bank")
    assert upper(here, "bank") == 4
    assert at(here, "bank", 1) == {1: 1, 2: 1}
    assert at(here, "bank", 2) == {3: 1}, "rows of one transaction are at one time"
    assert at(here, "bank", 3) == {3: 1}


def test_debezium_refuses_counts_that_are_wrong(here: Location, put: Drop, tmp_path: Path) -> None:
    def source(name: str) -> Drop:
        ends = Drop(tmp_path / name)
        create(here, name, "debezium", put.options(transactionPath=str(ends.path), dataCollection="public.orders"))
        return ends

    wrong = transaction("tx1", "END", orders=2)
    wrong["payload"]["event_count"] = 5
    source("a").put(transaction("tx1", "BEGIN"), wrong)
    source("b").put(transaction("tx1", "END", orders=2))
    ends = source("c")
    ends.put(transaction("tx1", "BEGIN"), transaction("tx1", "END", orders=1))
    put.put(change("tx1", 1, None, 1), change("tx1", 2, None, 2))
    for name, words in (("a", "do not come to its event_count"), ("b", "never began"), ("c", "more updates came")):
        with Pipeline(here, name, options=OPTIONS) as pipeline, pytest.raises(SourceFailure, match=words):
            pipeline.step()
        assert upper(here, name) == 0


def test_debezium_without_transactions_is_refused(here: Location, put: Drop, tmp_path: Path) -> None:
    ends = Drop(tmp_path / "transactions")
    create(here, "bank", "debezium", put.options(transactionPath=str(ends.path), dataCollection="public.orders"))
    put.put({**change("", 1, None, 1), "transaction": None})
    with (
        Pipeline(here, "bank", options=OPTIONS) as pipeline,
        pytest.raises(SourceFailure, match="does not say which transaction"),
    ):
        pipeline.step()
