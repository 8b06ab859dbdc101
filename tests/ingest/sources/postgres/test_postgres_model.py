"""Snapshot and changes together are the table, whatever is written meanwhile, at every bound and after restarts."""

import random
import threading
from typing import Any

import psycopg
import pytest
from simulation.budget import FULL

from persist_ingest.sources.postgres import POSTGRES, framing
from persist_ingest.sources.postgres import reader as reading

ACCOUNTS, TOTAL = 50, 5000
ROUNDS, CHANGES = (30, 60) if FULL else (12, 30)
"""At least so many; the writers work as long as it takes."""


def write(dsn: str, seed: int, stop: threading.Event, taken: threading.Event, durable: bool) -> None:
    """Random statements, a few to a transaction; the accounts' sum stays the same in each."""
    chance = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SET synchronous_commit = {'on' if durable else 'off'}".encode())
        connection.execute(b"SET lock_timeout = '2s'")
        while not stop.is_set():
            try:
                with connection.transaction(force_rollback=chance.random() < 0.1):
                    for _ in range(chance.randint(1, 4)):
                        connection.execute(statement(chance, taken.is_set()).encode())
                    move(connection, chance)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                continue


def move(connection: Any, chance: random.Random) -> None:
    amount = chance.randint(1, 9)
    for account in sorted(chance.sample(range(ACCOUNTS), 2)):
        connection.execute(b"UPDATE accounts SET balance = balance + %s WHERE id = %s", [amount, account])
        amount = -amount


def statement(chance: random.Random, may_truncate: bool) -> str:
    some = chance.randrange(300)
    return chance.choice(
        [
            f"INSERT INTO notes VALUES ({some}, 'new', repeat('long {some} ', 1000)) ON CONFLICT DO NOTHING",
            f"INSERT INTO notes VALUES ({some}, NULL, NULL) ON CONFLICT (id) DO UPDATE SET tag = 'again'",
            f"UPDATE notes SET tag = 't{chance.random()}' WHERE id BETWEEN {some} AND {some + 5}",
            f"UPDATE notes SET id = id + 1000 * (1 - 2 * (id / 1000)) WHERE id = {some} AND NOT EXISTS "
            f"(SELECT 1 FROM notes WHERE id = {some + 1000})",
            f"DELETE FROM notes WHERE id % 37 = {some % 37}",
            f"INSERT INTO log SELECT 'line ' || n % 7 FROM generate_series(1, {some % 20}) n",
            "DELETE FROM log WHERE ctid IN (SELECT ctid FROM log LIMIT 3)",
            *(["TRUNCATE log"] if may_truncate and chance.random() < 0.1 else []),
        ]
    )


def balanced(upstream: Any) -> bool:
    rows = upstream.rows["public.accounts"]
    return sum(balance * count for (_, balance), count in rows.items()) == TOTAL


@pytest.mark.parametrize("durable", [True, False])
def test_any_workload_comes_out_as_the_tables(upstream: Any, durable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ADVANCE_SECONDS", 0.0)
    monkeypatch.setattr(framing, "KEPT_BYTES", 1 << 10)
    upstream.run(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int)",
        "CREATE TABLE notes (id int PRIMARY KEY, tag text, body text)",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
        "CREATE TABLE log (line text)",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("accounts", "notes", "log")),
        f"INSERT INTO accounts SELECT n, {TOTAL // ACCOUNTS} FROM generate_series(0, {ACCOUNTS - 1}) n",
    )
    stop, taken = threading.Event(), threading.Event()
    writers = [threading.Thread(target=write, args=(upstream.dsn, seed, stop, taken, durable)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        with upstream.create("public.accounts, public.log, public.notes") as beginning:
            # A table that is truncated before that would have to be begun anew.
            reader = upstream.begin(beginning)
        taken.set()
        chance = random.Random(7)
        rounds = changes = 0
        while rounds < ROUNDS or changes < CHANGES:
            rounds += 1
            assert balanced(upstream)
            changes += len(upstream.follow(reader))
            if chance.random() < 0.5:
                reader.commit(upstream.at)
            if chance.random() < 0.2:
                exports = reader.exports()
                reader.close()
                reader = POSTGRES.open(beginning.definition, exports)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    upstream.run("INSERT INTO notes SELECT n, 'bulk', NULL FROM generate_series(5000, 40000) n")
    upstream.follow(reader)
    for name in ("accounts", "notes", "log"):
        assert upstream.holds(f"public.{name}", f"SELECT * FROM {name}"), name
        assert min(upstream.rows[f"public.{name}"].values(), default=0) >= 0
