"""What a batch must be like to be appended. Source: persist-semantics.md section 2.3; reliability.md section 5."""

import itertools
import re

from persist.core.frontier import Antichain
from persist.core.ids import WriterId, check_blob_key
from persist.core.shard.batch import ORDER_VERSION, PART_FORMAT, HollowBatch, Part
from persist.core.shard.state import State
from persist.errors import EmptyInterval, InvalidArgument, InvalidBounds, InvalidId

BLOCKS_MAX = 64
STATS_MAX = 256
_WRITER = re.compile(r"/n\d+-([0-9a-f]{32})/p")


def is_heartbeat(batch: HollowBatch) -> bool:
    """Neither rows nor progress: it only extends the writer's lease."""
    return batch.is_empty and batch.desc.lower == batch.desc.upper


def check_batch(state: State, writer_id: WriterId, batch: HollowBatch, *, parts_max: int) -> None:
    """Raise InvalidBounds, EmptyInterval, InvalidId or InvalidArgument unless the batch may be appended."""
    desc = batch.desc
    if not desc.lower.less_equal(desc.upper):
        raise InvalidBounds("upper lies below lower", lower=desc.lower, upper=desc.upper)
    if batch.is_empty:
        return
    if desc.lower == desc.upper:
        raise EmptyInterval(
            "data needs an interval that holds a time", hint="raise new_upper", lower=desc.lower, upper=desc.upper
        )
    count = 0
    for run in batch.runs:
        if not run.parts:
            raise InvalidArgument("a run has at least one part")
        count += len(run.parts)
        _check_order(run.parts)
    if count > parts_max:
        raise InvalidArgument("too many parts in one append", hint="write larger parts", parts=count, limit=parts_max)
    for part in batch.parts:
        _check_part(state, writer_id, part)
        _check_times(part, desc.lower, desc.upper, truncated=batch.truncated)


def _check_order(parts: tuple[Part, ...]) -> None:
    for before, after in itertools.pairwise(parts):
        if before.key_lower > after.key_lower:
            raise InvalidArgument("the parts of a run are not in key order")


def _check_part(state: State, writer_id: WriterId, part: Part) -> None:
    if (part.key is None) == (part.inline is None):
        raise InvalidArgument("a part has a key or inline bytes, and not both")
    if part.key is not None:
        check_blob_key(part.key, state.shard)
        wrote = _WRITER.search(part.key)
        if wrote is None or wrote.group(1) != writer_id.hex:
            raise InvalidId(
                "a part must lie under the key of the writer that appends it", key=part.key, writer=writer_id
            )
    if part.format != PART_FORMAT or part.order_version != ORDER_VERSION:
        raise InvalidArgument("a part has an unknown format or order", format=part.format, order=part.order_version)
    if not 0 <= part.schema_id < len(state.schemas):
        raise InvalidArgument("a part names an unknown schema", hint="register it first", schema_id=part.schema_id)
    if part.rows <= 0 or part.encoded_bytes <= 0 or part.decoded_bytes < 0 or not 0 <= part.checksum < 2**32:
        raise InvalidArgument("a part's sizes or checksum are out of range", rows=part.rows, bytes=part.encoded_bytes)
    if part.inline is not None and part.encoded_bytes != len(part.inline):
        raise InvalidArgument("an inline part's size is not its bytes", encoded_bytes=part.encoded_bytes)
    if len(part.blocks) > BLOCKS_MAX or len(part.stats) > STATS_MAX:
        raise InvalidArgument(
            "a part has too many blocks or statistics", blocks=len(part.blocks), stats=len(part.stats)
        )


def _check_times(part: Part, lower: Antichain, upper: Antichain, *, truncated: bool) -> None:
    if not 0 <= part.min_ts <= part.max_ts < 2**64:
        raise InvalidArgument("a part's times are out of range", min_ts=part.min_ts, max_ts=part.max_ts)
    if truncated:
        return
    if not lower.less_equal_time(part.first_ts):
        raise InvalidBounds("a time lies before lower", time=part.first_ts, lower=lower, upper=upper)
    if upper.less_equal_time(part.last_ts):
        raise InvalidBounds(
            "a time lies at or beyond upper", hint="raise new_upper", time=part.last_ts, lower=lower, upper=upper
        )
