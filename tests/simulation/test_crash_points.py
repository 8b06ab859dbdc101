"""Every point of a whole story at which a process can die, one after the other: nothing is lost, nothing dangles."""

import functools

import pytest
from simulation.budget import POINTS_ALIKE, STORY_APPENDS
from simulation.crashes import Point, points, tell

SHARES = 8


@functools.cache
def all_points() -> list[Point]:
    return points(STORY_APPENDS)


def test_story_has_every_kind_of_point():
    assert {point.method for point in all_points()} == {"set", "delete", "compare_and_set", "truncate"}
    assert {point.step for point in all_points()} >= {"append", "compact", "settle", "sweep", "close", "finalize"}
    assert len(all_points()) >= 80


@functools.cache
def chosen_points() -> list[Point]:
    """All points at length; else some of each step, change and side of it, from the first on."""
    alike: dict[tuple[str, str, bool], list[Point]] = {}
    for point in all_points():
        alike.setdefault((point.step, point.method, point.after), []).append(point)
    return [point for group in alike.values() for point in group[:: -(-len(group) // POINTS_ALIKE)]]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(SHARES))
def test_story_ends_well_whenever_a_process_crashes(share: int):
    mine = chosen_points()[share::SHARES]
    for point in mine:
        try:
            tell(point, STORY_APPENDS)
        except BaseException as error:
            error.add_note(f"crashed at {point}")
            raise
    print(f"\nshare {share + 1} of {SHARES}: {len(mine)} of {len(all_points())} points", end="", flush=True)
