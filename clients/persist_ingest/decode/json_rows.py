"""JSON objects to rows with declared columns; fields that are not declared are ignored, missing ones are null.

Source: sources.md section 3, decode.
"""

import decimal
import io
import json
from collections.abc import Sequence
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
