"""Pages and examples that need Spark, as a reader follows them."""

import contextlib
import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest
from pages.fences import ROOT, fences
from pages.running import reading

EXAMPLES = ROOT / "docs/examples"


def run(name: str, spark: Any, directory: Path) -> list[str]:
    """The lines that the ``main`` of an example printed."""
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        module.main(spark, str(directory))
    return said.getvalue().splitlines()


def test_batch(spark: Any, tmp_path: Path) -> None:
    assert run("spark_batch.py", spark, tmp_path) == [
        "at 1: [(1, 'EWR'), (2, 'LGA')]",
        "at 2: [(1, 'EWR'), (2, 'JFK'), (3, 'EWR')]",
        "delete 2 LGA",
        "insert 2 JFK",
        "insert 3 EWR",
    ]


def test_streaming(spark: Any, tmp_path: Path) -> None:
    assert run("spark_streaming.py", spark, tmp_path) == ["[(1, 'tea'), (2, 'rice'), (3, 'salt')]"]


def absolute(directory: Path) -> dict[str, str]:
    """Spark's own processes were started elsewhere: what pages name relative to where the reader sits is absolute."""
    return {f"{quote}./data{quote}": repr(str(directory / "data")) for quote in "'\""}


def test_tutorial(spark: Any, tmp_path: Path) -> None:
    """``SparkSession.builder.getOrCreate()`` of the page finds the session of the tests."""
    with reading(tmp_path, {}, absolute(tmp_path)) as reader:
        reader.follow(ROOT / "docs/tutorial.md")
        assert reader.names["spark"] is not None
        assert reader.names["people"].snapshot(reader.names["first"]).to_arrow().num_rows == 2


@pytest.fixture
def rows(spark: Any) -> Any:
    """What pages call ``df``."""
    return spark.createDataFrame([(1, "EWR"), (2, "LGA")], "id long, origin string")


def test_page_of_spark(spark: Any, rows: Any, tmp_path: Path) -> None:
    with reading(tmp_path, {"spark": spark, "df": rows}, absolute(tmp_path)) as reader:
        reader.follow(ROOT / "docs/spark.md")
        assert reader.names["table"].toDF(asOf=5).count() == 2


def test_lines_of_the_readme(spark: Any, rows: Any, tmp_path: Path) -> None:
    [fence] = [each for each in fences(ROOT / "README.md") if each.elsewhere == "tests/spark/test_pages.py"]
    with reading(tmp_path, {"spark": spark, "df": rows}, absolute(tmp_path)) as reader:
        reader.run(fence)
        written = spark.read.format("persist").options(**reader.names["where"], asOf=12).load()
        assert sorted(map(tuple, written.collect())) == [(1, "EWR"), (2, "LGA")]
