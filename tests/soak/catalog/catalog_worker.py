"""Processes that lead a catalog for a while.

``python -m soak.catalog.catalog_worker open PLACE FILE OPENS WRITES`` opens the catalog so often, writing in between
until it was fenced or WRITES were made. ``... append PLACE FILE NAME CLIENTS COUNT`` opens it once and makes COUNT
transactions that append to lists, CLIENTS at a time; first it repeats those that FILE says had no answer. Each appends
lines of JSON to FILE, before and after what it does. PLACE: a directory, or the URIs of Blob and Consensus.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Iterator
from itertools import chain
from typing import Any

from persist import aio
from persist.client.catalog.port import ReadWriteCatalog
from persist.core.catalog.errors import Fenced, OutOfSync
from persist.core.catalog.kinds import COMMIT, SYSTEM_CONFIGURATION
from persist.core.catalog.objects import CommitKey, SystemConfiguration, SystemConfigurationKey
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.ids import Token

ENVIRONMENT = "soak"
LISTS = 8
"""So many lists are appended to at a time."""
ELEMENTS = 40
"""After about so many a list is left alone: another one takes its place."""
FENCED = 3
"""How a process exits that another one deposed."""

Line = dict[str, Any]


class Lines:
    """A file that several processes append whole lines to."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(self, **line: object) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def lines_of(path: str) -> list[Line]:
    """What was reported. A line whose process was killed amid writing it counts for nothing."""
    with open(path, "a+") as file:
        file.seek(0)
        return [json.loads(line) for line in file if line.endswith("}\n")]


def client_at(place: str) -> Awaitable[aio.Client]:
    blob, _, consensus = place.partition(" ")
    return aio.embedded(blob=blob, consensus=consensus) if consensus else aio.embedded(place)


async def open_often(place: str, lines: Lines, opens: int, writes: int) -> None:
    async with await client_at(place) as client:
        catalog = await client.catalog(ENVIRONMENT)
        for _ in range(opens):
            try:
                leader = await catalog.open(1)
            except Fenced as refusal:
                # Another process opened it while this process still migrated or made it.
                lines.tell(what="not opened", by=int(refusal.details.get("fenced_by_epoch", 0)))
                continue
            assert leader.token is not None
            await write_until_fenced(leader, lines, leader.token.epoch, writes)
        await catalog.close()


async def write_until_fenced(leader: ReadWriteCatalog, lines: Lines, epoch: int, writes: int) -> None:
    lines.tell(what="opened", epoch=epoch)
    for number in range(writes):
        name = f"{epoch}.{number}"
        try:
            await leader.set(SYSTEM_CONFIGURATION, {SystemConfigurationKey(name): SystemConfiguration(str(epoch))})
        except Fenced as refusal:
            lines.tell(what="fenced", epoch=epoch, by=int(refusal.details["fenced_by_epoch"]))
            return
        lines.tell(what="wrote", epoch=epoch, name=name)


async def append_often(place: str, path: str, lines: Lines, name: str, clients: int, count: int) -> None:
    dice = random.Random(name)
    repeated = unanswered(path)
    async with await client_at(place) as client:
        catalog = await client.catalog(ENVIRONMENT)
        leader = await catalog.open(1)
        work = chain(repeated, (new(dice, f"{name}.{number}", number) for number in range(count)))
        fenced = False
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(clients):
                    group.create_task(client_of(leader, lines, work))
        except* Fenced:
            # Ended further down: what is raised in here is raised as one of a group.
            fenced = True
        if fenced:
            sys.exit(FENCED)
        await catalog.close()


def unanswered(path: str) -> list[Line]:
    """What was begun by processes before this one and is not known to be done."""
    told = lines_of(path)
    done = {line["token"] for line in told if line["what"] == "done"}
    return list(
        {line["token"]: line for line in told if line["what"] == "begun" and line["token"] not in done}.values()
    )


def new(dice: random.Random, element: str, number: int) -> Line:
    first = number // (LISTS * ELEMENTS // 2) * LISTS
    lists = sorted(dice.sample(range(first, first + LISTS), dice.choice((1, 2, 3))))
    return {"token": str(Token.named(element)), "element": element, "lists": [str(each) for each in lists]}


async def client_of(leader: ReadWriteCatalog, lines: Lines, work: Iterator[Line]) -> None:
    for line in work:
        asked = {key: line[key] for key in ("token", "element", "lists")}
        invoked = line.get("invoked", time.monotonic_ns())
        lines.tell(what="begun", invoked=invoked, **asked)
        reads, upper = await append(leader, **asked)
        lines.tell(what="done", invoked=invoked, returned=time.monotonic_ns(), reads=reads, ts=upper - 1, **asked)


async def append(
    leader: ReadWriteCatalog, token: str, element: str, lists: list[str]
) -> tuple[dict[str, list[str]] | None, int]:
    """What the lists were before, None if that is not known any more, and the upper after the commit."""
    while True:
        done = leader.get(COMMIT, CommitKey(Token(token)))
        if done is not None:
            return None, done.ts + 1
        transaction = leader.transaction(token=Token(token))
        try:
            reads = {each: read(transaction, each) for each in lists}
            for each, found in reads.items():
                value = SystemConfiguration(",".join([*found, element]))
                transaction.set(SYSTEM_CONFIGURATION, SystemConfigurationKey(each), value)
                # The others of this process get their turn: what was read may be changed by then.
                await asyncio.sleep(0)
            return reads, await leader.commit(transaction)
        except OutOfSync:
            continue


def read(transaction: CatalogTransaction, name: str) -> list[str]:
    found = transaction.get(SYSTEM_CONFIGURATION, SystemConfigurationKey(name))
    return found.value.split(",") if found is not None else []


if __name__ == "__main__":
    role, place, file, *rest = sys.argv[1:]
    if role == "open":
        asyncio.run(open_often(place, Lines(file), *map(int, rest)))
    else:
        asyncio.run(append_often(place, file, Lines(file), rest[0], *map(int, rest[1:])))
