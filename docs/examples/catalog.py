"""The catalog: what must never be lost track of, led by one process, read by any, and changed in whole transactions.

python catalog.py DIRECTORY
"""

import sys

import persist
from persist.catalog import DATABASE, Database, DatabaseKey, FencedByEpoch, Id, RoleRef, Space


def main(directory: str) -> None:
    owner = RoleRef(Space.USER, 1)
    with persist.embedded(directory) as client, client.catalog("production") as catalog:
        leader = catalog.open(1)
        (number,) = leader.allocate("database")
        sales = DatabaseKey(Id(Space.USER, number))
        transaction = leader.transaction()
        transaction.insert(DATABASE, sales, Database("sales", owner, oid=20_000))
        leader.commit(transaction)

        reader = catalog.open_read_only()
        print([each.name for each in reader.objects(DATABASE).values()])

        # The last process to open the catalog for writing leads; the one before gets an error at its next call.
        successor = catalog.open(1)
        try:
            leader.confirm_leadership()
        except FencedByEpoch as fenced:
            print(f"fenced by epoch {fenced.details['fenced_by_epoch']}")

        rename = successor.transaction()
        rename.set(DATABASE, sales, Database("orders", owner, oid=20_000))
        upper = successor.commit(rename)
        reader.sync(upper, timeout=30)
        print([each.name for each in reader.objects(DATABASE).values()])


if __name__ == "__main__":
    main(sys.argv[1])
