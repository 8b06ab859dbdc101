"""A source of files that has nothing to do: it costs no more, the more files it has taken."""

from pathlib import Path
from typing import Any

from ingest.sources.test_files import csv, put
from sure import as_a

from persist_ingest import Location, Pipeline, PipelineOptions, create, status
from persist_ingest.sources.files import reader as reading
from persist_ingest.sources.files.reader import FilesReader

OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, retain_ms=10**13)
DECLARED = {"format": "csv", "schema": "id bigint not null, name string, price double", "key": "id"}


def ingested(here: Location, folder: Path, count: int) -> Pipeline:
    for number in range(count):
        put(folder / f"{number:04}.csv", csv(1, first=number))
    create(here, "files", "files", {**DECLARED, "path": str(folder)}, interval_ms=1)
    pipeline = Pipeline(here, "files", options=OPTIONS)
    while pipeline.step().rows:
        pass
    return pipeline


def test_steps_without_news_build_no_frontiers(here: Location, tmp_path: Path) -> None:
    with ingested(here, tmp_path / "in", 20) as pipeline:
        pipeline.step()
        known: Any = pipeline.figures.known
        for _ in range(5):
            assert pipeline.step().frontier is known
            assert pipeline.figures.known is known
        assert as_a(FilesReader, pipeline._reader).probe().high == ()  # all are durable, which it was notified of
        put(tmp_path / "in/new.csv", csv(1, first=99))
        while not pipeline.step().rows:
            pass
        assert pipeline.figures.known is not known


def test_what_an_ingester_says_of_itself_stays_short(here: Location, tmp_path: Path) -> None:
    with ingested(here, tmp_path / "in", 200) as pipeline:
        pipeline.step()
        [said] = status(here, "files").ingesters.values()
        assert said["known"].startswith("200 parts, the last 0199.csv")
        assert said["committed"] == said["known"]


def test_many_files_are_listed_more_seldom(here: Location, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(reading, "MANY_FILES", 10)
    with ingested(here, tmp_path / "in", 10) as pipeline:
        reader = as_a(FilesReader, pipeline._reader)
        monkeypatch.setattr(type(reader._place), "seconds_each", 10**6)
        reader._list_at = float("-inf")
        pipeline.step()
        put(tmp_path / "in/new.csv", csv(1, first=99))
        assert [pipeline.step().rows for _ in range(5)] == [0] * 5
        reader._list_at = float("-inf")
        assert pipeline.step().rows == 1
        reader._list_at = float("-inf")
        monkeypatch.setattr(type(reader._place), "seconds_each", 0.0)
        for number in range(100, 103):
            put(tmp_path / f"in/new{number}.csv", csv(1, first=number))
            assert pipeline.step().rows == 1
