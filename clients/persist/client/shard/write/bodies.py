"""Distinguishes one body of updates from another, so that a token used twice by mistake loses no rows.

Source: persist-semantics.md section 2.3.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

from persist.core.data.encoding import encode_key
from persist.core.data.schema import DIFF, TS, Schema
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


def _content(part: Part, schema: Schema, *, timed: bool) -> bytes:
    """The rows of an inline part in their canonical bytes, which no release encodes otherwise."""
    table = decode_inline(dataclasses.replace(part, ts_rewrite=None), schema)
    names = [*schema.key.names, *schema.val.names, *([TS.name] if timed else []), DIFF.name]
    rows = encode_key([table.column(name) for name in names])
    return b"".join(len(row).to_bytes(8, "little") + row for row in sorted(rows.to_pylist()))  # type: ignore[arg-type, operator, type-var]  # no nulls here


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HALF).digest()
