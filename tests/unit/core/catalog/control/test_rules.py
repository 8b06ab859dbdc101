"""Tokens, pace, leftovers and what is observed: the smaller decisions of what controls collections."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from persist.core.catalog.control.controlled import Controlled, controlled, going_along, stored_inputs
from persist.core.catalog.control.observing import observed_times, quarantined
from persist.core.catalog.control.pace import LOOK_SECONDS_MAX, Look, due, to_complete
from persist.core.catalog.control.reconciling import leftovers
from persist.core.catalog.control.tokens import Standing, described, standing, token_of
from persist.core.catalog.ddl.described import SUPERUSER, Described
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.values import Id, ObjectType, Space
from persist.core.frontier import CLOSED, Antichain
from persist.core.ids import ShardId
from persist.core.time.timeline import EPOCH_MILLISECONDS, UserTimeline

NUMBERS = st.integers(0, 2**64 - 1)
TOKENS = st.tuples(NUMBERS, st.builds(FenceToken, NUMBERS, NUMBERS))
STEPS = UserTimeline("steps")
HOUR = 3_600_000


def id_of(number: int) -> Id:
    return Id(Space.USER, number)


def shard_of(number: int) -> ShardId:
    return ShardId.named("test", str(number))


@given(TOKENS, TOKENS)
def test_tokens_are_ordered_as_fences_are(ours: tuple[int, FenceToken], found: tuple[int, FenceToken]) -> None:
    told = standing(token_of(found[1], found[0]), token_of(ours[1], ours[0]))
    wanted = Standing.OURS if found == ours else Standing.LATER if found > ours else Standing.EARLIER
    assert told is wanted
    assert described(token_of(found[1], found[0])) == {
        "generation": found[1].deploy_generation,
        "epoch": found[1].epoch,
    }


@given(st.binary(max_size=23))
def test_what_is_no_token_of_a_leader_gives_way(found: bytes) -> None:
    assert standing(found, token_of(FenceToken(0, 2))) is Standing.EARLIER
    assert described(found) == {}


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_what_moves_is_looked_at_each_second_and_what_rests_seldom(moves: list[bool]) -> None:
    look, now = Look(0.0), 0.0
    for moved in moves:
        before, now = look, look.due
        look = look.told(now, moved=moved)
        assert look.due == now + look.after
        assert look.after == (1.0 if moved else min(2 * before.after, LOOK_SECONDS_MAX))
    assert due({"a": look, "b": Look(now - 1)}, now) == ["b"]


@given(st.integers(1, 30), st.integers(1, 4))
def test_tables_at_rest_are_completed_by_turns(count: int, idle_max: int) -> None:
    tables, completed = list(range(count)), dict[int, float]()
    for tick in range(-(-count // idle_max)):
        chosen = to_complete(tables, {}, completed, float(tick), idle_max=idle_max)
        assert len(chosen) == min(idle_max, count)
        completed.update(dict.fromkeys(chosen, float(tick)))
    assert set(completed) == set(tables)


def test_tables_that_are_written_to_are_completed_with_each_tick() -> None:
    written = {1: 100.0, 2: 10.0}
    assert to_complete([1, 2, 3, 4], written, {2: 5.0, 3: 4.0, 4: 6.0}, 110.0, wanted={4}, idle_max=1) == [1, 4, 3]


def test_what_is_computed_together_with_what_moves_goes_along() -> None:
    def one(number: int, *inputs: int, completes: bool = False) -> tuple[Id, Controlled]:
        made_of = tuple(map(id_of, inputs))
        return id_of(number), Controlled(id=id_of(number), shard=shard_of(number), inputs=made_of, completes=completes)

    tables = [one(number, completes=True) for number in range(1, 8)]
    # A view over two tables, one over that and a third, one over a table and a source, and one over a table alone.
    views = [one(11, 1, 2), one(12, 11, 3), one(13, 4, 20), one(14, 5)]
    collections = dict([*tables, *views, one(20)])
    assert going_along(collections, {}) == {shard_of(4)}
    assert going_along(collections, {shard_of(2)}) == {shard_of(number) for number in (1, 2, 3, 4)}
    assert going_along(collections, {shard_of(3)}) == {shard_of(number) for number in (1, 2, 3, 4)}
    assert going_along(collections, {shard_of(5)}) == {shard_of(4), shard_of(5)}


SHARDS = st.frozensets(st.integers(0, 6).map(shard_of))


@given(SHARDS, SHARDS, SHARDS, SHARDS)
def test_leftovers(
    owned: frozenset[ShardId], begun: frozenset[ShardId], dropped: frozenset[ShardId], under_way: frozenset[ShardId]
) -> None:
    collections = {id_of(at): Controlled(id=id_of(at), shard=shard) for at, shard in enumerate(sorted(owned))}
    found = leftovers(collections, begun, dropped, under_way)
    # Nothing that an item has, or that a statement is at, is released or finalized.
    assert not (found.release | found.finalize) & (owned | under_way)
    assert not found.release & found.finalize
    assert found.finalize == dropped - owned - under_way
    assert found.claimed == dropped & owned
    # Everything begun is released, or done with, unless a statement is at it.
    assert begun - under_way == found.release | found.settled


def test_what_is_observed() -> None:
    collections = {
        id_of(1): Controlled(id=id_of(1), shard=shard_of(1), timeline=STEPS),
        id_of(2): Controlled(id=id_of(2), shard=shard_of(2), timeline=STEPS),
        id_of(3): Controlled(id=id_of(3), shard=shard_of(3), timeline=STEPS, completes=True),
        id_of(4): Controlled(id=id_of(4), shard=shard_of(4), timeline=STEPS, inputs=(id_of(1),)),
        id_of(5): Controlled(id=id_of(5), shard=shard_of(5)),
    }
    at = Antichain.of
    assert observed_times(collections, {id_of(1): at(9)}) == {}
    uppers = {id_of(1): at(9), id_of(2): at(5), id_of(3): at(0), id_of(4): at(0), id_of(5): at(0)}
    assert observed_times(collections, uppers) == {STEPS: 4}
    assert observed_times(collections, uppers | {id_of(2): CLOSED}) == {STEPS: 8}
    assert observed_times(collections, uppers | {id_of(2): at(0)}) == {}


@given(st.integers(-3, 3), st.booleans())
def test_only_claims_are_doubted(hours: int, claims: bool) -> None:
    each = Controlled(id=id_of(1), shard=shard_of(1), claims_epoch=claims)
    now = 1_000 * HOUR
    found = quarantined({each.id: each}, {each.id: Antichain.of(now + hours * HOUR)}, now)
    assert bool(found) == (claims and abs(hours) > 1)
    assert quarantined({each.id: each}, {}, now) == frozenset()


def item(number: int, kind: ObjectType, *depends_on: int, stored: bool = True, **more: Any) -> Described:
    return Described(
        id=id_of(number), kind=kind, name=QualifiedName(f"i{number}"), owner=SUPERUSER,
        depends_on=tuple(map(id_of, depends_on)), data=shard_of(number) if stored else None, **more,
    )  # fmt: skip


def test_what_is_computed_is_found_through_views() -> None:
    items = [
        item(1, ObjectType.TABLE, timeline=EPOCH_MILLISECONDS, mode="wal"),
        item(2, ObjectType.TABLE, timeline=EPOCH_MILLISECONDS, mode="direct"),
        item(3, ObjectType.VIEW, 1, 4, stored=False),
        item(4, ObjectType.VIEW, 2, stored=False),
        item(5, ObjectType.MATERIALIZED_VIEW, 3, 99),
    ]
    known = {each.id: each for each in items}
    assert stored_inputs(items[4], known) == (id_of(1), id_of(2))
    found = controlled(items, {})
    assert sorted(found) == [id_of(1), id_of(2), id_of(5)]
    assert found[id_of(5)].inputs == (id_of(1), id_of(2))
    assert (found[id_of(1)].completes, found[id_of(2)].completes) == (True, False)


def test_what_a_source_feeds_has_its_claim_and_its_holds() -> None:
    items = [
        item(1, ObjectType.SOURCE, stored=False, timeline=EPOCH_MILLISECONDS, claims_epoch=True),
        item(2, ObjectType.SUBSOURCE, fed_by=id_of(1)),
    ]
    found = controlled(items, {})[id_of(2)]
    assert (found.claims_epoch, found.held_with) == (True, id_of(1))
