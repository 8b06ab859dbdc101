"""Sources whose server is gone, and sources that would take each other's slot."""

import dataclasses
import threading
from typing import Any

import pytest

from persist import LocationError, PersistError
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, drop
from persist_ingest.location import client
from persist_ingest.pipeline.records import SourceNotFound
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres import setup

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
OPTIONS = {"tables": "public.items", "setReplicaIdentity": "true"}


def test_a_source_whose_server_is_gone_is_dropped_by_force(here: Location, shop: Any) -> None:
    shop.run(ITEMS)
    create(here, "shop", "postgres", {"dsn": shop.dsn, **OPTIONS})
    # The database goes, and the server, as far as this definition says, too.
    records = Records(client(here))
    source = records.source("shop")
    gone = {**source.definition, "dsn": "host=127.0.0.1 port=1 connect_timeout=1"}
    records.revise(dataclasses.replace(source, definition=gone))
    with pytest.raises(LocationError):
        drop(here, "shop")
    assert records.source("shop")
    left: list[PersistError] = []
    dropped = drop(here, "shop", force=True, left=left.append)
    assert [type(each).__name__ for each in left] == ["Determinate"]
    with pytest.raises(SourceNotFound):
        records.source("shop")
    assert all(client(here).recent_upper(shard).time is None for shard in dropped.shards.values())


def test_the_slot_of_a_source_that_runs_is_not_taken_away(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(ITEMS)
    create(here, "shop", "postgres", {"dsn": shop.dsn, **OPTIONS}, interval_ms=1)
    slot = {"dsn": shop.dsn, "slot": "persist_shop", "replaceSlot": "true", **OPTIONS}
    with Pipeline(here, "shop", options=PipelineOptions(tick_ms=20)) as pipeline:
        thread = threading.Thread(target=pipeline.run)
        thread.start()
        try:
            with pytest.raises(SourceFailure, match="in use"):
                create(here, "other", "postgres", slot)
        finally:
            pipeline.stop()
            thread.join()
        pipeline.step()
    monkeypatch.setattr(setup, "WATCH_SECONDS", 0.2)  # nobody reads it any more
    create(here, "other", "postgres", slot)
