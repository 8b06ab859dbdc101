"""Numbers with which nothing would go on are refused where settings are made, by the name they are set by."""

import dataclasses
from typing import Any

import pytest

from persist.errors import InvalidArgument
from persist.settings import MAY_BE_ZERO, MOST, MOST_OF_ANY, Settings

NUMBERS = [field.name for field in dataclasses.fields(Settings) if type(field.default) is int]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_bounds_is_refused_by_its_name(name: str) -> None:
    least, most = int(name not in MAY_BE_ZERO), MOST.get(name, MOST_OF_ANY)
    wrong: list[Any] = [least - 1, -(1 << 70), most + 1, True, 1.5, "5", None]
    for value in wrong:
        given: dict[str, Any] = {name: value}
        with pytest.raises(InvalidArgument, match=f"^PERSIST_{name.upper()} must be "):
            dataclasses.replace(Settings(), **given)
    for value in (least, most):
        given = {name: value}
        assert getattr(dataclasses.replace(Settings(), **given), name) == value


def test_what_the_environment_has_is_refused_likewise() -> None:
    with pytest.raises(InvalidArgument, match="PERSIST_SORT_ROWS must be at least 1"):
        Settings.from_env({"PERSIST_SORT_ROWS": "0"})


def test_bounds_are_of_settings() -> None:
    assert {*MAY_BE_ZERO, *MOST} <= {*NUMBERS}
