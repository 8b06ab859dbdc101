"""A source: the tables of a PostgreSQL become shards, exactly once, and are read together at one time.

python postgres_source.py DIRECTORY DSN          DSN such as "host=db dbname=shop user=persist"; wal_level is logical
"""

import sys

import psycopg

import persist
import persist_ingest as ingest


def main(directory: str, dsn: str) -> None:
    shop = psycopg.connect(dsn, autocommit=True)
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, total int)")
    shop.execute("CREATE TABLE items (id int PRIMARY KEY, order_id int, price int)")
    shop.execute("INSERT INTO orders VALUES (1, 30)")
    shop.execute("INSERT INTO items VALUES (1, 1, 10), (2, 1, 20)")

    here = ingest.Location(directory=directory)
    options = {"dsn": dsn, "tables": "public.orders,public.items", "setReplicaIdentity": "true"}
    source = ingest.create(here, "shop", "postgres", options)

    # One transaction upstream has one time here, whichever tables it writes.
    with shop.transaction():
        shop.execute("INSERT INTO orders VALUES (2, 5)")
        shop.execute("INSERT INTO items VALUES (3, 2, 5)")

    # Left alone it runs until it is stopped, here or as `persist source run shop`. This one ends once all is in.
    (written,) = shop.execute("SELECT pg_current_wal_lsn()").fetchone()
    with ingest.Pipeline(here, "shop") as pipeline:
        last = pipeline.run(until=lambda step: step.rows == 0 and covers(step, written))

    with persist.embedded(directory) as client:
        as_of = last.upper.time - 1
        for export in ("public.orders", "public.items"):
            with client.open_reader(source.shards[export]) as reader:
                print(export, [tuple(row.values())[:-1] for row in reader.snapshot(as_of).to_pylist()])

    ingest.drop(here, "shop")  # or its replication slot would keep WAL for ever


def covers(step: ingest.Step, lsn: str) -> bool:
    """Whether a step has come as far as a position of the log that PostgreSQL shows."""
    high, low = (int(part, 16) for part in lsn.split("/"))
    return step.frontier.bound(0) >= (high << 32) + low


if __name__ == "__main__":
    main(*sys.argv[1:3])
