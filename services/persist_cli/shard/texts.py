"""CSV and JSON lines as record batches, each row with the line of the file that it is in, in bounded memory."""

import io
import json as jsons
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json

from persist.arrow import ArrowChunks
from persist.arrow.blocks import Block, TextRow, converting, csv_blocks, csv_rows, json_blocks, json_rows, parsing
from persist.arrow.guessed import NotKept, check_json, check_small, floats_of, may_change
from persist.arrow.json_text import CheckedJson
from persist.errors import InvalidArgument

Types = Mapping[str, pa.DataType]
Unexpected = Literal["infer", "error"]
_ROW: Final = re.compile(r"Row #\d+: ")
_IN_ROW: Final = re.compile(r"\.? in row \d+$")
_NUMBER: Final = pa.types.is_floating


Reader = Callable[[BinaryIO, Types, str], Iterator["Rows"]]
"""Rows of an open file, given the types that are known and its encoding."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a file; ``line_of`` says in which line the row of an index is, 0 where that is not known."""

    batch: pa.RecordBatch
    line_of: Callable[[int], int] = lambda index: 0


def read_csv(delimiter: str) -> "Reader":
    """A reader of texts whose cells this separates. Raises what ``read`` of ``rows_in`` does."""

    def rows(file: BinaryIO, types: Types, encoding: str) -> Iterator[Rows]:
        reader: _Csv | None = None
        for block in csv_blocks(file, delimiter, encoding):
            if reader is None:
                header = next(csv_rows(block, delimiter), None)
                if header is None:
                    continue
                reader = _Csv(delimiter, block.data[header.begin : header.end], dict(types))
                line = block.line + block.data[: header.begin].count(b"\n")
                block = _after(block, header, line)
            yield from reader.rows(block)
        if reader is None:
            raise pa.ArrowInvalid("Empty CSV file")

    return rows


def _after(block: Block, row: TextRow, line: int) -> Block:
    text = block.data[row.begin : row.end]
    ends = text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")
    return Block(block.data[row.end :], line + ends)


@dataclass(slots=True)
class _Csv:
    """The first block says of what type the columns are for which none is known."""

    delimiter: str
    header: bytes
    types: dict[str, pa.DataType]
    names: list[str] = field(init=False)
    guessed: list[str] | None = None

    def __post_init__(self) -> None:
        options = parsing(self.delimiter)
        self.names = csv.read_csv(io.BytesIO(self.header), parse_options=options).schema.names

    def rows(self, block: Block) -> Iterator[Rows]:
        if not block.data.strip(b"\r\n"):
            return
        self._check_headers(block)
        try:
            table = self._parsed(block.data, self.types)
            if self.guessed is None:
                self.guessed = [name for name in self.names if name not in self.types]
                self.types.update((name, table.schema.field(at).type) for at, name in enumerate(self.names))
            table = self._with_floats(block, table)
        except pa.ArrowInvalid as error:
            raise self._located(block, error) from error
        yield Rows(_one_batch(table), lambda index: _line(csv_rows(block, self.delimiter), index))

    def _parsed(self, data: bytes, types: Types) -> pa.Table:
        reading = csv.ReadOptions(use_threads=False, block_size=len(data) + 64, column_names=self.names)
        return csv.read_csv(io.BytesIO(data), reading, parsing(self.delimiter), converting(types))

    def _with_floats(self, block: Block, table: pa.Table) -> pa.Table:
        """The columns that were taken for floats once more, from their texts, where those may say another number."""
        floats = [name for name in self.guessed or () if _NUMBER(self.types[name])]
        if not floats or not (
            may_change(block.data) or any(_at_an_end(table.column(self.names.index(name))) for name in floats)
        ):
            return table
        texts = self._parsed(block.data, {**self.types, **dict.fromkeys(floats, pa.string())})
        for name in floats:
            at = self.names.index(name)
            table = table.set_column(at, name, floats_of(texts.column(at), name))
        return table

    def _located(self, block: Block, error: pa.ArrowInvalid) -> pa.ArrowInvalid:
        """The error of the first row that has one, with its line."""
        rows = [*csv_rows(block, self.delimiter)]

        def fails(count: int) -> pa.ArrowInvalid | None:
            part = Block(block.data[: rows[count - 1].end], block.line)
            try:
                self._with_floats(part, self._parsed(part.data, self.types))
            except pa.ArrowInvalid as found:
                return found
            return None

        count, found = _first(len(rows), fails)
        if found is None:
            return error
        line = f"line {rows[count - 1].line}: "
        said = str(found).splitlines()[0]
        with_line = _ROW.sub(line, said) if _ROW.search(said) else line + said
        return type(found)(with_line)

    def _check_headers(self, block: Block) -> None:
        """Raise InvalidArgument where the header stands once more, as in files that were put behind each other."""
        header = self.header.strip(b"\r\n")
        at = block.data.find(header)
        if at < 0:
            return
        for row in csv_rows(block, self.delimiter):
            if row.begin >= at and block.data[row.begin : row.end].strip(b"\r\n") == header:
                raise InvalidArgument(
                    f"the header is there again, in line {row.line}",
                    hint="append files one by one, or take the line out; "
                    "a row that says this has quotes elsewhere than the header",
                )


