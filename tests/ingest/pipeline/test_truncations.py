"""Truncations anywhere in a step: everything that was there is taken back at their time, and little is read twice."""

import random

import pytest
from ingest.pipeline import journal
from ingest.pipeline.conftest import contents
from ingest.pipeline.journal import noted

from persist_ingest import Location, Pipeline, PipelineOptions, create, status
from persist_ingest.pipeline import truncations

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9)


@pytest.fixture
def begun(here: Location, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setattr(journal, "JOURNAL", journal.Journal())
    create(here, "log", "ingest.pipeline.journal:TYPE", {}, interval_ms=1)
    return Pipeline(here, "log", options=OPTIONS)


def follows(here: Location) -> bool:
    return all(
        contents(here, "log", export)
        == {(number,): count for number, count in journal.JOURNAL.holds(export).items()}
        for export in journal.EXPORTS
    )  # fmt: skip


def test_many_truncations_read_the_range_twice_at_most(here: Location, begun: Pipeline) -> None:
    with begun:
        noted(1, 2, 3)
        begun.step()
        noted(4, 5, -1, None)
        for number in range(10, 40):
            noted(number, number + 1, -number, None, number)
        noted(50, export="others")
        journal.JOURNAL.reads = 0
        begun.step()
        assert follows(here)
        assert journal.JOURNAL.reads <= 2


def test_a_range_that_is_read_again_in_other_chunks_is_taken_back_as_it_was(here: Location, begun: Pipeline) -> None:
    with begun:
        noted(1, 2, 3, 4, 5, 6, 7, None, 8, 9)
        begun.step()
        assert follows(here)
        noted(*range(10, 20), None, *range(30, 41))
        begun.step()
        assert follows(here)


@pytest.mark.parametrize("kept", [1, 1 << 20], ids=["in a file", "in memory"])
def test_any_mixture_of_truncations_comes_out(
    here: Location, begun: Pipeline, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncations, "KEPT_BYTES", kept)
    chance = random.Random(3)
    with begun:
        for _ in range(12):
            for _ in range(chance.randint(0, 12)):
                export = chance.choice(journal.EXPORTS)
                there = [*journal.JOURNAL.holds(export)]
                gone = [-chance.choice(there)] if there else []
                noted(chance.choice([None, chance.randint(1, 9), chance.randint(1, 9), *gone]), export=export)
            begun.step()
            assert follows(here)
            assert min(contents(here, "log", "numbers").values(), default=1) > 0


def test_what_was_taken_back_and_never_there_is_counted(here: Location, begun: Pipeline) -> None:
    with begun:
        noted(1, 2, 3, -2, -7, -8)
        begun.step()
    told = status(here, "log", count_rows=True)
    assert (told.counts["numbers"].rows, told.counts["numbers"].negative) == (0, 2)
    assert (told.counts["others"].rows, told.counts["others"].negative) == (0, 0)
