"""``persist admin upgrade``: the location's write-version, then the shards in a format that is only read."""

import dataclasses
from collections.abc import Callable, Sequence

from persist.core.ids import ShardId
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT
from persist.errors import InvalidArgument
from persist.machine.upkeep.next_step import check
from persist.machine.upkeep.upgrade import OlderProgram
from persist_cli.admin.administration import Machine
from persist_cli.admin.work import say, told
from persist_cli.outcomes import Outcomes, Row
from persist_cli.terminal import counted, note, print_json, print_rows


async def upgrade(machine: Machine, shards: list[str], *, commit: bool, yes: bool, json: bool) -> int:
    """Raise the write-version (of the whole location only), and move shards; or say what that would do. The exit code.

    Raises InvalidArgument while programs committed lately that do not know the new format, and where a shard is too
    damaged to know, unless ``yes``.
    """
    written = await machine.upgrade.write_version(machine.deadline())
    location: Row = {"write_version": written, "to": written if shards else STATE_FORMAT, "raised": False}
    raises = location["to"] != written
    older: list[OlderProgram] = []

    async def look(shard: ShardId, steps: Callable[[int], None]) -> Row:
        found = await machine.upgrade.format(shard, machine.deadline())
        if found is None:
            await machine.check_known(shard)
        elif raises:
            older.extend(await machine.upgrade.older_programs(shard, machine.deadline()))
        steps(1)
        return {"shard": shard, "format": found, "to": max(found or 0, FIRST_FORMAT)}

    done = await told(machine, shards, look, what="looking", unit="shards")
    if done.interrupted:
        return done.code
    location["older_programs"] = [dataclasses.asdict(each) for each in older]
    if commit:
        if not yes:
            _check_nobody_stops(older, list(done.failed) if raises else [], machine.place)
        if raises:
            location["raised"] = await machine.upgrade.raise_write_version(machine.deadline())
        for row in done.rows:
            row["upgraded"] = False
            if "error" not in row:
                with done.of(row["shard"]):
                    row["upgraded"] = await machine.upgrade.move(row["shard"], machine.deadline())
    if json:
        print_json({"committed": commit, "location": location, "shards": done.rows})
    else:
        _print(location, done, machine.place, commit=commit)
    return done.code


def _print(location: Row, done: Outcomes, place: Sequence[str], *, commit: bool) -> None:
    shown = location["write_version"] or "none: an older release made it"
    print_rows([{**location, "write_version": shown, "older_programs": len(location["older_programs"])}])
    for each in location["older_programs"]:
        note(f"{each['hostname']} does not know format {location['to']}, and committed to {each['shard']} lately")
    moving = [row for row in done.rows if "error" in row or row["format"] != row["to"]]
    print_rows(moving)
    done.say(place)
    if location["to"] != location["write_version"] or moving:
        say(commit, moving)
    else:
        note(f"nothing to upgrade: {counted(len(done.rows), 'shard')}, write-version {shown}")


def _check_nobody_stops(older: list[OlderProgram], unknown: list[str], place: Sequence[str]) -> None:
    """Raise InvalidArgument where programs would stop, or where it is not known whether they would."""
    if older:
        raise _in_use(older)
    if unknown:
        raise InvalidArgument(
            "who committed to a damaged shard lately is not known: programs of an older release would stop",
            hint=f"{check(unknown[0]).line(place)}; or, if no older programs are left, give --yes",
            shards=len(unknown),
            shard=unknown[0],
        )


def _in_use(older: list[OlderProgram]) -> InvalidArgument:
    hosts = sorted({each.hostname for each in older})
    return InvalidArgument(
        f"programs that do not know format {STATE_FORMAT} committed here lately, and would stop",
        hint="replace them by this release and run it again after a reader's lease; or, if they are gone, give --yes",
        hosts=",".join(hosts[:8]),
        known=min(each.known_format for each in older),
        shard=older[0].shard,
    )
