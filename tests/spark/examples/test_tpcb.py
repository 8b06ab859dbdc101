"""The main job, small: the bank works, is ingested, its ingester is killed, and the books balance."""

import pyarrow as pa
import pytest

from examples import tpcb, tpcb_report
from examples.tpcb_bank import MONEY
from examples.tpcb_checks import Look, same_rows


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tpcb_report.TpcbOutcome:
    scenario = tpcb_report.Scenario(seconds=8, rate=200, scale=1, pause_seconds=0.3)
    return tpcb.run(tmp_path_factory.mktemp("tpcb"), scenario)


def test_the_books_balance_at_every_time(outcome: tpcb_report.TpcbOutcome) -> None:
    assert outcome.agrees
    looks = outcome.watching.looks
    assert len({look.transactions for look in looks}) > 2, "the bank did not work while it was looked at"
    assert outcome.killed_at
    assert outcome.history_rows == outcome.transactions > 0
    assert len(set(outcome.spark_sums.values())) == 1
    assert outcome.snapshot_rows > 100_000


def test_what_is_wrong_is_told(outcome: tpcb_report.TpcbOutcome, capsys: pytest.CaptureFixture[str]) -> None:
    tpcb_report.show(outcome, seconds=1)
    assert "balance" in capsys.readouterr().out
    sums = {**dict.fromkeys(MONEY, 1), "public.pgbench_tellers": 2}
    outcome.watching.looks.append(Look(as_of=1, sums=sums, transactions=1))
    try:
        assert not outcome.agrees
        tpcb_report.show(outcome, seconds=1)
        assert "wrong at 1 of" in capsys.readouterr().out
    finally:
        outcome.watching.looks.pop()


def test_rows_are_compared_in_any_order_and_each_as_often() -> None:
    table = pa.table({"a": [1, 2, 2], "b": ["x", "y", "y"]})
    assert same_rows(table, table.take([2, 0, 1]))
    assert not same_rows(table, table.take([0, 1, 1, 2]))
    assert not same_rows(table, pa.table({"a": [1, 2, 3], "b": ["x", "y", "y"]}))
