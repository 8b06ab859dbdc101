"""Locations for tests of the controller: each over memory, and over files and SQLite."""

from pathlib import Path

import pytest
from control.world import Stores


@pytest.fixture(params=["memory", "files"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """An empty location."""
    if request.param == "memory":
        return Stores(f"mem:{tmp_path}", f"mem:{tmp_path}")
    return Stores(f"file:{tmp_path / 'blob'}", f"sqlite:{tmp_path / 'consensus.db'}")
