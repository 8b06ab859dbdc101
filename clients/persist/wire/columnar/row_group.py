"""Decoding the columns of one row group, as few of its rows as are asked for, at no more than it declares.

A page says how long its values are only once it is decoded: a value that stands once in a dictionary may be meant by
each row. So texts with a dictionary are read as numbers into it, which takes little whatever is in it, and become texts
when it is known how many bytes that makes; other texts are decoded few rows at a time.
Source: reliability.md finding 9.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist.arrow import ArrowArray, ArrowColumn, ArrowField
from persist.core.data.types import T

DICTIONARY_BYTES_MAX: Final = 1 << 20
"""Of a column chunk beyond it some pages may have no dictionary, and numbers would have to be made of their texts."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows of a part are asked for: those numbers that ``rows`` gives for ``columns``; None: all of them."""

    columns: frozenset[str]
    rows: Callable[[pa.Table], ArrowArray | None]

    def of(self, table: pa.Table) -> pa.Table:
        """The rows of a table with those columns, and perhaps others, that are asked for."""
        rows = self.rows(table.select([name for name in table.column_names if name in self.columns]))
        return table if rows is None else table.take(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group of a file. ``fields``: of all its columns. ``varying``: the columns whose values vary in size.

    ``step``: rows of such columns decoded at once. ``counted`` is called with what has been decoded, in bytes, and
    before it is where that is known: what it raises ends the decoding.
    """

    file: pa.NativeFile
    metadata: pq.FileMetaData
    index: int
    fields: Sequence[ArrowField]
    varying: frozenset[str]
    step: int
    counted: Callable[[int], None]

    def table(self, names: Sequence[str], choice: Choice | None) -> pa.Table:
        """The columns of these names, in the order of ``fields``; with a ``choice`` of some of them, its rows.

        Of other columns nothing is decoded where it chooses no row, and no text that it does not choose is made.
        """
        wanted = set(names)
        asked = wanted if choice is None else choice.columns & wanted
        found = self._columns(asked, None)
        rows = None
        if choice is not None:
            looked = [field.name for field in self.fields if field.name in asked]
            rows = choice.rows(pa.table([found[name][1] for name in looked], names=looked))
            if rows is not None:
                found = {name: (field, column.take(rows)) for name, (field, column) in found.items()}
                if not len(rows):
                    # Nothing of the others is looked at: their types are the schema's.
                    rest = [field for field in self.fields if field.name in wanted - asked]
                    found |= {field.name: (field, pa.chunked_array([], field.type)) for field in rest}
                    asked = wanted
        found |= self._columns(wanted - asked, rows)
        chosen = [found[field.name] for field in self.fields if field.name in wanted]
        return pa.Table.from_arrays([column for _, column in chosen], schema=pa.schema([field for field, _ in chosen]))

    def _columns(self, wanted: Iterable[str], rows: ArrowArray | None) -> dict[str, tuple[ArrowField, ArrowColumn]]:
        """Columns as they were read, each with its field: these ``rows`` of them."""
        names = [field.name for field in self.fields if field.name in set(wanted)]
        coded = self._coded(names)
        apart = [name for name in names if name in self.varying and name not in coded]
        found: dict[str, tuple[ArrowField, ArrowColumn]] = {}
        if len(apart) < len(names):
            reader = pq.ParquetFile(self.file, metadata=self.metadata, read_dictionary=coded)
            table = reader.read_row_group(
                self.index, columns=[name for name in names if name not in apart], use_threads=False
            )
            for name in names:
                if name not in apart:
                    found[name] = self._whole(table.field(name), table.column(name), rows)
        if apart:
            found |= self._stepwise(apart, rows)
        return found

    def _coded(self, names: Sequence[str]) -> list[str]:
        """The columns that are read as numbers into their dictionaries. They are flat: each is a column of the file."""
        plain = {field.name for field in self.fields if T.is_string(field.type) or T.is_binary(field.type)}
        group = self.metadata.row_group(self.index)
        found = {}
        for place in range(group.num_columns):
            column = group.column(place)
            if column.path_in_schema in plain and "." not in column.path_in_schema:
                found[column.path_in_schema] = column
        return [
            name
            for name in names
            if name in found
            and found[name].has_dictionary_page
            and found[name].total_uncompressed_size < DICTIONARY_BYTES_MAX
        ]

    def _whole(self, field: ArrowField, column: ArrowColumn, rows: ArrowArray | None) -> tuple[ArrowField, ArrowColumn]:
        if not T.is_dictionary(column.type):
            self.counted(column.nbytes)
            return field, column if rows is None else column.take(rows)
        kind = column.type.value_type
        texts = [self._texts(chunk, rows if column.num_chunks == 1 else None) for chunk in column.chunks]
        joined = pa.chunked_array(texts, kind)
        return field.with_type(kind), joined if rows is None or column.num_chunks == 1 else joined.take(rows)

    def _texts(self, coded: pa.DictionaryArray, rows: ArrowArray | None) -> ArrowArray:
        """What the numbers mean. SUBTLE: Arrow does not look whether they are the dictionary's before it is asked."""
        chosen = coded.indices if rows is None else coded.indices.take(rows)
        lengths = pc.binary_length(coded.dictionary).take(chosen)
        self.counted((pc.sum(lengths).as_py() or 0) + 4 * len(chosen))
        return coded.dictionary.take(chosen)

    def _stepwise(self, names: list[str], rows: ArrowArray | None) -> dict[str, tuple[ArrowField, ArrowColumn]]:
        reader = pq.ParquetFile(self.file, metadata=self.metadata)
        held = []
        for batch in reader.iter_batches(
            batch_size=self.step, row_groups=[self.index], columns=names, use_threads=False
        ):
            self.counted(batch.nbytes)
            held.append(batch)
        table = pa.Table.from_batches(held)
        if table.column(0).num_chunks > 1:
            table = table.combine_chunks()
        return {
            name: (table.field(name), table.column(name) if rows is None else table.column(name).take(rows))
            for name in names
        }
