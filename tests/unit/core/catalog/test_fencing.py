"""Fence tokens: who leads, who is fenced and by whom, and how to open. Catalog-semantics.md sections 1.2.1 to 1.2.3."""

import pytest
from sure import sure
from unit.core.catalog.samples import database, token, updates, user

from persist.core.catalog.errors import Fenced, FencedByEpoch, FencedByGeneration, FencedByMigration
from persist.core.catalog.kinds import DATABASE, FENCE_TOKEN
from persist.core.catalog.leadership.fencing import (
    FIRST_GENERATION_MAX,
    GENERATION_JUMP_MAX,
    KEY,
    FenceClaim,
    most_informative,
    open_step,
)
from persist.core.catalog.leadership.follow import follow
from persist.core.catalog.leadership.migrations import fenced_by_migration
from persist.core.catalog.objects import DatabaseKey
from persist.core.catalog.rows import Row, RowUpdate
from persist.core.catalog.snapshot import Snapshot
from persist.errors import InvalidArgument
from persist.wire.catalog.rows import CODEC


def test_generation_comes_before_epoch():
    assert token(11, 10) > token(10, 20)
    assert token(10, 21) > token(10, 20)


def test_first_open_gets_epoch_2_then_3_then_4():
    seen, epochs = None, []
    for _ in range(3):
        seen = open_step(seen, 7).token
        epochs.append(seen.epoch)
    assert epochs == [2, 3, 4]


def test_epochs_rise_over_generations():
    assert open_step(token(1, 40), 2).token == token(2, 41)


def test_old_token_is_retracted_in_the_same_append():
    step = open_step(token(1, 5), 1)
    assert step.rows(CODEC) == [
        (CODEC.encode("fence_token", KEY, token(1, 5)), -1),
        (CODEC.encode("fence_token", KEY, token(1, 6)), 1),
    ]


def test_many_opens_leave_one_token():
    state, seen = Snapshot(), None
    for _ in range(20):
        step = open_step(seen, 1)
        state.apply(CODEC, step.rows(CODEC))
        seen = step.token
    assert state.objects(FENCE_TOKEN) == {KEY: token(1, 21)}


def test_open_by_an_older_generation_is_refused():
    with pytest.raises(FencedByGeneration) as told:
        open_step(token(3, 9), 2)
    assert told.value.details == {
        "generation": "2",
        "epoch": "0",
        "fenced_by_generation": "3",
        "fenced_by_epoch": "9",
    }


@pytest.mark.parametrize("seen", [None, token(3, 9), token(2**40, 9)])
def test_open_jumps_no_further_than_leaves_generations_to_others(seen):
    greatest = FIRST_GENERATION_MAX if seen is None else seen.deploy_generation + GENERATION_JUMP_MAX
    assert open_step(seen, greatest).token.deploy_generation == greatest
    for wrong in (greatest + 1, 2**64 - 1):
        with pytest.raises(InvalidArgument) as told:
            open_step(seen, wrong)
        assert told.value.details == {
            "got": str(wrong),
            "present": "none" if seen is None else str(seen.deploy_generation),
            "greatest": str(greatest),
        }


def test_open_goes_on_after_any_number_of_mismatches():
    seen = token(1, 2)
    for lost in range(200):
        step = open_step(seen, 1)
        assert step.token.epoch == seen.epoch + 1
        assert len(step.rows(CODEC)) == 2, "a step costs the same every time"
        seen = token(1, seen.epoch + 1 + lost % 2)


@pytest.mark.parametrize(
    ("claim", "seen", "refusal"),
    [
        (FenceClaim(1), token(1, 99), None),
        (FenceClaim(1), token(2, 1), FencedByGeneration),
        (FenceClaim(2), token(1, 99), None),
        (FenceClaim(None), token(99, 99), None),
        (FenceClaim(1, token(1, 5)), token(1, 5), None),
        (FenceClaim(1, token(1, 5)), token(1, 6), FencedByEpoch),
        (FenceClaim(1, token(1, 5)), token(2, 6), FencedByGeneration),
        (FenceClaim(1, token(1, 5)), token(1, 4), None),
        (FenceClaim(2, token(2, 5)), token(1, 900), None),
    ],
    ids=[
        "unopened, by a higher epoch: no",
        "unopened, by a higher generation",
        "unopened, by a lower generation: no",
        "read-only: never",
        "by itself: no",
        "opened, by a higher epoch",
        "opened, by a higher generation",
        "by a lower epoch: no",
        "by a lower generation of a higher epoch: no",
    ],
)
def test_claim_is_fenced(claim, seen, refusal):
    found = claim.fenced_by(seen)
    assert (None if found is None else type(found)) is refusal


def test_most_informative_refusal_is_generation_then_epoch_then_migration():
    by_migration = fenced_by_migration(3, 5)
    by_epoch = sure(FenceClaim(1, token(1, 5)).fenced_by(token(1, 6)))
    by_generation = sure(FenceClaim(1, token(1, 5)).fenced_by(token(2, 7)))
    assert type(most_informative([by_migration])) is FencedByMigration
    assert type(most_informative([by_epoch, by_migration])) is FencedByEpoch
    assert type(most_informative([by_epoch, by_generation, by_migration])) is FencedByGeneration
    assert most_informative([]) is None
    assert all(isinstance(each, Fenced) for each in (by_migration, by_epoch, by_generation))


# ---- following -------------------------------------------------------------------------------------------------------

OURS = FenceClaim(1, token(1, 2))


def test_fence_is_seen_before_rows_of_a_newer_format_are_decoded():
    state = Snapshot()
    newer = RowUpdate(Row("database", b"\xff\xff", b"not of this release"), 6, 1)
    unknown = RowUpdate(Row("kind_of_tomorrow", b"", b""), 5, 1)
    later = updates((FENCE_TOKEN, KEY, token(1, 3)), ts=5)
    done = follow(state, CODEC, OURS, [newer, unknown, *later])
    assert isinstance(done.fenced, FencedByEpoch)
    assert (done.count, state.version) == (0, 0)


def test_everything_before_the_fence_is_applied_and_nothing_after():
    state = Snapshot()
    done = follow(
        state,
        CODEC,
        OURS,
        [
            *updates((DATABASE, DatabaseKey(user(1)), database("a")), ts=4),
            *updates((FENCE_TOKEN, KEY, token(1, 3)), (DATABASE, DatabaseKey(user(2)), database("b")), ts=5),
        ],
    )
    assert isinstance(done.fenced, FencedByEpoch)
    assert list(state.objects(DATABASE)) == [DatabaseKey(user(1))]


def test_all_fences_of_one_batch_are_collected():
    fences = [
        *updates((FENCE_TOKEN, KEY, token(1, 3)), ts=5),
        *updates((FENCE_TOKEN, KEY, token(1, 3)), ts=6, diff=-1),
        *updates((FENCE_TOKEN, KEY, token(2, 4)), ts=6),
    ]
    assert isinstance(follow(Snapshot(), CODEC, OURS, fences).fenced, FencedByGeneration)


def test_own_token_does_not_fence():
    done = follow(Snapshot(), CODEC, OURS, updates((FENCE_TOKEN, KEY, token(1, 2)), ts=5))
    assert (done.fenced, done.count) == (None, 1)


def test_replay_of_older_epochs_does_not_fence():
    old = [*updates((FENCE_TOKEN, KEY, token(1, 1))), *updates((FENCE_TOKEN, KEY, token(1, 1)), ts=1, diff=-1)]
    assert follow(Snapshot(), CODEC, OURS, [*old, *updates((FENCE_TOKEN, KEY, token(1, 2)), ts=1)]).fenced is None
