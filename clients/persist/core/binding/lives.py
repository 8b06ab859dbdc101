"""Incarnations that follow one another: lives of an upstream that have one history up to somewhere.

The first one has the name that its source gave it. The n-th after it is ``<first> then <n> <place>``: where it began is
in it, so two that both followed the same one are not the same. A name is no longer for all those that came before.
Source: catalog-semantics.md section 4.2; docs/adr/0030-failover-by-succession.md.
"""

from typing import Final

_THEN: Final = " then "


def succeeding(incarnation: str, place: str) -> str:
    """The incarnation that follows this one, from ``place`` on, a word of the source's own."""
    first, number = _parsed(incarnation)
    return f"{first}{_THEN}{number + 1} {place}"


def precedes(earlier: str, later: str) -> bool:
    """Whether bindings of ``earlier`` may be what those of ``later`` began with. Not of itself."""
    (first, number), (other, before) = _parsed(later), _parsed(earlier)
    return first == other and before < number


def _parsed(incarnation: str) -> tuple[str, int]:
    """The name of the first one, and how many came since."""
    first, then, rest = incarnation.rpartition(_THEN)
    number = rest.partition(" ")[0]
    return (first, int(number)) if then and number.isdecimal() else (incarnation, 0)
