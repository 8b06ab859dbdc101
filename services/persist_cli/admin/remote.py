"""``persist admin compact --endpoint``: a PersistCompaction does it, and reports how it goes."""

import asyncio
from collections.abc import Callable

from persist.core.ids import ShardId
from persist.core.names import id_or_name, is_id, not_found, possible
from persist.errors import ShardNotFound
from persist.runtime import system
from persist.settings import Settings
from persist_cli.admin.work import compacted, say
from persist_cli.outcomes import Outcomes, Row
from persist_cli.terminal import note, print_json, print_rows, progress
from persist_compaction import AskedServer, Busy


def compact(endpoint: str, shards: list[str], settings: Settings, *, whole: bool, commit: bool, json: bool) -> int:
    """Have each shard compacted; without ``commit`` report what the service is doing. The exit code.

    Raises PersistError for the only shard that was named.
    """
    if not commit:
        _look(asyncio.run(_busy(endpoint, settings)), shards, json=json)
        return 0
    done = asyncio.run(_compact(endpoint, shards, settings, whole=whole))
    if json:
        print_json({"committed": True, "shards": done.rows})
    else:
        print_rows(done.rows)
        done.say(("--endpoint", endpoint))
    return done.code


async def _busy(endpoint: str, settings: Settings) -> Busy:
    async with AskedServer(endpoint, settings=settings, runtime=system()) as asked:
        return await asked.busy()


def _look(busy: Busy, shards: list[str], *, json: bool) -> None:
    named = [_possible(each) for each in shards]
    rows = [
        {"shard": shard, "compacted_now": shard in busy.shards}
        for each in named
        for shard in [shard for shard in each if shard in busy.shards] or each[:1]
    ]
    waiting = {"requests_waiting": busy.requests_waiting, "shards_waiting": busy.shards_waiting}
    if json:
        print_json({"committed": False, "shards": rows, **waiting})
        return
    print_rows([{**row, **waiting} for row in rows])
    note("--location DIR, or --blob and --consensus, shows what it would merge")
    say(False, rows)


async def _compact(endpoint: str, shards: list[str], settings: Settings, *, whole: bool) -> Outcomes:
    outcomes = Outcomes(alone=len(shards) == 1)
    with progress("compacting", None, unit="rows") as steps:
        async with AskedServer(endpoint, settings=settings, runtime=system()) as asked:
            for name in shards:
                found = False
                for shard in _possible(name):
                    with outcomes.of(shard):
                        row = await _compacted(asked, shard, steps, whole=whole)
                        outcomes.rows += [] if row is None else [row]
                        found = found or row is not None
                    found = found or shard in outcomes.failed
                if not found:
                    raise not_found(name) if not is_id(name) else ShardNotFound("no such shard here", shard=name)
    return outcomes


def _possible(name: str) -> list[ShardId]:
    """The shard of an id, or all those that a name may have: a PersistCompaction has no list of what there is."""
    wanted = id_or_name(name)
    return [wanted] if isinstance(wanted, ShardId) else [each.shard for each in possible(wanted)]


async def _compacted(asked: AskedServer, shard: ShardId, steps: Callable[[int], None], *, whole: bool) -> Row | None:
    """What came of it; None when there is no such shard."""
    told = 0

    def report(written: int) -> None:
        nonlocal told
        # Each compaction of the request counts from zero.
        steps(written - told if written >= told else written)
        told = written

    try:
        done = await asked.compact(
            shard, whole=whole, report=report, waits=lambda ahead: note(f"waiting for {ahead} other requests")
        )
    except ShardNotFound:
        return None
    return {"shard": shard, **compacted(done)}
