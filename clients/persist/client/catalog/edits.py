"""Repairs by hand: one object changed in one append, which fences the leader, also where rows do not sum up.

Source: catalog-semantics.md section 1.2.12.
"""

from collections.abc import Callable

from persist.client.catalog.log.append import append
from persist.client.catalog.port import RowLog
from persist.client.catalog.raw import FROZEN_TAGS, RawCatalog
from persist.core.catalog.kept_settings import check_not_own
from persist.core.catalog.kinds import FENCE_TOKEN, SETTING, AnyKind, check_kind, check_object
from persist.core.catalog.leadership.fencing import EPOCH_LIMIT, KEY, check_epoch_left, check_jump
from persist.core.catalog.leadership.repair import Tally
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.open_rules import Mode, check_open
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.transaction import check_not_version
from persist.errors import InvalidArgument
from persist.typed import AnyKey, AnyValue


async def edit(
    log: RowLog, codec: RowCodec, kind: AnyKind, key: AnyKey, value: AnyValue, check: Callable[[RawCatalog], None]
) -> AnyValue:
    """Insert or change (None: delete) one object, with a new epoch; the previous value. Raises as OpenableCatalog."""
    check_kind(kind)
    check_object(kind, key, value)
    check_not_version(kind, key)
    if kind is SETTING and value is not None:
        # One that is not as the library writes it may be taken away.
        check_not_own(key)
    while True:
        # Once per attempt: a catalog that others write at full speed is repaired after these were stopped.
        read = await log.snapshot(FROZEN_TAGS | {kind.tag})
        raw, tally = RawCatalog.mended(codec, read), Tally(codec, read.updates)
        check_open(Mode.READ_ONLY, None, initialized=raw.is_initialized)
        check(raw)
        before, rows = _change(codec, tally, kind, key, value)
        if await append(log, tally, rows, raw.upper, expected_upper=raw.upper) is None:
            return before


def _change(
    codec: RowCodec, tally: Tally, kind: AnyKind, key: AnyKey, value: AnyValue
) -> tuple[AnyValue, list[tuple[Row, int]]]:
    """The previous value, and what makes the key have one row, whatever it has: with the token that fences."""
    found = tally.kept(kind.tag, codec.encode_key(kind.tag, key))
    before = None if found is None else codec.decode(found)[1]
    seen = tally.last_token()
    if kind is FENCE_TOKEN:
        if key != KEY or value is None or not value > seen:
            raise InvalidArgument(
                "a token fences smaller ones only", hint="give a greater one; repair sets back", there=seen
            )
        check_jump(seen, value.deploy_generation)
        if value.epoch >= EPOCH_LIMIT:
            raise InvalidArgument("no epoch would be left", hint="give a smaller one", limit=EPOCH_LIMIT)
        return before, _replaced(codec, tally, kind, key, value)
    check_epoch_left(seen)
    fence = _replaced(codec, tally, FENCE_TOKEN, KEY, FenceToken(seen.deploy_generation, seen.epoch + 1))
    return before, [*fence, *_replaced(codec, tally, kind, key, value)]


def _replaced(codec: RowCodec, tally: Tally, kind: AnyKind, key: AnyKey, value: AnyValue) -> list[tuple[Row, int]]:
    wanted = None if value is None else codec.encode(kind.tag, key, value)
    return tally.replaced(kind.tag, codec.encode_key(kind.tag, key), wanted)
