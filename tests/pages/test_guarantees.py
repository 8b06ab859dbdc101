"""Each guarantee names the tests that show it, and they are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
PROMISES, _, INDEX = PAGE.partition("## Where each is shown")
NUMBERS = [int(number) for number in re.findall(r"^(\d+)\. \*{0,2}\w", PROMISES, re.MULTILINE)]
ROWS = {
    int(number): re.findall(r"`([^`]+)`", cell)
    for number, cell in re.findall(r"^\| (\d+) \| (.+) \|$", INDEX, re.MULTILINE)
}


def test_every_guarantee_has_its_line_and_no_other_has():
    assert list(range(1, len(NUMBERS) + 1)) == sorted(NUMBERS)
    assert sorted(ROWS) == sorted(NUMBERS)


@pytest.mark.parametrize("number", sorted(ROWS))
def test_tests_that_a_guarantee_names_are_there(number: int):
    assert ROWS[number]
    for named in ROWS[number]:
        path, _, function = named.partition("::")
        file = ROOT / "tests" / f"{path}.py"
        assert file.name.startswith("test_"), named
        assert file.is_file(), named
        assert re.search(rf"^(async )?def {function or 'test_'}", file.read_text(), re.MULTILINE), named
