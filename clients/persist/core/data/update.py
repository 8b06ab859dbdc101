"""Updates ((key, val), time, diff) as Arrow tables: bringing them into stored form, checking and consolidating them.

Source: architecture.md section 4; kernel.md sections 0 to 2.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowChunks, ArrowField
from persist.core.data.consolidation import SORT_BYTES, SORT_ROWS, consolidate_piece
from persist.core.data.merging.merge import PartSource, merge
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.types import Role, T, storage_type
from persist.core.data.values import absent, is_stored, missing, requires, stored, unsound
from persist.core.frontier import Antichain, check_time
from persist.errors import EmptyInterval, InvalidArgument, InvalidBounds, SchemaMismatch

Row = tuple[tuple[Any, Any], Any, Any]
"""((key, val), time, diff)."""


def normalise(data: pa.Table | pa.RecordBatch, schema: Schema) -> pa.Table:
    """The rows with the columns of ``schema.updates``, in order, in storage types and with canonical values.

    Takes any encoding of a column's type, an all-null column, and any integer type for ``ts`` and ``diff``. What it
    returns can be read back by every reader: each value is looked at, as what made the arrays may not have.
    A null is refused where the column has none, or the type of the data itself, inside of columns too. Raises
    SchemaMismatch (columns missing, unknown or of another type), InvalidArgument (a value that does not fit, such as a
    time of 24:00:00 or a text that is not UTF-8; with the path to it, such as ``a.b[].c``).
    """
    given = data.schema.names
    expected = schema.updates.names
    if given != expected and (len(given) > len(expected) or set(given) != set(expected)):
        lacking, unknown = sorted(set(expected) - set(given)), sorted(set(given) - set(expected))
        raise SchemaMismatch(
            "the columns are not those of the schema", hint=f"expected {expected}", missing=lacking, unknown=unknown
        )
    table = laid_out(pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data)
    columns = [
        _integers(table, field) if field in (TS, DIFF) else _column(table, field, schema) for field in schema.updates
    ]
    found = _sound(pa.Table.from_arrays(columns, schema=schema.updates), full=True)
    _check_within(found, [table.schema.field(each.name) for each in schema.updates])
    return found


def check_declared(table: pa.Table, schema: Schema) -> pa.Table:
    """The normalised updates, none of which puts a null where the schema, as it was declared, has none.

    Those that take rows away may: others, who declare less, put them there. Raises InvalidArgument with the path.
    """
    if any(requires(each.type) for each in schema.declared):
        is_added = pc.greater(table.column(DIFF.name), 0)
        _check_within(table if pc.all(is_added).as_py() else table.filter(is_added), schema.declared)
    return table


def _check_within(table: pa.Table, fields: Iterable[ArrowField]) -> None:
    for field in fields:
        if requires(field.type):
            for chunk in table.column(field.name).chunks:
                path = missing(chunk, field.type, field.name)
                if path is not None:
                    raise absent(path)


def laid_out(table: pa.Table) -> pa.Table:
    """The table, if its buffers are as long as they must be, so that its sizes may be asked for. Costs nothing by row.

    Raises InvalidArgument. What offsets between the first and the last lead to, ``normalise`` finds.
    """
    return _sound(table, full=False)


def _sound(table: pa.Table, *, full: bool) -> pa.Table:
    """The table, each value of which its type allows: no reader takes others. Raises InvalidArgument."""
    try:
        table.validate(full=full)
    except pa.ArrowException as error:
        for name, column in zip(table.schema.names, table.columns, strict=True):
            try:
                column.validate(full=full)
            except pa.ArrowException as its_error:
                raise unsound(name, column.type, its_error) from its_error
        raise InvalidArgument("this is no table", hint="build it anew", reason=str(error)[:200]) from error
    return table


def from_rows(rows: Iterable[Row], schema: Schema) -> pa.Table:
    """A normalised table of Python updates, their keys and vals encoded by the schema's codec.

    Raises InvalidArgument for anything that is not ((key, val), time, diff) or does not fit.
    """
    pairs, times, diffs = [], [], []
    for row in rows:
        try:
            (key, val), time, diff = row
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                "an update is ((key, val), time, diff)", hint="give three items", got=repr(row)[:80]
            ) from error
        if isinstance(diff, bool) or not isinstance(diff, int) or not -(1 << 63) <= diff < 1 << 63:
            raise InvalidArgument("a diff must be an integer of 64 bits", hint="give an int", got=repr(diff)[:80])
        pairs.append((key, val))
        times.append(check_time(time))
        diffs.append(diff)
    table = schema.codec.encode(pairs)
    if table.num_rows != len(pairs):
        raise InvalidArgument("the codec gave another number of rows", codec=schema.codec_name, rows=len(pairs))
    table = table.append_column(TS, pa.array(times, TS.type)).append_column(DIFF, pa.array(diffs, DIFF.type))
    return normalise(table, schema)


def check_bounds(table: pa.Table, lower: Antichain, upper: Antichain) -> None:
    """Accept a table whose times all lie in ``[lower, upper)``.

    Raises InvalidBounds naming an offending time, EmptyInterval for rows in an interval without times.
    """
    if not lower.less_equal(upper):
        raise InvalidBounds("upper lies below lower", hint="give lower <= upper", lower=lower, upper=upper)
    if not table.num_rows:
        return
    if lower == upper:
        raise EmptyInterval("data for an interval that holds no time", hint="move upper", lower=lower, upper=upper)
    times = table.column(TS.name).to_numpy()
    for time in (int(times.min()), int(times.max())):
        if not lower.less_equal_time(time) or upper.less_equal_time(time):
            raise InvalidBounds(
                "a time lies outside [lower, upper)",
                hint="change the bounds or the time",
                time=time,
                lower=lower,
                upper=upper,
            )


def consolidate(
    table: pa.Table, schema: Schema, since: int = 0, *, sort_rows: int = SORT_ROWS, size: int | None = None
) -> pa.Table:
    """The rows sorted by (key, val, ts), times advanced to ``since``, equal ones summed, zeros dropped.

    ``table``: normalised, of any size; more than ``sort_rows`` are sorted in pieces and merged. Sorted input costs
    little. ``size``: the table's ``nbytes``, where it is known. Raises InvalidArgument when a sum of diffs leaves i64.
    """
    pieces = max(-(-table.num_rows // sort_rows), -(-(table.nbytes if size is None else size) // SORT_BYTES))
    if pieces <= 1:
        return consolidate_piece(table, schema, since)
    step = -(-table.num_rows // pieces)
    runs = [consolidate_piece(table.slice(at, step), schema, since) for at in range(0, table.num_rows, step)]
    merged = list(merge([[_source(run)] for run in runs], schema, since=since))
    return pa.concat_tables([schema.updates.empty_table(), *merged])


def _source(run: pa.Table) -> PartSource:
    return PartSource(key_lower=b"", open=lambda: iter(run.to_batches(max_chunksize=SORT_ROWS // 16)))


def _column(table: pa.Table, field: ArrowField, schema: Schema) -> ArrowChunks:
    column = table.column(field.name)
    if column.type == field.type and is_stored(field.type) and (field.nullable or not column.null_count):
        return column
    role: Role = "key" if field.name in schema.key.names else "val"
    if not T.is_null(column.type) and storage_type(column.type, role, field.name) != field.type:
        raise SchemaMismatch(
            "a column has another type", hint=f"cast it to {field.type}", column=field.name, got=column.type
        )
    chunks = [stored(chunk, field.type, field.name) for chunk in column.chunks]
    plain = pa.chunked_array(chunks, field.type)  # type: ignore[call-overload]  # narrower than Arrow is
    # Only the plain form counts the nulls inside dictionaries and runs.
    if plain.null_count and not field.nullable:
        raise absent(field.name)
    return plain  # type: ignore[no-any-return]  # kernels and pyspark have no types


def _integers(table: pa.Table, field: ArrowField) -> ArrowChunks:
    column = table.column(field.name)
    if not T.is_integer(column.type):
        hint = f"cast it to {field.type}, or rename it to _{field.name} to store it as a column of its own"
        raise SchemaMismatch(
            f"{field.name} is what every update has beside its columns, an integer",
            hint=hint,
            column=field.name,
            got=column.type,
        )
    if column.null_count:
        raise InvalidArgument("a time or diff is missing", hint="every update has both", column=field.name)
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidArgument(
            "out of range", hint=f"{field.name} is {field.type}", column=field.name, reason=str(error)
        ) from error
