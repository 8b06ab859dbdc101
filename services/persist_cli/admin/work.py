"""What the commands of ``persist admin`` do. Each takes shards in their order, and prints what came of all."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing

from persist.core.frontier import Description
from persist.core.ids import ShardId, check_blob_key
from persist.core.shard.commands import AddRollup
from persist.core.shard.compaction import gathered, most_worth
from persist.core.shard.retention import gc_boundary
from persist.core.shard.state import State
from persist.errors import LocationError, PersistError
from persist.machine.applier import Applier
from persist.machine.compaction.compactor import Compacted, Compactor
from persist.machine.compaction.runner import is_merged
from persist.machine.garbage.collector import Collector
from persist.machine.garbage.inventory import Found, place_of
from persist.machine.upkeep.next_step import check
from persist_cli.admin.administration import Machine
from persist_cli.admin.walk import AT_ONCE, Walk
from persist_cli.options import EXIT_FAILED
from persist_cli.outcomes import Outcomes, Row
from persist_cli.terminal import counted, note, print_json, print_rows, progress

_STRANGERS = (
    "Blobs without a state stay: nothing shows that this is the right Consensus, nor that no process is about to make "
    "the shard. If it is right, open the shard once (persist shard append), and sweep it."
)

_LISTED_MAX = 1_000
"""Blobs that are listed one by one."""


async def compact(machine: Machine, shards: list[str], *, whole: bool, commit: bool, json: bool, after: str) -> int:
    """Compact until nothing is worth it any more (``whole``: until each shard is one run). The exit code."""
    compactor = Compactor(machine.shards, machine.shards)

    async def one(shard: ShardId, steps: Callable[[int], None]) -> Row:
        state = (await machine.names(shard)).state
        if not commit:
            return {"shard": shard, **await _to_compact(shard, state, machine, whole=whole)}
        done: list[Compacted] = []
        merged: list[Description] = []
        owner = compactor.new_owner()
        told = 0

        def report(written: int) -> None:
            nonlocal told
            steps(max(0, written - told))
            told = written

        while True:
            told = 0
            result = await compactor.compact(
                shard,
                owner,
                whole=whole,
                before=state.upper,
                report=lambda progress: report(progress.rows_written),
            )
            if result is None:
                break
            if not result.applied:
                # Another process did it, or this one, and its answer was lost: the next claim shows what is left.
                continue
            done.append(result)
            if result.steps_left:
                continue
            if whole and is_merged(state.upper, result.desc, merged):
                break
            merged.append(result.desc)
        return {"shard": shard, **compacted(done)}

    try:
        return await each(machine, shards, one, commit=commit, json=json, what="compacting", unit="rows", after=after)
    finally:
        await compactor.close()


async def _to_compact(shard: ShardId, state: State, machine: Machine, *, whole: bool) -> Row:
    now_ms, takeover_ms = machine.runtime.now_ms(), machine.settings.compaction_takeover_ms
    await machine.versions.gate.enter(machine.deadline())
    # What a commit takes on, by what commits.
    bounds = _applier(machine, shard, "compact").bounds(state)
    if whole:
        found = gathered(state.trace, now_ms, takeover_ms, bounds)
        chosen = None if found is None else found[1]
    else:
        chosen = most_worth(state.trace, now_ms, takeover_ms, bounds)
    batches = chosen.batches if chosen is not None and not state.since.is_empty else ()
    return {
        "batches": len(batches),
        "runs": sum(len(batch.runs) for batch in batches),
        "rows": sum(batch.rows for batch in batches),
        "bytes": sum(batch.encoded_bytes for batch in batches),
    }


def compacted(done: Sequence[Compacted]) -> Row:
    """What several compactions of one shard came to: of this process, or as a service reported them."""
    return {
        "batches": sum(each.batches for each in done),
        "rows": sum(each.rows_before for each in done),
        "rows_after": sum(each.rows_after for each in done),
        "bytes": sum(each.bytes_before for each in done),
        "bytes_after": sum(each.bytes_after for each in done),
        "parts_reused": sum(each.parts_reused for each in done),
        "negative": max((each.negative for each in done), default=0),
    }


async def gc(machine: Machine, shards: list[str], *, commit: bool, json: bool, after: str) -> int:
    """Write a rollup of the newest state and collect everything before it that no reader holds. The exit code."""

    async def one(shard: ShardId, steps: Callable[[int], None]) -> Row:
        names = await machine.names(shard)
        state = names.state
        row: Row = {"shard": shard, "seqno": state.seqno, "held_from": state.seqno_since, "held_by": _holder(state)}
        if not commit:
            steps(1)
            return {**row, "let_go": len(names.held), "oldest_rollup": min(state.rollups)}
        collected = await _collect(machine, shard, state)
        steps(1)
        return {**row, **collected}

    return await each(
        machine, shards, one, commit=commit, json=json, what="collecting", unit="shards", after=after, at_once=AT_ONCE
    )


def _applier(machine: Machine, shard: ShardId, what: str) -> Applier:
    """One of its own: what its commits make due is done here, and counted."""
    owner = f"{machine.runtime.hostname}:persist admin {what}"
    return Applier(shard, machine.versions, settings=machine.settings, runtime=machine.runtime, owner=owner)


async def _collect(machine: Machine, shard: ShardId, state: State) -> Row:
    deadline, settings = machine.deadline(), machine.settings
    applier = _applier(machine, shard, "gc")
    if max(state.rollups) < state.seqno:
        rollup = await machine.versions.write_rollup(state, deadline)
        link = AddRollup(seqno=state.seqno, rollup=rollup, incarnation=state.incarnation)
        [outcome] = await applier.commit([link], deadline)
        if isinstance(outcome, PersistError):
            raise outcome
        if not outcome.applied:
            await machine.versions.delete([rollup.key], deadline)
    collector = Collector(applier, machine.versions, settings=settings, runtime=machine.runtime)
    blobs = diffs = rollups = 0
    while gc_boundary(await applier.refresh(deadline), versions_max=settings.gc_versions_max) is not None:
        done = await collector.collect(deadline)
        blobs, diffs, rollups = blobs + done.blobs, diffs + done.diffs, rollups + done.rollups
    return {"blobs": blobs, "diffs": diffs, "rollups": rollups}


def _holder(state: State) -> str:
    """The reader that holds the oldest seqno."""
    readers = state.leased_readers.items()
    name, reader = min(readers, key=lambda item: item[1].seqno, default=("", None))
    return "" if reader is None else f"{name} {reader.purpose} {reader.hostname}".strip()


async def sweep(machine: Machine, shards: list[str], *, safe_age_ms: int, commit: bool, json: bool, after: str) -> int:
    """Delete leaked blobs; list shards that have blobs and no state. The exit code."""
    listed: list[Row] = []

    async def one(shard: ShardId, steps: Callable[[int], None]) -> Row:
        def report(found: Found) -> None:
            steps(1)
            if len(listed) < _LISTED_MAX:
                listed.append(
                    {"key": found.key, "bytes": found.size, "is": found.verdict.value, "reason": found.reason}
                )

        swept = await machine.sweeper.sweep(shard, safe_age_ms=safe_age_ms, commit=commit, report=report)
        return {
            "shard": shard,
            "leaked": swept.leaked,
            "leaked_bytes": swept.leaked_bytes,
            "unlinked": swept.unlinked,
            "unlinked_bytes": swept.unlinked_bytes,
            "uploads": swept.uploads,
        }

    done = await told(machine, shards, one, what="sweeping", unit="blobs", after=after, at_once=AT_ONCE)
    strangers = [] if shards or done.interrupted else list((await machine.survey.strangers()).items())
    without = [{"shard": shard, "blobs": count, "bytes": size} for shard, (count, size) in strangers]
    if json:
        print_json({"committed": commit, "shards": done.rows, "blobs": listed, "without_state": without})
        return done.code
    print_rows(listed, caption="" if len(listed) < _LISTED_MAX else f"the first {_LISTED_MAX:,}")
    print_rows(done.rows)
    print_rows(without, title=_STRANGERS)
    done.say(machine.place)
    say(commit, done.rows)
    return done.code


async def restore(machine: Machine, key: str | None, shards: list[str], *, commit: bool, json: bool) -> int:
    """Bring back missing blobs, or list which can be. The exit code: 1 when some cannot, or that is not known."""
    outcomes = Outcomes(alone=len(shards) == 1)
    rows: list[Row] = []
    lost: set[str] = set()
    timeout = machine.settings.blob_timeout_ms / 1000
    while keys := await _missing(machine, key, shards, {row["key"] for row in rows}, outcomes):
        with progress("restoring", len(keys), unit="blobs") as steps:
            for each in keys:
                outcome = "restored" if commit else "would be restored"
                try:
                    await machine.versions.blob.restore(each, dry_run=not commit, timeout=timeout)
                except LocationError as error:
                    outcome = f"{error.message}; {error.hint}" if error.hint else error.message
                    lost.add(place_of(each).shard)
                rows.append({"key": each, "outcome": outcome})
                steps(1)
        if not commit:
            break
    if json:
        print_json({"committed": commit, "blobs": rows, "shards": outcomes.rows})
    else:
        print_rows(rows)
        print_rows(outcomes.rows)
        _say_restored(machine, rows, lost, outcomes, commit=commit)
    return EXIT_FAILED if lost else outcomes.code


def _say_restored(machine: Machine, rows: list[Row], lost: set[str], outcomes: Outcomes, *, commit: bool) -> None:
    if not rows and not outcomes.failed:
        note("nothing is missing; this brings back no blob that is there and damaged: persist fsck --deep finds those")
    for shard in sorted(lost):
        note(f"of {shard} {check(shard).line(machine.place)}")
    outcomes.say(machine.place)
    restorable = [row for row in rows if row["outcome"] == "would be restored"]
    if restorable:
        say(commit, restorable)


async def _missing(
    machine: Machine, key: str | None, shards: list[str], tried: set[object], outcomes: Outcomes
) -> list[str]:
    """What is to be brought back and was not tried yet: behind a rollup that is back, more may be missing."""
    if key is not None:
        return [each for each in (check_blob_key(key),) if each not in tried]
    found: list[str] = []
    for shard in await machine.chosen(shards):
        if shards:
            await machine.check_known(shard)
        with outcomes.of(shard):
            found += await machine.fsck.missing(shard)
    return [each for each in found if each not in tried]


One = Callable[[ShardId, Callable[[int], None]], Awaitable[Row]]


async def each(
    machine: Machine,
    shards: list[str],
    one: One,
    *,
    commit: bool,
    json: bool,
    what: str,
    unit: str,
    after: str | None = None,
    at_once: int = 1,
) -> int:
    """Do ``one`` with each shard, and print what came of all. The exit code."""
    done = await told(machine, shards, one, what=what, unit=unit, after=after, at_once=at_once)
    if json:
        print_json({"committed": commit, "shards": done.rows})
        return done.code
    print_rows(done.rows)
    done.say(machine.place)
    say(commit, done.rows)
    return done.code


async def told(
    machine: Machine, shards: list[str], one: One, *, what: str, unit: str, after: str | None = None, at_once: int = 1
) -> Outcomes:
    """What ``one`` says of each shard. Raises what it raises for the only one that was named.

    ``after``: work that can go on where it was cut off, behind this shard (empty: it begins), ``at_once`` at a time.
    """
    done = Outcomes(alone=len(shards) == 1)
    with progress(what, None, unit=unit) as steps:
        chosen = await machine.chosen(shards)
        if after is None:
            for shard in chosen:
                with done.of(shard):
                    done.rows.append(await one(shard, steps))
            return done
        walk = Walk(chosen, lambda shard: one(shard, steps), after=after, at_once=at_once)
        async with aclosing(walk.results()) as results:
            async for shard, task in results:
                with done.of(shard):
                    done.rows.append(await task)
    done.interrupted = walk.interrupted
    return done


def say(commit: bool, rows: Iterable[Row]) -> None:
    """How to do what was only shown."""
    if not commit:
        note(f"{counted(len(list(rows)), 'line')}; nothing was changed: --commit does it")
