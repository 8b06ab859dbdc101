"""What a type of sources knows of the lives of its upstream: servers that take over, and histories that are lost.

Source: sources.md section 1, semantics seen; catalog-semantics.md section 4.2; docs/adr/0030-failover-by-succession.md;
docs/adr/0031-lost-histories-by-runs.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from persist.sources import SourceFrontier, UpstreamReplaced


class HistoryLost(UpstreamReplaced):
    """The upstream is the one it was, by all it says of itself, and does not have the history that was read of it.

    Its files were put back, or it lost its end. Later it may look as if nothing had been: so that is kept in mind.
    """

    reason = "HISTORY_LOST"


@runtime_checkable
class Lags(Protocol):
    """A SourceReader whose upstream may have less for a while than another server that has the same history."""

    def lags(self) -> bool:
        """Whether it does: a standby. Raises LocationError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """One run of a server, from its start to its end, as it was when it was asked.

    ``name``: no other run has it, of this server or of another one. ``read``: up to where its log was read by what it
    says itself, which only readers of the source move. ``end``: up to where it has log.
    """

    name: str
    read: int
    end: int


@runtime_checkable
class OnServer(Protocol):
    """A SourceReader, or Anew, that knows which run of a server it reads."""

    def run(self) -> ServerRun:
        """That which was asked last, in a session that has not ended since. Raises LocationError."""
        ...


class Successor(Protocol):
    """A later life of an upstream, which has the history of the one that a source is on up to somewhere.

    It depends on nothing but the life that the source was on: ``definition`` is of the source, as others may have
    revised it meanwhile, and where it is on this one already, it stays.
    """

    @property
    def most(self) -> SourceFrontier:
        """Up to where the history is the same."""
        ...

    @property
    def run(self) -> ServerRun | None:
        """The run of the server that says so; None: none, or it has nothing that says how far it was read."""
        ...

    def check(self) -> None:
        """Raise UpstreamLost: it lacks what the source needs of it. Looked at after ``most``, which is for ever."""
        ...

    def renewed(self, definition: Mapping[str, object]) -> Mapping[str, object]:
        """The definition with which the source goes on."""
        ...

    def incarnation(self, definition: Mapping[str, object]) -> str:
        """That of the source then: it follows the earlier one (``persist.sources.succeeding``)."""
        ...

    def doubtful(self, definition: Mapping[str, object]) -> Sequence[str]:
        """Exports about which it knows what may be of a history that is lost: they have to be snapshotted again."""
        ...


@runtime_checkable
class Follows(Protocol):
    """A SourceType whose sources may go on with another life of their upstream: a standby that was promoted."""

    def successor(self, definition: Mapping[str, object], bound: str) -> Successor | None:
        """The life that the upstream has now; None: it is the one that the source is on.

        ``bound``: the incarnation that the bindings are of: the definition's, or they went on, and it does not say so
        yet: then it is that one, which is recorded before there is another. Raises UpstreamReplaced (there is none that
        the source could go on with), LocationError.
        """
        ...
