"""What a reader raises that is none of persist's errors is a failure of its source, named, wherever it comes from."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ingest.pipeline.conftest import contents

from persist import Schema
from persist.sources import Probe, SourceFrontier
from persist.typed import Fields
from persist_ingest import Location, Pipeline, PipelineOptions, create, status
from persist_ingest.sources.files.reader import FilesDefinition, FilesReader, FilesTask, FilesType
from persist_ingest.sources.port import Event, Unforeseen

OPTIONS = PipelineOptions(tick_ms=1)


class BrokenTask(FilesTask):
    def read(self) -> Iterator[Event]:
        yield from super().read()
        raise pa.ArrowInvalid("a defect while it is read")


class Broken(FilesReader):
    """Fails where a file next to the directory says."""

    def _broken(self, at: str) -> bool:
        return Path(f"{self._definition.uri}.{at}").exists()

    def probe(self) -> Probe:
        if self._broken("probe"):
            raise KeyError("a defect while it is asked")
        return super().probe()

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[FilesTask]:
        planned = super().plan(begin, end, tasks)
        if not self._broken("read"):
            return planned
        slots = [field.name for field in dataclasses.fields(FilesTask)]
        return [BrokenTask(**{name: getattr(task, name) for name in slots}) for task in planned]


class BrokenType(FilesType):
    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> FilesReader:
        return Broken(FilesDefinition.from_json(definition))


BROKEN: Any = BrokenType()


@pytest.mark.parametrize(("at", "says"), [("probe", "KeyError"), ("read", "ArrowInvalid: a defect while it is read")])
def test_what_is_not_foreseen_is_a_named_failure_of_the_source(
    here: Location, tmp_path: Path, at: str, says: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_bytes(b"id\n1\n")
    options = {"path": str(tmp_path / "in"), "format": "csv", "schema": "id bigint", "key": "id"}
    create(here, "feed", f"{__name__}:BROKEN", options, interval_ms=1)
    (tmp_path / f"in.{at}").touch()
    with Pipeline(here, "feed", options=OPTIONS) as pipeline, pytest.raises(Unforeseen, match=says) as failure:
        pipeline.run(steps=3)
    assert failure.value.__cause__ is not None
    told = status(here, "feed", ask_upstream=False)
    assert told.state == "failed"
    assert says in told.error
    (tmp_path / f"in.{at}").unlink()
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.run(steps=2)
    assert contents(here, "feed", "rows") == {(1,): 1}
    assert status(here, "feed").state == "idle"  # well, and nothing ingests it now
