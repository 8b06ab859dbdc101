"""What the TPC-B job was asked for, what it found, and how it prints both."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.tpcb_bank import TABLES
from examples.tpcb_checks import Watching

LOOKS_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How long and how hard: ``rate`` transactions a second (0: as many as go), four changes each."""

    seconds: int = 20
    rate: int = 500
    scale: int = 2
    pause_seconds: float = 0.5
    tick_ms: int = 200
    kill: bool = True
    looks: int = 0
    """Looks at least: those that did not fit in come after the work."""


@dataclass(slots=True, kw_only=True)
class TpcbOutcome:
    """Everything the job found."""

    scenario: Scenario
    snapshot_rows: int = 0
    snapshot_seconds: float = 0.0
    transactions: int = 0
    tps: float = 0.0
    watching: Watching = field(default_factory=Watching)
    killed_at: float = 0.0
    caught_up_seconds: float = 0.0
    history_rows: int = 0
    tables: dict[str, bool] = field(default_factory=dict)
    spark_sums: dict[str, int] = field(default_factory=dict)
    reread: int = 0

    @property
    def agrees(self) -> bool:
        """Every look balanced, and nothing was lost or doubled."""
        looks = self.watching.looks
        return (
            self.watching.error is None
            and bool(looks)
            and all(look.agrees for look in looks)
            and len(self.tables) == len(TABLES)
            and all(self.tables.values())
            and self.history_rows == self.transactions
            and len(set(self.spark_sums.values())) == 1
        )


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what takes a while."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what} …", highlight=False)
        yield
        return
    with console.status(f"{what} …"):
        yield


@contextlib.contextmanager
def bar(title: str, total: float) -> Iterator[Callable[[float], None]]:
    """A progress bar; call what it yields with how far it is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{title}: {total:,.0f} s …", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


def show(outcome: TpcbOutcome, *, seconds: float) -> None:
    """Print the looks and the verdict."""
    console = Console()
    console.print()
    console.print(_looks(outcome.watching.looks))
    console.print(_facts(outcome))
    looks = len(outcome.watching.looks)
    if outcome.agrees:
        console.print(
            f"[bold green]✓ the books balance at all {looks} times, and every row is PostgreSQL's[/]"
            f"  [dim]({seconds:.0f} s in all)[/]"
        )
        return
    wrong = sum(not look.agrees for look in outcome.watching.looks)
    tables = ", ".join(name for name, same in outcome.tables.items() if not same) or "none"
    console.print(f"[bold red]✗ wrong at {wrong} of {looks} times; tables that differ: {tables}[/]")
    if outcome.watching.error is not None:
        console.print(f"[red]{outcome.watching.error}[/]")


def as_json(outcome: TpcbOutcome) -> dict[str, object]:
    """What the tables say, for programs. Lags are seconds."""
    looks = outcome.watching.looks
    return {
        "agrees": outcome.agrees,
        "tps": outcome.tps,
        "transactions": outcome.transactions,
        "history_rows": outcome.history_rows,
        "looks": len(looks),
        "looks_wrong": sum(not look.agrees for look in looks),
        "lag_p50": outcome.watching.lag(0.5),
        "lag_p99": outcome.watching.lag(0.99),
        "snapshot_rows": outcome.snapshot_rows,
        "snapshot_seconds": outcome.snapshot_seconds,
        "caught_up_seconds": outcome.caught_up_seconds,
        "killed_at": outcome.killed_at,
        "reread": outcome.reread,
        "tables": outcome.tables,
        "error": "" if outcome.watching.error is None else str(outcome.watching.error),
    }


def _looks(looks: list[Any]) -> Table:
    table = Table(
        title=f"The bank at {len(looks)} times while it worked",
        box=box.SIMPLE_HEAD,
        title_style="bold",
        title_justify="left",
    )
    table.add_column("as of", style="cyan", no_wrap=True)
    for name in ("transactions", "accounts", "branches", "history", "tellers"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    every = max(1, len(looks) // LOOKS_SHOWN)
    for look in looks[::every]:
        sums = [f"{look.sums[name]:,}" for name in sorted(look.sums)]
        table.add_row(str(look.as_of), f"{look.transactions:,}", *sums, "✓" if look.agrees else "✗")
    return table


def _facts(outcome: TpcbOutcome) -> Table:
    scenario, watching = outcome.scenario, outcome.watching
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    asked = f"{scenario.rate:,} asked for" if scenario.rate else "as many as go"
    table.add_row("snapshot", f"{outcome.snapshot_rows:,} rows in {outcome.snapshot_seconds:.1f} s, by Spark")
    changes = 4 * outcome.tps
    table.add_row("workload", f"{outcome.tps:,.0f} transactions/s ({asked}), {changes:,.0f} changes/s")
    table.add_row("lag", f"median {watching.lag(0.5):.2f} s, 99 % below {watching.lag(0.99):.2f} s")
    if outcome.killed_at:
        table.add_row("kill -9", f"of the ingester after {outcome.killed_at:.1f} s; {outcome.reread:,} rows read again")
    table.add_row("end", f"caught up {outcome.caught_up_seconds:.1f} s after the last transaction")
    table.add_row("history", f"{outcome.history_rows:,} rows of {outcome.transactions:,} transactions")
    same = sum(outcome.tables.values())
    table.add_row("tables", f"{same} of {len(outcome.tables)} equal PostgreSQL's, row for row")
    return table
