"""Times on the command line: as numbers, words and dates; and with the date beside where they are shown."""

import pytest
import typer

from persist.core.frontier import Antichain
from persist.dates import dated
from persist.errors import NotYetAvailable
from persist_cli.app import _explain
from persist_cli.options import Invocation
from persist_cli.times import time_of

NOW = 1_795_326_402_596  # 2026-11-22T05:46:42.596Z


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("0", 0),
        ("17", 17),
        (str(2**64 - 1), 2**64 - 1),
        ("now", NOW),
        ("-5m", NOW - 300_000),
        ("-250ms", NOW - 250),
        ("-2d", NOW - 172_800_000),
        ("2026-11-22", 1_795_305_600_000),
        ("2026-11-22T05:46:42.596", NOW),
        ("2026-11-22T06:46:42.596+01:00", NOW),
        ("2026-11-22T05:46:42.596Z", NOW),
    ],
)
def test_time_is_what_a_person_means(text: str, time: int):
    assert time_of(text, NOW) == time


@pytest.mark.parametrize(
    "text", ["", "yesterday", "5m", "-5", "1.5", str(2**64), "-9999999w", "1969-01-01", "2026-13-01"]
)
def test_what_is_no_time_is_refused_with_what_is(text: str):
    with pytest.raises(typer.BadParameter):
        time_of(text, NOW)


@pytest.mark.parametrize(
    ("time", "shown"),
    [(0, "0"), (12, "12"), (NOW, f"{NOW} (2026-11-22T05:46:42.596Z)"), (2**64 - 1, str(2**64 - 1))],
)
def test_date_stands_beside_what_may_be_one(time: int, shown: str):
    assert dated(time) == shown


def test_times_are_shown_with_their_dates(persist, here, people):
    made = persist("shard", "append", "people", people, "--key", "id", "--time", "2026-11-22T05:46:42.595", *here)
    assert f"upper [{NOW}] (2026-11-22T05:46:42.596Z)" in made.err
    for words in (("list",), ("inspect", "people"), ("listen", "people", "--snapshot", "--idle", 0.3)):
        told = persist("shard", *words, *here)
        assert (str(NOW) in told.out, "2026-11-22T05:46:42" in told.out) == (True, True), told.out


def test_reads_take_dates_and_words(persist, here, people):
    persist("shard", "append", "people", people, "--key", "id", "--time", "2026-11-22", *here)
    at = persist("shard", "snapshot", "people", "--as-of", "2026-11-22T00:00Z", *here)
    assert (at.code, "people as of 1795305600000 (2026-11-22T00:00:00.000Z)" in at.out) == (0, True)
    refused = persist("shard", "snapshot", "people", "--as-of", "soon", *here)
    assert (refused.code, "is no time" in refused.err.replace("\n", " ")) == (2, True)


def test_times_in_a_refusal_have_their_dates_for_people_and_not_for_programs(capfd):
    late = NotYetAvailable(
        "not yet", hint="wait", as_of=Antichain.of(5_080_665_600_000), upper=7, rows=5_080_665_600_000
    )
    for json_, said in (
        (False, "not yet as_of=5080665600000 (2131-01-01T00:00:00.000Z) upper=7 rows=5080665600000 (wait)"),
        (True, '"as_of": "[5080665600000]"'),
    ):
        assert _explain(late, Invocation(json=json_)) == 1
        assert said in capfd.readouterr().err
