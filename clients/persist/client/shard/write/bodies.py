"""Distinguishes one body of updates from another, so that a name given twice by mistake loses no rows.

Source: persist-semantics.md section 2.3.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from persist.core.data.encoding import encode, encode_key
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.update import normalise
from persist.core.shard.batch import Part, Run
from persist.core.shard.transitions.append import BODY_BYTES
from persist.wire.columnar import decode_inline

_HALF = BODY_BYTES // 2


def body_of(runs: Sequence[Run], schema: Schema, *, timed: bool) -> bytes:
    """32 bytes. The first half is the same however the same updates are cut into parts, the second differs for small
    ones.

    Bounds are left out: the same updates may be given again at others. ``timed`` False: they happen wherever there is
    room, so their times are left out, too. Of what is in Blob only the sum of diffs is known here: the second
    half is zeros then. Empty, which is compared with nothing, when there are no updates.
    """
    parts = [part for run in runs for part in run.parts]
    if not parts:
        return b""  # to ask what became of a token, without any
    common = _digest(repr(sum(part.diffs_sum for part in parts)).encode())
    if len(parts) != 1 or parts[0].inline is None:
        return common + bytes(_HALF)
    return common + _digest(_content(parts[0], schema, timed=timed))


class Fingerprint:
    """Of all updates of an append, however they are cut into tables: the same for the same ones in the same order.

    For what is remembered for ever: a sum of diffs would take one job's rows for as many of another's. Times are left
    out: a version is given again where the upper is by then. Columns that were added since count from the last one on
    that has a value.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._rows = 0
        self._columns = {name: hashlib.blake2b(digest_size=_HALF) for name in (*_named(schema), DIFF.name)}
        self._filled: set[str] = set()

    def add(self, pieces: Sequence[pa.Table]) -> None:
        """Take the next rows in. Raises SchemaMismatch, InvalidArgument."""
        for piece in pieces:
            table = normalise(piece, self._schema)
            self._rows += table.num_rows
            for batch in table.to_batches():
                for name, digest in self._columns.items():
                    column = batch.column(name)
                    if column.null_count < len(column):
                        self._filled.add(name)
                    digest.update(values_of(encode([column], last=False)))

    @property
    def text(self) -> str:
        """Of what was taken in until now."""
        names = _named(self._schema)
        while names and names[-1] not in self._filled:
            names.pop()
        digests = [self._columns[name].digest() for name in (*names, DIFF.name)]
        return f"rows {self._rows} {_digest(b''.join(digests)).hex()}"


def values_of(encoded: pa.LargeBinaryArray) -> memoryview:
    """All values of an array that begins at its buffers' beginning, one behind the other."""
    data = encoded.buffers()[2]
    size = int(pc.sum(pc.binary_length(encoded)).as_py() or 0)
    return memoryview(data)[:size] if data is not None else memoryview(b"")


def _named(schema: Schema) -> list[str]:
    return [*schema.key.names, *schema.val.names]


def _content(part: Part, schema: Schema, *, timed: bool) -> bytes:
    """The rows of an inline part in their canonical bytes, which no release encodes otherwise.

    As in ``Fingerprint``, columns that were added since count from the last one on that has a value.
    """
    table = decode_inline(dataclasses.replace(part, ts_rewrite=None), schema)
    values = list(schema.val.names)
    while values and table.column(values[-1]).null_count == table.num_rows:
        values.pop()
    names = [*schema.key.names, *values, *([TS.name] if timed else []), DIFF.name]
    rows = encode_key([table.column(name) for name in names])
    return b"".join(len(row).to_bytes(8, "little") + row for row in sorted(rows.to_pylist()))  # type: ignore[arg-type, operator, type-var]  # no nulls here


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HALF).digest()
