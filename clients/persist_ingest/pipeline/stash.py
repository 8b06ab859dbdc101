"""What was said of times that are not complete yet, and which times become complete. Pure.

Messages may come in any order and any number of times: what they say together decides, so every ingester and every
restart comes to the same rows at the same times.
Source: design 004, variants (External, Counter); the public description of CDCv2.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
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
    _progress: dict[tuple[int, int | None], list[StatedProgress]] = field(default_factory=dict)

    def put(self, event: Stated | StatedProgress) -> None:
        """Take what was said into account. Raises SourceFailure: it contradicts what was said before."""
        if self.upper is None:
            return
        if isinstance(event, StatedProgress):
            if event.upper is None or event.upper > self.upper:
                same = self._progress.setdefault((event.lower, event.upper), [])
                if event not in same:
                    same.append(event)
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
        if self.upper is None:
            return None
        upper, times = self.upper, sorted(self._times)
        ahead = deque(sorted((each for same in self._progress.values() for each in same), key=lambda each: each.lower))
        # Each is looked at when it is come to, and again only when others carried beyond the time that it lacks.
        lacking: list[tuple[int, int, StatedProgress]] = []
        while True:
            due = []
            while ahead and ahead[0].lower <= upper:
                due.append(ahead.popleft())
            while lacking and lacking[0][0] < upper:
                due.append(heapq.heappop(lacking)[2])
            reached: int | None = upper
            for each in due:
                at = self._lacks(each, upper, times)
                if at is not None:
                    heapq.heappush(lacking, (at, id(each), each))
                else:
                    at = each.upper
                reached = None if at is None or reached is None else max(reached, at)
            if reached is None or reached == upper:
                return reached
            upper = reached

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
            self._progress = {key: same for key, same in self._progress.items() if key[1] is None or key[1] > upper}
        self.count = sum(map(len, self._times.values()))

    def _lacks(self, progress: StatedProgress, upper: int, times: Sequence[int]) -> int | None:
        """The first time from ``upper`` on of which less came than this statement says; None: it carries to its end."""
        end = len(times) if progress.upper is None else bisect_left(times, progress.upper)
        came = times[bisect_left(times, upper) : end]
        for time in sorted({*came, *(each for each in progress.counts if each >= upper)}):
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
        return None
