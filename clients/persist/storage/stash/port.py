"""The third port: a Stash keeps rows that come and go at times in the tables of a SQL database, by environment.

One table for all kinds of rows, not one for each: a release that knows another kind changes no tables, and an append
or a read of all kinds is one statement. Adapters classify failures as those of Consensus do, and never retry.
Source: design document 2, stash implementation; reliability.md section 4; docs/formats.md, stash.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from persist.errors import Indeterminate, InvalidArgument, InvalidBounds
from persist.storage.ports import Finding

TS_MAX: Final = 2**63 - 2
"""The largest time of a row: the upper after it is the largest number that a column holds."""

HISTORY: Final = 1024
"""So many of the newest appends are distinguished, and the tokens of so many are known."""

STEP: Final = 256
"""Rows that one step of forgetting looks for, at most."""


class StashRow(NamedTuple):
    """A row that comes (diff 1) or goes (diff -1) at a time, and a checksum that the stash only keeps."""

    kind: str
    key: bytes
    value: bytes
    crc: int
    ts: int
    diff: int


class StashRows(NamedTuple):
    """Rows, and the upper of their environment at the same moment."""

    rows: list[StashRow]
    upper: int


class Stash(Protocol):
    """Rows by environment. Linearizable and durable. The upper of an environment without appends is 0.

    Raises Determinate, Indeterminate (an append or ``forget`` whose answer was lost), StoreFull, StoreReadOnly,
    CorruptData, VersionMismatch (a newer release made the tables). ``timeout`` is seconds.
    """

    @property
    def uri(self) -> str:
        """What ``open_stash`` takes to reach the same database (without secrets)."""
        ...

    async def upper(self, environment: str, *, timeout: float) -> int:
        """Every row of a later append has this time or a later one."""
        ...

    async def snapshot(self, environment: str, kinds: Sequence[str] | None, *, timeout: float) -> StashRows:
        """The net rows of these kinds (None: all), each at ``upper - 1``."""
        ...

    async def updates(self, environment: str, lower: int, *, timeout: float) -> StashRows:
        """All rows at ``lower`` or later, by time. Raises NotReadable when some of those times were forgotten.

        From 0: all rows, those that were forgotten at a later time.
        """
        ...

    async def append(
        self,
        environment: str,
        rows: Sequence[StashRow],
        *,
        expected: int,
        ts: int,
        token: bytes,
        again: bool = False,
        timeout: float,
    ) -> int | None:
        """In one transaction: if the upper is ``expected``, add the rows and make it ``ts + 1``.

        None when this was done, now or (``again``: a call with the same token had no answer) before; else the upper,
        and no such call ever takes effect. Raises InvalidBounds, and Indeterminate when even the token does not decide.
        """
        ...

    async def forget(self, environment: str, to: int, *, timeout: float) -> bool:
        """One bounded step: take rows below ``to`` together with what cancels them. True: there is more to do.

        The newest ``HISTORY`` appends stay apart from each other: who is not further behind than that can follow.
        """
        ...

    async def findings(self) -> Sequence[Finding]:
        """What is unsafe about this database, by live checks. Empty: nothing."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


def check_environment(name: object) -> str:
    """The name when it has 1 to 255 characters, none of them NUL or half a surrogate pair. Raises InvalidArgument."""
    if not isinstance(name, str) or not 1 <= len(name) <= 255 or re.search("[\0\ud800-\udfff]", name):
        raise InvalidArgument("malformed environment", hint="a name of 1 to 255 characters", got=repr(name)[:80])
    return name


def check_append(expected: int, ts: int) -> None:
    """Nothing, when an append can be at ``ts``. Raises InvalidBounds."""
    if not 0 <= expected <= ts <= TS_MAX:
        raise InvalidBounds("0 <= expected upper <= time < 2^63 - 1", expected_upper=expected, ts=ts)


class Evidence(NamedTuple):
    """What the store shows of an append that was tried before: whether its token is there, and which tokens are."""

    upper: int
    known: bool
    tokens: int
    oldest_ts: int | None


def outcome(seen: Evidence, *, expected: int, ts: int, history: int) -> int | None:
    """What became of an append that was tried before and cannot be done now. Raises Indeterminate.

    Once the upper has passed what the append expected, it never happens any more. Its token is found unless so many
    others came since that it was overwritten.
    """
    if seen.known:
        return None
    overwritten = seen.tokens >= history and seen.oldest_ts is not None and seen.oldest_ts > ts
    if seen.upper < expected or overwritten:
        raise Indeterminate(
            "it is not known whether this append was done", hint="read the rows", upper=seen.upper, ts=ts
        )
    return seen.upper
