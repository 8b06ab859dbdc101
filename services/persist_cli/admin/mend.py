"""What ``persist admin repair`` and ``persist admin rebuild`` do, for shards that lost something."""

from collections.abc import Sequence
from typing import Any

from persist.core.ids import ShardId
from persist.core.names import among, is_id
from persist.errors import CorruptData, InvalidArgument, PersistError, VersionMismatch
from persist.machine.backup.copying import Store
from persist.machine.backup.rebuild import Rebuilder, Rebuilt
from persist.machine.upkeep import next_step
from persist.machine.upkeep.repair import Loss, PartRepair
from persist.machine.upkeep.rollups import Mendable, RollupRepair
from persist_cli.admin.administration import Machine
from persist_cli.admin.work import say
from persist_cli.options import EXIT_FAILED
from persist_cli.outcomes import Outcomes
from persist_cli.terminal import note, print_json, print_rows, progress

Row = dict[str, Any]


async def repair(machine: Machine, shards: list[str], *, deep: bool, commit: bool, json: bool) -> int:
    """Take unreadable parts out; report what that loses. The exit code: 1 when something damaged stays as it is.

    A newest rollup that cannot be read is written again where an older one and the diffs are there. Any other
    state that cannot be read is reported separately, with what to do about it.
    """
    repair = PartRepair(machine.shards, machine.versions, settings=machine.settings, runtime=machine.runtime)
    rollups = RollupRepair(machine.versions, settings=machine.settings, runtime=machine.runtime)
    again: list[Row] = []
    outcomes = Outcomes(alone=len(shards) == 1)
    rows: list[Row] = []
    beyond: list[Row] = []
    chosen = await machine.chosen(shards)
    with progress("looking", None, unit="parts") as steps:
        for shard in chosen:
            # Whatever comes of one: nothing but this output remembers what was taken out of those before it.
            with outcomes.of(shard):
                look = repair.repair if commit else repair.find
                try:
                    rows += [_lost(loss) for loss in await look(shard, deep=deep, report=steps)]
                except (CorruptData, VersionMismatch) as error:
                    found = await _mendable(rollups, shard, error)
                    if found is None:
                        beyond.append(_beyond(shard, error, machine.place))
                        continue
                    again.append({"shard": shard, "rollup": found.key, "seqno": found.seqno, "from": found.origin})
                    if commit:
                        await rollups.mend(found)
                        rows += [_lost(loss) for loss in await look(shard, deep=deep, report=steps)]
    code = EXIT_FAILED if beyond or ((rows or again) and not commit) else outcomes.code
    if json:
        failed = {"beyond_repair": beyond, "failed": outcomes.rows}
        print_json({"committed": commit, "shards": len(chosen), "rollups": again, "lost": rows, **failed})
        return code
    rewritten = (
        "Rollups written again from older ones:" if commit else "Rollups that can be written again, losing nothing:"
    )
    print_rows(again, title=rewritten)
    print_rows(rows, title="Taken out, and lost with them:" if commit else "Would be lost with them:")
    print_rows(beyond, title="Beyond repair: not a part, but the state is damaged. Nothing of these was changed:")
    print_rows(outcomes.rows, title="Not looked at, or not to the end:")
    outcomes.say(machine.place)
    if rows or again:
        say(commit, [*again, *rows])
    elif not code:
        deeper = next_step.check_all(deep=True).command(machine.place)
        note("every part can be read" if deep else f"nothing is missing or cut; the blobs were not read: {deeper}")
    return code


async def _mendable(rollups: RollupRepair, shard: ShardId, error: PersistError) -> Mendable | None:
    """The newest rollup, if it is that alone which cannot be read."""
    try:
        return await rollups.find(shard) if isinstance(error, CorruptData) else None
    except CorruptData:
        return None


def _beyond(shard: ShardId, error: PersistError, place: Sequence[str]) -> Row:
    step = next_step.BEYOND if isinstance(error, CorruptData) else next_step.after(error, shard)
    return {"shard": shard, "why": f"{error.reason}: {error.message}", "next_step": step.line(place)}


def _lost(loss: Loss) -> Row:
    return {
        "shard": loss.shard,
        "part": loss.key or "inline",
        "why": loss.why,
        "lower": str(loss.desc.lower),
        "upper": str(loss.desc.upper),
        "rows": loss.rows,
        "diffs_sum": loss.diffs_sum,
        "bytes": loss.encoded_bytes,
        "min_ts": loss.min_ts,
        "max_ts": loss.max_ts,
        "key_lower": loss.key_lower.hex(),
        "key_upper": "" if loss.key_upper is None else loss.key_upper.hex(),
    }


async def rebuild(machine: Machine, shards: list[str], *, commit: bool, json: bool) -> int:
    """Begin shards again from their newest rollups. The exit code: 1 when some cannot be.

    Raises InvalidArgument (the Blob has none: a mistyped place), UnsafeConfiguration (the Consensus is another
    location's). Nothing was done then, nor was a Consensus made.
    """
    store = Store(machine.versions.blob, settings=machine.settings, runtime=machine.runtime)
    rebuilder = Rebuilder(store, machine.versions.consensus)
    ids = bool(shards) and all(map(is_id, shards))
    there = [shard for under in (shards if ids else [""]) async for shard in rebuilder.shards(under)]
    if not there:
        hint = f"no state of {'these shards' if ids else 'a shard'} lies in its Blob: is the name right?"
        raise InvalidArgument("no persist location", hint=hint, blob=machine.versions.blob.uri)
    await machine.check()
    await rebuilder.check()
    chosen = [among(each, there) for each in shards] or there
    rows: list[Row] = []
    failed = known = 0
    with progress("rebuilding", len(chosen), unit="shards") as steps:
        for shard in chosen:
            try:
                rebuilt = await rebuilder.rebuild(shard, commit=commit)
            except PersistError as error:
                rebuilt = Rebuilt(shard=shard, why=f"{error.reason}: {error.message}")
            steps(1)
            if rebuilt is None:
                known += 1
                continue
            failed += bool(rebuilt.why)
            rows.append(_rebuilt(shard, rebuilt))
    code = EXIT_FAILED if failed else 0
    if json:
        print_json({"committed": commit, "known": known, "shards": rows})
        return code
    print_rows(rows)
    if known:
        note(f"{known:,} that Consensus knows were left alone")
    if rows:
        note("lost is what was committed after walltime_ms: loose parts may be of it, and no state names them")
        say(commit, rows)
    return code


def _rebuilt(shard: ShardId, rebuilt: Rebuilt) -> Row:
    if rebuilt.why:
        return {"shard": shard, "why": rebuilt.why}
    return {
        "shard": shard,
        "seqno": rebuilt.seqno,
        "walltime_ms": rebuilt.walltime_ms,
        "since": str(rebuilt.since),
        "upper": str(rebuilt.upper),
        "rows": rebuilt.rows,
        "loose": rebuilt.loose,
        "loose_bytes": rebuilt.loose_bytes,
        "missing": rebuilt.missing,
        "damaged": rebuilt.damaged,
    }
