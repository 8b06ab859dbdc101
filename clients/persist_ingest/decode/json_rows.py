"""JSON objects to rows with declared columns; fields that are not declared are ignored, missing ones are null.

Source: sources.md section 3, decode.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.json

from persist.arrow import ArrowArray, ArrowChunks
from persist_ingest.decode.exact import Decoded, Undecodable, converted, decode_exactly

_ORDINAL: Final = "persist.ordinal"
_SPACE: Final = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """One JSON object for each payload. Text, dates and timestamps are strings; times without a zone are UTC."""

    fields: pa.Schema

    def decode(self, payloads: Sequence[bytes | None]) -> Decoded:
        return decode_exactly(len(payloads), self.fields, lambda begin, end: self._parse(payloads[begin:end]))

    def _parse(self, payloads: Sequence[bytes | None]) -> pa.RecordBatch:
        stripped = [(payload or b"").lstrip(_SPACE) for payload in payloads]
        # SUBTLE: Arrow's parser ends the process when its input begins with null, hence this comes before it.
        if not all(payload.startswith(b"{") for payload in stripped):
            raise Undecodable("this is not a JSON object" if len(stripped) > 1 or stripped[0] else "this is empty")
        if len(stripped) == 1:
            return converted(self._columns(stripped[0], self._read_as), self.fields)
        return self._parse_many(stripped)

    def _parse_many(self, payloads: Sequence[bytes]) -> pa.RecordBatch:
        # SUBTLE: objects could begin in one payload and end in the next, and another payload hold two, so that the
        # count is right and the rows are not. Each object gets its number as a field: then every row must show it.
        numbered = b"\n".join(b'{"%s":%d,%s' % (_NAME, at, each[1:]) for at, each in enumerate(payloads))
        wanted = pa.schema([pa.field(_ORDINAL, pa.int64()), *self._read_as])
        ordinals, *columns = self._columns(numbered, wanted)
        if not np.array_equal(ordinals.fill_null(-1).to_numpy(zero_copy_only=False), np.arange(len(payloads))):
            raise Undecodable("these are not one object each")
        return converted(columns, self.fields)

    def _columns(self, text: bytes, wanted: pa.Schema) -> list[ArrowArray]:
        table = pyarrow.json.read_json(
            io.BytesIO(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 64),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore"),
        )
        return [_one_array(table.column(field.name), field.type) for field in wanted]

    @property
    def _read_as(self) -> pa.Schema:
        """Arrow reads no dates from JSON, and zones only partly: those are texts at first."""
        textual = (pa.types.is_date, pa.types.is_timestamp, pa.types.is_time)
        kinds = [pa.string() if any(is_(field.type) for is_ in textual) else field.type for field in self.fields]
        return pa.schema([pa.field(field.name, kind) for field, kind in zip(self.fields, kinds, strict=True)])


_NAME: Final = _ORDINAL.encode()


def _one_array(column: ArrowChunks, kind: pa.DataType) -> ArrowArray:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], kind), *column.chunks])  # type: ignore[return-value]  # narrower than Arrow is
