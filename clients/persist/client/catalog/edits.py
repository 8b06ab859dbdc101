"""Repairs by hand: one object changed in one append, which fences whoever leads.

Source: catalog-semantics.md section 1.2.12.
"""

from collections.abc import Callable
from typing import Any

from persist.client.catalog.port import RowLog, Updates
from persist.client.catalog.raw import FROZEN_TAGS, RawCatalog
from persist.core.catalog.fencing import KEY, open_step
from persist.core.catalog.kinds import FENCE_TOKEN, AnyKind
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.opening import Mode, check_open
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.values import Unit
from persist.errors import InvalidArgument


async def edit(
    log: RowLog, codec: RowCodec, kind: AnyKind, key: Any, value: Any, check: Callable[[RawCatalog], None]
) -> Any:
    """Insert or change (None: delete) one object, with a new epoch; the previous value. Raises as OpenableCatalog."""
    while True:
        # Once per attempt: whoever repairs a catalog that others write at full speed should stop them first.
        read = await log.snapshot(FROZEN_TAGS | {kind.tag})
        raw = RawCatalog(codec, read)
        check_open(Mode.READ_ONLY, None, initialized=raw.is_initialized)
        check(raw)
        before, rows = _change(codec, raw, read, kind, key, value)
        if await log.append(rows, raw.upper, expected_upper=raw.upper) is None:
            return before


def _change(
    codec: RowCodec, raw: RawCatalog, read: Updates, kind: AnyKind, key: Any, value: Any
) -> tuple[Any, list[tuple[Row, int]]]:
    seen = raw.token or FenceToken(0, 0)
    if kind is FENCE_TOKEN:
        if key != KEY or value is None or not value > seen:
            raise InvalidArgument("a token fences smaller ones only", hint="give a greater one", there=seen)
        return raw.token, _replaced(codec, kind, key, raw.token, value)
    before = _value(codec, read, kind, key)
    fence = open_step(raw.token, seen.deploy_generation).rows(codec)
    return before, [*fence, *(_replaced(codec, kind, key, before, value) if before != value else ())]


def _value(codec: RowCodec, read: Updates, kind: AnyKind, key: Any) -> Any:
    """What there is under a key. Of append-only kinds, too, which no catalog keeps in memory."""
    like = codec.encode(kind.tag, key, Unit()) if kind.value is Unit else None
    for row, _, _ in read.updates:
        if row.kind != kind.tag:
            continue
        if like is not None:
            if row.key == like.key:
                return Unit()
            continue
        found, value = codec.decode(row)
        if found == key:
            return value
    return None


def _replaced(codec: RowCodec, kind: AnyKind, key: Any, before: Any, after: Any) -> list[tuple[Row, int]]:
    gone = [(codec.encode(kind.tag, key, before), -1)] if before is not None else []
    come = [(codec.encode(kind.tag, key, after), 1)] if after is not None else []
    return [*gone, *come]
