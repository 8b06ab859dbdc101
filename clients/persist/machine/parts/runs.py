"""Runs of a read, and where they can be cut: at keys that no part crosses, so that each side is right alone.

Source: kernel.md section 3, step 0; architecture.md section 4.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from persist.core.shard.batch import Part

_GROUP_BYTES_MIN: Final = 4 << 20
"""Decoded bytes below which neighbouring groups are put together: each costs something, however few its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Parts in one sorted sequence, of which updates at times in ``[lower, upper)`` count (upper None: no end)."""

    parts: tuple[Part, ...]
    lower: int
    upper: int | None

    def covers(self, part: Part) -> bool:
        """No update of the part is to be dropped."""
        return self.lower <= part.first_ts and (self.upper is None or part.last_ts < self.upper)

    def touches(self, part: Part) -> bool:
        """Some update of the part may count."""
        return self.lower <= part.last_ts and (self.upper is None or part.first_ts < self.upper)


def only(runs: Iterable[RunView], parts: Iterable[Part]) -> tuple[RunView, ...]:
    """The runs with these very parts of theirs."""
    wanted = {id(part) for part in parts}
    kept = (dataclasses.replace(run, parts=tuple(part for part in run.parts if id(part) in wanted)) for run in runs)
    return tuple(run for run in kept if run.parts)


def overlapping(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """The parts in groups whose key bounds touch; groups lie apart, in key order."""
    group: list[Part] = []
    reach: bytes | None = b""
    for part in sorted(parts, key=lambda part: part.key_lower):
        if group and reach is not None and part.key_lower > reach:
            yield group
            group, reach = [], b""
        group.append(part)
        reach = None if reach is None or part.key_upper is None else max(reach, part.key_upper)
    if group:
        yield group


def groups(runs: Sequence[RunView]) -> list[tuple[RunView, ...]]:
    """The runs cut into groups of overlapping parts, in key order; small neighbours are one group."""
    if not runs or (len(runs) == 1 and len(runs[0].parts) == 1):
        return [tuple(runs)] if runs else []
    joined: list[list[Part]] = []
    small = 0
    for group in overlapping(part for run in runs for part in run.parts):
        size = sum(part.decoded_bytes for part in group)
        if small and size < _GROUP_BYTES_MIN:
            joined[-1] += group
        else:
            joined.append(group)
            small = 0
        small = small + size if small + size < _GROUP_BYTES_MIN else 0
    if len(joined) == 1:
        return [tuple(runs)]
    return _of_each(runs, joined)


def _of_each(runs: Sequence[RunView], joined: Sequence[Sequence[Part]]) -> list[tuple[RunView, ...]]:
    """The runs of each group. In as many steps as there are parts: both may be many."""
    place = {id(part): index for index, group in enumerate(joined) for part in group}
    found: list[list[RunView]] = [[] for _ in joined]
    for run in runs:
        pieces: dict[int, list[Part]] = {}
        for part in run.parts:
            pieces.setdefault(place[id(part)], []).append(part)
        for index, parts in pieces.items():
            found[index].append(run if len(pieces) == 1 else dataclasses.replace(run, parts=tuple(parts)))
    return [tuple(each) for each in found]
