"""Who may write: the fence token (deploy generation, epoch) of the catalog, in one row.

Every writable open writes a new token over the one it read, in one append; whoever holds a smaller one is fenced from
then on. Source: catalog-semantics.md sections 1.2.1 and 1.2.2; invariant I16.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from persist.core.catalog.errors import Fenced, FencedByEpoch, FencedByGeneration
from persist.core.catalog.kinds import FENCE_TOKEN
from persist.core.catalog.objects import FenceToken, FenceTokenKey
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Change
from persist.errors import InvalidArgument

FLOOR: Final = 1
"""The epoch before there was any: the first open gets the next one."""

KEY: Final = FenceTokenKey()

GENERATION_JUMP_MAX: Final = 1_000_000
"""How far a generation may lie above the last one: no single mistake leaves none to those who come later."""
FIRST_GENERATION_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class Claim:
    """What a process may call its own: its deploy generation, and after it opened the catalog its token.

    No generation (a read-only process): nobody can fence it.
    """

    generation: int | None
    token: FenceToken | None = None

    def fenced_by(self, seen: FenceToken) -> Fenced | None:
        """Why a token in the catalog ends the claim; None when it does not.

        Before opening only a higher generation does: a higher epoch is what opening goes on from.
        """
        if self.generation is None:
            return None
        ours = self.token or FenceToken(self.generation, 0)
        if seen.deploy_generation > ours.deploy_generation:
            return _fenced(FencedByGeneration, "a newer deployment leads", ours, seen)
        if self.token is not None and seen > self.token:
            return _fenced(FencedByEpoch, "somebody opened the catalog later", ours, seen)
        return None


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
    refusal = Claim(generation).fenced_by(seen) if seen is not None else None
    if refusal is not None:
        raise refusal
    check_jump(seen, generation)
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


def most_informative(refusals: Iterable[Fenced]) -> Fenced | None:
    """The refusal that tells most: generation before epoch before migration; of equals the last."""
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
