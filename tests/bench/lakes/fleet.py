"""Systems side by side: a process for each, and what each thing that it does takes by the clock and of the CPU."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lakes.place import DELTA, ICEBERG, Lake, NoLake
from bench.measure import Spread, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import Child, ChildFailed, child

OURS = "persist"
_SECONDS = 1200.0
_LAKES = {lake.name: lake for lake in (DELTA, ICEBERG)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """What one thing took: ``cpu`` of all its processes, JVM and Python."""

    seconds: float
    cpu: float
    found: dict[str, Any]


class Peer:
    """One system in a process of its own."""

    def __init__(self, name: str, process: Child, say: Callable[[str], None]) -> None:
        self.name = name
        self._process = process
        self._say = say
        self.spark = process.answer(_SECONDS)["spark"]

    def do(self, what: str, **arguments: object) -> Lap:
        """Have it do what ``Program`` calls so. Raises ChildFailed."""
        before = self._process.tree_cpu_seconds
        self._process.tell(json.dumps({"do": what, **arguments}))
        answer = self._process.answer(_SECONDS)
        cpu = self._process.tree_cpu_seconds - before
        self._say(f"{self.name} {what} {arguments.get('table', '')}: {answer['seconds']:.1f} s, {cpu:.1f} s CPU")
        if "error" in answer:
            raise ChildFailed(f"{self.name} cannot {what}: {answer['error']}")
        return Lap(seconds=answer.pop("seconds"), cpu=cpu, found=answer)


class Laps:
    """Laps of several systems, by what they did."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.peers = peers
        self._laps: dict[tuple[str, str], list[Lap]] = {}
        self._failed: dict[tuple[str, str], str] = {}

    def lap(self, name: str, what: str, **arguments: object) -> dict[str, Lap]:
        """One turn of each system, kept under a name. Where another than ours fails, that stands beside its goal."""
        found = {}
        for peer in self.peers:
            try:
                found[peer.name] = peer.do(what, **arguments)
            except ChildFailed as failed:
                if peer.name == OURS:
                    raise
                self._failed[name, peer.name] = str(failed)
                continue
            self._laps.setdefault((name, peer.name), []).append(found[peer.name])
        return found

    def of(self, name: str, system: str) -> list[Lap]:
        return self._laps[name, system]

    def seconds(self, name: str, system: str) -> list[float]:
        return [lap.seconds for lap in self._laps[name, system]]

    def cpu(self, name: str, system: str) -> list[float]:
        return [lap.cpu for lap in self._laps[name, system]]

    def judge(
        self, outcome: Outcome, goal: str, name: str, what: str, limits: dict[str, float | None], *, per: float = 1.0
    ) -> None:
        """persist against others, by the clock and of the processor. ``per``: how many of a kind a lap is."""
        for theirs, limit in limits.items():
            if (name, theirs) in self._failed:
                outcome.check(goal, f"{what}: {self._failed[name, theirs]}", 0.0, None)
            if len(self._laps.get((name, theirs), ())) != len(self._laps[name, OURS]):
                continue
            for unit, samples in (("s", self.seconds), ("s CPU", self.cpu)):
                mine, other = ([each / per for each in samples(name, system)] for system in (OURS, theirs))
                outcome.check(goal, f"{what} against {theirs}, {unit}", ratios(mine, other).mid, limit,
                              ours=Spread.of(mine).show(f" {unit}"),
                              against=Spread.of(other).show(f" {unit}"))  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {
            f"{name}, {system}": {
                "seconds": [round(lap.seconds, 3) for lap in laps],
                "cpu": [round(lap.cpu, 3) for lap in laps],
                "found": [lap.found for lap in laps if lap.found],
            }
            for (name, system), laps in self._laps.items()
        }


@contextlib.contextmanager
def fleet(plan: Plan, outcome: Outcome, goal: str, names: Sequence[str]) -> Iterator[tuple[Laps, Path]]:
    """The systems of these names, and a folder for data. One that cannot be had here is left out, and said so."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        peers = []
        for name in names:
            try:
                lake = _LAKES[name].prepared(plan.say) if name in _LAKES else None
            except NoLake as missing:
                plan.say(f"{goal} without {name}: {missing}")
                outcome.check(goal, f"{name} is not to be had here: {missing}", 0.0, None)
                continue
            plan.say(f"{goal} starting {name}")
            process = stack.enter_context(_program(name, lake, Path(directory) / f"of-{name}"))
            peers.append(Peer(name, process, plan.say))
        outcome.keep(f"{goal} sparks", {peer.name: peer.spark for peer in peers})
        yield Laps(peers), Path(directory)


def _program(name: str, lake: Lake | None, scratch: Path) -> contextlib.AbstractContextManager[Child]:
    scratch.mkdir()
    request = {"system": name, "scratch": str(scratch), "jars": [] if lake is None else lake.jars}
    python = sys.executable if lake is None else lake.python
    environment = {"PYSPARK_PYTHON": sys.executable} if lake is None else dict(lake.environment)
    return child("bench.lakes.program", [json.dumps(request)], environment, python=python)
