"""What Spark calls a shard's columns, and a shard Spark's: found without regard to case, and never in each other's way.

The updates of a shard have the columns ``ts`` and ``diff`` beside those of its schema; Spark shows them as ``_ts`` and
``_diff``. So each side takes the names of the other: what Spark calls ``ts`` is stored as ``_ts``, and shown as ``ts``
again; likewise ``diff``. All other names are the same on both sides. Source: docs/spark.md, Rows.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from persist import SchemaMismatch
from persist.arrow import ArrowField

if TYPE_CHECKING:
    import persist


TIME_COLUMN: Final = "_ts"
"""The time of a row, in DataFrames that are written or show updates."""
DIFF_COLUMN: Final = "_diff"
"""The count of a row there."""

_OF_UPDATES: Final = ("ts", "diff")


def stored_name(name: str) -> str:
    """What a shard calls a column of Spark's."""
    return f"_{name}" if name.lower() in _OF_UPDATES else name


def shown_name(name: str) -> str:
    """What Spark calls a column of a shard."""
    return name[1:] if name.lower() in (TIME_COLUMN, DIFF_COLUMN) else name


def shown_fields(schema: "persist.Schema") -> list[ArrowField]:
    """The columns of a persist.Schema, key before val, under Spark's names."""
    return [field.with_name(shown_name(field.name)) for field in [*schema.key, *schema.val]]


def find(known: Iterable[str], name: str) -> str | None:
    """The spelling of ``name`` among ``known``, which differ by more than case."""
    lower = name.lower()
    return next((each for each in known if each.lower() == lower), None)


def found(known: Sequence[str], names: Iterable[str]) -> list[str]:
    """The spellings of ``names`` among ``known``. Raises SchemaMismatch, which lists what is known."""
    spellings = {name.lower(): name for name in known}
    spelled = []
    for name in names:
        if name.lower() not in spellings:
            raise SchemaMismatch("no such column", hint=f"the columns are: {', '.join(known)}", column=name)
        spelled.append(spellings[name.lower()])
    return spelled


def check_distinct(names: Sequence[str]) -> None:
    """Refuse names that differ in case alone. Raises SchemaMismatch."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SchemaMismatch(
                "two columns of the DataFrame differ by case alone, or not at all", hint="rename one", column=name
            )
        seen.add(name.lower())
