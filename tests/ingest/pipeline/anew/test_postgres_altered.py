"""A table that is stalled by what its columns hold goes on once these are null, or left out."""

from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.anew.test_postgres_over import OPTIONS, begun, follows, worked
from ingest.pipeline.conftest import contents

from persist import InvalidArgument
from persist.sources import UpstreamLost
from persist_ingest import Location, Pipeline, Records, add_export, alter, drop, drop_export, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres import reader as reading

BAD, GOOD = "public.bad", "public.good"


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)


def stalled(here: Location, shop: Any, pipeline: Pipeline) -> None:
    worked(pipeline)
    shop.run("UPDATE bad SET n = 'NaN' WHERE id = 3")
    worked(pipeline)
    told = status(here, "shop").exports[BAD]
    assert told.state == "stalled"
    assert "specialValues=null" in told.hint
    assert "excludeColumns" in told.hint


def test_a_table_that_holds_special_values_goes_on_once_they_are_null(here: Location, shop: Any) -> None:
    begun(here, shop, onAltered="stall")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        stalled(here, shop, pipeline)
        alter(here, "shop", {"specialValues": "null"})
        resnapshot(here, "shop", BAD)
        shop.run("UPDATE bad SET n = 'NaN' WHERE id = 4", "UPDATE bad SET name = 'z' WHERE id = 3")
        # And one that was not stalled takes them so, too, while it runs.
        shop.run("UPDATE good SET n = 'NaN' WHERE id = 5")
        worked(pipeline)
        for export in (BAD, GOOD):
            assert status(here, "shop").exports[export].state == "running"
            assert follows(here, shop, export, "id, name, nullif(n, 'NaN'), mood")
        shop.run("UPDATE good SET n = 1", "DELETE FROM bad WHERE n = 'NaN'")
        worked(pipeline)
        assert follows(here, shop, BAD)
        assert follows(here, shop, GOOD)
        alter(here, "shop", {"specialValues": "fail"})
        worked(pipeline)
        shop.run("UPDATE good SET n = 'NaN' WHERE id = 5")
        worked(pipeline)
        assert status(here, "shop").exports[GOOD].state == "stalled"


def test_a_column_is_left_out_from_the_next_snapshot_on(here: Location, shop: Any) -> None:
    begun(here, shop, onAltered="stall")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        stalled(here, shop, pipeline)
        alter(here, "shop", {"excludeColumns": "public.bad.n, public.good.n"})
        resnapshot(here, "shop", BAD)
        shop.run("INSERT INTO bad (id, n) VALUES (100, 'NaN')", "UPDATE good SET n = n + 1")
        worked(pipeline)
        assert follows(here, shop, BAD, "id, name, NULL, mood")
        # It runs, and its rows have had the column from the beginning.
        assert follows(here, shop, GOOD)
        resnapshot(here, "shop", GOOD)
        shop.run("ALTER TABLE bad DROP COLUMN n", "UPDATE good SET name = 'y'")
        worked(pipeline)
        assert follows(here, shop, BAD, "id, name, NULL, mood")
        assert follows(here, shop, GOOD, "id, name, NULL, mood")


def test_a_table_joins_without_columns(here: Location, shop: Any) -> None:
    begun(here, shop)
    shop.run("CREATE TABLE more (id int PRIMARY KEY, secret text, n int)", "INSERT INTO more VALUES (1, 'x', 2)")
    with pytest.raises(SourceFailure, match="nothing of that name"):
        add_export(here, "shop", "public.more", options={"excludeColumns": "public.more.secrets"})
    add_export(here, "shop", "public.more", options={"excludeColumns": "public.more.secret"})
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        shop.run("INSERT INTO more VALUES (2, 'y', 3)")
        worked(pipeline)
        assert contents(here, "shop", "public.more") == Counter(shop.select("SELECT id, n FROM more"))
    drop_export(here, "shop", "public.more")
    add_export(here, "shop", "public.more")
    assert contents(here, "shop", "public.more") == Counter(shop.select("SELECT id, n FROM more"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"specialValues": "text"}, "other types"),
        ({"specialValues": "nul"}, "did you mean null"),
        ({"excludeColumns": "public.bad.id"}, "primary key"),
        ({"excludeColumns": "public.bad.nane"}, "did you mean name"),
    ],
)
def test_what_cannot_be_otherwise_is_refused(here: Location, shop: Any, options: dict[str, str], says: str) -> None:
    begun(here, shop)
    before = Records(client(here)).source("shop")
    with pytest.raises(InvalidArgument, match=says):
        alter(here, "shop", options)
    assert Records(client(here)).source("shop") == before


@pytest.mark.parametrize("is_there", [False, True])
def test_a_source_whose_slot_is_lost_goes_on_by_what_its_hint_says(
    here: Location, shop: Any, *, is_there: bool
) -> None:
    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        worked(pipeline)
    before = {export: contents(here, "shop", export) for export in (BAD, GOOD)}
    at = status(here, "shop").uppers[GOOD] or 0
    slot = Records(client(here)).source("shop").definition["slot"]
    shop.run(f"SELECT pg_drop_replication_slot('{slot}')", "UPDATE good SET n = n + 1", "DELETE FROM bad WHERE id = 1")
    # Another that has the name, and began later, has not what is needed either.
    if is_there:
        shop.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')", "DELETE FROM good WHERE id = 2")
    else:
        told = status(here, "shop")
        assert told.state == "failed"
        assert f"pg_create_logical_replication_slot('{slot}', 'pgoutput')" in told.error
        with pytest.raises(UpstreamLost, match="slot is gone"):
            resnapshot(here, "shop", GOOD)
        shop.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        with pytest.raises(UpstreamLost, match="resnapshot"):
            pipeline.step()
        resnapshot(here, "shop", BAD)
        resnapshot(here, "shop", GOOD)
        shop.run("INSERT INTO good (id) VALUES (100)", "INSERT INTO bad (id) VALUES (100)")
        worked(pipeline)
        for export in (BAD, GOOD):
            assert follows(here, shop, export)
            with client(here).open_reader(Records(client(here)).source("shop").shards[export]) as reader:
                rows = reader.snapshot(at - 1).to_arrow().num_rows
            assert rows == sum(before[export].values())
    assert drop(here, "shop").name == "shop"
    assert not shop.select(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}'")
