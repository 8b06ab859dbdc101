"""A process that makes transfers between two tables and checks that every look at both finds whole transfers only.

``python -m client.table.table_worker BLOB CONSENSUS NUMBER TRANSFERS FILE DIE`` appends the number of each transfer to
FILE once it is acknowledged. DIE says where it kills itself amid its last transfer: ``append`` (in the log, not
applied), ``copy`` (before a table is written), ``copied`` (after one of two was), ``forget`` (before the log is
notified), or ``-``.
"""

import asyncio
import os
import signal
import sys
from typing import Any

import pyarrow as pa
from client.support import Place, client_of

import persist
from persist import aio

TRANSFERS = persist.Schema(key={"transfer": pa.int64()}, val={"amount": pa.int64()})
NAMES = ("a", "b")


async def tables_of(client: aio.Client) -> list[aio.Table]:
    return [await client.table(name, schema=TRANSFERS, mode="wal") for name in NAMES]


async def transfers_at(tables: list[aio.Table], as_of: int) -> set[int]:
    """The transfers in the tables at a time. Each must be in both, once, and cancel out."""
    sides = []
    for table in tables:
        rows = await (await table.snapshot(as_of)).to_pylist()
        assert all(row["diff"] == 1 for row in rows)
        sides.append({row["transfer"]: row["amount"] for row in rows})
    assert sides[0] == {transfer: -amount for transfer, amount in sides[1].items()}
    return set(sides[0])


async def transfer(client: aio.Client, tables: list[aio.Table], number: int) -> int:
    async with client.transaction() as txn:
        txn.insert(tables[0], [{"transfer": number, "amount": number + 1}])
        txn.insert(tables[1], [{"transfer": number, "amount": -number - 1}])
    assert txn.ts is not None
    return txn.ts


async def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


async def last(client: aio.Client, tables: list[aio.Table], number: int, where: str) -> None:
    """The transfer that this process does not survive."""
    oracle, log = await client.oracle(), await client.transaction_log()
    if where == "append":
        oracle.apply_write = die  # type: ignore[method-assign]  # it ends here
    ts = await transfer(client, tables, number)
    if where == "copy":
        tables[0]._data.writer.compare_and_append = die  # type: ignore[method-assign]  # it ends here
    if where == "copied":
        tables[1]._data.writer.compare_and_append = die  # type: ignore[method-assign]  # it ends here
    if where == "forget":
        log._writer.compare_and_append = die  # type: ignore[method-assign]  # it ends here
        await client.settle()
    await transfers_at(tables, ts)


async def main(place: Place, number: int, count: int, file: str, where: str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with client_of(place) as client:
        tables, oracle = await tables_of(client), await client.oracle()
        for step in range(count):
            name = number * 1000 + step
            ts = await transfer(client, tables, name)
            os.write(fd, f"{name}\n".encode())
            assert name in await transfers_at(tables, ts)
            assert name in await transfers_at(tables, await oracle.read_ts())
            if step % 5 == number % 5:
                await client.settle()
        if where != "-":
            await last(client, tables, number * 1000 + count, where)


if __name__ == "__main__":
    asyncio.run(main(Place(*sys.argv[1:3]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:7]))
