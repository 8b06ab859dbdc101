"""What a catalog keeps of the outcomes of requests, so that a later leader answers a repetition as the first one did.

Beside the commit of statements: the ids of what they are about. Of positions that move, many in one transaction: the
tokens of the newest transactions, in a ring of settings. Source: docs/formats.md; ADR 24.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.kept_settings import Own, about, own_key
from persist.core.catalog.kinds import SETTING
from persist.core.catalog.objects import Setting, SettingKey
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.values import Id
from persist.core.ids import Token
from persist.errors import InvalidId

RING: Final = 256
"""Transactions that move positions, of which the tokens are known."""
_SLOT: Final = re.compile("0|[1-9][0-9]{0,2}", re.ASCII)
_NUMBER: Final = re.compile("[1-9][0-9]{0,99}", re.ASCII)
_IDLE: Final = " idle "
_HOW: Final = {"refused": True, "done": False}


def made_key(token: object) -> SettingKey:
    """The setting that names what the statements under a token are about. It goes when the token goes."""
    return own_key(Own.MADE, token)


def made_text(executed: Iterable[Executed], idle: str | None = None) -> str:
    """The ids that outcomes name, in their order; empty where there is none. ``idle``: the role that asked for what
    changed nothing, empty if there is none of its name; None: something was changed.
    """
    ids = ",".join("" if each.id is None else str(each.id) for each in executed)
    return ids if idle is None else f"{ids}{_IDLE}{idle}"


def idle_of(setting: Setting | None) -> str | None:
    """The role whose request changed nothing, of which this was kept; None: it changed something, or is not known."""
    _, is_idle, role = ("", "", "") if setting is None else setting.value.partition(_IDLE)
    return role if is_idle else None


def made_of(setting: Setting | None, count: int) -> Sequence[Id | None]:
    """The ids that were kept of so many outcomes; None: none, or of a release that kept none."""
    found = None if setting is None else made_ids(setting)
    return found if found is not None and len(found) == count else [None] * count


def made_ids(setting: Setting) -> Sequence[Id | None] | None:
    """The ids that were kept; None: the library did not write this."""
    try:
        ids, _, _ = setting.value.partition(_IDLE)
        return [Id.parse(each) if each else None for each in ids.split(",")]
    except (InvalidId, ValueError):
        return None


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
        found: Iterable[tuple[SettingKey, Setting | None]]
        if changes is None:
            self._slots.clear()
            found = snapshot.objects(SETTING).items()
        else:
            found = ((each.key, each.after) for each in changes if each.kind is SETTING)
        mine = {slot: (key, value) for key, value in found if (slot := _slot(key)) is not None}
        for slot, (key, value) in mine.items():
            self._slots.pop(slot, None)
            if value is not None and (moves := moves_of(key, value)) is not None:
                self._slots[slot] = moves
        if mine or changes is None:
            self._known = {each.token: each for _, moves in self._slots.values() for each in moves}
        self._version = snapshot.version
        return self._known

    def added(self, moves: Sequence[Move]) -> tuple[SettingKey, Setting]:
        """The setting that adds these, over the oldest ones."""
        number = max((number for number, _ in self._slots.values()), default=0) + 1
        words = (f"{each.token}:{each.body.hex()}:{'refused' if each.refused else 'done'}" for each in moves)
        return own_key(Own.MOVED, number % RING), Setting(" ".join((str(number), *words)))


def moves_of(key: SettingKey, setting: Setting) -> tuple[int, tuple[Move, ...]] | None:
    """The number of a transaction that moved positions, and what came of each; None: the library did not write this."""
    number, *words = setting.value.split(" ")
    slot = _slot(key)
    if slot is None or not _NUMBER.fullmatch(number) or int(number) % RING != slot:
        return None
    try:
        return int(number), tuple(map(_move, words))
    except (InvalidId, ValueError, KeyError):
        return None


def _slot(key: SettingKey) -> int | None:
    text = about(Own.MOVED, key)
    return int(text) if text is not None and _SLOT.fullmatch(text) and int(text) < RING else None


def _move(word: str) -> Move:
    name, body, how = word.split(":")
    return Move(Token.parse(name), bytes.fromhex(body), _HOW[how])
