"""``persist source`` where one table of a PostgreSQL stops: a row for each, why, and the command that mends it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ingest.pipeline.conftest import shop, shop_server  # noqa: F401 - fixtures are used by being there

from persist_ingest import Location
from persist_ingest.location import release

Persist = Callable[..., Any]


@pytest.fixture(autouse=True)
def released(here: tuple[str, str]) -> Iterator[None]:
    yield
    release(Location(directory=here[1]))


def test_one_table_stalls_is_shown_and_mended_by_one_command(
    persist: Persist,
    here: tuple[str, str],
    shop: Any,  # noqa: F811 - the fixture
) -> None:
    def run(*words: object) -> Any:
        return persist("source", *words, "--no-spark", *here)

    for table in ("bad", "good"):
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)", f"INSERT INTO {table} VALUES (1, 'a')")
    options = ("-o", f"dsn={shop.dsn}", "-o", "tables=public.bad,public.good", "-o", "setReplicaIdentity=true")
    assert run("create", "shop", "--type", "postgres", *options).code == 0
    shop.run("ALTER TABLE bad DROP COLUMN name", "INSERT INTO good VALUES (2, 'b')")
    ran = run("run", "shop", "--steps", 1)
    assert ran.code == 0, "the source goes on"
    assert "stalled: a column was dropped" in ran.err
    told = persist("source", "status", "shop", *here)
    assert told.code == 1
    assert "persist source resnapshot shop public.bad" in told.err
    assert "a column was dropped or renamed" in " ".join(told.out.split())
    assert "1 of 2 exports stalled" in told.out.splitlines()[0]
    assert told.out.index("a column was dropped") < told.out.index("1 running")
    assert "public.good" not in told.out
    assert "1 of 2 do not run" in persist("source", "status", *here).out
    shown = persist("source", "status", "shop", "--json", *here).json
    assert {name: each["state"] for name, each in shown["exports"].items()} == {
        "public.bad": "stalled",
        "public.good": "running",
    }
    assert shown["exports"]["public.bad"]["since_ms"]
    upper = shown["exports"]["public.bad"]["upper"]
    rows = persist("shard", "snapshot", "shop.public.bad", "--as-of", upper - 1, "--json", *here).lines
    assert [row["name"] for row in rows] == ["a"]
    beyond = persist("shard", "snapshot", "shop.public.bad", "--as-of", upper, *here)
    assert beyond.code != 0
    assert "public.bad of source shop is stalled" in beyond.err
    assert "persist source resnapshot shop public.bad" in beyond.err
    wrong = persist("source", "resnapshot", "shop", "public.bat", *here)
    assert wrong.code == 2
    assert "public.bad" in wrong.err
    altered = persist("source", "alter", "shop", "-o", "onaltered=resnapshot", *here)
    assert altered.code == 0, altered.err
    assert "shop has onAltered=resnapshot" in altered.err
    (listed,) = persist("source", "list", "--json", *here).json["sources"]
    assert listed["definition"]["takes_over"] is True
    assert "tables" not in listed["definition"], "what it keeps of their forms is its own"
    assert persist("sql", "create table t (id bigint)", *here).code == 0
    assert persist("catalog", "adopt", "shop", *here).code == 0
    assert persist("sql", "alter source shop set (onAltered = 'stall')", *here).code == 0
    (listed,) = persist("source", "list", "--json", *here).json["sources"]
    assert listed["definition"]["takes_over"] is False
    done = persist("source", "resnapshot", "shop", "public.bad", *here)
    assert done.code == 0, done.err
    assert run("run", "shop", "--steps", 1).code == 0
    assert persist("source", "status", "shop", *here).code == 0
    rows = persist("shard", "snapshot", "shop.public.bad", "--json", *here).lines
    assert [row["id"] for row in rows] == [1]


def test_tables_are_added_and_dropped_by_commands(
    persist: Persist,
    here: tuple[str, str],
    shop: Any,  # noqa: F811 - the fixture
) -> None:
    def run(*words: object) -> Any:
        return persist("source", *words, *here)

    for table in ("one", "two"):
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} SELECT generate_series(1, 5)")
    options = ("-o", f"dsn={shop.dsn}", "-o", "tables=public.one", "-o", "setReplicaIdentity=true")
    assert run("create", "shop", "--type", "postgres", "--no-spark", *options).code == 0
    added = run("add-table", "shop", "public.two", "--rows-per-second", 1000, "--json")
    assert added.code == 0, added.err
    assert list(added.json["added"]) == ["public.two"]
    assert run("run", "shop", "--steps", 1, "--no-spark").code == 0
    assert [row["id"] for row in persist("shard", "snapshot", "shop.public.two", "--json", *here).lines] == [
        1,
        2,
        3,
        4,
        5,
    ]
    shown = run("status", "shop", "--json").json["exports"]
    assert {name: (each["state"], each["progress"]) for name, each in shown.items()} == {
        "public.one": ("running", None),
        "public.two": ("running", None),
    }
    assert run("add-table", "shop", "public.two").code == 2
    assert "add --commit" in run("drop-table", "shop", "public.two").err
    assert run("drop-table", "shop", "public.tow", "--commit").code == 2
    assert run("drop-table", "shop", "public.two", "--commit").code == 0
    assert list(run("status", "shop", "--json").json["exports"]) == ["public.one"]
    assert run("run", "shop", "--steps", 1, "--no-spark").code == 0
