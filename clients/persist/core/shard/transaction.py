"""Markers of appends that are remembered for ever: an application's versions, and how far a log was copied.

Source: docs/adr/0004-durable-transactions.md and 0009-tables.md; reliability.md I4.
"""

from dataclasses import dataclass, replace
from typing import Final

from persist.core.ids import ShardId
from persist.errors import InvalidArgument, InvalidId

OWNER_BODY: Final = "#diffs="
"""In the owner of a transaction, what stands before the sum of its version's diffs."""

TRANSACTION_LETTERS: Final = 256
"""The longest app id, and the longest owner."""

KEPT: Final = "persist.wal:"
"""Begins the names under which a shard records of which logs it is a table. No application has such a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A durable marker (``app_id``, ``version``): appends of one application with a version already seen are no-ops.

    Only the newest version can be repeated. With other updates it is refused (InvalidArgument), and so is every version
    before it, of which nothing is known any more: what is refused was not appended.

    ``owner``: who counts the versions, for example a streaming query's id. A version that another owner has committed
    is refused, not taken for a replay. Empty: not given, only the updates are compared. Handles and tables add what
    distinguishes these updates from others; one made by ``owner_of`` has that from its maker, for updates that a
    repetition may have in other numbers or another order. An empty body there is compared with nothing.

    ``new_since``: only a shard that more than 10,000 applications wrote asks for it, with OutcomeForgotten, of those it
    does not know: it has forgotten the oldest. A caller that gives it the number in ``details["new_since"]`` says that
    the application had committed nothing there when that number was returned. Any other number counts as not given.

    Raises InvalidArgument for what is out of bounds, and for an ``app_id`` that begins with "persist.wal:": under such
    names shards record how far they are copied from logs (``LogCopy``).
    """

    app_id: str
    version: int
    owner: str = ""
    new_since: int = 0

    def __post_init__(self) -> None:
        for name, least in (("app_id", 1), ("owner", 0)):
            text: object = getattr(self, name)
            if not isinstance(text, str) or not least <= len(text) <= TRANSACTION_LETTERS:
                raise _bad_transaction(name, text, f"give a text of {least} to {TRANSACTION_LETTERS} letters")
        for name, bits in (("version", 63), ("new_since", 64)):
            number: object = getattr(self, name)
            if type(number) is not int or not 0 <= number < 1 << bits:
                raise _bad_transaction(name, number, f"give an int of {bits} bits, from 0")
        self._check_name()

    def _check_name(self) -> None:
        if self.app_id.startswith(KEPT):
            raise InvalidArgument(
                f'names that begin with "{KEPT}" are no application\'s: under them a table records how far its log was'
                " copied into it",
                hint="begin the application id differently",
                app_id=self.app_id,
            )

    @staticmethod
    def owner_of(name: str, diffs: int | str) -> str:
        """An ``owner`` that also holds the sum of the diffs of this version's updates, or what else identifies them."""
        return f"{name}{OWNER_BODY}{diffs}"

    @property
    def has_body(self) -> bool:
        """Whether ``owner`` says how to distinguish this version's updates from others."""
        return OWNER_BODY in self.owner

    def with_body(self, body: str) -> "Transaction":
        """The same with a body of those updates, unless ``owner`` has one. Raises InvalidArgument: no room for it."""
        return self if self.has_body else replace(self, owner=self.owner_of(self.owner, body))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCopy(Transaction):
    """Until when a log is copied into a table, recorded in the table's shard by the append that copies it, for ever.

    Its name is "persist.wal:" and the log's shard, its version the upper that the append reaches. What distinguishes
    updates is left empty: every process copies the same from where the last one ended.
    """

    @classmethod
    def of(cls, log: ShardId, end: int) -> "LogCopy":
        """Until ``end``."""
        return cls(app_id=f"{KEPT}{log}", version=end, owner=cls.owner_of("", ""))

    def _check_name(self) -> None:
        try:
            ShardId.parse(self.app_id.removeprefix(KEPT) if self.app_id.startswith(KEPT) else "")
        except InvalidId:
            raise InvalidArgument(
                "a copy of a log names the log's shard", hint=f'as "{KEPT}s…"', app_id=self.app_id
            ) from None


def _bad_transaction(name: str, got: object, hint: str) -> InvalidArgument:
    return InvalidArgument(f"no such {name} of a transaction", hint=hint, got=repr(got)[:80])
