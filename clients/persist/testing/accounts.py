"""What was returned to each caller about its append, and whether the shard agrees: a row per append, never written
twice.

Acknowledged means there once, at the time that was returned; refused means never there, whatever happens later; without
an answer, both are fine, but not twice. Source: docs/guarantees.md; reliability.md I4.
"""

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from persist.core.shard.commands import Appended, UpperMismatch
from persist.errors import Determinate, Indeterminate, LeaseExpired, PersistError, UsageError
from persist.testing.ledger import Update, Violation

SHOWN = 5
"""Rows that a violation names."""


class Told(enum.Enum):
    """What a caller knows."""

    NOTHING = "nothing"
    APPENDED = "appended"
    REFUSED = "refused"


@dataclass
class Account:
    """One append of one row. ``time`` is where it was reported to be; ``answers`` are all that were returned.

    ``most``: how often the row may be there, which is more than once where all that made it one append was a token
    that the shard has forgotten between two processes.
    """

    row: int
    time: int | None = None
    told: Told = Told.NOTHING
    most: int = 1
    answers: list[str] = field(default_factory=list)

    def answered(self, outcome: Appended | UpperMismatch) -> None:
        """The call returned."""
        self.answers.append(f"{type(outcome).__name__} {outcome.upper}")
        if isinstance(outcome, UpperMismatch):
            self._learn(Told.REFUSED)
            return
        assert outcome.upper.time is not None
        self.appended(outcome.upper.time - 1)

    def appended(self, time: int) -> None:
        """The row was said to be there at ``time``."""
        if self.told is Told.APPENDED and self.time != time and self.most == 1:
            raise Violation(f"I4: row {self.row} was reported at two times: {self.answers}")
        self.time = time
        self._learn(Told.APPENDED)

    def failed(self, error: Exception, *, repeated: bool = False) -> None:
        """The call raised. ``repeated``: an earlier call under its token got no answer, so no error is a refusal."""
        self.answers.append(f"{type(error).__name__}: {error}")
        sure = isinstance(error, Determinate | UsageError) and not isinstance(error, Indeterminate | LeaseExpired)
        if sure and not repeated:
            self._learn(Told.REFUSED)
        elif not isinstance(error, PersistError):
            self.answers[-1] = f"strange {self.answers[-1]}"

    def _learn(self, told: Told) -> None:
        if self.told not in (Told.NOTHING, told):
            raise Violation(f"I4: row {self.row} was reported both: {self.answers}")
        self.told = told


class Accounts:
    """All appends to one shard."""

    def __init__(self) -> None:
        self.all: dict[int, Account] = {}

    def open(self, row: int) -> Account:
        """A new append."""
        assert row not in self.all
        return self.all.setdefault(row, Account(row))

    def known(self) -> dict[int, Account]:
        """Those acknowledged by now."""
        return {row: account for row, account in self.all.items() if account.told is Told.APPENDED}

    def tally(self) -> Counter[str]:
        """How many got which answer."""
        return Counter(account.told.value for account in self.all.values())

    def seen(self, as_of: int, before: Iterable[Account], found: Counter[int]) -> None:
        """A snapshot that was begun after ``before`` were acknowledged. Raises Violation."""
        due = [account for account in before if account.time is not None and account.time <= as_of]
        wrong = [account for account in due if not 1 <= found[account.row] <= account.most]
        if wrong:
            counts = Counter(found[account.row] for account in wrong)
            raise Violation(f"I4: of {len(due)} rows due once at {as_of}, so often are there {counts}: {_some(wrong)}")

    def judge(self, updates: Iterable[Update]) -> None:
        """Compare what was returned with everything in the shard. Raises Violation."""
        there: Counter[int] = Counter()
        times: dict[int, int] = {}
        for row, _, time, diff in updates:
            there[row] += diff
            times[row] = time
        wrong: dict[str, list[Account]] = {}
        for row, account in self.all.items():
            what = _wrong(account, there[row], times.get(row))
            if what:
                wrong.setdefault(what, []).append(account)
        strangers = set(there) - set(self.all)
        if wrong or strangers:
            kinds = "; ".join(f"{len(some)} {what}: {_some(some)}" for what, some in sorted(wrong.items()))
            raise Violation(f"I4: {kinds} {sorted(strangers)[:SHOWN] or ''}".rstrip())


def _wrong(account: Account, count: int, time: int | None) -> str:
    if not 0 <= count <= account.most:
        return f"rows are there {count} times"
    if account.told is Told.APPENDED and not count:
        return "acknowledged rows are missing"
    if account.told is Told.APPENDED and time != account.time and account.most == 1:
        return "rows are at another time than was reported"
    if account.told is Told.REFUSED and count:
        return "refused rows are there"
    return ""


def _some(accounts: list[Account]) -> str:
    return ", ".join(f"{account.row} {account.answers}" for account in accounts[:SHOWN])
