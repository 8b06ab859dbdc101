"""Payloads as they are: one column of bytes, or of text.

Source: sources.md section 3, decode.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from persist_ingest.decode.exact import Decoded, converted, decode_exactly


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """One column, binary or string (which must be UTF-8); no payload is null."""

    fields: pa.Schema

    def decode(self, payloads: Sequence[bytes | None]) -> Decoded:
        column = pa.array(payloads, pa.binary())

        def parse(begin: int, end: int) -> pa.RecordBatch:
            return converted([column.slice(begin, end - begin)], self.fields)

        return decode_exactly(len(payloads), self.fields, parse)
