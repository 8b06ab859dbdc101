"""What a catalog keeps of the outcomes of requests, so that a later leader answers a repetition as the first one did.

Beside the commit of statements: the ids of what they are about. Of positions that move, many in one transaction: the
tokens of the newest transactions, in a ring of settings. Source: docs/formats.md; ADR 24.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.kinds import SETTING
from persist.core.catalog.objects import Setting, SettingKey
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.values import Id
from persist.core.ids import Token

RING: Final = 256
"""Transactions that move positions, of which the tokens are known."""
_MADE: Final = "made_by "
_MOVED: Final = "moved "


def made_key(token: object) -> SettingKey:
    """The setting that names what the statements under a token are about. It goes when the token goes."""
    return SettingKey(f"{_MADE}{token}")


def made_text(executed: Iterable[Executed]) -> str:
    """The ids that outcomes name, in their order; empty where there is none."""
    return ",".join("" if each.id is None else str(each.id) for each in executed)


def made_of(setting: Setting | None, count: int) -> Sequence[Id | None]:
    """The ids that were kept of so many outcomes; None: none, or of a release that kept none."""
    found = [] if setting is None else setting.value.split(",")
    return [Id.parse(each) if each else None for each in found] if len(found) == count else [None] * count


class Move(NamedTuple):
    """What came of one request to move a position: ``body`` stands for what it wanted."""

    token: Token
    body: bytes
    refused: bool


class Moved:
    """The moves that a snapshot of a catalog knows of, kept up with it."""

    def __init__(self) -> None:
        self._version = -1
        self._slots: dict[int, tuple[int, tuple[Move, ...]]] = {}
        self._known: dict[Token, Move] = {}

    def follow(self, snapshot: Snapshot) -> Mapping[Token, Move]:
        """By token what is known of moves by now. Costs what changed since the last time."""
        changes = snapshot.since(self._version) if self._version >= 0 else None
        if changes is None:
            self._slots.clear()
            found = ((key, value) for key, value in snapshot.objects(SETTING).items())
        else:
            found = ((each.key, each.after) for each in changes if each.kind is SETTING)
        mine = {key: value for key, value in found if key.name.startswith(_MOVED)}
        for key, value in mine.items():
            slot = int(key.name.removeprefix(_MOVED))
            self._slots.pop(slot, None)
            if value is not None:
                self._slots[slot] = _parsed(value.value)
        if mine or changes is None:
            self._known = {each.token: each for _, moves in self._slots.values() for each in moves}
        self._version = snapshot.version
        return self._known

    def added(self, moves: Sequence[Move]) -> tuple[SettingKey, Setting]:
        """The setting that adds these, over the oldest ones."""
        number = max((number for number, _ in self._slots.values()), default=0) + 1
        words = (f"{each.token}:{each.body.hex()}:{'refused' if each.refused else 'done'}" for each in moves)
        return SettingKey(f"{_MOVED}{number % RING}"), Setting(" ".join((str(number), *words)))


def _parsed(text: str) -> tuple[int, tuple[Move, ...]]:
    number, *words = text.split()
    parts = (word.split(":") for word in words)
    return int(number), tuple(
        Move(Token.parse(name), bytes.fromhex(body), how == "refused") for name, body, how in parts
    )
