"""A shard that is damaged keeps no other collection of its environment from what a leader does for it."""

from pathlib import Path

from client.support import SMALL
from control.world import leading, since_of, write

from persist import aio
from persist.core.catalog.values import Retain


def destroy(folder: Path, shard: object) -> None:
    """Take away all that the Blob has of it, as a disk does."""
    gone = [path for path in folder.rglob("*") if path.is_file() and str(shard) in str(path)]
    for path in gone:
        path.unlink()
    assert gone


async def test_a_damaged_shard_stops_no_duty_of_the_next_leader(tmp_path: Path) -> None:
    async with await aio.embedded(tmp_path, settings=SMALL) as client, leading(client) as world:
        names = ("a", "b", "c")
        shards = [world.shard(await world.table(name, retain=Retain(10), timeline="U.steps")) for name in names]
        for shard in shards:
            await write(client, shard, 10, 50)
    destroy(tmp_path / "blob", shards[1])
    async with await aio.embedded(tmp_path, settings=SMALL) as client, leading(client) as world:
        for shard in (shards[0], shards[2]):
            await write(client, shard, 100)
        await world.controller.passed("since", "ticker", "finalizer")
        assert [await since_of(client, shard) for shard in (shards[0], shards[2])] == [91, 91]
