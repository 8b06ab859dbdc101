"""A table that is altered is snapshotted again by itself, at one time, where its source is made so; not for ever."""

import contextlib
from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.anew.slots import SLOT
from ingest.pipeline.conftest import contents
from simulation.budget import FULL

from persist import InvalidArgument
from persist_ingest import Location, Pipeline, PipelineOptions, Records, alter, create, resnapshot, status
from persist_ingest.location import client
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import attempt, watching
from persist_ingest.sources.port import HeldUp, SourceFailure
from persist_ingest.sources.postgres import reader as reading
from persist_ingest.sources.tables import taking_over as over

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0, forget_ms=10**9)
BAD, GOOD = "public.bad", "public.good"
TIMES = over.TIMES_MAX if FULL else 4
"""How often a table is snapshotted again by itself in a day."""


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(watching, "JOIN_SECONDS", 10.0**9)


def begun(here: Location, shop: Any, tables: str = f"{BAD},{GOOD}", **options: str) -> None:
    shop.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    for table in ("bad", "good"):
        kind = "mood" if table == "bad" else "text"
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY, name text, n numeric(8,2), mood {kind})")
        shop.run(f"INSERT INTO {table} SELECT i, 'n' || i, i, 'ok' FROM generate_series(1, 20) i")
    given = {"dsn": shop.dsn, "tables": tables, "setReplicaIdentity": "true", "onAltered": "resnapshot", **options}
    create(here, "shop", "postgres", given, interval_ms=1)


def follows(here: Location, shop: Any, export: str, columns: str = "*") -> bool:
    return contents(here, "shop", export) == Counter(shop.select(f"SELECT {columns} FROM {export}"))


def worked(pipeline: Pipeline, steps: int = 3) -> None:
    for _ in range(steps):
        with contextlib.suppress(HeldUp):
            pipeline.step()
        pipeline.watch.wait()


