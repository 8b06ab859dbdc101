"""Settings: numbers with which nothing would go on are refused by name, misspelt variables are said to be none."""

import dataclasses
import warnings
from typing import Any

import pytest

from persist.errors import InvalidArgument
from persist.settings import MAY_BE_ZERO, MOST, MOST_OF_ANY, OPTIONS, Settings, misspelt

NUMBERS = [field.name for field in dataclasses.fields(Settings) if type(field.default) is int]

NEAR = {
    "ROLUP_EVERY": "ROLLUP_EVERY",
    "ROLLUP_EVRY": "ROLLUP_EVERY",
    "rollup_every": "",
    "COMPACTIONS": "COMPACTION",
    "SHARD_BATCH_MAX": "SHARD_BATCHES_MAX",
    "TIMEOUT_S": "TIMEOUT_MS",
    "ENDPOINTS": "ENDPOINT",
    "CATALOG_ENDPOINT": "CATALOG_ENDPOINTS",
    "INLINE_PART_BYTE_MAX": "INLINE_PART_BYTES_MAX",
    "BLB": "BLOB",
}
OTHERS = [
    # Kubernetes gives each container those of the services beside it.
    *[
        f"{service}_{each}"
        for service in ("SHARD", "CATALOG", "MINTER", "COMPACTION", "WEBHOOK", "BLOB", "CONSENSUS", "STASH", "DATA")
        for each in ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_7100_TCP", "PORT_7100_TCP_ADDR", "SERVICE_PORT_GRPC")
    ],
    "SERVICE_HOST",
    "PORT",
    "PORT_7100_TCP_PROTO",
    "TEST_COSTS",
    "SIM",
    "SIM_SEED",
    "NO_UV",
    "VERSION",
    "HOME",
    "PASSWORD",
]


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


@pytest.mark.parametrize(("word", "meant"), [*NEAR.items()])
def test_a_name_like_a_setting_is_said_to_be_none(word: str, meant: str) -> None:
    name = f"PERSIST_{word}"
    assert misspelt({name: "1"}) == ({name: f"PERSIST_{meant}"} if meant else {})


@pytest.mark.parametrize("word", OTHERS)
def test_names_of_other_programs_are_passed_over(word: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Settings.from_env({f"PERSIST_{word}": "1", "PERSISTED_ROLUP_EVERY": "1"}) == Settings()


def test_what_is_known_is_not_misspelt_whatever_it_is_like() -> None:
    known = [*(field.name.upper() for field in dataclasses.fields(Settings)), *OPTIONS]
    assert misspelt({f"PERSIST_{word}": "1" for word in known}) == {}


def test_a_program_is_warned_unless_it_says_otherwise() -> None:
    given, seen = {"PERSIST_ROLUP_EVERY": "10"}, []
    with pytest.warns(UserWarning, match="PERSIST_ROLUP_EVERY is no setting .* did you mean PERSIST_ROLLUP_EVERY"):
        assert Settings.from_env(given) == Settings()
    Settings.from_env(given, unknown=lambda name, meant: seen.append((name, meant)))
    assert seen == [("PERSIST_ROLUP_EVERY", "PERSIST_ROLLUP_EVERY")]


@pytest.mark.parametrize("empty", ["", " "])
def test_what_a_compose_file_leaves_empty_is_not_set(empty: str) -> None:
    names = [f"PERSIST_{field.name.upper()}" for field in dataclasses.fields(Settings)]
    assert Settings.from_env(dict.fromkeys([*names, "PERSIST_ROLUP_EVERY"], empty)) == Settings()


@pytest.mark.parametrize("text", ["1.5", "1e3", "0x10", "1_000", "+5", "nan"])
def test_a_whole_number_is_digits(text: str) -> None:
    with pytest.raises(InvalidArgument, match="PERSIST_ROLLUP_EVERY must be a whole number"):
        Settings.from_env({"PERSIST_ROLLUP_EVERY": text})
