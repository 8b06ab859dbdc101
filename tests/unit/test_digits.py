"""What is a whole number, and what only looks like one."""

import pytest

from persist import InvalidArgument
from persist.digits import DIGITS_MAX, whole_number
from persist.settings import Settings
from persist_host.address import Address
from persist_ingest.given import Given

NONE = [
    "",
    " ",
    "-1",
    "+1",
    "1 ",
    "1_000",
    "0x10",
    "1.0",
    "\N{SUPERSCRIPT TWO}",
    "\N{ARABIC-INDIC DIGIT TWO}",
    "9" * 21,
]


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9" * DIGITS_MAX, 10**DIGITS_MAX - 1)])
def test_digits_are_a_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", NONE)
def test_nothing_else_is_a_number(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize("text", ["\N{SUPERSCRIPT TWO}", "-1", "9" * 5_000])
def test_what_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument, match="PERSIST_ROLLUP_EVERY must be a whole number"):
        Settings.from_env({"PERSIST_ROLLUP_EVERY": text})
    with pytest.raises(InvalidArgument, match="not an address"):
        Address.parse(f"here:{text}")
    with pytest.raises(InvalidArgument, match="option tickMs must be a whole number"):
        Given(use="a test", values={"tickMs": text}).whole("tickMs")


def test_a_number_that_a_compose_file_leaves_empty_is_not_set() -> None:
    assert Settings.from_env({"PERSIST_ROLLUP_EVERY": ""}) == Settings()
