"""Which time a query reads at, and whether it can be answered now.

The inputs are held before the choice: a since that moves afterwards would make the choice worthless.
Source: catalog-semantics.md sections 3.2 and 6.2; design 004.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from persist.core.frontier import CLOSED, MINIMUM, TIME_MAX, Antichain, check_time
from persist.core.time.collections import Independent, TimelineContext, TimestampDependent
from persist.core.time.isolation import Isolation
from persist.errors import InvalidArgument, NotReadable, ShardClosed


@dataclass(frozen=True, slots=True)
class Input:
    """A collection to be read: it is readable from ``since`` on, and complete before ``upper``."""

    id: str
    since: Antichain
    upper: Antichain


@dataclass(frozen=True, slots=True)
class AsOf:
    """The time a user asked for: exactly this one, or this one at least."""

    time: int
    at_least: bool = False

    def __post_init__(self) -> None:
        check_time(self.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What decides on the time. ``recency``: the time by which all is here that was upstream when this was asked.

    ``oracle_ts``: the read time of the timeline's oracle, asked after the query came; it may be missing only where it
    is not needed (see ``needs_oracle``).
    """

    context: TimelineContext
    inputs: tuple[Input, ...] = ()
    isolation: Isolation = Isolation.STRICT_SERIALIZABLE
    oracle_ts: int | None = None
    as_of: AsOf | None = None
    recency: int | None = None

    @property
    def since(self) -> Antichain:
        """From here on all inputs are readable: the join of their sinces."""
        return reduce(Antichain.join, (each.since for each in self.inputs), MINIMUM)

    @property
    def upper(self) -> Antichain:
        """Before this all inputs are complete: the meet of their uppers. Without inputs nothing is awaited."""
        return reduce(Antichain.meet, (each.upper for each in self.inputs), CLOSED)

    @property
    def is_strict(self) -> bool:
        """The answer is ordered among all reads and writes of its timeline. Constants have none."""
        return self.isolation is Isolation.STRICT_SERIALIZABLE and not isinstance(self.context, Independent)

    @property
    def needs_oracle(self) -> bool:
        """The choice takes the oracle's read time."""
        return self.is_strict or (isinstance(self.context, TimestampDependent) and self.upper.is_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The time a query reads at, and why: what EXPLAIN TIMESTAMP shows."""

    query_ts: int
    oracle_ts: int | None
    since: Antichain
    upper: Antichain
    is_strict: bool

    @property
    def is_complete(self) -> bool:
        """All inputs have what they will ever have at the time. Otherwise reading waits for the upper."""
        return self.upper.beyond(self.query_ts)

    @property
    def answer_after(self) -> int | None:
        """The oracle's read time has to reach this before the answer is given, else a later read might see less."""
        late = self.is_strict and self.oracle_ts is not None and self.query_ts > self.oracle_ts
        return self.query_ts if late else None

    @property
    def can_respond_now(self) -> bool:
        """Nothing has to be awaited."""
        return self.is_complete and self.answer_after is None


def choose(query: Query) -> Choice:
    """The time to read at: readable in all inputs, not before what the user asked for, and as its isolation demands.

    An exact AS OF is taken as it is. Everything else is a lower bound, of which the greatest counts.
    Raises NotReadable (an exact AS OF before since; ``details['since']`` is the smallest usable one), ShardClosed (an
    input is closed for reading), InvalidArgument (the oracle's time is needed).
    """
    since = query.since
    least = since.time
    if least is None:
        raise ShardClosed("closed for reading", since=since, objects=_blamed(query.inputs, TIME_MAX))
    if query.needs_oracle and query.oracle_ts is None:
        raise InvalidArgument("the oracle's read time decides here", hint="ask the oracle of the timeline first")
    if query.as_of is not None and not query.as_of.at_least:
        chosen = query.as_of.time
    else:
        chosen = max(least, *_lower_bounds(query))
    if not since.less_equal_time(chosen):
        raise NotReadable(
            "this time is no longer readable",
            hint="read from since on",
            as_of=chosen,
            since=since,
            objects=_blamed(query.inputs, chosen),
        )
    return Choice(query_ts=chosen, oracle_ts=query.oracle_ts, since=since, upper=query.upper, is_strict=query.is_strict)


def last_complete(upper: Antichain) -> int:
    """The greatest time that does not wait: ``upper - 1``; 0 when nothing is complete yet, the end when all is."""
    if upper.is_empty:
        return TIME_MAX
    return max(upper.elements[0] - 1, 0)


def readable_at(candidates: Sequence[Input], as_of: int) -> Input | None:
    """The first of several that would answer alike, such as the indexes of an object and itself; None: none can.

    A hold on an object does not hold its indexes, nor the reverse: each is asked for itself.
    """
    return next((each for each in candidates if each.since.less_equal_time(as_of)), None)


def _lower_bounds(query: Query) -> Iterable[int]:
    yield 0
    if query.as_of is not None:
        yield query.as_of.time
    if query.recency is not None:
        yield check_time(query.recency)
    if query.needs_oracle and query.oracle_ts is not None:
        yield check_time(query.oracle_ts)
    # Where what is read depends on time but never changes, upper - 1 is the end of time: the oracle knows better.
    elif not query.is_strict:
        yield last_complete(query.upper)


def _blamed(inputs: Iterable[Input], as_of: int) -> str:
    return ", ".join(sorted(each.id for each in inputs if not each.since.less_equal_time(as_of)))
