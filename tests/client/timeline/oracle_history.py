"""What processes asked of an oracle and got back, and whether one oracle could have answered so.

``python -m client.timeline.oracle_history BLOB CONSENSUS TIMELINE SEED CALLS FILE`` is such a process: it appends a
line to FILE before each call and after each answer, so that its history survives being killed.
"""

import asyncio
import bisect
import itertools
import os
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.support import Place, client_of

NEVER = float("inf")

_numbers = itertools.count()


@dataclass(frozen=True)
class Call:
    """``kind``: write, read, peek or apply. ``value``: what was returned, or applied; None when there was no answer."""

    kind: str
    asked: float
    answered: float
    value: int | None


class Recorder:
    """Calls of one oracle, recorded in a file."""

    def __init__(self, oracle: Any, file: Path) -> None:
        self._oracle = oracle
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def write(self) -> int:
        return await self._told("write", self._oracle.write_ts())

    async def read(self) -> int:
        return await self._told("read", self._oracle.read_ts())

    async def peek(self) -> int:
        return await self._told("peek", self._oracle.peek_write_ts())

    async def apply(self, ts: int) -> None:
        await self._told("apply", self._oracle.apply_write(ts), ts)

    async def _told(self, kind: str, call: Any, ts: int | None = None) -> Any:
        number = f"{os.getpid()}.{next(_numbers)}"
        self._line(number, kind, ts)
        answer = await call
        self._line(number, kind, answer if ts is None else ts)
        return answer

    def _line(self, number: str, kind: str, value: int | None) -> None:
        os.write(self._fd, f"{number} {kind} {time.monotonic_ns()} {'-' if value is None else value}\n".encode())


def calls_in(files: Iterable[Path]) -> list[Call]:
    """The calls recorded in files; the last line of a killed process may be cut off."""
    calls = []
    for file in files:
        asked: dict[str, tuple[str, int, str]] = {}
        for line in file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            number, kind, at, value = line.split()
            if number in asked:
                _, begun, _ = asked.pop(number)
                calls.append(Call(kind, begun, int(at), int(value)))
            else:
                asked[number] = (kind, int(at), value)
        calls.extend(Call(kind, at, NEVER, None if value == "-" else int(value)) for kind, at, value in asked.values())
    return calls


class _Latest:
    """The greatest value returned before a moment."""

    def __init__(self, calls: Iterable[Call]) -> None:
        told = sorted((call.answered, call.value) for call in calls if call.answered < NEVER and call.value is not None)
        self._at = [at for at, _ in told]
        self._greatest = list(itertools.accumulate((value for _, value in told), max))

    def before(self, at: float) -> int:
        found = bisect.bisect_left(self._at, at)
        return self._greatest[found - 1] if found else -1


def faults_in(calls: list[Call], initially: int = 0) -> list[str]:
    """What no linearizable oracle could have answered."""
    of = {kind: [call for call in calls if call.kind == kind] for kind in ("write", "read", "peek", "apply")}
    writes, reads, peeks, applies = (_Latest(of[kind]) for kind in ("write", "read", "peek", "apply"))
    faults = []
    told = [call.value for call in of["write"] if call.value is not None]
    if len(set(told)) < len(told):
        faults.append("a write time was given twice")
    for call in of["write"]:
        if call.value is None:
            continue
        for name, past in (("write", writes), ("read", reads), ("apply", applies), ("peek", peeks)):
            if past.before(call.asked) >= call.value:
                faults.append(f"{call} is not after the {name} {past.before(call.asked)}")
    for call in of["peek"]:
        if call.value is not None and max(past.before(call.asked) for past in (writes, applies, reads)) > call.value:
            faults.append(f"{call} is less than what was given or applied")
    for call in of["read"]:
        if call.value is None:
            continue
        if max(applies.before(call.asked), reads.before(call.asked)) > call.value:
            faults.append(f"{call} misses a completed apply, or goes back")
    begun = {call.value: call.asked for call in sorted(of["apply"], key=lambda call: -call.asked)}
    for call in of["read"]:
        if call.value not in (None, initially) and begun.get(call.value, NEVER) > call.answered:
            faults.append(f"{call} was never applied")
    return faults


async def visit(recorder: Recorder, entropy: random.Random, calls: int, *, stray: bool = False) -> None:
    """Calls as a client makes them. ``stray``: some of the times applied were never given out."""
    for _ in range(calls):
        match entropy.randrange(6):
            case 0 | 1:
                ts = await recorder.write()
                if entropy.random() < 0.8:
                    await recorder.apply(ts + 3 * stray)
            case 2:
                await recorder.peek()
            case _:
                await recorder.read()


async def main(blob: str, consensus: str, timeline: str, seed: int, calls: int, file: Path) -> None:
    async with client_of(Place(blob, consensus)) as client:
        recorder = Recorder(await client.oracle(timeline), file)
        await asyncio.gather(*(visit(recorder, random.Random(seed * 100 + task), calls) for task in range(4)))


if __name__ == "__main__":
    place, log, line, seed, calls, file = sys.argv[1:7]
    asyncio.run(main(place, log, line, int(seed), int(calls), Path(file)))
