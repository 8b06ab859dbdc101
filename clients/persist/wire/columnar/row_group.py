"""Decoding the columns of one row group, as few of its rows as are asked for, at no more than it declares.

A page says how long its values are only once it is decoded: a value that stands once in a dictionary may be meant by
each row. So texts with a dictionary are read as numbers into it, which takes little whatever is in it, and become texts
when it is known how many bytes that makes. Texts that lie in their pages as they are make no more than these; others
are decoded few rows at a time.
Source: reliability.md finding 9.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist.arrow import ArrowArray, ArrowChunks, ArrowField, Piece
from persist.core.data.types import T
from persist.wire.columnar.pages import plain_bytes

DICTIONARY_BYTES_MAX: Final = 1 << 20
"""Of a column chunk beyond it some pages may have no dictionary, and numbers would have to be made of their texts."""


class ChoiceFailed(Exception):
    """What a choice of rows raised, as its cause: nothing that is wrong with the bytes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows of a part are asked for: those numbers that ``rows`` gives for ``columns``; None: all of them."""

    columns: frozenset[str]
    rows: Callable[[pa.Table], ArrowArray | None]

    def numbers(self, table: pa.Table) -> ArrowArray | None:
        """Which rows of a table with those columns, and perhaps others. Raises ChoiceFailed."""
        try:
            return self.rows(table.select([name for name in table.column_names if name in self.columns]))
        except Exception as error:
            raise ChoiceFailed from error

    def of(self, table: pa.Table) -> pa.Table:
        """Those rows. Raises ChoiceFailed."""
        rows = self.numbers(table)
        return table if rows is None else table.take(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group of a file. ``fields``: of all its columns. ``varying``: the columns whose values vary in size.

    ``opened``: the file, with those columns read as numbers into their dictionaries. ``step``: rows of varying columns
    decoded at once. ``counted`` is called with what has been decoded, in bytes, and before it is where that is known:
    what it raises ends the decoding. ``typed`` gives columns their own types.
    """

    file: pa.NativeFile
    opened: Callable[[Sequence[str]], pq.ParquetFile]
    metadata: pq.FileMetaData
    index: int
    fields: Sequence[ArrowField]
    varying: frozenset[str]
    step: int
    counted: Callable[[int], None]
    typed: Callable[[pa.Table], pa.Table]

    def table(self, names: Sequence[str], choice: Choice | None, rows_max: int) -> pa.Table | None:
        """The columns of these names, in the order of ``fields``; with a ``choice`` of some of them, its rows.

        Of other columns nothing is decoded where it chooses no row, and no text that it does not choose is made.
        None where these are more than ``rows_max``: a caller that holds so few is to decode as many at a time.
        Raises ChoiceFailed.
        """
        wanted = [field.name for field in self.fields if field.name in names]
        if choice is None:
            return self._columns(wanted, None) if self._rows <= rows_max else None
        looked = self._columns([name for name in wanted if name in choice.columns], None)
        rows = choice.numbers(looked)
        if (self._rows if rows is None else len(rows)) > rows_max:
            return None
        if rows is not None:
            looked = looked.take(rows)
            if not len(rows):
                return pa.schema([field for field in self.fields if field.name in wanted]).empty_table()
        others = [name for name in wanted if name not in choice.columns]
        if not others:
            return looked
        rest = self._columns(others, rows)
        sides = [looked if name in choice.columns else rest for name in wanted]
        columns = [side.column(name) for side, name in zip(sides, wanted, strict=True)]
        fields = [side.field(name) for side, name in zip(sides, wanted, strict=True)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    @property
    def _rows(self) -> int:
        return self.metadata.row_group(self.index).num_rows

    def _columns(self, names: list[str], rows: ArrowArray | None) -> pa.Table:
        """Columns in their own types: these ``rows`` of them."""
        coded = self._coded(names)
        texts = [name for name in names if name in self.varying and name not in coded]
        plain = self._plain(texts)
        # Said before they are decoded, and not again.
        self.counted(sum(plain.values()))
        apart = [name for name in texts if name not in plain]
        found: dict[str, tuple[ArrowField, ArrowChunks]] = {}
        if len(apart) < len(names):
            whole = [name for name in names if name not in apart]
            table = self.opened(coded).read_row_group(self.index, columns=whole, use_threads=False)
            for name in whole:
                found[name] = self._whole(table.field(name), table.column(name), rows, counted=name in plain)
        if apart:
            found |= self._stepwise(apart, rows)
        arrays, fields = [found[name][1] for name in names], [found[name][0] for name in names]
        return self.typed(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))

    def _flat(self) -> dict[str, pq.ColumnChunkMetaData]:
        """Texts that are columns of the file each."""
        plain = {field.name for field in self.fields if T.is_string(field.type) or T.is_binary(field.type)}
        group = self.metadata.row_group(self.index)
        found = {}
        for place in range(group.num_columns):
            column = group.column(place)
            if column.path_in_schema in plain and "." not in column.path_in_schema:
                found[column.path_in_schema] = column
        return found

    def _plain(self, names: Sequence[str]) -> dict[str, int]:
        """Those columns whose pages hold their values as they are, and the bytes that they make."""
        found = {}
        flat = self._flat() if names else {}
        for name in names:
            column = flat.get(name)
            if column is None or column.has_dictionary_page:
                continue
            start = column.data_page_offset
            size = plain_bytes(self._bytes, start, start + column.total_compressed_size, column.num_values)
            if size is not None:
                found[name] = size
        return found

    def _bytes(self, start: int, end: int) -> bytes:
        self.file.seek(start)
        return self.file.read(end - start)

    def _coded(self, names: Sequence[str]) -> list[str]:
        """The columns that are read as numbers into their dictionaries."""
        found = self._flat()
        return [
            name
            for name in names
            if name in found
            and found[name].has_dictionary_page
            and found[name].total_uncompressed_size < DICTIONARY_BYTES_MAX
        ]

    def _whole(
        self, field: ArrowField, column: ArrowChunks, rows: ArrowArray | None, *, counted: bool
    ) -> tuple[ArrowField, ArrowChunks]:
        if not T.is_dictionary(column.type):
            if not counted:
                self.counted(column.nbytes)
            return field, column if rows is None else column.take(rows)
        kind = column.type.value_type
        alone = column.num_chunks == 1
        texts = [self._texts(chunk, rows if alone else None) for chunk in column.chunks]
        joined: ArrowChunks = pa.chunked_array(texts, kind)
        return field.with_type(kind), joined if rows is None or alone else joined.take(rows)

    def _texts(self, coded: Piece, rows: ArrowArray | None) -> ArrowArray:
        """What the numbers mean. SUBTLE: Arrow does not look whether they are the dictionary's before it is asked."""
        chosen = coded.indices if rows is None else coded.indices.take(rows)
        lengths = pc.binary_length(coded.dictionary).take(chosen)
        self.counted((pc.sum(lengths).as_py() or 0) + 4 * len(chosen))
        texts: ArrowArray = coded.dictionary.take(chosen)
        return texts

    def _stepwise(self, names: list[str], rows: ArrowArray | None) -> dict[str, tuple[ArrowField, ArrowChunks]]:
        steps = self.opened(()).iter_batches(
            batch_size=self.step, row_groups=[self.index], columns=names, use_threads=False
        )
        held = []
        for batch in steps:
            self.counted(batch.nbytes)
            held.append(batch)
        table = pa.Table.from_batches(held)
        table = table.combine_chunks() if len(held) > 1 else table
        chosen = table if rows is None else table.take(rows)
        return {name: (chosen.field(name), chosen.column(name)) for name in names}
