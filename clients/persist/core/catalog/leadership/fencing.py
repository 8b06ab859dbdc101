"""Who may write: the fence token (deploy generation, epoch) of the catalog, in one row.

Every writable open writes a new token over the one it read, in one append; a process with a smaller one is fenced from
then on. A token that went too far by mistake is set back by hand. Tokens that were held before may come again then, so
the numbers alone would let a former leader on: a *fence* is a token and an incarnation, of which there is one more
each time. Any fence of a later incarnation is greater. Source: catalog-semantics.md sections 1.2.1 and 1.2.2;
invariant I16.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from persist.core.catalog.errors import Fenced, FencedByEpoch, FencedByGeneration
from persist.core.catalog.kinds import CONFIG, FENCE_TOKEN
from persist.core.catalog.objects import Config, FenceToken, FenceTokenKey
from persist.core.catalog.open_rules import FENCE_INCARNATION
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Change
from persist.core.catalog.values import U64_MAX
from persist.errors import InvalidArgument

FLOOR: Final = 1
"""The epoch before there was any: the first open gets the next one."""

KEY: Final = FenceTokenKey()

GENERATION_JUMP_MAX: Final = 1_000_000
"""How far a generation may lie above the last one: no single mistake leaves none to those who come later."""
FIRST_GENERATION_MAX: Final = 2**62
EPOCH_LIMIT: Final = 2**62
"""Every open takes the next epoch: no edit leaves it none."""


@dataclass(frozen=True, slots=True)
class FenceClaim:
    """What a process may call its own: its deploy generation, and after it opened the catalog its token.

    No generation (a read-only process): it cannot be fenced. ``incarnation`` is that of the fence it opened with.
    """

    generation: int | None
    token: FenceToken | None = None
    incarnation: int = 0

    def fenced_by(self, seen: FenceToken | None, incarnation: int = 0) -> Fenced | None:
        """Why a fence in the catalog ends the claim; None when it does not.

        Before opening only a higher generation does: a higher epoch is what opening goes on from, and an incarnation,
        too.
        """
        if self.generation is None or seen is None:
            return None
        ours = self.token or FenceToken(self.generation, 0)
        if self.token is not None and incarnation != self.incarnation:
            # An earlier one is seen only by a look at rows that are behind.
            later = incarnation > self.incarnation
            return _fenced(FencedByEpoch, "the fence token was set back by hand", ours, seen) if later else None
        if seen.deploy_generation > ours.deploy_generation:
            return _fenced(FencedByGeneration, "a newer deployment leads", ours, seen)
        if self.token is not None and seen > self.token:
            return _fenced(FencedByEpoch, "another process opened the catalog later", ours, seen)
        return None

    def fenced_within(self, codec: RowCodec, changes: Iterable[tuple[Row, int]]) -> list[Fenced]:
        """Why the changes of one time end the claim, those of tokens that went again later, too."""
        came = [row for row, diff in changes if diff > 0]
        incarnation = max((found for row in came if (found := incarnation_in(codec, row)) is not None), default=None)
        tokens = (codec.decode(row)[1] for row in came if row.kind == FENCE_TOKEN.tag)
        now = self.incarnation if incarnation is None else incarnation
        return [refusal for token in tokens if (refusal := self.fenced_by(token, now)) is not None]


@dataclass(frozen=True, slots=True)
class OpenStep:
    """What to append, and nothing else, to lead with ``token``. A mismatch: read again and step again, without limit.

    A step costs the same however large the catalog is and however often it is repeated.
    """

    token: FenceToken
    change: Change

    def rows(self, codec: RowCodec) -> list[tuple[Row, int]]:
        """The token that goes (if there was one) and the one that comes."""
        before = self.change.before
        gone = [(codec.encode(FENCE_TOKEN.tag, KEY, before), -1)] if before is not None else []
        return [*gone, (codec.encode(FENCE_TOKEN.tag, KEY, self.token), 1)]


def open_step(seen: FenceToken | None, generation: int) -> OpenStep:
    """How to lead, given the token in the catalog now. Raises FencedByGeneration, InvalidArgument (too far a jump)."""
    refusal = FenceClaim(generation).fenced_by(seen) if seen is not None else None
    if refusal is not None:
        raise refusal
    check_jump(seen, generation)
    check_epoch_left(seen)
    # Epochs rise over generations, too: no two opens ever get the same one.
    token = FenceToken(generation, (seen.epoch if seen is not None else FLOOR) + 1)
    return OpenStep(token, Change(FENCE_TOKEN, KEY, seen, token))


def check_jump(seen: FenceToken | None, generation: int) -> None:
    """Raise InvalidArgument for a generation so far above the last one that it can only be a mistake."""
    greatest = FIRST_GENERATION_MAX if seen is None else seen.deploy_generation + GENERATION_JUMP_MAX
    if generation > greatest:
        raise InvalidArgument(
            "a deploy generation too far above the present one",
            hint=f"the next one will do; at most {greatest}",
            got=generation,
            present="none" if seen is None else seen.deploy_generation,
            greatest=greatest,
        )


def check_epoch_left(seen: FenceToken | None) -> None:
    """Raise InvalidArgument when there is no epoch after this token's."""
    if seen is not None and seen.epoch >= U64_MAX:
        raise InvalidArgument(
            "the catalog has no epoch left", hint="set it back: persist catalog repair --epoch 1", epoch=seen.epoch
        )


def check_set_back(there: FenceToken, wanted: FenceToken) -> None:
    """Raise InvalidArgument unless a token may be set back to this one, which leaves generations and epochs enough."""
    if not 0 <= wanted.deploy_generation <= FIRST_GENERATION_MAX or not 0 <= wanted.epoch < EPOCH_LIMIT:
        raise InvalidArgument(
            "no generation or epoch would be left", hint=f"give ones from 0 to below {EPOCH_LIMIT}", got=wanted
        )
    if wanted.deploy_generation > there.deploy_generation or wanted == there:
        raise InvalidArgument(
            "a fence token is set back, never on",
            hint="a higher generation is what opening the catalog with it writes",
            got=wanted,
            there=there,
        )


def incarnation_in(codec: RowCodec, row: Row) -> int | None:
    """The incarnation of the fence that a row says; None for any other row."""
    if row.kind != CONFIG.tag:
        return None
    key, config = codec.decode(row)
    return int(config.value) if key == FENCE_INCARNATION else None


def incarnation_row(codec: RowCodec, incarnation: int) -> Row:
    """The row that says the incarnation of the fence."""
    return codec.encode(CONFIG.tag, FENCE_INCARNATION, Config(incarnation))


def most_informative(refusals: Iterable[Fenced]) -> Fenced | None:
    """The refusal that says most: generation before epoch before migration; of equals the last."""
    found: Fenced | None = None
    for refusal in refusals:
        if found is None or refusal.rank >= found.rank:
            found = refusal
    return found


def _fenced(cls: type[Fenced], message: str, ours: FenceToken, seen: FenceToken) -> Fenced:
    return cls(
        message,
        hint="open the catalog again" if cls is FencedByEpoch else "stop this process",
        generation=ours.deploy_generation,
        epoch=ours.epoch,
        fenced_by_generation=seen.deploy_generation,
        fenced_by_epoch=seen.epoch,
    )
