"""JSON objects to rows with declared columns; fields that are not declared are ignored, missing ones are null.

One that is missing, and there by another case, makes the object a bad one: its value would be lost without a word.

Source: sources.md section 3, decode.
"""

import decimal
import functools
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from persist.arrow import ArrowArray, ArrowChunks
from persist.arrow.exact import DIGITS, holds_decimals, holds_floats
from persist.arrow.json_text import check_decimals, odd_numbers
from persist_ingest.decode.exact import Decoded, Undecodable, converted, decode_exactly

_ORDINAL: Final = "persist.ordinal"
_SPACE: Final = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """One JSON object for each payload. Text, dates and timestamps are strings; times without a zone are UTC."""

    fields: pa.Schema

    def decode(self, payloads: Sequence[bytes | None], owners: NDArray[np.int64] | None = None) -> Decoded:
        """``owners``: as ``decode_exactly``."""
        return decode_exactly(len(payloads), self.fields, lambda begin, end: self._parse(payloads[begin:end]), owners)

    def _parse(self, payloads: Sequence[bytes | None]) -> pa.RecordBatch:
        stripped = [(payload or b"").lstrip(_SPACE) for payload in payloads]
        # SUBTLE: Arrow's parser ends the process when its input begins with null, hence this comes before it.
        if not all(payload.startswith(b"{") for payload in stripped):
            raise Undecodable("this is not a JSON object" if len(stripped) > 1 or stripped[0] else "this is empty")
        check_decimals(stripped, self._read_as)
        columns = self._one(stripped[0]) if len(stripped) == 1 else self._many(stripped)
        _check_names(stripped, columns, self.fields)
        _check_numbers(stripped, columns, self.fields)
        return converted(columns, self.fields)

    def _one(self, payload: bytes) -> list[ArrowArray]:
        return self._columns(payload, self._read_as)

    def _many(self, payloads: Sequence[bytes]) -> list[ArrowArray]:
        # SUBTLE: objects could begin in one payload and end in the next, and another payload hold two, so that the
        # count is right and the rows are not. Each object gets its number as a field: then every row must show it.
        numbered = b"\n".join(b'{"%s":%d,%s' % (_NAME, at, each[1:]) for at, each in enumerate(payloads))
        wanted = pa.schema([pa.field(_ORDINAL, pa.int64()), *self._read_as])
        ordinals, *columns = self._columns(numbered, wanted)
        if not np.array_equal(ordinals.fill_null(-1).to_numpy(zero_copy_only=False), np.arange(len(payloads))):
            raise Undecodable("these are not one object each")
        return columns

    def _columns(self, text: bytes, wanted: pa.Schema) -> list[ArrowArray]:
        table = pyarrow.json.read_json(
            io.BytesIO(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 64),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore"),
        )
        return [_one_array(table.column(field.name), field.type) for field in wanted]

    @property
    def _read_as(self) -> pa.Schema:
        """Arrow reads no dates from JSON, and zones only partly: those are texts at first. Decimals have more digits:
        Arrow makes other numbers of those that do not fit.
        """
        return pa.schema([pa.field(field.name, _read_as(field.type)) for field in self.fields])


