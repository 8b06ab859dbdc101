"""What a person sees: tables, progress on a terminal; and what a program sees: JSON on standard output."""

import base64
import contextlib
import itertools
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import date, datetime, time
from typing import Any, Final, TypeAlias

from persist.json_out import json_of
from persist.typed import Json

Rows: TypeAlias = Sequence[Sequence[object]]


TABLE_ROWS_MAX: Final = 2_000
"""Longer tables are plain columns: their lines are not looked at, and drawing them takes half a second per thousand."""


def print_json(value: object) -> None:
    """One JSON document."""
    print(json_of(value, json_value, indent=2))


def print_json_line(value: object) -> None:
    """One line of JSON, flushed: the reader at the other end of the pipe may be waiting for it."""
    print(json_of(value, json_value), flush=True)


def json_value(value: object) -> object:
    """JSON for what JSON has no type for: base64 for bytes, ISO 8601 for dates and times, text for the rest."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


STYLED: Final = ContextVar("styled", default=True)
"""Whether words may be in colours, or bold."""


NARROW: Final = 60
"""Columns of a screen on which each counts: an id beside the longest name fits."""
WIDE: Final = 140
"""Columns of a screen that has room for what only programs need."""
PIPED: Final = 120
"""Columns where nothing says how wide the output is."""
VALUES: Final = ("value",)
"""Columns beside the first one of a table that says something of one thing: each row names what its value is."""


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "", caption: str = ""
) -> None:
    """A table for people. Numbers are right-aligned; nothing is cut off when the output is not a terminal.

    On a terminal in which words would have to be broken, each row is a block of its own, a line for each column.
    """
    if len(rows) > TABLE_ROWS_MAX:
        _print_plain(columns, rows, title, caption)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(Text(escaped(column)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    width = None if sys.stdout.isatty() else screen_width()
    console = Console(width=width, highlight=False, soft_wrap=False, color_system="auto" if STYLED.get() else None)
    body: Any = table
    if len(columns) > 1 and rows and _breaks_words(console, table):
        pairs = [(str(shown(name)), value) for name, value in rows] if tuple(columns[1:]) == VALUES else []
        if pairs:
            columns, rows = [name for name, _ in pairs], [[value for _, value in pairs]]
        body = _below_each_other(columns, rows, gap=1 if console.width <= NARROW else 2)
    for part in (title, body, caption):
        if part:
            console.print(escaped(part), markup=False) if isinstance(part, str) else console.print(part)


def screen_width() -> int:
    """Columns that tables may have: as COLUMNS says, or of the terminal."""
    return max(NARROW // 2, shutil.get_terminal_size((PIPED, 0)).columns)


def _print_plain(columns: Sequence[str], rows: Rows, title: str, caption: str) -> None:
    values = ([shown(value).replace("\n", " ") for value in row] for row in rows)
    cells = [list(map(escaped, columns)), *values]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if title:
        print(escaped(title))
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if caption:
        print(escaped(caption))


def _breaks_words(console: Any, table: Any) -> bool:
    """Whether the table is only as narrow as the console when words in it are broken."""
    from rich.measure import Measurement

    unbounded = console.options.update(max_width=1 << 16)
    return bool(Measurement.get(console, unbounded, table).minimum > console.width)


def _below_each_other(columns: Sequence[str], rows: Sequence[Sequence[object]], *, gap: int) -> Any:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, gap))
    grid.add_column()
    grid.add_column(overflow="fold")
    for number, row in enumerate(rows):
        if number:
            grid.add_row()
        mark = ""
        for column, value in zip(columns, row, strict=True):
            if not column:
                mark = f"{shown(value)} "
            elif text := shown(value):
                grid.add_row(Text(escaped(column), style="bold"), Text(mark + text))
                mark = ""
    return grid


def print_rows(rows: Sequence[Mapping[str, object]], *, title: str = "", caption: str = "") -> None:
    """A table of rows that may have different columns; nothing when there are none."""
    if rows:
        columns = tuple(dict.fromkeys(itertools.chain.from_iterable(rows)))
        print_table(columns, [[row.get(name, "") for name in columns] for row in rows], title=title, caption=caption)


def print_list(columns: Sequence[str], rows: Sequence[Sequence[object]], noun: str, first: str) -> None:
    """All that there is of a kind, and how many; where there is nothing, that, and how the ``first`` is made."""
    if rows:
        print_table(columns, rows, caption=counted(len(rows), noun))
    else:
        print(f"no {noun}s here: {first}")


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def sized(count: int) -> str:
    """Bytes for people, to three digits: ``0 B``, ``12.0 MB``."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 0.9995 * size:
            number = count / size
            return f"{number:,.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}"
    return f"{count} B"


def priced(amount: float) -> str:
    """Money for people, in the currency of the prices that were given: dollars by default."""
    return "less than $0.01" if 0 < amount < 0.01 else f"${amount:,.2f}"


_CONTROLS: Final = {
    code: ascii(chr(code))[1:-1]
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}
"""What a terminal obeys, or shows in another order, by how it is written instead."""


def escaped(text: str) -> str:
    """The text without what a terminal obeys: who wrote it is not who looks at it."""
    return text.translate(_CONTROLS)


def shown(value: object) -> str:
    """One value in a table's cell, without what a terminal obeys."""
    return escaped(_shown(value))


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping | list | tuple):
        return json_of(value, json_value)
    return str(value)


def frontier(value: Json) -> list[int]:
    """A frontier for JSON: ``[t]``, or ``[]`` when closed."""
    return list(value.elements)


def note(text: str) -> None:
    """Print for people what is not part of the output."""
    print(escaped(text), file=sys.stderr)


@contextlib.contextmanager
def noted(log: logging.Logger) -> Iterator[None]:
    """A block in which what a logger says from INFO on is printed for people."""
    handler, level = logging.StreamHandler(sys.stderr), log.level
    handler.setFormatter(logging.Formatter("persist: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextlib.contextmanager
def progress(what: str, total: int | None = None, *, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Yields a function to call with each number of ``unit`` done. Shows a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}}{'' if total is None else f' of {total:,}'} {unit}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True, color_system="auto" if STYLED.get() else None), transient=True
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda rows: bar.update(task, advance=rows)
