"""Pipelines over generated loads: every message once, at one time, wherever it is ingested and broken off."""

from collections import Counter
from typing import Any

import pytest

from persist.sources import Reclocker
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, drop, status
from persist_ingest.location import client
from persist_ingest.pipeline.records import SourceExists, SourceNotFound

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, retain_ms=10**13)


def updates_of(here: Location, name: str) -> dict[str, Counter[Any]]:
    """Every update of every export, at its own time, with the sum of its diffs."""
    the_client = client(here)
    found = {}
    for export, shard in Records(the_client).source(name).shards.items():
        with the_client.open_reader(shard) as reader:
            upper = the_client.recent_upper(shard)
            rows = reader.diffs([0], upper).to_arrow() if upper.time else None
        counts: Counter[Any] = Counter()
        for row in rows.to_pylist() if rows is not None else []:
            counts[tuple(value for key, value in sorted(row.items()) if key != "diff")] += row["diff"]
        found[export] = counts
    return found


def test_every_message_lands_once(here: Location) -> None:
    create(here, "bank", "loadgen", {"generator": "tpcb", "accounts": "50", "messages": "3000"}, interval_ms=1)
    with Pipeline(here, "bank", options=OPTIONS) as pipeline:
        step = pipeline.run(until=lambda step: step.rows == 0)
    assert step is not None
    told = status(here, "bank")
    assert told.bound == told.resume_offsets
    source = Records(client(here)).source("bank")
    assert set(told.uppers) == set(source.exports)
    counts = updates_of(here, "bank")
    [history] = [name for name in counts if "history" in name]
    assert sum(counts[history].values()) == 3000


def test_a_pipeline_that_begins_again_reads_on(here: Location) -> None:
    create(here, "count", "loadgen", {"generator": "counter", "messages": "500"}, interval_ms=1)
    with Pipeline(here, "count", options=OPTIONS) as pipeline:
        first = pipeline.step()
    assert first.rows
    with Pipeline(here, "count", options=OPTIONS) as pipeline:
        assert pipeline.step().rows == 0


def test_names_are_taken_once_and_a_new_life_has_new_shards(here: Location) -> None:
    options = {"generator": "counter", "messages": "5"}
    first = create(here, "again", "loadgen", options)
    with pytest.raises(SourceExists):
        create(here, "again", "loadgen", options)
    drop(here, "again")
    with pytest.raises(SourceNotFound):
        Pipeline(here, "again")
    second = create(here, "again", "loadgen", options)
    assert not set(first.exports.values()) & set(second.exports.values())
    assert first.remap != second.remap


def test_two_ingesters_write_the_same_once(here: Location) -> None:
    create(here, "both", "loadgen", {"generator": "counter", "rate": "20000"}, interval_ms=1)
    with Pipeline(here, "both", options=OPTIONS) as one, Pipeline(here, "both", options=OPTIONS) as two:
        for _ in range(15):
            one.step()
            two.step()
        # A step that finds another one further on writes nothing of what is bound: the next begins from there.
        while two.step().overtaken:
            pass
    source = Records(client(here)).source("both")
    minter = client(here).minter()
    trace = minter.bindings(source.remap_source)
    minter.close()
    Reclocker.of(trace)
    [counts] = updates_of(here, "both").values()
    assert sum(counts.values()) == trace.frontier.bounds[0]
