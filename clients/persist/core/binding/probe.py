"""What an upstream says it has, and whether that can be believed.

Source: catalog-semantics.md sections 4.2 (restart checks) and 5.2; sources.md sections 1 and 3.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from persist.core.binding.binding_log import BindingLog
from persist.core.source.source_frontier import SourceFrontier, place, placed
from persist.core.source.source_time import SourceKind, SourceTime
from persist.core.time.errors import UpstreamLost, UpstreamRegressed
from persist.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One answer about watermarks. A partition that was not asked, or did not answer, is in neither.

    ``high``: for each partition the first offset that does not exist yet. ``low``: the first one that is still there.
    """

    kind: SourceKind
    incarnation: str
    high: tuple[SourceTime, ...]
    low: tuple[SourceTime, ...] = ()

    def __post_init__(self) -> None:
        tops = dict(place(self.kind, time) for time in self.high)
        for time in self.low:
            key, low = place(self.kind, time)
            if low > tops.get(key, low):
                raise InvalidArgument(
                    "a low watermark lies above the high one", low=time, high=placed(self.kind, key, tops[key])
                )

    def wanted(self, log: BindingLog) -> SourceFrontier:
        """The frontier to ensure: what is bound already, raised to the high watermarks that are known.

        ``log``: as it was read *before* the upstream was asked; a later one may be ahead of this probe for good
        reasons. Raises UpstreamReplaced, UpstreamRegressed (a high watermark lies before what was bound),
        UpstreamLost (data vanished between what was bound and the low watermark).
        """
        log.check_incarnation(self.incarnation)
        bound = log.trace.frontier
        for time in self.high:
            key, offset = place(self.kind, time)
            known = bound.bound(key) or 0
            if offset < known:
                raise UpstreamRegressed(
                    "the upstream has less than was bound",
                    hint="is it the right one? If it lost data, persist source status says what mends its tables",
                    high=time,
                    bound=placed(self.kind, key, known),
                )
        check_available(self.kind, self.low, bound)
        return bound.join(SourceFrontier.at(self.kind, dict(place(self.kind, each) for each in self.high)))


def check_available(kind: SourceKind, low: Iterable[SourceTime], resume: SourceFrontier) -> None:
    """Raise UpstreamLost unless everything from ``resume`` on is still there, in the partitions it knows.

    To be asked at every start, with the frontier that reading will begin at. A partition it does not know begins
    wherever the upstream lets it; one known at 0 was seen empty, so nothing of it may be missing.
    """
    for time in low:
        key, offset = place(kind, time)
        begin = resume.bound(key)
        if begin is not None and offset > begin:
            raise UpstreamLost(
                "the upstream threw away what was not read yet",
                hint="snapshot each of its exports again (persist source resnapshot), or where it has no snapshots "
                "make a new source; and keep data upstream for longer",
                low=time,
                resume=placed(kind, key, begin),
            )
