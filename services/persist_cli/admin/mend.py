"""What ``persist admin repair`` and ``persist admin rebuild`` do, for shards that lost something."""

from typing import Any

from persist.core.ids import ShardId
from persist.core.names import among, is_id
from persist.errors import CorruptData, PersistError, VersionMismatch
from persist.machine.backup.copying import Store
from persist.machine.backup.rebuild import Rebuilder, Rebuilt
from persist.machine.upkeep.repair import Loss, Repair
from persist_cli.admin.administration import Machine
from persist_cli.admin.work import say
from persist_cli.terminal import note, print_json, print_rows, progress

Row = dict[str, Any]


async def repair(machine: Machine, shards: list[str], *, deep: bool, commit: bool, json: bool) -> int:
    """Take unreadable parts out; tell what that loses. The exit code: 1 when something damaged stays as it is."""
    repair = Repair(machine.shards, machine.versions, settings=machine.settings, runtime=machine.runtime)
    rows: list[Row] = []
    refused = 0
    chosen = await machine.chosen(shards)
    with progress("looking", None, unit="parts") as steps:
        for shard in chosen:
            try:
                look = repair.repair if commit else repair.find
                rows += [_lost(loss) for loss in await look(shard, deep=deep, report=steps)]
            except (CorruptData, VersionMismatch) as error:
                if shards:
                    raise
                # One shard whose state is damaged does not keep the others from being repaired.
                refused += 1
                rows.append({"shard": shard, "why": f"{error.reason}: {error.message}"})
    code = 1 if refused or (rows and not commit) else 0
    if json:
        print_json({"committed": commit, "shards": len(chosen), "lost": rows})
        return code
    print_rows(rows, title="Lost with them:" if commit else "Would be lost with them:")
    if not rows:
        note("every part can be read" if deep else "nothing is missing or damaged (--deep reads the blobs, too)")
        return code
    say(commit, rows)
    return code


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
    """Begin shards again from their newest rollups. The exit code: 1 when some cannot be."""
    store = Store(machine.versions.blob, settings=machine.settings, runtime=machine.runtime)
    rebuilder = Rebuilder(store, machine.versions.consensus)
    there = [] if shards and all(map(is_id, shards)) else [shard async for shard in rebuilder.shards()]
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
    if json:
        print_json({"committed": commit, "known": known, "shards": rows})
        return 1 if failed else 0
    print_rows(rows)
    if known:
        note(f"{known:,} that Consensus knows were left alone")
    note("lost is what was committed after walltime_ms: loose parts may be of it, and no state names them")
    say(commit, rows)
    return 1 if failed else 0


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