WAYS = {
    "a column dropped": ("ALTER TABLE bad DROP COLUMN name", "id, NULL, n, mood"),
    "a column renamed": ("ALTER TABLE bad RENAME COLUMN name TO called", "id, NULL, n, mood, called"),
    "another type": ("ALTER TABLE bad ALTER n TYPE text USING n || '!'", "id, name, NULL, mood, n"),
    "a default of old rows": ("ALTER TABLE bad ADD COLUMN more int DEFAULT 7", "*"),
    "an identity": ("ALTER TABLE bad ADD COLUMN more int GENERATED ALWAYS AS IDENTITY", "*"),
    "rewritten": ("ALTER TABLE bad ALTER name TYPE text USING upper(name)", "*"),
    "a label renamed": ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", "*"),
    "out of the publication": ("ALTER PUBLICATION persist_shop DROP TABLE bad", "*"),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_altered_table_is_taken_over_at_one_time_and_goes_on(here: Location, shop: Any, way: str) -> None:
    statement, shown = WAYS[way]
    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        before = contents(here, "shop", BAD)
        at = status(here, "shop").uppers[BAD] or 0
        shop.run(statement, "UPDATE bad SET n = n WHERE id = 5", "INSERT INTO good (id) VALUES (100)")
        if way == "out of the publication":
            shop.run("DELETE FROM bad WHERE id = 9", "ALTER PUBLICATION persist_shop ADD TABLE bad")
        pipeline.step()
        assert follows(here, shop, GOOD), "within a step"
        told = status(here, "shop").exports[BAD]
        if told.state != "running":
            assert told.state == "snapshotting"
            assert "TableAltered" in told.error
            assert "by itself" in told.hint
        shop.run("DELETE FROM bad WHERE id = 3", "UPDATE bad SET id = id + 1000 WHERE id = 4")
        worked(pipeline)
        shop.run("UPDATE bad SET id = id + 2000 WHERE id = 6", "INSERT INTO good (id) VALUES (101)")
        worked(pipeline)
        assert {each.state for each in status(here, "shop").exports.values()} == {"running"}
    assert contents(here, "shop", BAD) == Counter(shop.select(f"SELECT {shown} FROM bad"))
    assert follows(here, shop, GOOD)
    assert [each.negative for each in status(here, "shop", count_rows=True).counts.values()] == [0, 0]
    with client(here).open_reader(Records(client(here)).source("shop").shards[BAD]) as reader:
        assert reader.snapshot(at - 1).to_arrow().num_rows == sum(before.values()), "earlier times stay what they were"


def test_the_only_table_of_a_source_is_taken_over_too_and_its_log_is_consumed(here: Location, shop: Any) -> None:
    begun(here, shop, tables=BAD)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        shop.run("ALTER TABLE bad DROP COLUMN name")
        with pytest.raises(HeldUp):
            pipeline.step()
        worked(pipeline)
        shop.run("INSERT INTO bad VALUES (100)")
        worked(pipeline)
    assert contents(here, "shop", BAD) == Counter(shop.select("SELECT id, NULL, n, mood FROM bad"))


def test_it_waits_longer_each_time_and_ends_and_a_person_need_not_wait(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(here, shop)

    def altered(pipeline: Pipeline, number: int) -> None:
        shop.run(f"ALTER TABLE bad ADD COLUMN c{number} int DEFAULT 7")
        shop.run("INSERT INTO good (id) SELECT max(id) + 1 FROM good")
        pipeline.step()
        assert follows(here, shop, GOOD)

    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        altered(pipeline, 1)
        worked(pipeline)
        assert follows(here, shop, BAD)
        altered(pipeline, 2)
        worked(pipeline)
        assert status(here, "shop").exports[BAD].state == "snapshotting", "ten seconds are not over"
        [(confirmed,)] = shop.select(SLOT)
        shop.run("INSERT INTO good (id) SELECT max(id) + 1 FROM good")
        worked(pipeline, 4)
        assert shop.select(SLOT) > [(confirmed,)], "nothing is kept for it meanwhile"
        resnapshot(here, "shop", BAD)
        worked(pipeline)
        assert follows(here, shop, BAD)
        monkeypatch.setattr(over, "FIRST_MS", 0)
        monkeypatch.setattr(over, "TIMES_MAX", TIMES)
        for number in range(3, TIMES + 1):
            altered(pipeline, number)
            worked(pipeline)
            assert follows(here, shop, BAD)
        altered(pipeline, TIMES + 1)
        worked(pipeline)
        told = status(here, "shop").exports[BAD]
        assert told.state == "stalled"
        assert "resnapshot" in told.hint
        monkeypatch.setattr(over, "WITHIN_MS", -1)
        resnapshot(here, "shop", BAD)
        altered(pipeline, 50)
        worked(pipeline)
        assert follows(here, shop, BAD)


def test_what_another_snapshot_does_not_mend_waits_for_a_person(here: Location, shop: Any) -> None:
    begun(here, shop)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        shop.run("ALTER TABLE bad ALTER id TYPE bigint", "INSERT INTO good (id) VALUES (100)")
        worked(pipeline)
        told = status(here, "shop").exports[BAD]
        assert told.state == "stalled"
        assert "another type" in told.error
        assert pipeline.watch.failed == 1
        worked(pipeline)
        assert pipeline.watch.failed == 1
        shop.run("ALTER TABLE good RENAME TO fine")
        with pytest.raises(SourceFailure, match="renamed"):
            pipeline.step()


def test_the_option_is_one_of_two(here: Location, shop: Any) -> None:
    with pytest.raises(InvalidArgument, match="stall, resnapshot"):
        begun(here, shop, onAltered="sometimes")


def test_what_is_done_about_altered_tables_may_be_decided_later_by_a_running_pipeline_too(
    here: Location, shop: Any
) -> None:
    begun(here, shop, onAltered="stall")
    with Pipeline(here, "shop", options=OPTIONS) as pipeline, Pipeline(here, "shop", options=OPTIONS) as other:
        worked(pipeline)
        worked(other)
        assert alter(here, "shop", {"onaltered": "resnapshot"}).definition["takes_over"] is True
        # What the pipeline learns of its upstream and records does not take it back.
        shop.run("INSERT INTO bad (id) VALUES (100)", "ALTER TABLE good ALTER name SET STATISTICS 50")
        worked(pipeline)
        assert Records(client(here)).source("shop").definition["takes_over"] is True
        shop.run("ALTER TABLE bad DROP COLUMN name")
        worked(other)
        assert status(here, "shop").exports[BAD].state == "running"
        assert follows(here, shop, BAD, "id, NULL, n, mood")
        alter(here, "shop", {"onAltered": "stall"})
        shop.run("ALTER TABLE bad DROP COLUMN mood")
        worked(pipeline)
        worked(other)
        assert status(here, "shop").exports[BAD].state == "stalled"
        # What had stalled waits for its command.
        alter(here, "shop", {"onAltered": "resnapshot"})
        worked(pipeline)
        assert status(here, "shop").exports[BAD].state == "stalled"
        resnapshot(here, "shop", BAD)
        worked(pipeline)
        assert follows(here, shop, BAD, "id, NULL, n, NULL")
        assert follows(here, shop, GOOD)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"onAltered": "ignore"}, "stall, resnapshot"),
        ({"onAlterd": "stall"}, "did you mean onAltered"),
        ({}, "no option"),
    ],
)
def test_what_cannot_be_altered_is_refused(here: Location, shop: Any, options: dict[str, str], says: str) -> None:
    begun(here, shop)
    before = Records(client(here)).source("shop")
    with pytest.raises(InvalidArgument, match=says):
        alter(here, "shop", options)
    assert Records(client(here)).source("shop") == before
