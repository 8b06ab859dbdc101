"""Conditions given as pyarrow expressions: Arrow decides, by its own rules for nulls, NaN and types.

What an expression says cannot be asked, so no part and no block is left out by it; only which columns it needs is found
out, by leaving out one after the other.
"""

import pyarrow as pa
import pyarrow.compute as pc

from persist.errors import InvalidArgument


def columns_in(expression: pc.Expression, schema: pa.Schema) -> set[str]:
    """The columns that it looks at. Raises InvalidArgument where these columns cannot answer it."""
    empty = schema.empty_table()
    chosen(expression, empty)
    return {name for name in schema.names if not _answers(expression, empty.drop_columns([name]))}


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
