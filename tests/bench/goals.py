"""Which rows of the benchmark say whether a goal is reached, and the table of all goals: reached, missed, not measured.

Works on checks as the JSON files hold them, so that one table may be made of several runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from bench.outcome import NOT_RUN

COLOURS = {"reached": "green", "missed": "red", "VOID": "bold red", "not measured": "yellow"}
_WORST = ("not measured", "VOID", "missed", "reached")


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal by its name; ``rows``: of which row (P1, L4) those checks count that begin so, and have a limit."""

    name: str
    rows: Mapping[str, tuple[str, ...]]


GOALS: tuple[Goal, ...] = (
    Goal("Spark reads 2 M x 15, all columns", {"P8B": ("read of 2,000,000 x 15",)}),
    Goal("Spark reads 2 of 15 columns", {"P8B": ("read of 2 of 15",)}),
    Goal("Spark counts", {"P8B": ("DataFrame.count", "PersistTable.count")}),
    Goal("Spark reads with 20 % retracted", {"L7": ("read with 20 %",)}),
    Goal("Spark's batches and micro-batches, two columns", {"P8": ("batch ", "micro-batch")}),
    Goal("read as appended, Python", {"P6": ("read 5,000,000",)}),
    Goal("read compacted, as one table", {"P6": ("read, compacted",)}),
    Goal("bulk append", {"P6": ("append 5,000,000",)}),
    Goal("memory of bulk append and of a streamed read", {"P6": ("peak memory",)}),
    Goal("overwrite by 100 rows of 2 M", {"P8C": ("overwrite",)}),
    Goal("MERGE of 100,000 into 5 M", {"P8C": ("MERGE of 100,000 rows into 5,000,000 x 6 by key",)}),
    Goal("UPDATE and DELETE of few rows, and merges at once", {"P8C": ("UPDATE of", "DELETE of", "4 MERGEs at once")}),
    Goal("append of 100 rows through Blob", {"P1": ("append 100 rows",)}),
    Goal("append of 100 rows inline", {"P2": ("append 100 rows", "S3 requests")}),
    Goal("one shard, 64 in flight", {"P3": ("appends/s, ",)}),
    Goal("eight writers", {"P4": ("commits/s against deltalake", "failed appends")}),
    Goal("GetBinding covered and minted", {"P12": ("GetBinding/s",)}),
    Goal("read_ts and write_ts", {"P12": ("read_ts/s", "write_ts/s")}),
    Goal("catalog transactions, 16 clients against 1", {"P14": ("commits/s of 16",)}),
    Goal("catalog commits, opening and memory by its size", {"P14": ("commit at", "opening", "memory of")}),
    Goal("compaction", {"P9": ("compaction of", "peak memory")}),
    Goal("commit -> delivered", {"P7": ("append to delivered p50", "append to delivered p99 against")}),
    Goal("CPU of commands", {"U": ("CPU of persist",)}),
    Goal("many small commits: snapshot and last ones", {"P10": ("snapshot of",), "P11": ("last ",)}),
    Goal("requests and metadata of appends", {"P5": ("S3 requests", "the same", "state + diffs", "requests of")}),
    Goal("small appends for ever", {"B15": ("live batches", "rows in Consensus", "append p50")}),
    Goal("slope over many appends", {"P1": ("append p50: last fifth",)}),
    Goal("PostgreSQL's pipeline", {"P13": ("changes ingested", "99 %")}),
    Goal("steps of an ingester", {"P18": ("CPU of a step", "step of 100 tables")}),
    Goal("behind a database", {"P19": ("commit to complete", "changes a second", "all of it")}),
    Goal("upserts of many keys", {"P20": ("CPU of an upsert", "memory of", "first step")}),
    Goal("SQL as of a time", {"P15": ("q1 ", "q6 ", "q12 ")}),
    Goal("tables in Python beside deltalake", {"P17": ("write", "read", "upsert", "delete")}),
    Goal("cost as a shard or a crowd grows", {"S1": ("",), "S2": ("",), "S3": ("",), "S4": ("",), "S5": ("",)}),
)

BESIDE: tuple[Goal, ...] = (
    Goal("write inside Spark beside Delta and Iceberg", {"L1": ("write of",)}),
    Goal("read inside Spark beside Delta and Iceberg", {"L2": ("read of",)}),
    Goal("selective read beside Delta and Iceberg", {"L3": ("read of 1 %",)}),
    Goal("MERGE beside Delta and Iceberg", {"L4": ("MERGE of",)}),
    Goal("a micro-batch beside Delta and Iceberg", {"L5": ("a micro-batch",)}),
    Goal("small commits beside Delta and Iceberg", {"L6": ("each of", "read of")}),
    Goal("delete, and reads after it, beside Delta and Iceberg", {"L7": ("delete of", "read with")}),
    Goal("UPDATE beside Delta and Iceberg", {"L8": ("UPDATE of",)}),
    Goal("beside Spark's Parquet", {"P8B": ("write of", "read of", "DataFrame.count", "PersistTable.count")}),
    Goal("tables in Python beside pyiceberg", {"P17": ("write", "read", "upsert", "delete")}),
)
"""What is measured without a limit, for those who choose between them."""


def judged(checks: Sequence[Mapping[str, Any]], goal: Goal, *, limited: bool = True) -> list[Mapping[str, Any]]:
    """The checks that say whether a goal is reached; ``limited`` False: also those without a limit."""
    return [
        check
        for check in checks
        if check["goal"] in goal.rows
        and str(check["what"]).startswith((NOT_RUN, *goal.rows[check["goal"]]))
        and (not limited or check["limit"] is not None)
    ]


def verdict(checks: Sequence[Mapping[str, Any]]) -> str:
    """The worst of them."""
    found = {check["verdict"] for check in checks} or {"not measured"}
    return next(each for each in _WORST if each in found)


def summary(checks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each goal, its rows, what was measured and whether it is reached."""
    told = []
    for goal in GOALS:
        found = judged(checks, goal)
        told.append(
            {
                "goal": goal.name,
                "rows": list(goal.rows),
                "verdict": verdict(found),
                "measured": [
                    {name: check[name] for name in ("what", "measured", "limit", "at_most", "unit", "verdict")}
                    for check in found
                ],
            }
        )
    return told


def table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """The goals, one a line with what is worst of each; then what stands beside them."""
    grid = Table(title="goals", header_style="bold", pad_edge=False)
    for name in ("goal", "rows", "measured (limit)", ""):
        grid.add_column(name, overflow="fold")
    for goal in GOALS:
        found = judged(checks, goal)
        said = verdict(found)
        grid.add_row(goal.name, ", ".join(goal.rows), "; ".join(map(_figure, found)), f"[{COLOURS[said]}]{said}[/]")
    grid.add_section()
    for goal in BESIDE:
        found = [check for check in judged(checks, goal, limited=False) if check["limit"] is None]
        grid.add_row(goal.name, ", ".join(goal.rows), "; ".join(map(_figure, found)), "" if found else "not measured")
    return grid


def _figure(check: Mapping[str, Any]) -> str:
    """One figure with its limit, and what it is of."""
    unit = check["unit"]
    limit = "" if check["limit"] is None else f" ({'≤' if check['at_most'] else '≥'} {check['limit']:g}{unit})"
    mark = "!" if check["verdict"] in ("missed", "VOID") else ""
    whom = str(check["what"]).partition(" against ")[2] or str(check["what"])
    return f"{mark}{check['measured']:,.2f}{unit}{limit} {whom}"
