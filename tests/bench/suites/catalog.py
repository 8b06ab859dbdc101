"""P14: the durable catalog: what a commit costs when there are many objects, how long it takes to open, its memory."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Spread, quantile, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import Child, child
from bench.stage import Stage

FEW = 100
MANY = 100_000
OPEN_SECONDS = 3.0
"""What opening MANY may take; fewer take less, down to what starting up does."""
OPEN_SECONDS_MIN = 0.5
PER = 2_000
"""Objects of a transaction that fills a catalog."""
COMMITS = 40
TURNS = 5
"""Turns of COMMITS each in a round: first on few objects, then on many, and so on."""
EVENTS = 50_000
REMEMBERED = 10_000
"""Changes that an open catalog remembers for transactions that began before them: written first, they do not count."""
CLIENTS = 16
TOGETHER_MIN = 8.0
"""Times the commits of one client that so many have to make."""

PLACES = {"shard": "in a shard on SQLite and files", "stash": "in a stash in SQLite"}


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for place, where in PLACES.items():
            few, many = (_Place(place, Path(folder) / f"{place}-{size}") for size in ("few", "many"))
            _fill(plan, few, FEW)
            _fill(plan, many, plan.pick(MANY // 10, MANY))
            _commits(plan, outcome, few, many, where)
            _opens(plan, outcome, many, where)
            _memory(plan, outcome, few, where)
        _remote(plan, outcome, Path(folder) / "remote")


@dataclass(frozen=True, slots=True)
class _Place:
    """A catalog that processes open one after the other."""

    place: str
    folder: Path

    def stores(self) -> dict[str, str]:
        if self.place == "stash":
            return {"uri": f"sqlite:{self.folder}/stash.db"}
        return {"blob": f"file:{self.folder}/blob", "consensus": f"sqlite:{self.folder}/consensus.db"}

    @contextmanager
    def process(self, mode: str) -> Iterator[tuple["_Process", Any]]:
        """A process that has it open to ``write`` or ``read``, and what opening took."""
        with _process({"place": self.place, "mode": mode, **self.stores()}) as (process, told):
            yield process, told


class _Process:
    def __init__(self, process: Child) -> None:
        self._process = process

    def do(self, what: str, *, commits: int, per: int) -> Any:
        """Have it done; what it took."""
        self._process.tell(json.dumps({"do": what, "commits": commits, "per": per}))
        return self._process.answer()


@contextmanager
def _process(request: dict[str, Any]) -> Iterator[tuple[_Process, Any]]:
    with child("bench.jobs.catalog", [json.dumps(request)]) as process:
        yield _Process(process), process.answer()


def _fill(plan: Plan, place: _Place, items: int) -> None:
    plan.say(f"P14 a catalog of {items:,} items {PLACES[place.place]}")
    place.folder.mkdir()
    per = min(PER, items)
    with place.process("write") as (process, _):
        process.do("insert", commits=items // per, per=per)


def _commits(plan: Plan, outcome: Outcome, few: _Place, many: _Place, where: str) -> None:
    """Turn by turn on few objects and on many, each in a process of its own: both share the machine's noise."""
    cpu: dict[str, list[float]] = {"few": [], "many": []}
    wall: dict[str, list[float]] = {"few": [], "many": []}
    with few.process("write") as (small, _), many.process("write") as (large, opened):
        begun, found = opened["items"], 0
        for process in (small, large):
            process.do("insert", commits=COMMITS, per=1)
        for _ in plan.rounds_of(f"P14 commits {where}", 30):
            for _ in range(TURNS):
                for name, process in (("few", small), ("many", large)):
                    told = process.do("insert", commits=COMMITS, per=1)
                    cpu[name].append(told["cpu"] / COMMITS * 1e3)
                    wall[name].append(quantile(told["ms"], 0.5))
                    found = told["items"]
    with many.process("read") as (_, again):
        outcome.gate("P14", f"items {where}, opened again", expected=found, found=again["items"])
    expected = begun + COMMITS * (1 + len(cpu["many"]))
    outcome.gate("P14", f"items {where}", expected=expected, found=found)
    outcome.keep(f"catalog_commit_{few.place}", {"cpu_ms": cpu, "p50_ms": wall, "items": begun})
    for what, samples in (("CPU", cpu), ("wall p50", wall)):
        outcome.check("P14", f"commit at {begun:,} items {where}, {what}, against {FEW} items",
                      ratios(samples["many"], samples["few"]).mid, 1.3,
                      ours=Spread.of(samples["many"]).show(" ms"),
                      against=Spread.of(samples["few"]).show(" ms"))  # fmt: skip


