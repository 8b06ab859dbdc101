"""Lives of an upstream that follow one another: which may go on with which, and in what one append that is."""

import pyarrow as pa
import pytest

from persist.core.binding.lives import precedes, succeeding
from persist.core.binding.remap import RemapTrace, changes
from persist.core.binding.remap_rows import REMAP_SCHEMA, check_current, from_table, to_table
from persist.core.binding.succession import incarnation_of, succession
from persist.core.frontier import MINIMUM, Antichain
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import SourceKind
from persist.core.time.errors import UpstreamReplaced
from persist.errors import CorruptData

LSN, PARTITIONS = SourceKind.LSN, SourceKind.PARTITIONS
SECOND, RIVAL = succeeding("one", "2@0/A"), succeeding("one", "2@0/B")
THIRD = succeeding(SECOND, "3@0/C")


def at(position: int) -> SourceFrontier:
    return SourceFrontier.at(LSN, {0: position})


def rows(incarnation: str, frontier: SourceFrontier) -> pa.Table:
    """What a shard has of the bindings at a time."""
    return to_table(frontier.kind, incarnation, changes(None, frontier, 0)).drop_columns(["ts"])


def test_a_life_precedes_those_that_follow_it_and_no_others():
    assert (SECOND, THIRD) == ("one then 1 2@0/A", "one then 2 3@0/C")
    for earlier, later in [("one", SECOND), ("one", THIRD), (SECOND, THIRD)]:
        assert precedes(earlier, later), (earlier, later)
    for earlier, later in [(SECOND, "one"), (SECOND, RIVAL), (THIRD, SECOND), ("two", SECOND), ("one", "one")]:
        assert not precedes(earlier, later), (earlier, later)
    assert not precedes("one", "one then no number")


@pytest.mark.parametrize(
    "frontier", [at(7), SourceFrontier.minimum(PARTITIONS), SourceFrontier.at(PARTITIONS, {3: 4, 9: 0})], ids=str
)
def test_bindings_go_on_in_one_append_that_binds_nothing(frontier):
    kind = frontier.kind
    found = succession(kind, "one", SECOND, rows("one", frontier), 5, frontier)
    assert found is not None
    assert found.schema == REMAP_SCHEMA.updates
    minimum = SourceFrontier.minimum(kind)
    bound = [*changes(None, minimum, 0), *changes(minimum, frontier, 3)]
    whole = pa.concat_tables([to_table(kind, "one", bound), found])
    trace = RemapTrace.of(kind, from_table(kind, SECOND, whole), MINIMUM, Antichain.of(6))
    assert trace == RemapTrace.of(kind, bound, MINIMUM, Antichain.of(6))
    check_current(SECOND, whole)
    assert incarnation_of(whole) == SECOND
    for other in ("one", RIVAL):
        with pytest.raises(UpstreamReplaced):
            from_table(kind, other, whole)
    assert succession(kind, "one", SECOND, whole, 6, frontier) is None
    with pytest.raises(UpstreamReplaced, match="another life"):
        succession(kind, "one", RIVAL, whole, 6, frontier)
    with pytest.raises(UpstreamReplaced):
        check_current(THIRD, whole)


def test_no_more_was_bound_than_the_histories_have_in_common():
    assert succession(LSN, "one", SECOND, rows("one", at(7)), 5, at(8)) is not None
    with pytest.raises(UpstreamReplaced, match="lost"):
        succession(LSN, "one", SECOND, rows("one", at(9)), 5, at(8))


def test_a_life_that_does_not_follow_is_a_defect():
    with pytest.raises(CorruptData):
        succession(LSN, "one", "two", rows("one", at(7)), 5, at(8))
    with pytest.raises(CorruptData):
        succession(LSN, "one", SECOND, rows("one", at(7)).slice(0, 0), 5, at(8))
