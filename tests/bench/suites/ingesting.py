"""P18: steps of an ingester. P19: how far it is behind a database. P20: upserts of many keys. Source: sources.md."""

import tempfile
from pathlib import Path
from typing import Any

import psycopg

from bench.jobs.following import TABLE
from bench.measure import Spread, quantile
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import child, job
from bench.stage import Stage
from persist.testing import servers
from persist_ingest import Location, create

LOGICAL = {"wal_level": "logical", "max_replication_slots": "16", "max_wal_senders": "16"}
TICK_MS = 50
UPSERT_SECONDS = 3_600.0


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    with tempfile.TemporaryDirectory() as place, servers.start_postgres(LOGICAL) as upstream:
        if plan.wants("P18"):
            _steps(stage, plan, outcome, Databases(upstream), Path(place))
        if plan.wants("P19"):
            _follows(plan, outcome, Databases(upstream), Path(place))
        if plan.wants("P20"):
            _upserts(plan, outcome, Path(place))


class Databases:
    """New ones of one PostgreSQL, which syncs every commit."""

    def __init__(self, server: servers.Server) -> None:
        self._server = server

    def new(self, name: str) -> str:
        with psycopg.connect(self._server.uri, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"host=127.0.0.1 port={self._server.port} user=postgres dbname={name}"


# ---- P18 ---------------------------------------------------------------------------------------------------------


def _steps(stage: Stage, plan: Plan, outcome: Outcome, databases: Databases, place: Path) -> None:
    rounds = plan.pick(40, 200)
    plan.say("P18 steps of one table, in a directory")
    asked = {"what": "steps", "rounds": rounds}
    one = job(
        "bench.jobs.ingesting",
        {**asked, "dsn": databases.new("one"), "location": {"directory": str(place / "one")}, "tables": 1},
    )
    outcome.keep("steps_of_one_table", one)
    for kind in ("idle", "one row"):
        spread = Spread.of(one[kind]["cpu_ms"])
        outcome.check("P18", f"CPU of a step, {kind}", spread.mid, 15.0, unit=" ms", ours=spread.show(" ms", 1))
    plan.say("P18 steps of a hundred tables, on S3 and PostgreSQL")
    with servers.start_postgres() as consensus:
        location = {"blob": stage.blob_uri(), "consensus": consensus.uri}
        many = job("bench.jobs.ingesting", {**asked, "dsn": databases.new("many"), "location": location, "tables": 100})
    outcome.keep("steps_of_100_tables", many)
    for kind, found in many.items():
        spread = Spread.of(found["ms"])
        ours = f"{spread.show(' ms', 0)}; CPU {Spread.of(found['cpu_ms']).mid:.0f} ms"
        outcome.check("P18", f"step of 100 tables, {kind}", spread.mid, 500.0, unit=" ms", ours=ours)


# ---- P19 ---------------------------------------------------------------------------------------------------------


def _follows(plan: Plan, outcome: Outcome, databases: Databases, place: Path) -> None:
    seconds = plan.pick(20, 60)
    plan.say(f"P19 200 transactions a second, for {seconds} s")
    few = _followed(outcome, databases.new("few"), place / "few", rate=200, rows=1, seconds=seconds, updates=False)
    outcome.keep("lag_at_200_transactions", few)
    p50, p99 = quantile(few["lag_ms"], 0.5), quantile(few["lag_ms"], 0.99)
    outcome.check("P19", "commit to complete at a listener, p50", p50, 150.0, unit=" ms", ours=f"p99 {p99:.0f} ms")
    plan.say(f"P19 10,000 changes a second, for {seconds} s")
    much = _followed(outcome, databases.new("much"), place / "much", rate=250, rows=20, seconds=seconds, updates=True)
    outcome.keep("changes_of_10000_a_second", much)
    outcome.check("P19", "changes a second, with the database on the same machine", much["changes_per_second"], 9_900,
                  at_most=False, unit="/s", ours=f"CPU {much['cpu']:.2f} of a core")  # fmt: skip
    outcome.check("P19", "all of it complete after the last commit", much["behind_s"], 1.0, unit=" s")


def _followed(outcome: Outcome, dsn: str, place: Path, *, seconds: int, **work: Any) -> dict[str, Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, tx int, name text)".encode())
        connection.execute(f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL".encode())
    here = Location(directory=str(place))
    source = create(here, "shop", "postgres", {"dsn": dsn, "tables": TABLE}, interval_ms=1)
    arguments = ["source", "run", "shop", "--location", str(place), "--tick-ms", str(TICK_MS), "--no-spark"]
    request = {"location": str(place), "shard": str(source.shards[TABLE]), "dsn": dsn, "seconds": seconds, **work}
    with child("persist_cli", arguments) as ingester:
        found: dict[str, Any] = job("bench.jobs.following", request)
        found["cpu"] = ingester.cpu_seconds / seconds
    outcome.gate("P19", "every row is PostgreSQL's", expected=True, found=found["agrees"])
    return found


# ---- P20 ---------------------------------------------------------------------------------------------------------


def _upserts(plan: Plan, outcome: Outcome, place: Path) -> None:
    keys = plan.size(plan.pick(5_000_000, 50_000_000))
    plan.say(f"P20 upserts against {keys:,} keys")
    sizes = [1_000, 10_000, 100_000, 1_000_000]
    request = {
        "what": "upserts",
        "directory": str(place / "keyed"),
        "keys": keys,
        "sizes": sizes,
        "rounds": plan.rounds,
    }
    found = job("bench.jobs.ingesting", request, seconds=UPSERT_SECONDS)
    outcome.keep("upserts", found)
    for size in sizes:
        spread = Spread.of(found[str(size)]["us_upsert"])
        what = f"CPU of an upsert in a step of {size:,}, against {keys:,} keys"
        outcome.check("P20", what, spread.mid, 3.0, unit=" us", ours=spread.show(" us", 1),
                      against=f"{Spread.of(found[str(size)]['us_update']).mid:.1f} us an update")  # fmt: skip
    outcome.check("P20", f"memory of {keys:,} keys that no file stands behind", found["anonymous"] / 1e6, 1_000.0,
                  unit=" MB", ours=f"{found['anonymous_before'] / 1e6:.0f} MB before the steps that count")  # fmt: skip
    outcome.check("P20", "first step after a restart", found["restart_s"], 5.0, unit=" s")