def _read_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.decimal256(DIGITS[256], kind.scale)
    if pa.types.is_struct(kind) and holds_decimals(kind):
        return pa.struct([each.with_type(_read_as(each.type)) for each in kind])
    if pa.types.is_list(kind) and holds_decimals(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    return kind


def _check_names(payloads: Sequence[bytes], columns: Sequence[ArrowArray], fields: pa.Schema) -> None:
    """Raise Undecodable where a field is null that is there by another case. Only those are looked through that may."""
    names = tuple(dict.fromkeys(_null_names(columns, fields)))
    if not names or len(columns[0]) != len(payloads):
        # The latter is refused later.
        return
    rows: Sequence[int] = range(len(payloads))
    if not any(pa.types.is_nested(field.type) for field in fields):
        nulls = [column.is_null() for column in columns if column.null_count]
        rows = np.flatnonzero(functools.reduce(pc.or_, nulls).to_numpy(zero_copy_only=False)).tolist()
    search = _otherwise(names).search
    for at in rows:
        if search(payloads[at]):
            try:
                said = json.loads(payloads[at])
            except ValueError as error:
                raise Undecodable(str(error)) from error
            _check_cases(said, fields)


def _null_names(columns: Sequence[ArrowArray], fields: Iterable["pa.Field[pa.DataType]"]) -> Iterator[str]:
    """Those of fields that are null somewhere, also within others that are there."""
    for column, field in zip(columns, fields, strict=True):
        if column.null_count:
            yield field.name
        kind = column.type
        if pa.types.is_list(kind) and pa.types.is_nested(kind.value_type):
            inside = column.flatten()  # type: ignore[attr-defined]  # its type says what it is
            yield from _null_names([inside], [kind.value_field])
        elif pa.types.is_struct(kind) and len(there := column.drop_null()):
            yield from _null_names(there.flatten(), list(kind))  # type: ignore[attr-defined]  # as above


@functools.lru_cache(maxsize=64)
def _otherwise(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """What may be one of these names in another case."""
    either = b"|".join(re.escape(name.encode()) for name in names)
    return re.compile(rb'"(?!(?:' + either + rb')")(?i:' + either + rb')"[ \t\r\n]*:')


def _check_cases(said: object, fields: Iterable["pa.Field[pa.DataType]"]) -> None:
    if not isinstance(said, dict):
        return
    declared = {field.name: field.type for field in fields}
    others = {name.lower(): name for name in said if name not in declared}
    for name, kind in declared.items():
        if name not in said and name.lower() in others:
            raise Undecodable(f"it has a field {others[name.lower()]}, and no {name}: names differ by case")
        if pa.types.is_struct(kind):
            _check_cases(said.get(name), list(kind))
        elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and isinstance(said.get(name), list):
            for each in said[name]:
                _check_cases(each, list(kind.value_type))


def _check_numbers(payloads: Sequence[bytes], columns: Sequence[ArrowArray], fields: pa.Schema) -> None:
    """Raise Undecodable where Arrow read another number than is written: too large or too small for a float, or, for a
    decimal, with an exponent or very many digits. Those are read once more, one by one.
    """
    if any(pa.types.is_floating(each.type) and pc.any(pc.is_inf(each)).as_py() for each in columns):
        raise Undecodable("a number is out of range")
    if not any(
        holds_decimals(field.type) or _may_be_zero(column) for field, column in zip(fields, columns, strict=True)
    ):
        return
    for at in odd_numbers(payloads):
        try:
            said = json.loads(payloads[at], parse_float=str, parse_int=str)
        except ValueError as error:
            raise Undecodable(str(error)) from error
        for field, column in zip(fields, columns, strict=True):
            _check_number(said.get(field.name), column[at].as_py())


def _check_number(said: object, found: object) -> None:
    if isinstance(found, dict) and isinstance(said, dict):
        for name, value in found.items():
            _check_number(said.get(name), value)
    elif isinstance(found, list) and isinstance(said, list):
        for one, other in zip(said, found, strict=True):
            _check_number(one, other)
    elif isinstance(found, decimal.Decimal) and decimal.Decimal(str(said)) != found:
        raise Undecodable(f"{str(said)[:60]} does not fit a decimal")
    elif isinstance(found, float) and not found and decimal.Decimal(str(said)):
        raise Undecodable(f"{str(said)[:60]} is out of range")


def _may_be_zero(column: ArrowArray) -> bool:
    """Whether a float in it may be."""
    kind = column.type
    if pa.types.is_floating(kind):
        return bool(pc.any(pc.equal(column, pa.scalar(0, kind))).as_py())
    return holds_floats(kind)


_NAME: Final = _ORDINAL.encode()


def _one_array(column: ArrowChunks, kind: pa.DataType) -> ArrowArray:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], kind), *column.chunks])  # type: ignore[return-value]  # narrower than Arrow is
