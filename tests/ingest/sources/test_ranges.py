"""Cutting offsets into tasks loses none, repeats none, and keeps their order."""

from hypothesis import given
from hypothesis import strategies as st

from persist.sources import OFFSET_MAX, SourceFrontier, SourceKind
from persist_ingest.sources.ranges import MessageRange, pieces, share

BOUNDS = st.dictionaries(st.integers(0, 5), st.integers(0, 60), max_size=5)


@given(begin=BOUNDS, more=BOUNDS, tasks=st.integers(-1, 9), least=st.integers(0, 20))
def test_tasks_hold_every_offset_once_and_in_order(
    begin: dict[int, int], more: dict[int, int], tasks: int, least: int
) -> None:
    start = SourceFrontier.at(SourceKind.PARTITIONS, begin)
    end = start.join(SourceFrontier.at(SourceKind.PARTITIONS, more))
    wanted = [
        (key, offset)
        for key, bound in zip(end.keys, end.bounds, strict=True)
        for offset in range(begin.get(key, 0), bound)
    ]
    groups = share(list(pieces(start, end)), tasks, least)
    held = [(each.partition, offset) for group in groups for each in group for offset in range(each.begin, each.end)]
    assert held == wanted
    assert all(each.length > 0 for group in groups for each in group)
    sizes = [sum(each.length for each in group) for group in groups]
    assert len(groups) <= max(tasks, 1)
    assert all(size >= least for size in sizes[:-1])
    assert max(sizes, default=0) <= max(least, -(-len(wanted) // max(tasks, 1)), 1)


def test_finished_partitions_end_where_they_are_known_to() -> None:
    end = SourceFrontier.at(SourceKind.FILES, {"a": OFFSET_MAX, "b": OFFSET_MAX, "c": 3})
    begin = SourceFrontier.at(SourceKind.FILES, {"c": 3, "a": 1})
    assert list(pieces(begin, end, {"a": 7})) == [MessageRange("a", 1, 7), MessageRange("b", 0, OFFSET_MAX)]
    assert not list(pieces(end, end))
