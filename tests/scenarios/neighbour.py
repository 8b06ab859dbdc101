"""A program over one location, of whichever release is imported: does what it reads, a line each, and reports."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import persist
from persist.machine.versions import Versions
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus

SHARD = persist.ShardId.named("neighbours")
SCHEMA = persist.Schema(key={"n": pa.int64()})
SETTINGS = Settings(rollup_every=8)


def main(place: Path) -> None:
    with persist.embedded(place, settings=SETTINGS) as client:
        program = Neighbour(client, place)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                answer: Any = getattr(program, asked.pop("what"))(**asked)
            except persist.PersistError as error:
                answer = {"error": error.reason, "details": error.details, "hint": error.hint}
            print(json.dumps(answer), flush=True)


class Neighbour:
    def __init__(self, client: persist.Client, place: Path) -> None:
        self._client = client
        self._place = place
        self._writer: Any = None

    def append(self, n: int) -> int:
        """Append one row at the upper, and report where that was."""
        if self._writer is None:
            self._writer = self._client.open_writer(SHARD, schema=SCHEMA)
        while True:
            upper = self._client.recent_upper(SHARD).time
            assert upper is not None
            done = self._writer.compare_and_append([(({"n": n}, {}), upper, 1)], upper, upper + 1)
            if isinstance(done, persist.Appended):
                return upper

    def rows(self) -> list[int]:
        """All rows."""
        reader = self._client.open_reader(SHARD)
        upper = self._client.recent_upper(SHARD).time
        assert upper is not None
        with reader:
            return sorted(row["n"] for row in reader.snapshot(upper - 1).to_pylist())

    def state(self) -> dict[str, Any]:
        """What the newest state says, and what it rebuilds to from its oldest rollup and every diff since."""

        async def read() -> dict[str, Any]:
            runtime, base = system(), self._place
            blob = open_blob(f"file:{base / 'blob'}", settings=SETTINGS, runtime=runtime)
            consensus = open_consensus(f"sqlite:{base / 'consensus.db'}", settings=SETTINGS, runtime=runtime)
            versions = Versions(blob, consensus, settings=SETTINGS, runtime=runtime)
            try:
                version = await versions.load(SHARD, Deadline(runtime, 30))
                assert version is not None
                state = version.state
                told = {name: getattr(state, name) for name in ("seqno", "format", "known_format")}
                runs = [len(batch.runs) for batch in state.trace.batches if batch.runs]
                told = {**told, "invented": getattr(state, "invented", None), "runs": runs}
                return {**told, "write_version": versions.gate.format}
            finally:
                await consensus.close()
                await blob.close()

        return asyncio.run(read())


main(Path(sys.argv[1]))
