"""Pages that a reader may follow word by word: their examples run in order, and print what the page says."""

from pathlib import Path

import pytest
from pages.fences import FOLLOWED, ROOT
from pages.running import reading

FLIGHTS = "id,origin\n1,EWR\n2,JFK\n"


@pytest.mark.parametrize("page", FOLLOWED)
def test_page_is_followed(page: str, tmp_path: Path) -> None:
    (tmp_path / "flights.csv").write_text(FLIGHTS)  # what shell examples append
    with reading(tmp_path, {}, {}) as reader:
        reader.follow(ROOT / page)
