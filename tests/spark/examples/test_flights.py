from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples import flights, report
from examples.truth import COLUMNS, WEEK_MS, Truth, same_rows, source_file
from pyspark_persist.session import java_problem


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source_file(tmp_path_factory.mktemp("flights"))


@pytest.fixture(scope="module")
def truth(csv: Path) -> Truth:
    return Truth.read(csv)


def test_truth_of_the_source_file_is_a_year_of_flights(truth: Truth) -> None:
    assert truth.rows == 336_776
    assert truth.weeks == 54
    end = truth.first_week_ms + truth.weeks * WEEK_MS
    assert truth.updates_between(0, end) == 3 * truth.rows
    last = truth.snapshot(end)
    assert last.num_rows == truth.rows
    assert pc.sum(pc.equal(last["status"], "cancelled")).as_py() == 8255
    assert truth.snapshot(truth.first_week_ms).num_rows == 0


def test_same_rows_sees_one_changed_value(truth: Truth) -> None:
    table = truth.snapshot(truth.first_week_ms + WEEK_MS)
    assert same_rows(table, table.take(list(reversed(range(table.num_rows)))))
    assert not same_rows(table, table.slice(1))
    assert not same_rows(table, wrong(table))


def test_job_over_some_weeks_agrees_and_notices_a_wrong_expectation(
    spark: Any, client: Any, location: str, csv: Path, truth: Truth, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = flights.Job(spark, {"location": location}, csv, truth, weeks=3).run(client)
    assert outcome.agrees, outcome
    assert [step.agrees for step in outcome.steps if step.name in {"listen", "aggregate", "change feed"}] == [True] * 3
    report.show(outcome.steps, outcome.readings, agrees=outcome.agrees, seconds=1.0)
    assert "answers are the source file's" in capsys.readouterr().out

    mistaken = flights.Job(spark, {"location": location}, csv, Truth(wrong(truth.flights)), weeks=2).run(client)
    assert not mistaken.agrees
    report.show(mistaken.steps, mistaken.readings, agrees=mistaken.agrees, seconds=1.0)
    assert "differ from the source file" in capsys.readouterr().out


def test_job_that_checked_nothing_does_not_agree() -> None:
    assert not flights.FlightsOutcome().agrees


def test_missing_java_is_one_clear_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    problem = java_problem()
    assert problem is not None
    assert "Java 17" in problem
    assert flights.main(["--data", str(tmp_path / "d")]) == 1
    assert capsys.readouterr().err.strip() == problem


def wrong(table: pa.Table) -> pa.Table:
    """The table with one destination changed in its first row."""
    index = COLUMNS.index("dest")
    first = pc.equal(pa.array(range(table.num_rows)), 0)
    return table.set_column(
        table.schema.get_field_index(COLUMNS[index]), "dest", pc.if_else(first, "XXX", table["dest"])
    )
