"""The argument of ADR 12, looked at in every small history; and each rule in it is needed."""

import dataclasses
import time

import pytest
from simulation.budget import FULL
from simulation.search.search import Broken, Plan, Rules, Scope, search
from simulation.search.wrongs import BROKEN_RULES, LEFT_OUT

AHEAD, FIRST, MOVE = Plan("compare", 1, 2), Plan("compare", 0, 1), Plan("move")
REGISTER, EXPIRE = Plan("register"), Plan("expire")
DOWNGRADE, EARLY = Plan("downgrade", 0, 1), Plan("downgrade", 1, 2)
SCOPES = {
    "too early, filled, forgotten": Scope(plans=((AHEAD,), (FIRST, MOVE)), attempts=0),
    "too early and repeated": Scope(plans=((AHEAD,), (FIRST,)), attempts=1),
    "at the upper beside another": Scope(plans=((MOVE,), (FIRST,)), attempts=1),
    "two of one session": Scope(plans=((MOVE, MOVE),), attempts=1),
    "two of one session, forgotten": Scope(plans=((MOVE, MOVE), (MOVE,)), attempts=1, doubles=0),
    "held and released": Scope(plans=((REGISTER,), (EXPIRE,)), attempts=1),
    "held, moved and held anew": Scope(
        plans=((REGISTER, DOWNGRADE), (REGISTER, EXPIRE, REGISTER)), attempts=0, leaps=0
    ),
    "moved too early": Scope(plans=((REGISTER, DOWNGRADE), (REGISTER, EARLY)), attempts=0, leaps=0),
    "restored": Scope(plans=((MOVE,), (MOVE, MOVE)), attempts=0, restores=1, servers=1),
}
LARGE = ("too early, filled, forgotten", "two of one session, forgotten", "restored")
"""Searched to their ends only at length."""
LARGER = {
    "too early, repeated often": Scope(plans=((AHEAD,), (FIRST,)), attempts=3),
    "too early, filled, forgotten, repeated": Scope(plans=((AHEAD,), (FIRST, MOVE)), attempts=1),
    "too early, late answers": Scope(plans=((AHEAD,), (FIRST, MOVE)), attempts=0, hears_late=True),
    "at the upper, repeated often, late answers": Scope(plans=((MOVE,), (FIRST,)), attempts=3, hears_late=True),
    "held and released, late answers": Scope(plans=((REGISTER, MOVE), (EXPIRE,)), attempts=1, hears_late=True),
    "restored, two servers": Scope(plans=((MOVE,), (MOVE, MOVE)), attempts=0, restores=1),
    "restored and repeated": Scope(plans=((AHEAD,), (FIRST,)), attempts=1, restores=1),
}
AT_LENGTH = {**SCOPES, **LARGER} if FULL else {name: scope for name, scope in SCOPES.items() if name not in LARGE}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", AT_LENGTH)
def test_no_history_breaks_a_promise(name: str):
    begun = time.process_time()
    worlds = search(AT_LENGTH[name])
    print(f"\n{name}: {worlds} worlds in {time.process_time() - begun:.0f} CPU seconds", end="", flush=True)
    assert worlds > 300


BROKEN_IN = {
    "compare": "held and released",
    "fence": "too early and repeated",
    "doubt": "too early, filled, forgotten",
    "unsent": "two of one session, forgotten",
    "open_ones": "two of one session",
    "anew": "at the upper beside another",
    "numbered_holds": "held and released",
    "known_holds": "held, moved and held anew",
    "what_is_recorded_is_done_again": "two of one session",
    "acknowledged_numbers_are_taken_again": "two of one session",
    "forgotten_sessions_are_taken_for_new_ones": "at the upper beside another",
    "forgetting_leaves_no_mark": "at the upper beside another",
    "the_mark_is_where_a_session_began": "too early, filled, forgotten",
    "fences_are_not_recorded": "too early and repeated",
    "calls_of_another_incarnation_are_taken": "restored",
    "refused_moves_are_not_recorded": "moved too early",
}
"""Where it shows soonest."""


def _trace(name: str, rules: Rules) -> list[str]:
    with pytest.raises(Broken) as broken:
        search(SCOPES[BROKEN_IN[name]], rules)
    print(f"\n{name}: {broken.value.what}, after {len(broken.value.trace)} steps", end="", flush=True)
    return broken.value.trace


@pytest.mark.parametrize("name", BROKEN_RULES)
def test_every_rule_of_clients_and_servers_is_needed(name: str):
    assert _trace(name, BROKEN_RULES[name])


@pytest.mark.parametrize("name", LEFT_OUT)
def test_every_piece_of_the_transitions_is_needed(name: str):
    with LEFT_OUT[name]():
        assert _trace(name, Rules())


def test_worlds_are_the_same_whatever_the_order_of_calls():
    """The scope is symmetric: which client is which makes no difference to how much there is."""
    scope = SCOPES["at the upper beside another"]
    assert search(scope) == search(dataclasses.replace(scope, plans=scope.plans[::-1]))
