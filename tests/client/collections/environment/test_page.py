"""What docs/catalog.md shows of environments runs."""

from pathlib import Path

import pytest
from pages.fences import ROOT, fences

HERE = "tests/client/collections/environment/test_page.py"
SHOWN = [each for each in fences(ROOT / "docs/catalog.md") if each.elsewhere == HERE]


@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_the_example_runs(shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(shown.code, str(shown), "exec"), {})
    assert (tmp_path / "data").is_dir()


def test_there_is_one():
    assert SHOWN
