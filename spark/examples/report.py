"""What the flights job prints: progress while it writes, then two tables."""

import contextlib
import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar; call what it yields once for each thing done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def show(steps: Sequence[Any], readings: Sequence[Any], *, agrees: bool, seconds: float) -> None:
    """Print what was done and what was read, with times and rates, and the verdict."""
    console = Console()
    console.print()
    console.print(_steps(steps))
    console.print(_readings(readings))
    checks = len(readings) + sum(step.agrees is not None for step in steps)
    if agrees:
        console.print(f"[bold green]✓ all {checks} answers are the source file's[/]  [dim]({seconds:.0f} s in all)[/]")
        return
    wrong = sum(not r.agrees for r in readings) + sum(step.agrees is False for step in steps)
    console.print(
        f"[bold red]✗ {wrong} of {checks} answers differ from the source file[/]  [dim]({seconds:.0f} s in all)[/]"
    )


def _steps(steps: Sequence[Any]) -> Table:
    table = _table("Flights from New York, through a shard")
    table.add_column("step", style="cyan", no_wrap=True)
    table.add_column("what")
    for name in ("rows", "s", "rows/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", justify="center")
    for step in steps:
        rate = f"{step.rows / step.seconds:,.0f}" if step.rows and step.seconds else ""
        rows = f"{step.rows:,}" if step.rows else ""
        seconds = "" if step.seconds is None else f"{step.seconds:.2f}"
        table.add_row(step.name, step.detail, rows, seconds, rate, _mark(step.agrees))
    return table


def _readings(readings: Sequence[Any]) -> Table:
    title = "Snapshots, each compared row by row with the source file"
    table = _table(title)
    table.add_column("as of (UTC)", style="cyan", no_wrap=True)
    for name in ("rows", "ahead", "flown", "cancelled", "s", "rows/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", justify="center")
    for reading in readings:
        flown = reading.rows - reading.scheduled - reading.cancelled
        cells = [f"{n:,}" for n in (reading.rows, reading.scheduled, flown, reading.cancelled)]
        rate = f"{reading.rows / reading.seconds:,.0f}" if reading.seconds else ""
        table.add_row(_when(reading.as_of), *cells, f"{reading.seconds:.2f}", rate, _mark(reading.agrees))
    return table


def _when(as_of: int) -> str:
    moment = datetime.datetime.fromtimestamp(as_of / 1000, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _table(title: str) -> Table:
    # 80 columns wide at most: that is what a terminal without a size gets.
    return Table(title=title, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left", collapse_padding=True)


def _mark(agrees: bool | None) -> str:
    if agrees is None:
        return ""
    return "[green]✓[/]" if agrees else "[bold red]✗[/]"
