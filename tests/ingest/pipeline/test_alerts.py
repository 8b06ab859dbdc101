"""Rules for Prometheus name what is exported, with the labels it has: an alert on anything else is silent for ever."""

import pytest
from ingest.alert_rules import check_expression, check_texts, expressions, rules

from persist import LocationError
from persist.sources import STALLED, SourceKind
from persist_ingest import Location
from persist_ingest.pipeline.anew.progress import AnewProgress, Reached
from persist_ingest.pipeline.records import Source
from persist_ingest.pipeline.reporting.figures import HELP, Figures
from persist_ingest.pipeline.reporting.recounting import Recount, Recounted
from persist_ingest.pipeline.troubles import SNAPSHOTTING
from persist_ingest.sources.port import UpstreamStatus

RULES = rules("sources")


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
    recount = Recount(Location(directory="none"), 1)
    recount.found["a"] = Recounted(rows=1, negative=0, at_ms=1)
    figures = Figures(source, recount=recount)
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
    for about in ("lag_seconds", 'state="stalled"', "retained_bytes", "safe_bytes", "failures_total"):
        assert about in RULES
    check_texts(RULES)


@pytest.mark.parametrize("expression", expressions(RULES))
def test_a_rule_names_what_is_exported(expression: str) -> None:
    check_expression(expression, exported())
