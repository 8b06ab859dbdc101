"""An ingester that rested for longer than history is kept, and one whose append has an unknown outcome."""

from typing import Any

import pytest
from ingest.pipeline import journal
from ingest.pipeline.conftest import contents
from ingest.pipeline.journal import Read, noted

from persist import OutcomeForgotten
from persist_ingest import Location, Pipeline, PipelineOptions, create

OPTIONS = PipelineOptions(tick_ms=1, told_ms=10**9, retain_ms=0, forget_ms=0)


@pytest.fixture
def log(here: Location, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setattr(journal, "JOURNAL", journal.Journal())
    create(here, "log", "ingest.pipeline.journal:TYPE", {}, interval_ms=1)
    return here


def follows(here: Location) -> bool:
    return contents(here, "log", "numbers") == {(n,): count for n, count in journal.JOURNAL.holds("numbers").items()}


def test_an_ingester_that_rested_while_it_read_goes_on_where_the_others_are(
    log: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Read.read
    with Pipeline(log, "log", options=OPTIONS) as one, Pipeline(log, "log", options=OPTIONS) as two:
        noted(1, 2, 3)
        one.step()
        two.step()
        noted(4, None, 5)
        overtaken: list[int] = []

        def rests(task: Read) -> Any:
            monkeypatch.setattr(Read, "read", real)
            # While the task is at work the other gets on, and releases what this one began with.
            for number in (6, 7, 8):
                noted(number)
                overtaken.append(two.step().appended)
            yield from real(task)

        monkeypatch.setattr(Read, "read", rests)
        assert one.run(steps=1) is not None
        assert any(overtaken)
        one.step()
        assert follows(log)


class Forgetful:
    """A writer of which it is not known whether its first append happened."""

    def __init__(self, writer: Any, *, happens: bool) -> None:
        self._writer, self._happens = writer, happens
        self.lost = 0

    def compare_and_append_batches(self, *given: Any) -> Any:
        if self.lost:
            return self._writer.compare_and_append_batches(*given)
        self.lost += 1
        if self._happens:
            self._writer.compare_and_append_batches(*given)
        raise OutcomeForgotten("it is not known whether this append happened")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


@pytest.mark.parametrize("happens", [True, False])
def test_ingestion_goes_on_from_what_the_shards_say(log: Location, happens: bool) -> None:
    with Pipeline(log, "log", options=OPTIONS) as pipeline:
        noted(1, 2)
        pipeline.step()
        noted(3, None, 4)
        writer = pipeline._writers["numbers"] = Forgetful(pipeline._writers["numbers"], happens=happens)
        pipeline.run(steps=1)
        assert writer.lost == 1
        noted(5)
        pipeline.step()
        assert follows(log)
