"""Pipelines and Spark jobs take settings from the environment of their processes."""

from pathlib import Path

import pytest

from persist import InvalidArgument
from persist_ingest.location import Location, client, release


@pytest.fixture
def here(tmp_path: Path):
    location = Location(directory=str(tmp_path))
    yield location
    release(location)


def test_what_a_process_is_given_holds_for_what_it_opens(here: Location, monkeypatch):
    monkeypatch.setenv("PERSIST_PART_BYTES_MAX", "1000000")
    assert client(here)._inner._location.settings.part_bytes_max == 1_000_000


def test_what_cannot_be_set_is_refused(here: Location, monkeypatch):
    monkeypatch.setenv("PERSIST_PART_BYTES_MAX", "many")
    with pytest.raises(InvalidArgument, match="PERSIST_PART_BYTES_MAX must be a whole number"):
        client(here)
