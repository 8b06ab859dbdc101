"""Cases that are dealt out: each runs on some of the places it could, by turns, and on all of them in ``make sim``."""

from typing import Any, TypeAlias

import pytest

Case: TypeAlias = frozenset[tuple[str, int]]


def case_of(call: Any, over: str) -> Case:
    """What a test is called with, but for the parameter ``over`` which cases are dealt.

    By the very objects, which are the same wherever the case runs: pytest numbers them anew for each combination.
    """
    return frozenset((name, id(value)) for name, value in call.params.items() if name != over)


def call_of(item: pytest.Item | pytest.Collector) -> Any:
    """How a parametrized test is called; None for others."""
    return getattr(item, "callspec", None)
