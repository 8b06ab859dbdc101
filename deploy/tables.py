"""Keeps the tables in docs/ that repeat what is known elsewhere: errors, settings, bounds, and what was measured.

    python deploy/tables.py            rewrite them
    python deploy/tables.py --check    exit with 1 if one is out of date

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

import ast
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from persist import errors, settings
from persist.core.catalog import errors as _catalog_refusals  # noqa: F401  # its errors are rows, too
from persist.core.time import errors as _time_errors  # noqa: F401  # its errors are rows, too
from persist.settings import COMPACTION_MESSAGE_BYTES
from persist_host.guard import bounds

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FIGURES = DOCS / "assets" / "scaling" / "figures.json"


def error_rows(parent: type[errors.PersistError] = errors.PersistError) -> Iterator[str]:
    """A row for every error, each below its parent."""
    for error in parent.__subclasses__():
        meaning = (error.__doc__ or "").splitlines()[0].replace("``", "`")
        yield f"| `{error.reason}` | `{error.__name__}` | {meaning} |"
        yield from error_rows(error)


def setting_rows() -> Iterator[str]:
    """A row for every field of Settings: its variable, its default, what it means."""
    meanings = field_docstrings(Path(settings.__file__ or ""))
    for field in dataclasses.fields(settings.Settings):
        shown = field.default if isinstance(field.default, str | tuple) else f"{field.default:,}"
        default = shown or "(none)"
        yield f"| `PERSIST_{field.name.upper()}` | {default} | {meanings.get(field.name, '').replace('``', '`')} |"


DERIVED: Final = {
    "connection_message_bytes": f"`PERSIST_MAX_MESSAGE_BYTES`, and {COMPACTION_MESSAGE_BYTES:,} in any case"
}
"""Bounds that follow from a setting."""


def bound_rows(table: Mapping[str, int | str]) -> Iterator[str]:
    """A row for everything that has a bound: a number, or the setting that says it."""
    for name, bound in table.items():
        told = f"{bound:,}" if isinstance(bound, int) else DERIVED.get(bound) or f"`PERSIST_{bound.upper()}`"
        yield f"| `{name}` | {told} |"


def figure_rows(name: str) -> Iterator[str]:
    """What ``make bench-full`` measured of a family of curves: a row for each size, and one for how far each bends."""
    curves = json.loads(FIGURES.read_text())[name]["curves"]
    for at, (size, _) in enumerate(next(iter(curves.values()))):
        yield f"| {_shown(size)} | " + " | ".join(_shown(points[at][1]) for points in curves.values()) + " |"
    bends = []
    for points in curves.values():
        least = min(value for _, value in points)
        bends.append(f"{points[-1][1] / least:,.2f}×" if least else "")
    yield "| largest / least | " + " | ".join(bends) + " |"


def figure_head(name: str) -> str:
    """The head of that table."""
    family = json.loads(FIGURES.read_text())[name]
    columns = [family["size"], *family["curves"]]
    return f"| {' | '.join(columns)} |\n|{'---:|' * len(columns)}"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


def field_docstrings(path: Path) -> dict[str, str]:
    """The string below each annotated field of the classes of a module."""
    found = {}
    for owner in ast.walk(ast.parse(path.read_text())):
        if not isinstance(owner, ast.ClassDef):
            continue
        for field, below in zip(owner.body, owner.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return found


TABLES = {
    "errors": ("| reason | class | meaning |\n|---|---|---|", error_rows),
    "elements": ("| repeated field | at most |\n|---|---:|", lambda: bound_rows(bounds.COUNTS)),
    "requests": ("| method | bytes of a request |\n|---|---:|", lambda: bound_rows(bounds.BYTES)),
    "settings": ("| variable | default | meaning |\n|---|---:|---|", setting_rows),
    **{name: (figure_head(name), functools.partial(figure_rows, name)) for name in json.loads(FIGURES.read_text())},
}


def renewed(text: str) -> str:
    """A page with its tables as they should be."""

    def table(found: re.Match[str]) -> str:
        head, rows = TABLES[found.group(1)]
        return f"<!-- table: {found.group(1)} -->\n{head}\n" + "\n".join(rows()) + "\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def main(arguments: list[str]) -> int:
    """Check or rewrite every page. Returns the exit code."""
    stale = [page for page in sorted(DOCS.glob("*.md")) if renewed(page.read_text()) != page.read_text()]
    if "--check" in arguments:
        for page in stale:
            print(f"{page.relative_to(ROOT)} is out of date: run `make docs`")
        return 1 if stale else 0
    for page in stale:
        page.write_text(renewed(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
