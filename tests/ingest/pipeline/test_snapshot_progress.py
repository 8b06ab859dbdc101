"""What a snapshot's record and the upper of its shard say together: an announced step happened, or never will."""

import dataclasses
import json

from persist_ingest.pipeline.anew.progress import FENCE, STEP, AnewProgress, Reached
from persist_ingest.pipeline.troubles import SNAPSHOTTING, Trouble

BEFORE = Reached(hold=70, after=("a", "7"), rows=14, pieces=2)
NEXT = Reached(hold=90, after=("b", "1"), complete=True, rows=20, pieces=3)
KNOWN = AnewProgress(staging="s1", begun={"tables": []}, reached=BEFORE, upper=5)
ANNOUNCED = dataclasses.replace(KNOWN, announced=NEXT)


def test_what_was_announced_happened_where_the_upper_moved_by_one() -> None:
    found = ANNOUNCED.found(5 + STEP)
    assert found is not None
    assert (found.reached, found.announced, found.upper) == (NEXT, None, 6)


def test_what_was_announced_never_happens_behind_a_fence() -> None:
    found = ANNOUNCED.found(5 + FENCE)
    assert found is not None
    assert (found.reached, found.announced, found.upper) == (BEFORE, None, 7)


def test_any_other_upper_is_of_another_shard() -> None:
    for upper in (None, 4, 8):
        assert ANNOUNCED.found(upper) is None
    assert KNOWN.found(5) == KNOWN
    assert KNOWN.found(6) is None


def test_it_is_recorded_and_read_again() -> None:
    for each in (KNOWN, ANNOUNCED):
        told = json.loads(json.dumps(each.to_json()))
        assert AnewProgress.of(Trouble(state=SNAPSHOTTING, since_ms=1, progress=told)) == each
    assert AnewProgress.of(Trouble(state=SNAPSHOTTING, since_ms=1)) is None
