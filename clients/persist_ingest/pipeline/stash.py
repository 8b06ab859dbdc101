"""What was said of times that are not complete yet, and which times become complete. Pure.

Messages may come in any order and any number of times: what they say together decides, so every ingester and every
restart comes to the same rows at the same times.
Source: design 004, variants (External, Counter); the public description of CDCv2.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from persist.typed import Record
from persist_ingest.sources.port import SourceFailure, Stated, StatedProgress

TimedRow: TypeAlias = tuple[Record, int, int]
"""A row, its time, its diff."""


@dataclass(slots=True)
class Stash:
    """``upper``: times before it are durable, None: all are. What is said of those is dropped."""

    upper: int | None
    count: int = 0
    _times: dict[int, dict[str, tuple[tuple[Record, int], ...]]] = field(default_factory=dict)
    _progress: list[StatedProgress] = field(default_factory=list)

    def put(self, event: Stated | StatedProgress) -> None:
        """Take what was said into account. Raises SourceFailure: it contradicts what was said before."""
        if self.upper is None:
            return
        if isinstance(event, StatedProgress):
            if (event.upper is None or event.upper > self.upper) and event not in self._progress:
                self._progress.append(event)
            return
        if event.time < self.upper:
            return
        said = self._times.setdefault(event.time, {})
        before = said.get(event.mark)
        if before is None:
            said[event.mark] = event.rows
            self.count += 1
        elif before != event.rows:
            raise SourceFailure(
                "an update came twice with different contents",
                hint="correct what produces it",
                time=event.time,
                update=event.mark[:200],
                first=str(before)[:200],
                second=str(event.rows)[:200],
            )

    def complete(self) -> int | None:
        """The upper that could be reached now. Raises SourceFailure: more was said of a time than was announced."""
        upper = self.upper
        while upper is not None:
            reached = [self._through(each, upper) for each in self._progress if each.lower <= upper]
            further = None if None in reached else max([upper, *(at for at in reached if at is not None)])
            if further == upper:
                break
            upper = further
        return upper

    def rows(self, upper: int | None) -> Iterator[TimedRow]:
        """What becomes durable with this upper, in order of times."""
        for time in sorted(each for each in self._times if upper is None or each < upper):
            for said in self._times[time].values():
                for row, diff in said:
                    yield row, time, diff

    def taken(self, upper: int | None) -> None:
        """Everything before ``upper`` is durable."""
        self.upper = upper
        if upper is None:
            self._times.clear()
            self._progress.clear()
        else:
            self._times = {time: said for time, said in self._times.items() if time >= upper}
            self._progress = [each for each in self._progress if each.upper is None or each.upper > upper]
        self.count = sum(map(len, self._times.values()))

    def _through(self, progress: StatedProgress, upper: int) -> int | None:
        """How far a statement that covers ``upper`` carries: to its end, or to its first time that lacks something."""
        times = {time for time in progress.counts if time >= upper}
        times |= {time for time in self._times if time >= upper and (progress.upper is None or time < progress.upper)}
        for time in sorted(times):
            there, announced = len(self._times.get(time, ())), progress.counts.get(time, 0)
            if there > announced:
                raise SourceFailure(
                    "more updates came of a time than were announced",
                    hint="correct what produces them",
                    time=time,
                    announced=announced,
                    came=there,
                )
            if there < announced:
                return time
        return progress.upper if progress.upper is None else max(upper, progress.upper)
