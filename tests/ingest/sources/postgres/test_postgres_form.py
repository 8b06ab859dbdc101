"""What two looks at a table prove of the rows in between: the rules alone, without a server."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from persist_ingest.sources.port import TableAltered
from persist_ingest.sources.postgres.form import HORIZON_AGE, Attribute, Evidence, TableForm, check_form


def attribute(number: int, **other: Any) -> Attribute:
    plain = {"name": f"c{number}", "oid": 23, "mod": -1, "version": "700", "sent": True, "missing": False, "labels": ()}
    return Attribute(number=number, **{**plain, **other})


FORM = TableForm(
    digest="a",
    horizon=1000,
    file=16384,
    numbers=3,
    toast=7,
    coverage="5 r 6",
    attributes=(attribute(1), attribute(2, labels=((9, "sad", "5"), (10, "ok", "5"))), attribute(3, sent=False)),
)


def changed(number: int, **other: Any) -> tuple[Attribute, ...]:
    return tuple(replace(each, **other) if each.number == number else each for each in FORM.attributes)


def added(*attributes: Attribute, **other: Any) -> TableForm:
    numbers = max(each.number for each in attributes)
    return replace(FORM, attributes=(*FORM.attributes, *attributes), **{"numbers": numbers, **other})


def evidence(*, old_rows: bool = False, truncated: bool = False) -> Evidence:
    """What a table without partitions is found to hold."""
    return Evidence(
        has_old_rows=lambda nulls: old_rows,
        was_truncated=lambda: truncated,
        part_has_old_rows=lambda part, nulls: old_rows,
        part_was_truncated=lambda part: truncated,
        has_no_file=lambda part: False,
        was_made_as_one=lambda part: False,
    )


@pytest.mark.parametrize(
    ("now", "old_rows"),
    [
        (replace(FORM, file=2), False),
        (replace(FORM, attributes=changed(1, version="701")), False),
        (replace(FORM, attributes=changed(1, version="701"), file=2, toast=8), True),
        (replace(FORM, attributes=changed(2, labels=((9, "sad", "5"), (10, "ok", "5"), (11, "new", "6")))), False),
        (added(attribute(4)), False),
        (added(attribute(4, sent=False), file=2), False),
        (replace(FORM, numbers=5), False),
        (replace(FORM, attributes=changed(1, version="701"), file=2, toast=7), False),
        (added(attribute(4), file=2), True),
    ],
    ids=[
        "moved",
        "altered",
        "altered and moved",
        "a label more",
        "a column",
        "one that is not sent",
        "added, dropped",
        "altered and moved, with its large values' table",
        "added and moved",
    ],
)
def test_what_leaves_earlier_rows_as_they_were_passes(now: TableForm, old_rows: bool) -> None:
    check_form(FORM, now, "public.t", evidence(old_rows=old_rows, truncated=True))


@pytest.mark.parametrize(
    ("now", "column"),
    [
        (replace(FORM, attributes=changed(1, version="701"), file=2, toast=8), "c1"),
        (replace(FORM, attributes=changed(3, version="701"), file=2, toast=0), "c3"),
        (replace(FORM, attributes=changed(1, name="x")), "c1"),
        (replace(FORM, attributes=changed(1, oid=20)), "c1"),
        (replace(FORM, attributes=FORM.attributes[1:]), "c1"),
        (replace(FORM, attributes=changed(2, labels=((9, "blue", "6"), (10, "ok", "5")))), "c2"),
        (replace(FORM, attributes=changed(2, labels=((9, "sad", "6"), (10, "ok", "5")))), "c2"),
        (replace(FORM, attributes=changed(3, sent=True)), "c3"),
        (added(attribute(4, missing=True)), "c4"),
        (added(attribute(4), file=2), "c4"),
        (added(attribute(5)), "c5"),
    ],
    ids=["rewritten", "rewritten, not sent", "renamed", "retyped", "dropped", "a label renamed", "there and back",
         "sent from now on", "with a default", "added and rewritten", "another was dropped"],
)  # fmt: skip
def test_what_may_have_changed_earlier_rows_does_not(now: TableForm, column: str) -> None:
    with pytest.raises(TableAltered) as refused:
        check_form(FORM, now, "public.t", evidence())
    assert refused.value.details == {"export": "public.t", "column": column}


def test_a_form_comes_back_from_json_and_is_kept_when_that_helps() -> None:
    assert TableForm.from_json(json.loads(json.dumps(asdict(FORM)))) == FORM
    earlier = {name: value for name, value in asdict(FORM).items() if name not in {"coverage", "toast", "direct"}}
    assert TableForm.from_json(earlier) == replace(FORM, coverage=None, toast=0), "of a definition of format 2"
    assert FORM.is_news(None)
    assert not FORM.is_news(FORM)
    assert replace(FORM, digest="b").is_news(FORM)
    assert not replace(FORM, horizon=1001).is_news(FORM)
    assert replace(FORM, horizon=1001 + HORIZON_AGE).is_news(FORM)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (FORM, replace(FORM, coverage="5 r 9")),
        (FORM, replace(FORM, file=2, toast=8)),
        (replace(FORM, toast=0), replace(FORM, file=2, toast=0)),
    ],
    ids=["let through otherwise", "UNLOGGED for a while", "the same, without large values"],
)
def test_what_may_have_kept_changes_back_does_not(before: TableForm, now: TableForm) -> None:
    with pytest.raises(TableAltered):
        check_form(before, now, "public.t", evidence())
    check_form(replace(before, coverage=None), now, "public.t", evidence(truncated=True))
    named = replace(now, coverage=before.coverage, direct=True)
    check_form(before, named, "public.t", evidence())
