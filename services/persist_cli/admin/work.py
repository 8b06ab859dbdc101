"""What the commands of ``persist admin`` do. Each takes one shard after the other, and prints what came of all."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import persist
from persist.core.frontier import Antichain
from persist.core.ids import ShardId, check_blob_key
from persist.core.shard.commands import AddRollup
from persist.core.shard.compaction import gathered, most_worth
from persist.core.shard.retention import gc_boundary
from persist.core.shard.state import State
from persist.errors import InvalidArgument, LocationError, PersistError
from persist.machine.compaction.compactor import Compacted, Compactor
from persist.machine.garbage.collector import Collector
from persist.machine.garbage.inventory import Found
from persist_cli.admin.administration import Machine
from persist_cli.terminal import counted, note, print_json, print_rows, print_table, progress

Row = dict[str, Any]

_STRANGERS = (
    "Blobs without a state stay: nothing shows that this is the right Consensus, nor that nobody is about to make the "
    "shard. If it is right, open the shard once (persist shard append), and sweep it."
)

_LISTED_MAX = 1_000
"""Blobs that are told one by one."""


async def compact(machine: Machine, shards: list[str], *, whole: bool, commit: bool, json: bool) -> None:
    """Compact until nothing is worth it any more (``whole``: until each shard is one run)."""
    compactor = Compactor(machine.shards, machine.shards)

    async def one(shard: ShardId, steps: Callable[[int], None]) -> Row:
        state = (await machine.names(shard)).state
        if not commit:
            return {"shard": shard, **_to_compact(state, machine, whole=whole)}
        done: list[Compacted] = []
        owner = compactor.new_owner()
        told = 0

        def report(written: int) -> None:
            nonlocal told
            steps(max(0, written - told))
            told = written

        while True:
            told = 0
            result = await compactor.compact(
                shard, owner, whole=whole, report=lambda progress: report(progress.rows_written)
            )
            if result is None or not result.applied:
                break
            done.append(result)
        return {"shard": shard, **compacted(done)}

    try:
        await _each(machine, shards, one, commit=commit, json=json, what="compacting", unit="rows")
    finally:
        await compactor.close()


def _to_compact(state: State, machine: Machine, *, whole: bool) -> Row:
    now_ms, takeover_ms = machine.runtime.now_ms(), machine.settings.compaction_takeover_ms
    if whole:
        found = gathered(state.trace, now_ms, takeover_ms)
        chosen = None if found is None else found[1]
    else:
        chosen = most_worth(state.trace, now_ms, takeover_ms)
    batches = chosen.batches if chosen is not None and not state.since.is_empty else ()
    return {
        "batches": len(batches),
        "runs": sum(len(batch.runs) for batch in batches),
        "rows": sum(batch.rows for batch in batches),
        "bytes": sum(batch.encoded_bytes for batch in batches),
    }


def compacted(done: Sequence[Any]) -> Row:
    """What several compactions of one shard came to: of this process, or as a service told them."""
    return {
        "batches": sum(each.batches for each in done),
        "rows": sum(each.rows_before for each in done),
        "rows_after": sum(each.rows_after for each in done),
        "bytes": sum(each.bytes_before for each in done),
        "bytes_after": sum(each.bytes_after for each in done),
        "parts_reused": sum(each.parts_reused for each in done),
    }


async def gc(machine: Machine, shards: list[str], *, commit: bool, json: bool) -> None:
    """Write a rollup of the newest state and collect everything before it that nobody holds."""

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

    await _each(machine, shards, one, commit=commit, json=json, what="collecting", unit="shards")


async def _collect(machine: Machine, shard: ShardId, state: State) -> Row:
    from persist.machine.applier import Applier

    deadline, settings = machine.deadline(), machine.settings
    # An applier of its own: what its commits make due is done here, and counted.
    owner = f"{machine.runtime.hostname}:persist admin gc"
    applier = Applier(shard, machine.versions, settings=settings, runtime=machine.runtime, owner=owner)
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


async def sweep(machine: Machine, shards: list[str], *, safe_age_ms: int, commit: bool, json: bool) -> None:
    """Delete leaked blobs; tell of shards that have blobs and no state."""
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

    rows = await told(machine, shards, one, what="sweeping", unit="blobs")
    strangers = [] if shards else list((await machine.survey.strangers()).items())
    without = [{"shard": shard, "blobs": count, "bytes": size} for shard, (count, size) in strangers]
    if json:
        print_json({"committed": commit, "shards": rows, "blobs": listed, "without_state": without})
        return
    print_rows(listed, caption="" if len(listed) < _LISTED_MAX else f"the first {_LISTED_MAX:,}")
    print_rows(rows)
    print_rows(without, title=_STRANGERS)
    say(commit, rows)


async def restore(machine: Machine, key: str | None, shards: list[str], *, commit: bool, json: bool) -> int:
    """Bring back missing blobs. The exit code: 1 when some could not be brought back."""
    rows: list[Row] = []
    failed = 0
    timeout = machine.settings.blob_timeout_ms / 1000
    while keys := await _missing(machine, key, shards, {row["key"] for row in rows}):
        with progress("restoring", len(keys), unit="blobs") as steps:
            for each in keys:
                outcome = "would be restored"
                if commit:
                    try:
                        await machine.versions.blob.restore(each, timeout=timeout)
                        outcome = "restored"
                    except LocationError as error:
                        outcome, failed = error.message, failed + 1
                rows.append({"key": each, "outcome": outcome})
                steps(1)
        if not commit:
            break
    if json:
        print_json({"committed": commit, "blobs": rows})
    else:
        print_rows(rows)
        if not rows:
            note("nothing is missing")
        say(commit, rows)
    return 1 if failed else 0


async def _missing(machine: Machine, key: str | None, shards: list[str], tried: set[object]) -> list[str]:
    """What is to be brought back and was not tried yet: behind a rollup that is back, more may be missing."""
    if key is not None:
        return [each for each in (check_blob_key(key),) if each not in tried]
    found: list[str] = []
    for shard in await machine.chosen(shards):
        if shards:
            await machine.check_known(shard)
        found += await machine.fsck.missing(shard)
    return [each for each in found if each not in tried]


def finalize(client: "persist.Client", shard: str, *, force: bool, commit: bool, timeout: float, json: bool) -> None:
    """Finalize a shard through a client, or tell what that would take away."""
    the_shard = client.named(shard, timeout=timeout)
    state = client.inspect(the_shard, timeout=timeout)
    closed = state["upper"] == [] and state["since"] == []
    if not closed and not force:
        raise InvalidArgument(
            "only a closed shard can be finalized",
            hint="close it for writes (append up to []) and for reads (downgrade every since to []), or give --force",
            upper=Antichain(tuple(state["upper"])),
            since=Antichain(tuple(state["since"])),
        )
    if commit:
        client.finalize(the_shard, force=force, timeout=timeout)
    row = {
        "shard": str(the_shard),
        "upper": state["upper"],
        "since": state["since"],
        "rows": state["rows"],
        "readers": len(state["leased_readers"]) + len(state["critical_readers"]),
        "writers": len(state["writers"]),
        "finalized": commit or bool(state["is_tombstone"] and not state["rows"]),
    }
    if json:
        print_json({"committed": commit, **row})
        return
    print_table(tuple(row), [list(row.values())])
    say(commit, [row])


One = Callable[[ShardId, Callable[[int], None]], Awaitable[Row]]


async def _each(
    machine: Machine, shards: list[str], one: One, *, commit: bool, json: bool, what: str, unit: str
) -> None:
    rows = await told(machine, shards, one, what=what, unit=unit)
    if json:
        print_json({"committed": commit, "shards": rows})
        return
    print_rows(rows)
    say(commit, rows)


async def told(machine: Machine, shards: list[str], one: One, *, what: str, unit: str) -> list[Row]:
    """A line for each shard: what ``one`` tells of it, or why it could not."""
    rows = []
    with progress(what, None, unit=unit) as steps:
        for shard in await machine.chosen(shards):
            try:
                rows.append(await one(shard, steps))
            except PersistError as error:
                if shards:
                    raise
                # One shard that is damaged does not keep the others from being cleaned.
                rows.append({"shard": shard, "error": f"{error.reason}: {error.message}"})
    return rows


def say(commit: bool, rows: Iterable[Row]) -> None:
    """How to do what was only told."""
    if not commit:
        note(f"{counted(len(list(rows)), 'line')}; nothing was changed: --commit does it")
