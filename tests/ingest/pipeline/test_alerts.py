"""Rules for Prometheus name what is exported, with the labels it has: an alert on anything else is silent for ever."""

import re
from pathlib import Path

import pytest

from persist import LocationError
from persist.sources import SourceKind
from persist_ingest.pipeline.anew.progress import AnewProgress, Reached
from persist_ingest.pipeline.records import Source
from persist_ingest.pipeline.reporting.figures import HELP, Figures
from persist_ingest.pipeline.troubles import SNAPSHOTTING, STALLED
from persist_ingest.sources.port import UpstreamStatus

RULES = (Path(__file__).parents[3] / "deploy" / "prometheus" / "sources.rules.yml").read_text()
EXPRESSIONS = re.findall(r"^ +expr: (?:\|\n)?((?:.+\n)+?) +(?:for|labels):", RULES, re.MULTILINE)
METRIC = re.compile(r"\bpersist_[a-z_]+")


def exported() -> dict[str, set[str]]:
    """The labels of each metric, as a pipeline with everything has them."""
    progress = AnewProgress(staging="s", begun={}, reached=Reached(hold=1)).to_json()
    troubles = {
        "b": {"state": STALLED, "since_ms": 1},
        "c": {"state": SNAPSHOTTING, "since_ms": 1, "progress": progress},
    }
    source = Source(
        name="shop", type="postgres", kind=SourceKind.LSN.value, incarnation="i", remap="r",
        exports={"a": "x", "b": "y", "c": "z"}, definition={}, troubles=troubles,
    )  # fmt: skip
    figures = Figures(source)
    figures.failed(LocationError("away"))
    for export in source.exports:
        figures.appended(export, [], was_first=True)
        figures.exports[export].upper = 1
    details = {"messages_behind": 1, "retained_bytes": 1, "safe_wal_size": 1, "wal_status": "reserved"}
    figures.upstream = UpstreamStatus(bytes_behind=1, details=details)
    found: dict[str, set[str]] = {}
    for name, labels, _ in figures.counted():
        found.setdefault(name, set()).update(label for label, _ in labels)
    return found


def test_all_that_is_described_is_exported() -> None:
    assert exported().keys() == HELP.keys()


def test_there_are_rules() -> None:
    assert len(EXPRESSIONS) == RULES.count("- alert:") == len(set(re.findall(r"- alert: (\w+)", RULES)))
    for about in ("lag_seconds", 'state="stalled"', "retained_bytes", "safe_bytes", "failures_total"):
        assert about in RULES


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_rule_names_what_is_exported(expression: str) -> None:
    known = exported()
    names = METRIC.findall(expression)
    assert names
    assert set(names) <= known.keys()
    every = set.intersection(*(known[each] for each in names))
    for given in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in given.split(",")} <= every
    for name, given in re.findall(r"(persist_[a-z_]+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)!?=", given)) <= known[name]


def test_the_text_of_an_alert_uses_labels_that_its_expression_keeps() -> None:
    for rule in RULES.split("- alert: ")[1:]:
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule))))
        assert set(re.findall(r"\$labels\.(\w+)", rule)) <= kept
