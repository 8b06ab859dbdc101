"""What may be repeated, by the name of the method: one table, with a row for every method of every service.

How a call is repeated says what to do after an attempt of it got no answer. A read changes nothing, so that no answer
came is Determinate, and another server may be asked as well when this one takes long. The same holds for what does and
returns the same wherever it is asked, once this one says nothing at all. All other methods are asked once at a time.
Source: reliability.md section 5; Dean and Barroso, The Tail at Scale, 2013.
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from persist.errors import Determinate, Indeterminate, LocationError

NO_ANSWER: Final = "no answer from"
"""The first words of an error without an answer from a persist server. An address follows."""


class Repeat(enum.Enum):
    """Why a call may be repeated; its value is the next step when it ended without an answer."""

    READ = "retry"
    """It changes nothing."""
    UNNUMBERED = "repeat the same call: once more does no harm"
    """Repeating it changes nothing more, or uses up what there is plenty of."""
    NUMBERED = "ask again with the same arguments"
    """Every attempt carries the call's number, so all attempts are one. A new call gets another number."""
    TOKEN = "repeat it with the same token"
    """Calls with one token or request id are one; without one it may happen twice."""


class Rule(NamedTuple):
    """How a method may be repeated.

    ``whole``: one attempt may use all the time there is, as its answer is long or comes late by its nature. ``twice``:
    it may be asked of two servers at once. ``patient``: of another one only when this one says nothing at all: it is
    quiet on purpose, or does something, which costs more than reading.
    """

    repeat: Repeat
    twice: bool = False
    whole: bool = False
    patient: bool = False


_SHORT: Final = Rule(Repeat.READ, twice=True)
_LONG: Final = Rule(Repeat.READ, twice=True, whole=True)
_WAITING: Final = Rule(Repeat.READ, twice=True, whole=True, patient=True)
_SAME_ANYWHERE: Final = Rule(Repeat.UNNUMBERED, twice=True, patient=True)
_UNNUMBERED: Final = Rule(Repeat.UNNUMBERED)
_NUMBERED: Final = Rule(Repeat.NUMBERED)
_TOKEN: Final = Rule(Repeat.TOKEN)

RULES: Final[Mapping[str, Rule]] = {
    # PersistShard, reads
    "GetLocation": _SHORT,
    "Open": _SHORT,
    "Snapshot": _LONG,
    "Fetch": _WAITING,
    "Inspect": _SHORT,
    "Watch": _WAITING,
    "ListShards": _WAITING,
    "WatchWork": _WAITING,
    # PersistShard, commands
    "CompareAndAppend": _NUMBERED,
    "CloseCall": _NUMBERED,
    "RegisterCriticalReader": _NUMBERED,
    "CompareAndDowngradeSince": _NUMBERED,
    "ExpireCriticalReader": _NUMBERED,
    "RegisterLeasedReader": _UNNUMBERED,
    "DowngradeSince": _UNNUMBERED,
    "HeartbeatReader": _UNNUMBERED,
    "ExpireReader": _UNNUMBERED,
    "ExpireWriter": _UNNUMBERED,
    "RegisterSchema": _UNNUMBERED,
    "EvolveSchema": _UNNUMBERED,
    "ClaimCompaction": _UNNUMBERED,
    "ReleaseCompaction": _UNNUMBERED,
    "ApplyMerge": _UNNUMBERED,
    "FenceWriters": _UNNUMBERED,
    "Finalize": _UNNUMBERED,
    # It carries commands, which are repeated one by one.
    "Session": _UNNUMBERED,
    # CatalogService
    "GetStatus": _SHORT,
    "CheckUpgrade": _SHORT,
    "ReadRows": _LONG,
    "DumpRows": _LONG,
    "WatchChanges": _LONG,
    "Commit": _TOKEN,
    "StageChanges": _UNNUMBERED,
    "OpenSession": _UNNUMBERED,
    "CloseSession": _UNNUMBERED,
    "AllocateIds": _UNNUMBERED,
    "ConfirmLeadership": _UNNUMBERED,
    "AdvanceUpper": _UNNUMBERED,
    "PruneStorageUsage": _UNNUMBERED,
    "EditRow": _UNNUMBERED,
    "Execute": _TOKEN,
    "Describe": _SHORT,
    # TimestampMinter: what is bound is bound for every caller
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
    # PersistCompaction: a request has an id, under which it is joined
    "ListCompactions": _SHORT,
    "Compact": _UNNUMBERED,
    "CancelCompaction": _UNNUMBERED,
}
"""``Open`` is for calls that may not create the shard."""


def repeat_of(rpc: str, *, reads: bool = True) -> Repeat:
    """How a call is repeated. ``reads`` False: this call of a method that may read does more."""
    repeat = RULES[rpc].repeat
    return Repeat.UNNUMBERED if repeat is Repeat.READ and not reads else repeat


def unanswered(repeat: Repeat, message: str, **details: object) -> LocationError:
    """The error of a call that was sent, and of which nothing is known: for all but a read it may have happened."""
    kind = Determinate if repeat is Repeat.READ else Indeterminate
    return kind(message, hint=repeat.value, **details)
