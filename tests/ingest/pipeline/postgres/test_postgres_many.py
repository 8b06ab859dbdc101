"""One of many tables is broken in seven ways: all others go on within a step, and one call mends it."""

from collections import Counter
from typing import Any

import pytest
from ingest.pipeline.conftest import contents
from simulation.budget import FULL

from persist_ingest import Location, Pipeline, PipelineOptions, create, resnapshot, status
from persist_ingest.pipeline import pipeline as ingesting
from persist_ingest.pipeline.anew import attempt, watching

TABLES = 100 if FULL else 8
OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, commit_steps_late=0, forget_ms=10**9)
BAD = "public.t7"
WAYS: dict[str, tuple[list[str], list[str]]] = {
    "a column dropped": (["ALTER TABLE t7 DROP COLUMN gone"], []),
    "infinity": (["UPDATE t7 SET at = 'infinity' WHERE id = 3"], ["UPDATE t7 SET at = now() WHERE id = 3"]),
    "NaN in numeric": (["UPDATE t7 SET n = 'NaN' WHERE id = 3"], ["UPDATE t7 SET n = 5 WHERE id = 3"]),
    "another identity": (["ALTER TABLE t7 REPLICA IDENTITY NOTHING"], ["ALTER TABLE t7 REPLICA IDENTITY FULL"]),
    "rewritten": (["ALTER TABLE t7 ALTER name TYPE text USING upper(name)"], []),
    "renamed": (["ALTER TABLE t7 RENAME TO other"], ["ALTER TABLE other RENAME TO t7"]),
    "made anew": (
        ["DROP TABLE t7", "CREATE TABLE t7 (LIKE t6 INCLUDING ALL)", "INSERT INTO t7 SELECT * FROM t6 LIMIT 3"],
        [],
    ),
}


@pytest.mark.timeout(1_200 if FULL else 300)
def test_one_of_many_tables_is_broken_in_seven_ways_and_mended_by_itself_each_time(
    here: Location, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingesting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(watching, "JOIN_SECONDS", 10.0**9)
    names = [f"public.t{number}" for number in range(1, TABLES + 1)]
    for name in names:
        gone = ", gone int" if name == BAD else ""
        shop.run(f"CREATE TABLE {name} (id int PRIMARY KEY, name text, n numeric(8,2), at timestamptz{gone})")
        shop.run(f"INSERT INTO {name} SELECT i, 'n' || i, i, '2024-01-01' FROM generate_series(1, 6) i")
    options = {"dsn": shop.dsn, "tables": ",".join(names), "setReplicaIdentity": "true"}
    create(here, "shop", "postgres", options, interval_ms=1)
    others = [name for name in names if name != BAD]

    def changed(number: int) -> None:
        shop.run(
            "BEGIN",
            *(f"INSERT INTO {name} VALUES ({number}, 'x')" for name in others),
            *(f"DELETE FROM {name} WHERE id = {number - 100}" for name in others),
            "COMMIT",
        )

    def follow(*tables: str) -> bool:
        return all(
            contents(here, "shop", name) == Counter(shop.select(f"SELECT id, name, n, at FROM {name}"))
            for name in tables
        )

    def told() -> tuple[str, dict[str, int | None]]:
        now = status(here, "shop", ask_upstream=False)
        return now.exports[BAD].state, {name: now.uppers[name] for name in others}

    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        for number, way in enumerate(WAYS, 101):
            breaks, corrects = WAYS[way]
            shop.run(*breaks)
            changed(number)
            pipeline.step()
            assert told()[0] == "stalled", way
            assert follow(*others), way
            shop.run(*corrects)
            before = told()
            resnapshot(here, "shop", BAD)
            assert told() == ("running", before[1]), way
            shop.run("INSERT INTO t7 (id) VALUES (1000)", "DELETE FROM t7 WHERE id = 1000 OR id = 6")
            pipeline.step()
            pipeline.step()
            columns = {row[:4]: count for row, count in contents(here, "shop", BAD).items()}
            assert columns == Counter(shop.select("SELECT id, name, n, at FROM t7")), way
    assert {each.state for each in status(here, "shop").exports.values()} == {"running"}
    assert follow(*others)
