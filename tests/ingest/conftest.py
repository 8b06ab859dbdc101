"""Where tests ingest to: a location of its own for each, which keeps what it knows beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_ingest import Location
from persist_ingest.location import release
from persist_ingest.pipeline.newest import kept


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    monkeypatch.setattr(kept, "folder_of_user", lambda: tmp_path / "state")
    place = Location(directory=str(tmp_path / "data"))
    yield place
    release(place)
