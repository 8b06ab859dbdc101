"""Sources whose server is gone, and sources that would take each other's slot."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from persist import LocationError, PersistError
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, drop
from persist_ingest.location import client, release
from persist_ingest.pipeline.records import SourceNotFound
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres.making import slots

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
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
    assert records.source("shop").definition == gone
    left: list[PersistError] = []
    dropped = drop(here, "shop", force=True, left=left.append)
    assert [type(each).__name__ for each in left] == ["Determinate"]
    with pytest.raises(SourceNotFound):
        records.source("shop")
    assert all(client(here).recent_upper(shard).time is None for shard in dropped.shards.values())


def test_slots_of_sources_that_are_called_alike_are_each_their_own(here: Location, shop: Any, tmp_path: Path) -> None:
    """Slots are named for a whole server, sources at a location, in a database."""
    shop.run(ITEMS)
    elsewhere = Location(directory=str(tmp_path / "elsewhere"))
    made = [create(here, name, "postgres", {"dsn": shop.dsn, **OPTIONS}) for name in ("a-b", "a_b", "A_B")]
    made.append(create(elsewhere, "a-b", "postgres", {"dsn": shop.dsn, **OPTIONS}))
    names = [source.definition["slot"] for source in made]
    assert len(set(names)) == 4
    assert all(name.startswith("persist_a_b_") for name in names)
    # The token is that of its mark, so the publication says whose a slot is.
    ((comment,),) = shop.select("SELECT obj_description(oid, 'pg_publication') FROM pg_publication")
    assert all(name[-8:] in comment for name in names)
    drop(here, "a_b")
    assert {name for (name,) in shop.select(SLOTS)} == {names[0], *names[2:]}
    drop(elsewhere, "a-b")
    release(elsewhere)


def test_the_slot_of_a_source_that_runs_is_not_taken_away(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(ITEMS)
    create(here, "shop", "postgres", {"dsn": shop.dsn, **OPTIONS}, interval_ms=1)
    named = Records(client(here)).source("shop").definition["slot"]
    slot = {"dsn": shop.dsn, "slot": named, "replaceSlot": "true", **OPTIONS}
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
    monkeypatch.setattr(slots, "WATCH_SECONDS", 0.2)  # it is not read any more
    create(here, "other", "postgres", slot)