def _opens(plan: Plan, outcome: Outcome, many: _Place, where: str) -> None:
    """Each in a fresh process, from opening the place on."""
    found: dict[str, list[Any]] = {"read": [], "write": []}
    for _ in plan.rounds_of(f"P14 opening {where}", 30):
        for mode, took in found.items():
            with many.process(mode) as (_, told):
                took.append(told)
    outcome.keep(f"catalog_open_{many.place}", found)
    items = found["read"][0]["items"]
    limit = max(OPEN_SECONDS_MIN, round(OPEN_SECONDS * items / MANY, 1))
    for mode, what in (("read", "to read"), ("write", "to write")):
        seconds, cpu = (Spread.of([told[unit] for told in found[mode]]) for unit in ("seconds", "cpu"))
        outcome.check("P14", f"opening {items:,} items {what}, {where}", seconds.mid, limit, unit=" s",
                      ours=f"CPU {cpu.show(' s')}, {found[mode][0]['mb']:,.0f} MB")  # fmt: skip


def _memory(plan: Plan, outcome: Outcome, few: _Place, where: str) -> None:
    """Resident memory of the leader, and of a process that opens, before and after many audit events."""
    events = plan.pick(EVENTS // 5, EVENTS)
    plan.say(f"P14 {events:,} audit events {where}")
    with few.process("write") as (process, _):
        before = process.do("record", commits=2 * REMEMBERED // PER, per=PER)
        with few.process("read") as (_, opened_before):
            pass
        after = process.do("record", commits=events // PER, per=PER)
        with few.process("read") as (_, opened_after):
            pass
    outcome.gate("P14", f"audit events {where}", expected=before["events"] + events, found=opened_after["events"])
    outcome.keep(f"catalog_memory_{few.place}", [before, opened_before, after, opened_after])
    for who, one, two in (("who leads", before, after), ("who opens", opened_before, opened_after)):
        outcome.check("P14", f"memory of {who} {where}, {events:,} audit events later", two["mb"] / one["mb"], 1.1,
                      ours=f"{two['mb']:,.0f} MB", against=f"{one['mb']:,.0f} MB")  # fmt: skip


def _remote(plan: Plan, outcome: Outcome, folder: Path) -> None:
    """CatalogService and its clients, each a process."""
    stores = _Place("shard", folder).stores()
    folder.mkdir()
    where = ["--blob", stores["blob"], "--consensus", stores["consensus"], "--listen", "127.0.0.1:0"]
    with child("persist_cli", ["serve", "catalog", *where, "--environment", "bench"]) as server:
        endpoint = server.line().rpartition(" ")[2]
        found: dict[int, float] = {}
        for clients in (1, CLIENTS):
            request = {"place": "grpc", "mode": "write", "endpoint": endpoint, "clients": clients}
            with _process(request) as (process, told):
                expected = told["items"]
                rates: list[float] = []
                lags: list[float] = []
                for _ in plan.rounds_of(f"P14 {clients} clients over gRPC", 15):
                    told = process.do("insert", commits=COMMITS, per=1)
                    expected += COMMITS * clients
                    rates.append(COMMITS * clients / told["seconds"])
                    lags.append(quantile(told["ms"], 0.5))
            outcome.gate("P14", f"items of {clients} clients over gRPC", expected=expected, found=told["items"])
            outcome.check("P14", f"commits/s of {clients} clients over gRPC", Spread.of(rates).mid, None, unit="/s",
                          ours=f"p50 {Spread.of(lags).show(' ms')}")  # fmt: skip
            found[clients] = Spread.of(rates).mid
    outcome.check("P14", f"commits/s of {CLIENTS} clients over gRPC against 1", found[CLIENTS] / found[1],
                  TOGETHER_MIN, at_most=False)  # fmt: skip