def read_json(file: BinaryIO, types: Types, encoding: str) -> Iterator[Rows]:
    """JSON lines. Raises what ``read`` of ``rows_in`` does."""
    schema = pa.schema(list(types.items()))
    unexpected: Unexpected = "infer"
    checked = CheckedJson(io.BytesIO(), schema)
    for block in json_blocks(file, encoding):
        if not block.data.strip():
            continue
        _check(block, checked, schema)
        try:
            table = _parsed(block.data, schema, unexpected)
            check_json(block, [each for each in table.schema if each.name not in types])
            check_small(block, list(table.schema))
        except pa.ArrowInvalid as error:
            raise _located(block, schema, unexpected, error) from error
        schema, unexpected = table.schema, "error"
        yield Rows(_one_batch(table), lambda index, block=block: _line(json_rows(block), index))  # type: ignore[misc]  # bound now


def _check(block: Block, checked: CheckedJson, read_as: pa.Schema) -> None:
    """Raise ArrowInvalid, with the line, for what Arrow's parser must not be given."""
    if not block.data.lstrip().startswith(b"{"):
        return  # which is refused before it is parsed
    try:
        checked.check(block.data)
    except pa.ArrowInvalid as error:
        again = CheckedJson(io.BytesIO(), read_as)
        for number, line in enumerate(block.data.split(b"\n"), block.line):
            try:
                again.check(line + b"\n")
            except pa.ArrowInvalid as found:
                raise pa.ArrowInvalid(f"{str(found).splitlines()[0]}, in line {number}") from error
        raise


def _parsed(data: bytes, schema: pa.Schema, unexpected: Unexpected) -> pa.Table:
    # SUBTLE: Arrow's parser ends the process when its input begins with null.
    if not data.lstrip().startswith(b"{"):
        kind = "array" if data.lstrip().startswith(b"[") else "value"
        raise pa.ArrowInvalid(f"this is a JSON {kind}; give one object a line (JSON lines), as jq -c '.[]' writes them")
    reading = json.ReadOptions(use_threads=False, block_size=len(data) + 64)
    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    return json.read_json(io.BytesIO(data), reading, options)


def _located(block: Block, schema: pa.Schema, unexpected: Unexpected, error: pa.ArrowInvalid) -> pa.ArrowInvalid:
    """The error of the first line that has one, with its number, and its column if that is one."""
    rows = [] if isinstance(error, NotKept) else [*json_rows(block)]

    def fails(count: int) -> pa.ArrowInvalid | None:
        part = Block(block.data[: rows[count - 1].end], block.line)
        try:
            _parsed(part.data, schema, unexpected)
        except pa.ArrowInvalid as error:
            return error
        return None

    count, found = _first(len(rows), fails)
    if found is None:
        return error
    row = rows[count - 1]
    said = _IN_ROW.sub("", str(found).splitlines()[0])
    column = _column(block.data[row.begin : row.end], schema) if "column" not in said.lower() else ""
    return pa.ArrowInvalid(f"{said}{column}, in line {row.line}")


def _column(line: bytes, schema: pa.Schema) -> str:
    """Which field of an object is at fault, as far as one alone is."""
    try:
        said = jsons.loads(line)
    except ValueError:
        return ""
    if others := [name for name in said if schema.names and name not in schema.names]:
        return f" {', '.join(others)}"
    for each in schema:
        options = json.ParseOptions(explicit_schema=pa.schema([each]), unexpected_field_behavior="ignore")
        try:
            json.read_json(io.BytesIO(line), parse_options=options)
        except pa.ArrowInvalid:
            return f" in column {each.name}"
    return ""


def _first(count: int, fails: Callable[[int], pa.ArrowInvalid | None]) -> tuple[int, pa.ArrowInvalid | None]:
    """The fewest rows that fail, and how."""
    low, high, found = 0, count, fails(count) if count else None
    if found is None:
        return count, None
    while high - low > 1:
        middle = (low + high) // 2
        error = fails(middle)
        if error is None:
            low = middle
        else:
            high, found = middle, error
    return high, found


def _at_an_end(floats: ArrowChunks) -> bool:
    """Whether a number may be there that has become infinite, or nothing."""
    return bool(pc.any(pc.or_(pc.is_inf(floats), pc.equal(floats, 0))).as_py())


def _line(rows: Iterable[TextRow], index: int) -> int:
    return next((row.line for at, row in enumerate(rows) if at == index), 0)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
