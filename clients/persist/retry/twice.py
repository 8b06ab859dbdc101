"""Which calls may be asked of two servers at once, and which only read: one table, by the name of the method.

A read changes nothing, so that no answer came is Determinate, and another server may be asked as well when this one
takes long. So may what does and tells the same wherever it is asked, once this one says nothing at all. All other
methods are asked once at a time. A budget bounds what asking twice may cost: a server that is slow because it is loaded
must not be loaded further by its clients.
Source: reliability.md section 5; Dean and Barroso, The Tail at Scale, 2013.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Rule(NamedTuple):
    """What goes for a method that may be asked of two servers at once.

    ``reads``: it changes nothing. ``whole``: one attempt may use all the time there is, as its answer is long or comes
    late by its nature. ``patient``: another server is asked only when this one says nothing at all: it is quiet on
    purpose, or does something, which costs more than reading.
    """

    reads: bool = True
    whole: bool = False
    patient: bool = False


_SHORT: Final = Rule()
_LONG: Final = Rule(whole=True)
_WAITING: Final = Rule(whole=True, patient=True)
_SAME_ANYWHERE: Final = Rule(reads=False, patient=True)

RULES: Final[Mapping[str, Rule]] = {
    # PersistShard
    "GetLocation": _SHORT,
    "Open": _SHORT,
    "Snapshot": _LONG,
    "Fetch": _WAITING,
    "Inspect": _SHORT,
    "Watch": _WAITING,
    "ListShards": _WAITING,
    "WatchWork": _WAITING,
    # CatalogService
    "GetStatus": _SHORT,
    "CheckUpgrade": _SHORT,
    "ReadRows": _LONG,
    "DumpRows": _LONG,
    "WatchChanges": _LONG,
    # TimestampMinter: what is bound is bound for everybody
    "GetBinding": _SAME_ANYWHERE,
    "Mint": _SAME_ANYWHERE,
    "ListBindings": _LONG,
    "WatchBindings": _WAITING,
    "GetResumption": _SHORT,
    "CompactBindings": _SAME_ANYWHERE,
    # TimestampOracle: at worst times are lost
    "WriteTs": _SAME_ANYWHERE,
    "PeekWriteTs": _SHORT,
    "ReadTs": _SHORT,
    "ApplyWrite": _SAME_ANYWHERE,
    # PersistCompaction
    "ListCompactions": _SHORT,
}
"""``Open`` is for calls that may not create the shard."""


def only_reads(rpc: str) -> bool:
    """Whether a method changes nothing."""
    rule = RULES.get(rpc)
    return rule is not None and rule.reads


HEDGE_SECONDS: Final = 1.0
"""A read without an answer for so long is asked of another server, too, and the first answer is taken."""
HEDGES_SHARE: Final = 0.05
"""Of the reads may be asked twice in the long run."""
HEDGES_MAX: Final = 5.0
"""What is saved up by reads that were answered soon."""


class HedgeBudget:
    """How many reads may still be asked twice: at first one, then ``HEDGES_SHARE`` of those that are made."""

    def __init__(self) -> None:
        self._left = 1.0

    def earn(self) -> None:
        """A read was made."""
        self._left = min(self._left + HEDGES_SHARE, HEDGES_MAX)

    def spend(self) -> bool:
        """Whether one may be asked twice; it is then taken from what is left."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
