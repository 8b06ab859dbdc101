"""Conditions given as pyarrow expressions: Arrow decides, by its own rules for nulls, NaN and types.

What an expression says cannot be asked, so no part and no block is left out by it. Found out is which columns it needs,
by leaving some out, and how deeply it is nested: Arrow follows that on the stack of the thread, however small it is.
"""

import itertools
import re
import threading
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from persist.errors import InvalidArgument

NESTED_MAX: Final = 1_000
"""Conditions within each other. Arrow takes time by the square of it, and ends the process at some 5,000."""
_STACK_BYTES: Final = 128 << 20
"""Of a thread that looks at an expression: some 150,000 levels of it. Only what is used is taken of memory."""
_LOCK: Final = threading.Lock()
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


def check_depth(expression: pc.Expression) -> None:
    """Raises InvalidArgument for an expression that is nested more than NESTED_MAX deep."""
    depth = _depth(expression)
    if depth > NESTED_MAX:
        raise InvalidArgument(
            "the expression is nested too deeply",
            hint="use isin for many values of a column, a text for many conditions, or join them two by two, not one"
            " after the other",
            depth=depth,
            most=NESTED_MAX,
        )


def _depth(expression: pc.Expression) -> int:
    """How many parentheses lie within each other in its text, which is one pair for each level."""
    texts: list[str] = []
    with _LOCK:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=lambda: texts.append(str(expression)), name="persist-expression")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    steps = (1 if mark == "(" else -1 for mark in re.findall(r"[()]", _TEXT.sub("", texts[0])))
    return max(itertools.accumulate(steps), default=0)


def columns_in(expression: pc.Expression, schema: pa.Schema) -> set[str]:
    """The columns that it looks at. Raises InvalidArgument where these columns cannot answer it."""
    empty = schema.empty_table()
    chosen(expression, empty)

    def needed(names: list[str]) -> set[str]:
        if not names or _answers(expression, empty.drop_columns(names)):
            return set()
        if len(names) == 1:
            return set(names)
        middle = len(names) // 2
        return needed(names[:middle]) | needed(names[middle:])

    return needed(schema.names)


def chosen(expression: pc.Expression, table: pa.Table) -> pa.Table:
    """The rows for which it holds, in order. Raises InvalidArgument where the columns cannot answer it."""
    # Importing it takes Arrow's datasets along, and those take pandas, where that is installed.
    from pyarrow.acero import Declaration, FilterNodeOptions, TableSourceNodeOptions

    steps = [
        Declaration("table_source", TableSourceNodeOptions(table)),
        Declaration("filter", FilterNodeOptions(expression)),
    ]
    try:
        # In threads rows would come in any order.
        return Declaration.from_sequence(steps).to_table(use_threads=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        names = ", ".join(table.schema.names)
        raise InvalidArgument(
            "the columns cannot answer this expression",
            hint=f"the columns are {names}; rows are chosen before their diffs are summed",
            reason=str(error).splitlines()[0],
            expression=str(expression)[:200],
        ) from error


def _answers(expression: pc.Expression, table: pa.Table) -> bool:
    try:
        chosen(expression, table)
    except InvalidArgument:
        return False
    return True
