"""Parts: sorted updates as Parquet files in Blob, or as small Arrow messages inside the state.

This is the module others use; the layout is written by ``columnar_encode``, read by ``columnar_decode``, and the inline
form is in ``columnar_inline``. Source: kernel.md section 5; performance.md A1; reliability.md finding 8.
"""

from persist.wire.columnar.decode import only_adds, part_batches
from persist.wire.columnar.encode import GROUP_BYTES, Encoded, encode_parts
from persist.wire.columnar.inline import decode_inline, encode_inline
from persist.wire.columnar.row_group import Choice

__all__ = [
    "GROUP_BYTES",
    "Choice",
    "Encoded",
    "decode_inline",
    "encode_inline",
    "encode_parts",
    "only_adds",
    "part_batches",
]
