"""Types of source by name, and what is said when there is none."""

import sys
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest

from persist import InvalidArgument, MissingExtra
from persist_ingest.sources.options import check_options, columns, keyed, listed, number, one_of, required
from persist_ingest.sources.registry import BUILT_IN, source_type


def test_built_in_and_foreign_types_are_found() -> None:
    assert source_type("loadgen") is source_type("LoadGen ")
    assert source_type("persist_ingest.sources.loadgen:LOADGEN") is source_type("loadgen")


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_type_is_there(name: str) -> None:
    assert source_type(name).open is not None


def test_two_types_bring_times_of_their_own() -> None:
    """A problem occurs when there is a source that generates timestamp numbers that may not be related to wall-clock
    now. The two in our system are Debezium consistency topics and CDCv2."""
    readers = {name: get_type_hints(type(source_type(name)).open)["return"] for name in BUILT_IN}
    brings = {name for name, reader in readers.items() if hasattr(reader, "follow") and hasattr(reader, "counter")}
    assert brings == {"cdcv2", "debezium"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("loadgn", "did you mean loadgen?"),
        ("postgresql", "did you mean postgres?"),
        ("nothing_like_it", "known are cdcv2, debezium"),
        ("no_such_package.module:IT", "there is no such module"),
        ("json:NOTHING", "must have create, open, drop"),
        ("json:dumps", "must have create, open, drop"),
        (":x", "known are"),
    ],
)
def test_an_unknown_type_is_refused_with_the_next_step(name: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says.replace("?", r"\?")):
        source_type(name)


def test_a_missing_package_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_kafka.py").write_text("import confluent_kafka\nIT = 1\n")
    (tmp_path / "needs_other.py").write_text("import some_package_that_is_not_there\nIT = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtra, match=r"confluent_kafka is not installed .*pip install 'persist-tvc\[kafka\]'"):
        source_type("needs_kafka:IT")
    with pytest.raises(InvalidArgument, match="pip install some_package_that_is_not_there"):
        source_type("needs_other:IT")


def test_options_are_checked() -> None:
    given = check_options({"BADROWS": "Divert", "rate": "2.5", "key": "a, b"}, ("badRows", "rate", "key"), "a test")
    assert one_of(given, "badRows", ("fail", "divert"), "fail") == "divert"
    assert number(given, "rate") == 2.5
    assert listed(given, "key") == ("a", "b")
    with pytest.raises(InvalidArgument, match=r"did you mean badRows\?"):
        check_options({"badRow": "fail"}, ("badRows", "rate"), "a test")
    with pytest.raises(InvalidArgument, match="known for a test: badRows, rate"):
        check_options({"zzz": "fail"}, ("badRows", "rate"), "a test")
    with pytest.raises(InvalidArgument, match="zero byte"):
        check_options({"rate": "1\0"}, ("rate",), "a test")
    with pytest.raises(InvalidArgument, match="given twice"):
        check_options({"rate": "1", "Rate": "2"}, ("rate",), "a test")
    with pytest.raises(InvalidArgument, match=r"did you mean divert\?"):
        one_of(check_options({"badRows": "diverted"}, ("badRows",), "a test"), "badRows", ("fail", "divert"), "fail")
    for text in ("x", "-1", "nan", "inf"):
        with pytest.raises(InvalidArgument, match="must be a number"):
            number(check_options({"rate": text}, ("rate",), "a test"), "rate")
    with pytest.raises(InvalidArgument, match="a test needs option path"):
        required(check_options({"path": " "}, ("path",), "a test"), "path", "/data")


def test_columns_are_declared_as_in_sql() -> None:
    found = columns("id bigint NOT NULL, `full name` string, price decimal(10, 2),at:timestamp, ok boolean")
    declared: list[pa.Field[Any]] = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("full name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("ok", pa.bool_()),
    ]
    assert found == pa.schema(declared)
    schema = keyed(found, ("ok", "id"))
    assert schema.key.names == ["ok", "id"]
    assert schema.val.names == ["full name", "price", "at"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id bigint,", "cannot be understood"),
        ("", "cannot be understood"),
        ("id", "cannot be understood"),
        ("id bigin", "did you mean bigint"),
        ("id decimal(50,2)", "1 to 38 digits"),
        ("id int(4)", "unknown type"),
        ("id int, id string", "declared twice"),
        ("id int; name string", "cannot be understood"),
    ],
)
def test_columns_that_cannot_be_understood_are_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        columns(text)


def test_a_key_must_be_among_the_columns() -> None:
    with pytest.raises(InvalidArgument, match=r"did you mean name\?"):
        keyed(columns("id int, name string"), ("nam",))
