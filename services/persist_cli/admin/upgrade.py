"""``persist admin upgrade``: the location's write-version, then the shards in a format that is only read."""

import dataclasses
from collections.abc import Callable

from persist.core.ids import ShardId
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT
from persist.errors import InvalidArgument
from persist.machine.upkeep.upgrade import OlderProgram
from persist_cli.admin.administration import Machine
from persist_cli.admin.work import Row, say, told
from persist_cli.terminal import counted, note, print_json, print_rows


async def upgrade(machine: Machine, shards: list[str], *, commit: bool, yes: bool, json: bool) -> None:
    """Raise the write-version (of the whole location only), and move shards; or tell what that would do.

    Raises InvalidArgument while programs committed lately that do not know the new format, unless ``yes``.
    """
    written = await machine.upgrade.write_version(machine.deadline())
    location: Row = {"write_version": written, "to": written if shards else STATE_FORMAT, "raised": False}
    older: list[OlderProgram] = []

    async def look(shard: ShardId, steps: Callable[[int], None]) -> Row:
        found = await machine.upgrade.format(shard, machine.deadline())
        if found is None:
            await machine.check_known(shard)
        elif location["to"] > written:
            older.extend(await machine.upgrade.older_programs(shard, machine.deadline()))
        steps(1)
        return {"shard": shard, "format": found, "to": max(found or 0, FIRST_FORMAT)}

    rows = await told(machine, shards, look, what="looking", unit="shards")
    location["older_programs"] = [dataclasses.asdict(each) for each in older]
    if commit:
        if older and not yes:
            raise _in_use(older)
        if not shards:
            location["raised"] = await machine.upgrade.raise_write_version(machine.deadline())
        for row in rows:
            row["upgraded"] = "error" not in row and await machine.upgrade.move(row["shard"], machine.deadline())
    if json:
        print_json({"committed": commit, "location": location, "shards": rows})
        return
    _print(location, rows, commit=commit)


def _print(location: Row, rows: list[Row], *, commit: bool) -> None:
    print_rows([{**location, "older_programs": len(location["older_programs"])}])
    for each in location["older_programs"]:
        note(f"{each['hostname']} does not know format {location['to']}, and committed to {each['shard']} lately")
    moving = [row for row in rows if row.get("format") != row.get("to")]
    print_rows(moving)
    if location["to"] > location["write_version"] or moving:
        say(commit, moving)
    else:
        note(f"nothing to upgrade: {counted(len(rows), 'shard')}, write-version {location['write_version']}")


def _in_use(older: list[OlderProgram]) -> InvalidArgument:
    hosts = sorted({each.hostname for each in older})
    return InvalidArgument(
        f"programs that do not know format {STATE_FORMAT} committed here lately, and would stop",
        hint="replace them by this release and run it again after a reader's lease; or, if they are gone, give --yes",
        hosts=",".join(hosts[:8]),
        known=min(each.known_format for each in older),
        shard=older[0].shard,
    )
