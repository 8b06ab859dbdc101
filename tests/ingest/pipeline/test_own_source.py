"""The source type that docs/sources.md shows is ingested as it stands there."""

import re
import sys
from pathlib import Path

import pytest
from ingest.pipeline.conftest import contents

from persist.sources import UpstreamReplaced
from persist_ingest import Location, Pipeline, PipelineOptions, create, status

PAGE = Path(__file__).resolve().parents[3] / "docs/sources.md"


def ingest(here: Location) -> None:
    with Pipeline(here, "log", options=PipelineOptions(tick_ms=1)) as pipeline:
        pipeline.run(until=lambda step: step.rows == 0)


def test_lines_of_a_growing_file_land_once(here: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [code] = [each for each in found if "LINES = Lines()" in each]
    (tmp_path / "lines.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lines", raising=False)
    log = tmp_path / "app.log"
    log.write_text("a\nbb\nhalf")
    create(here, "log", "lines:LINES", {"path": str(log)}, interval_ms=1)
    ingest(here)
    assert contents(here, "log", "lines") == {("a", 2): 1, ("bb", 3): 1}
    with log.open("a") as file:
        file.write(" whole\nbb\n")
    ingest(here)
    assert contents(here, "log", "lines") == {("a", 2): 1, ("bb", 3): 2, ("half whole", 11): 1}
    log.rename(tmp_path / "app.log.1")
    log.write_text("another life\n")
    with pytest.raises(UpstreamReplaced):
        ingest(here)
    assert status(here, "log").state == "failed"
