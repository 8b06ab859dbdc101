"""U: the processor time of commands that are typed, each a fresh process, against a server of this machine."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

from bench import ours, rows
from bench.measure import Spread
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import environment
from bench.stage import Stage

CPU_SECONDS = 0.5
ROWS = 1_000


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    stores = ["--blob", stage.blob_uri(), "--consensus", stage.redis_uri]
    with stage.shard_server() as (endpoint, _):
        async with ours.client(endpoint) as client:
            shard = ours.new_shard()
            writer = await client.open_writer(shard, schema=ours.SCHEMA)
            await writer.compare_and_append(rows.make(ROWS), 0, 1)
        server = ["--endpoint", endpoint]
        commands: dict[str, list[str]] = {
            "shard snapshot": ["shard", "snapshot", str(shard), "--limit", "10", *server],
            "shard inspect": ["shard", "inspect", str(shard), *server],
            "usage": ["usage", *stores],
            "fsck": ["fsck", *stores],
            "hold list": ["hold", "list", *stores],
            "source list": ["source", "list", *stores],
        }
        spent: dict[str, list[float]] = {name: [] for name in commands}
        _cpu(["sql", "CREATE TABLE t (a INT)", *stores])
        for command in commands.values():
            _cpu(command)
        for _ in plan.rounds_of("U commands", 60):
            for name, command in commands.items():
                spent[name].append(_cpu(command))
    outcome.keep("commands_cpu_seconds", spent)
    for name, found in spent.items():
        cpu = Spread.of(found)
        outcome.check("U", f"CPU of persist {name}", cpu.mid, CPU_SECONDS, unit=" s", ours=cpu.show(" s CPU"))


def _cpu(command: Sequence[str]) -> float:
    """What a command takes of the processor. Raises RuntimeError when it does not end well."""
    with subprocess.Popen(
        [sys.executable, "-m", "persist_cli", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        text=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        with contextlib.suppress(IndexError):
            said = said.strip().splitlines()[-1]
        raise RuntimeError(f"persist {' '.join(command[:2])} ended with {process.returncode}: {said}")
    return used.ru_utime + used.ru_stime
