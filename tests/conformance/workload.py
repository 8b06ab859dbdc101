"""A contended workload on one Consensus and its recorded history."""

import asyncio
import itertools
import random
from collections.abc import Sequence

from conformance.handles import T

from persist.errors import Indeterminate, LocationError
from persist.storage.ports import Consensus
from persist.testing.history import History, RecordingConsensus


async def contend(
    handles: Sequence[Consensus],
    keys: Sequence[str],
    *,
    attempts: int,
    tasks: int = 8,
    seed: int = 0,
    truncating: bool = True,
    timeout: float = T,
) -> History:
    """``attempts`` compare_and_sets by ``tasks`` tasks over all handles, mixed with heads, scans and truncations.

    Writers guess the next seqno from what they saw last, so many comparisons are lost. Answers that fail or are lost
    are followed by a head.
    """
    history = History()
    recorded = [RecordingConsensus(handle, history) for handle in handles]
    numbers = itertools.count()
    left = iter(range(attempts))

    async def work(task: int) -> None:
        consensus, chance = recorded[task % len(recorded)], random.Random(f"{seed} {task}")
        known = dict.fromkeys(keys, -1)
        for _ in left:
            key = chance.choice(keys)
            try:
                data = f"{task} {next(numbers)}".encode()
                if await consensus.compare_and_set(key, known[key], data, timeout=timeout):
                    known[key] += 1
                    if chance.random() < 0.7:
                        continue
                if truncating and chance.random() < 0.02 and known[key] > 20:
                    await consensus.truncate(key, known[key] - 20, timeout=timeout)
                if chance.random() < 0.02:
                    await consensus.scan(key, max(0, known[key] - 5), 10, timeout=timeout)
                await look(consensus, key, known, timeout)
                if chance.random() < 0.05:
                    # As a writer that was stalled and believes what it knew long ago.
                    known[key] = max(-1, known[key] - chance.randrange(60))
            except LocationError as error:
                if isinstance(error, Indeterminate):
                    known[key] = -1
                await asyncio.sleep(0)

    await asyncio.gather(*(work(task) for task in range(tasks)))
    for key in keys:
        await look(recorded[0], key, dict.fromkeys(keys, -1), timeout)
        await recorded[0].scan(key, 0, attempts + 1, timeout=timeout)
    return history


async def look(consensus: Consensus, key: str, known: dict[str, int], timeout: float) -> None:
    """Look up the newest seqno."""
    entry = await consensus.head(key, timeout=timeout)
    known[key] = entry.seqno if entry else -1
