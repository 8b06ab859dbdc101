"""Source frontiers are a lattice in one canonical form, and mean what their elements mean."""

from hypothesis import given
from hypothesis import strategies as st
from property.core.binding.sources import KEYS, KINDS, LAW, SMALL, frontiers, messages, time_at

from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import OFFSET_MAX, Range, SourceKind

PAIRS = KINDS.flatmap(lambda kind: st.tuples(frontiers(kind), frontiers(kind)))
TRIPLES = KINDS.flatmap(lambda kind: st.tuples(frontiers(kind), frontiers(kind), frontiers(kind)))


def below(a: SourceFrontier, b: SourceFrontier) -> bool:
    """The order of antichains by its definition: each element of b lies at or beyond one of a."""
    return all(any(mine.less_equal(theirs) for mine in a.elements) for theirs in b.elements)


@LAW
@given(PAIRS)
def test_order_is_that_of_antichains(pair):
    a, b = pair
    finished = [(f, key) for f in pair for key, bound in zip(f.keys, f.bounds, strict=True) if bound == OFFSET_MAX]
    assert not a.less_equal(b) or below(a, b) or finished
    assert not below(a, b) or a.less_equal(b)


@LAW
@given(TRIPLES)
def test_join_and_meet_are_those_of_a_lattice(triple):
    a, b, c = triple
    assert a.join(a) == a == a.meet(a)
    assert a.join(b) == b.join(a)
    assert a.meet(b) == b.meet(a)
    assert a.join(b.join(c)) == a.join(b).join(c)
    assert a.meet(b.meet(c)) == a.meet(b).meet(c)
    assert a.join(a.meet(b)) == a == a.meet(a.join(b))
    assert a.less_equal(b) == (a.join(b) == b) == (a.meet(b) == a)


@LAW
@given(PAIRS)
def test_join_and_meet_are_least_and_greatest(pair):
    a, b = pair
    assert a.less_equal(a.join(b))
    assert a.meet(b).less_equal(a)
    assert SourceFrontier.minimum(a.kind).less_equal(a)
    assert a.less_equal(SourceFrontier.closed(a.kind))
    assert (a == b) == (a.less_equal(b) and b.less_equal(a))


@LAW
@given(PAIRS)
def test_what_lies_beyond_follows_from_the_elements_and_the_lattice(pair):
    a, b = pair
    for time in messages(a.kind):
        assert a.less_equal_time(time) == any(element.less_equal(time) for element in a.elements)
        assert a.join(b).beyond(time) == (a.beyond(time) or b.beyond(time))
        assert a.meet(b).beyond(time) == (a.beyond(time) and b.beyond(time))


@LAW
@given(PAIRS)
def test_releasing_within_is_about_messages_only(pair):
    a, b = pair
    if OFFSET_MAX not in a.bounds:
        assert a.releases_within(b) == all(b.beyond(time) for time in messages(a.kind) if a.beyond(time)) or a.is_closed
    assert not a.less_equal(b) or a.releases_within(b)


@LAW
@given(KINDS.flatmap(frontiers), st.randoms(use_true_random=False))
def test_canonical_form_is_unique_and_comes_back_from_its_elements(frontier, random):
    elements = list(frontier.elements)
    random.shuffle(elements)
    again = SourceFrontier.of(frontier.kind, elements)
    assert again == frontier
    assert hash(again) == hash(frontier)
    assert again.elements == frontier.elements
    assert not any(a.less_equal(b) for a in elements for b in elements if a is not b)


@LAW
@given(KINDS.flatmap(lambda kind: frontiers(kind, closed=False)))
def test_every_key_lies_in_exactly_one_element(frontier):
    for time in messages(frontier.kind):
        later = time_at(frontier.kind, getattr(time, "partition", 0), OFFSET_MAX)
        assert sum(element.less_equal(later) for element in frontier.elements) == 1
    if frontier.kind is not SourceKind.LSN:
        assert len(frontier.elements) <= 2 * len(frontier.keys) + 1


@LAW
@given(KINDS, st.data())
def test_inclusive_conversion_covers_the_message_and_no_later_one(kind, data):
    key = data.draw(st.sampled_from(KEYS[kind]))
    offset = data.draw(st.integers(0, SMALL) | st.integers(OFFSET_MAX - 9, OFFSET_MAX - 2))
    frontier = SourceFrontier.through(kind, [time_at(kind, key, offset)])
    assert frontier.beyond(time_at(kind, key, offset))
    assert frontier.less_equal_time(time_at(kind, key, offset + 1))
    assert frontier.last(key) == offset
    others = [time for time in messages(kind) if getattr(time, "partition", key) != key]
    assert all(frontier.less_equal_time(time) for time in others)


@LAW
@given(st.sampled_from([SourceKind.PARTITIONS, SourceKind.FILES]), st.data())
def test_joining_a_partition_splits_the_range_it_lies_in(kind, data):
    frontier = data.draw(frontiers(kind, closed=False))
    key = data.draw(st.sampled_from([key for key in KEYS[kind] if key not in frontier.keys] or KEYS[kind]))
    after = frontier.join(SourceFrontier.at(kind, {key: 3}))
    kept = {element for element in frontier.elements if not (isinstance(element, Range) and element.holds(key))}
    if key not in frontier.keys:
        assert kept <= set(after.elements)
        assert after.bound(key) == 3
