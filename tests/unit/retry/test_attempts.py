"""The one loop and its table: what is repeated and when, and what stays of an answer after an attempt in doubt."""

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from unit.retry.clocks import FastRuntime

from persist import errors
from persist.core.frontier import Antichain
from persist.core.shard.commands import Appended, MergeApplied, MergeRefused, UpperMismatch
from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    InvalidArgument,
    LeaseExpired,
    LocationError,
    NotYetAvailable,
    Overloaded,
    PersistError,
    ShardClosed,
    StoreFull,
    StoreReadOnly,
    UsageError,
)
from persist.retry.attempts import Attempts, Doubt, RefusedInDoubt
from persist.retry.deadline import LAST_ATTEMPT_SECONDS
from persist.retry.table import TABLE, row_of
from persist.settings import Settings

LOST, REFUSED = Indeterminate("no answer"), Determinate("connection refused")
APPENDED = Appended(upper=Antichain.of(5), seqno=7)
MISMATCH = UpperMismatch(upper=Antichain.of(5), seqno=7)
TOLD_AT_ONCE = (
    UsageError("wrong"), InvalidArgument("wrong"), LeaseExpired("over"), CorruptData("damaged"), StoreFull("full"),
    StoreReadOnly("read-only"), NotYetAvailable("later"),
)  # fmt: skip


class Asked:
    """Gives one answer after the other, the last one for ever."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> Any:
        self.seconds.append(seconds)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, PersistError):
            raise answer
        return answer


async def repeated(
    *answers: object, doubt: Doubt | None = None, timeout: float = 10.0
) -> tuple[Any, Asked, FastRuntime]:
    runtime, asked = FastRuntime(), Asked(*answers)
    attempts = Attempts(settings=Settings(), runtime=runtime)
    try:
        outcome: Any = await attempts.repeat(attempts.deadline(timeout), asked, doubt=doubt)
    except PersistError as error:
        outcome = error
    return outcome, asked, runtime


async def test_what_failed_is_repeated_with_growing_pauses_until_it_works():
    outcome, asked, runtime = await repeated(*[REFUSED] * 12, "done")
    assert (outcome, len(asked.seconds)) == ("done", 13)
    assert runtime.slept == pytest.approx([min(0.003 * 2**n, 0.75) for n in range(12)])
    assert asked.seconds == sorted(asked.seconds, reverse=True)


@pytest.mark.parametrize("failure", [REFUSED, LOST], ids=["determinate", "indeterminate"])
async def test_what_never_works_ends_in_time_with_its_own_error(failure):
    outcome, asked, runtime = await repeated(failure, timeout=1.0)
    assert outcome is failure
    assert 0.4 < runtime.now < 1.0
    assert min(asked.seconds) >= LAST_ATTEMPT_SECONDS


@pytest.mark.parametrize("failure", TOLD_AT_ONCE, ids=lambda failure: type(failure).__name__)
async def test_what_repeating_does_not_help_is_told_at_once(failure):
    outcome, asked, _ = await repeated(failure)
    assert (outcome, len(asked.seconds)) == (failure, 1)


async def test_overloaded_is_left_alone_for_as_long_as_it_says():
    busy = Overloaded("busy", retry_after_ms=2000)
    outcome, _, runtime = await repeated(busy, "done")
    assert (outcome, runtime.slept) == ("done", [3.0])
    outcome, asked, _ = await repeated(busy, "done", timeout=2.5)
    assert (outcome, len(asked.seconds)) == (busy, 1)


LATER: Sequence[tuple[object, bool]] = [
    (Determinate("down"), True), (StoreFull("full"), True), (StoreReadOnly("read-only"), True),
    (Overloaded("busy", retry_after_ms=60_000), True), (ShardClosed("closed"), True), (InvalidArgument("wrong"), True),
    (MergeRefused(reason="gone"), True), (MISMATCH, True),
    (LeaseExpired("over"), False), (CorruptData("damaged"), False), (MergeApplied(), False), (APPENDED, False),
]  # fmt: skip


@pytest.mark.parametrize(("later", "doubtful"), LATER, ids=[type(later).__name__ for later, _ in LATER])
async def test_no_later_refusal_hides_that_an_attempt_was_maybe_applied(later, doubtful):
    outcome, _, _ = await repeated(LOST, later, timeout=1.0)
    assert isinstance(outcome, Indeterminate) is doubtful
    if not doubtful:
        assert outcome is later
    elif isinstance(later, PersistError):
        assert outcome.__cause__ is later
        assert outcome.message == later.message


@pytest.mark.parametrize(
    "later", [MISMATCH, MergeRefused(reason="gone"), ShardClosed("closed")], ids=["append", "merge", "usage"]
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
async def test_refusal_after_a_doubt_is_in_doubt_for_all_but_who_looks_into_it(later, shared):
    doubt = Doubt() if shared else None
    outcome, _, _ = await repeated(LOST, later, doubt=doubt)
    assert isinstance(outcome, RefusedInDoubt)
    assert outcome.refusal is later
    assert doubt is None or doubt.maybe_applied
    travelled = pickle.loads(pickle.dumps(outcome))
    assert isinstance(travelled, Indeterminate)
    untroubled = Doubt()
    outcome, _, _ = await repeated(REFUSED, later, doubt=untroubled)
    assert outcome is later
    assert not untroubled.maybe_applied


async def test_doubt_of_an_earlier_call_is_carried_into_the_next():
    doubt = Doubt()
    await repeated(LOST, doubt=doubt, timeout=0.2)
    outcome, _, _ = await repeated(REFUSED, doubt=doubt, timeout=0.2)
    assert isinstance(outcome, Indeterminate)


async def test_next_step_of_a_doubt_is_that_of_the_attempt_that_left_it():
    lost = Indeterminate("no answer", hint="ask the owner")
    outcome, _, _ = await repeated(lost, REFUSED, timeout=0.2)
    assert (type(outcome), outcome.message, outcome.hint) == (Indeterminate, REFUSED.message, "ask the owner")


async def test_read_is_never_in_doubt():
    runtime, asked = FastRuntime(), Asked(LOST)
    attempts = Attempts(settings=Settings(), runtime=runtime)
    with pytest.raises(Determinate):
        await attempts.read(attempts.deadline(0.2), asked, limit_ms=50)
    assert max(asked.seconds) == 0.05
    assert len(asked.seconds) > 1


def test_every_class_of_errors_has_a_row_that_says_what_the_class_says():
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, PersistError)]
    assert len(classes) > 20
    for cls in classes:
        row = row_of(cls("x"))
        if issubclass(cls, LocationError):
            assert row.maybe_applied is not cls.determinate
        else:
            assert not row.maybe_applied
    assert {cls for cls in TABLE if cls.__module__ != "persist.errors"} == set()
