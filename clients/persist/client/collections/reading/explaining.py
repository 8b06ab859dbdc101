"""Why a query reads at the time it reads at: what EXPLAIN TIMESTAMP prints.

Source: catalog-semantics.md section 6.1, EXPLAIN TIMESTAMP.
"""

from dataclasses import dataclass

from persist.core.frontier import Antichain
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import Choice, Input
from persist.core.time.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The time a query reads at, and what it was chosen from. ``timeline`` None: the answer is the same at every time.

    ``inputs``: what is read, by full name; of an index, that of what it answers for.
    """

    choice: Choice
    timeline: Timeline | None
    isolation: Isolation
    inputs: tuple[Input, ...] = ()
    refreshed: tuple[tuple[str, int], ...] = ()
    """Views that are refreshed every so often, and their last refresh time at the time of the query: their rows are as
    of that, or of the beginning of the view if it came since."""

    @property
    def query_ts(self) -> int:
        """The time."""
        return self.choice.query_ts

    def fields(self) -> list[tuple[str, str]]:
        """Label and value of each line."""
        choice = self.choice
        oracle = "none" if choice.oracle_ts is None else str(choice.oracle_ts)
        return [
            ("query timestamp", str(choice.query_ts)),
            ("oracle read timestamp", oracle),
            ("largest complete time", _last(choice.upper)),
            ("since", str(choice.since)),
            ("upper", str(choice.upper)),
            ("timeline", "none" if self.timeline is None else str(self.timeline)),
            ("isolation", self.isolation.value),
            ("can respond immediately", str(choice.can_respond_now).lower()),
            *((f"input {each.id}", f"since {each.since}, upper {each.upper}") for each in self.inputs),
            *((f"rows of {name}", f"as of {time}, its last refresh") for name, time in self.refreshed),
        ]

    def __str__(self) -> str:
        """As EXPLAIN TIMESTAMP prints it."""
        fields = self.fields()
        width = max(len(label) for label, _ in fields)
        return "\n".join(f"{label:>{width}}: {value}" for label, value in fields)


def _last(upper: Antichain) -> str:
    if upper.time is None:
        return "the end of time"
    return str(upper.time - 1) if upper.time else "none"
