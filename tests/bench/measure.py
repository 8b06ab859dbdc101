"""Samples and what is said about them: medians, quantiles, spreads over rounds; peak memory of this process."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
clock = time.perf_counter


def quantile(samples: Iterable[float], share: float) -> float:
    """The sample below which ``share`` of them lie. 0.0 when there are none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def median(samples: Iterable[float]) -> float:
    """The middle one, or the mean of the two in the middle. 0.0 when there are none."""
    found = list(samples)
    return statistics.median(found) if found else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of one figure over rounds, and how far the rounds lie apart."""

    mid: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> "Spread":
        return cls(median(rounds), min(rounds, default=0.0), max(rounds, default=0.0))

    def show(self, unit: str = "", digits: int = 2) -> str:
        return f"{self.mid:,.{digits}f} [{self.low:,.{digits}f}–{self.high:,.{digits}f}]{unit}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Round by round, ours over theirs: rounds share their noise, so their ratios spread less than the figures."""
    return Spread.of([a / b if b else 0.0 for a, b in zip(ours, theirs, strict=True)])


class Laps:
    """Milliseconds by name, gathered round by round."""

    def __init__(self) -> None:
        self._rounds: list[dict[str, list[float]]] = []

    def begin_round(self) -> None:
        self._rounds.append({})

    def add(self, name: str, ms: float) -> None:
        self._rounds[-1].setdefault(name, []).append(ms)

    def timed(self, name: str, work: Callable[..., T], *arguments: object) -> T:
        began = clock()
        result = work(*arguments)
        self.add(name, (clock() - began) * 1e3)
        return result

    def names(self) -> list[str]:
        return sorted({name for one in self._rounds for name in one})

    def per_round(self, name: str, share: float = 0.5) -> list[float]:
        return [quantile(one[name], share) for one in self._rounds if name in one]

    def spread(self, name: str, share: float = 0.5) -> Spread:
        return Spread.of(self.per_round(name, share))

    def as_json(self) -> dict[str, dict[str, list[float]]]:
        """p50 and p99 of each round."""
        return {
            name: {
                label: [round(ms, 4) for ms in self.per_round(name, share)]
                for label, share in (("p50", 0.5), ("p99", 0.99))
            }
            for name in self.names()
        }


class Peak:
    """Peak memory of a block above what was resident before it, in MB. Linux only; 0 elsewhere."""

    def __enter__(self) -> "Peak":
        gc.collect()
        self.mb = 0.0
        self._base = _status_mb("VmRSS")
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._base = float("inf")
        self._began = clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = clock() - self._began
        self.mb = max(0.0, _status_mb("VmHWM") - self._base)


def resident_mb() -> float:
    """Memory of this process that is in RAM. Linux only; 0 elsewhere."""
    return _status_mb("VmRSS")


def _status_mb(name: str) -> float:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return int(text.split(f"{name}:")[1].split()[0]) / 1024
