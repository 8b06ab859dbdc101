"""``persist admin compact --endpoint``: a PersistCompaction does it, and tells how it goes."""

import asyncio

from persist.runtime import system
from persist.settings import Settings
from persist_cli.admin.work import compacted, say
from persist_cli.options import shard_id
from persist_cli.outcomes import Outcomes
from persist_cli.terminal import note, print_json, print_rows, progress
from persist_compaction import Asked, Busy


def compact(endpoint: str, shards: list[str], settings: Settings, *, whole: bool, commit: bool, json: bool) -> int:
    """Have each shard compacted; without ``commit`` tell what the service is doing. The exit code.

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
    async with Asked(endpoint, settings=settings, runtime=system()) as asked:
        return await asked.busy()


def _look(busy: Busy, shards: list[str], *, json: bool) -> None:
    named = [str(shard_id(each)) for each in shards]
    rows = [{"shard": shard, "compacted_now": shard in busy.shards} for shard in named]
    waiting = {"requests_waiting": busy.requests_waiting, "shards_waiting": busy.shards_waiting}
    if json:
        print_json({"committed": False, "shards": rows, **waiting})
        return
    print_rows([{**row, **waiting} for row in rows])
    note("what it would merge is told with --location DIR, or --blob and --consensus")
    say(False, rows)


async def _compact(endpoint: str, shards: list[str], settings: Settings, *, whole: bool) -> Outcomes:
    outcomes = Outcomes(alone=len(shards) == 1)
    with progress("compacting", None, unit="rows") as steps:
        async with Asked(endpoint, settings=settings, runtime=system()) as asked:
            for name in shards:
                shard, told = shard_id(name), 0

                def report(written: int) -> None:
                    nonlocal told
                    # Each compaction of the request counts from zero.
                    steps(written - told if written >= told else written)
                    told = written

                with outcomes.of(shard):
                    done = await asked.compact(
                        shard,
                        whole=whole,
                        report=report,
                        waits=lambda ahead: note(f"waiting for {ahead} other requests"),
                    )
                    outcomes.rows.append({"shard": shard, **compacted(done)})
    return outcomes
