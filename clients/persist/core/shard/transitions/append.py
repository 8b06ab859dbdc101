"""What a batch must be like to be appended. Source: persist-semantics.md section 2.3; reliability.md section 5."""

import itertools
import re
from dataclasses import dataclass, replace
from typing import Final

from persist.core.frontier import MINIMUM, TIME_MAX, Antichain, Description
from persist.core.ids import WriterId, check_blob_key
from persist.core.shard.batch import ORDER_VERSION, PART_FORMAT, HollowBatch, Part, Run, overlap
from persist.core.shard.state import State
from persist.core.shard.trace import Trace
from persist.core.shard.transitions.dispatch import Context
from persist.errors import EmptyInterval, InvalidArgument, InvalidBounds, InvalidId, Overloaded, RequestTooLarge

BLOCKS_MAX: Final = 64
STATS_MAX: Final = 256
BEHIND_MS: Final = 1_000
"""A writer whose shard has too much to merge comes back after so long."""
BATCHES_LIMIT: Final = "shard_batches_max"
PARTS_LIMIT: Final = "shard_parts_max"
TOO_MANY: Final = {BATCHES_LIMIT: "batches that wait to be merged", PARTS_LIMIT: "parts"}
"""What a shard has too many of, by the setting that says how many it may have."""
DESCRIPTION_BYTES_MAX: Final = 1 << 16
"""Bytes of keys and statistics that describe one part: all of them stay in the state."""

_WRITER = re.compile(r"/n\d+-([0-9a-f]{32})/p")
_SUM_MAX: Final = 1 << 63


BODY_BYTES: Final = 32
"""Half of them are the same for every encoding of the same updates; half say more, or are zeros."""


def same_body(one: bytes, other: bytes) -> bool:
    """Whether two bodies may be of the same updates: what is not given is not compared."""
    if not one or not other:
        return True
    half = BODY_BYTES // 2
    more, less = one[half:], other[half:]
    return one[:half] == other[:half] and (more == less or not any(more) or not any(less))


def is_heartbeat(batch: HollowBatch) -> bool:
    """Whether it has neither rows nor progress, and only extends the writer's lease."""
    return batch.is_empty and batch.desc.lower == batch.desc.upper


def rebased(batch: HollowBatch, upper: Antichain) -> HollowBatch:
    """The batch moved to begin at ``upper``, where it covers at least one time; earlier times are read as ``upper``.

    Raises InvalidArgument (it may hold times that must not be read at all), EmptyInterval (it covers no time),
    InvalidBounds (no time is left beyond ``upper``).
    """
    desc, at = batch.desc, upper.time
    if batch.truncated:
        raise InvalidArgument("a truncated batch cannot be moved", hint="append it within its own bounds")
    if desc.lower == desc.upper:
        raise EmptyInterval("only a batch that covers a time can be moved", hint="raise new_upper", upper=desc.upper)
    if at is None or desc.lower == upper:
        return batch
    if at == TIME_MAX and not desc.upper.is_empty:
        raise InvalidBounds("no time is left beyond the upper", hint="close the shard: new_upper=[]", upper=upper)
    runs = tuple(Run(parts=tuple(_not_before(part, at) for part in run.parts)) for run in batch.runs)
    covers = desc.upper if upper.less_than(desc.upper) else Antichain.of(at + 1)
    return HollowBatch(desc=Description(lower=upper, upper=covers, since=desc.since), runs=runs)


def _not_before(part: Part, time: int) -> Part:
    return part if time <= part.first_ts else replace(part, ts_rewrite=time)


def check_batch(state: State, writer_id: WriterId, batch: HollowBatch, *, parts_max: int) -> None:
    """Raise InvalidBounds, EmptyInterval, InvalidId, InvalidArgument or RequestTooLarge unless it may be appended."""
    desc = batch.desc
    if not desc.lower.less_equal(desc.upper):
        raise InvalidBounds("upper lies below lower", lower=desc.lower, upper=desc.upper)
    if desc.since != MINIMUM:
        raise InvalidArgument("only compaction advances times", hint="leave since at [0]", since=desc.since)
    if batch.is_empty:
        return
    if desc.lower == desc.upper:
        raise EmptyInterval(
            "data needs an interval that holds a time", hint="raise new_upper", lower=desc.lower, upper=desc.upper
        )
    check_parts(state, writer_id, batch, parts_max=parts_max)


def check_parts(
    state: State, writer_id: WriterId, batch: HollowBatch, *, parts_max: int, reused: frozenset[str] = frozenset()
) -> None:
    """Raise InvalidBounds, InvalidId, InvalidArgument or RequestTooLarge unless its parts may be published.

    ``reused``: keys that are in the state already, from any writer.
    """
    desc = batch.desc
    # Compaction moves times up to since, which may lie beyond the upper.
    until = desc.upper.join(_beyond(desc.since)) if desc.since != MINIMUM else desc.upper
    count = sum(len(run.parts) for run in batch.runs)
    if count > parts_max:
        raise RequestTooLarge("too many parts in one append", hint="write larger parts", parts=count, limit=parts_max)
    keys = [part.key for run in batch.runs for part in run.parts if part.key is not None]
    if len(set(keys)) < len(keys):
        # Its rows would be read twice, and the first compaction that replaces one of them would delete both.
        raise InvalidArgument("a part is named twice", parts=len(keys), different=len(set(keys)))
    for run in batch.runs:
        if not run.parts:
            raise InvalidArgument("a run has at least one part")
        for before, after in itertools.pairwise(run.parts):
            if before.key_lower > after.key_lower or overlap(before, after):
                raise InvalidArgument("the parts of a run are not in key order")
        for part in run.parts:
            if part.key is None or part.key not in reused:
                _check_place(state, writer_id, part)
                _check_since(part, desc.since)
            _check_form(state, part)
            _check_sizes(part)
            _check_blocks(part)
            _check_times(part, desc.lower, until, truncated=batch.truncated)


def _beyond(frontier: Antichain) -> Antichain:
    return Antichain() if frontier.time in (None, TIME_MAX) else Antichain.of(frontier.elements[0] + 1)


def _check_place(state: State, writer_id: WriterId, part: Part) -> None:
    if (part.key is None) == (part.inline is None):
        raise InvalidArgument("a part has a key or inline bytes, and not both")
    if part.key is not None:
        check_blob_key(part.key, state.shard)
        wrote = _WRITER.search(part.key)
        if wrote is None or wrote.group(1) != writer_id.hex:
            raise InvalidId(
                "a part must lie under the key of the writer that appends it", key=part.key, writer=writer_id
            )


def _check_since(part: Part, since: Antichain) -> None:
    """SUBTLE: a listen takes all times beyond its batch's since for true ones."""
    if since.time is not None and part.consolidated_since > since.time:
        raise InvalidBounds("a part is advanced beyond its batch's since", to=part.consolidated_since, since=since)


def _check_form(state: State, part: Part) -> None:
    if part.format != PART_FORMAT or part.order_version != ORDER_VERSION:
        raise InvalidArgument("a part has an unknown format or order", format=part.format, order=part.order_version)
    if not 0 <= part.schema_id < len(state.schemas):
        raise InvalidArgument("a part names an unknown schema", hint="register it first", schema_id=part.schema_id)


def _check_sizes(part: Part) -> None:
    sound = (
        0 < part.rows < _SUM_MAX
        and 0 < part.encoded_bytes < _SUM_MAX
        and 0 <= part.decoded_bytes < _SUM_MAX
        and -_SUM_MAX <= part.diffs_sum < _SUM_MAX
        and 0 <= part.checksum < 1 << 32
        and 0 <= part.footer_checksum < 1 << 32
    )
    if not sound:
        raise InvalidArgument("a part's sizes or checksums are out of range", rows=part.rows, bytes=part.encoded_bytes)
    if part.inline is not None and part.encoded_bytes != len(part.inline):
        raise InvalidArgument("an inline part's size is not its bytes", encoded_bytes=part.encoded_bytes)
    if part.key_upper is not None and part.key_upper < part.key_lower:
        raise InvalidArgument("a part's key bounds are the wrong way round")
    if len(part.stats) > STATS_MAX or _description_bytes(part) > DESCRIPTION_BYTES_MAX:
        raise RequestTooLarge("a part's keys and statistics take too much room", hint="truncate the bounds")


def _description_bytes(part: Part) -> int:
    size = len(part.key_lower) + len(part.key_upper or b"")
    for stats in part.stats:
        size += len(stats.name) + len(stats.lower or b"") + len(stats.upper or b"")
    return size + sum([len(block.first_key) for block in part.blocks])


def _check_blocks(part: Part) -> None:
    """The blocks of a part in Blob hold all its rows and lie apart, in order, before the footer."""
    if part.inline is not None:
        if part.blocks or part.footer_bytes:
            raise InvalidArgument("an inline part has no blocks", blocks=len(part.blocks))
        return
    if len(part.blocks) > BLOCKS_MAX:
        raise RequestTooLarge("a part has too many blocks", hint="make blocks larger", limit=BLOCKS_MAX)
    rows, end, sound = 0, 0, part.footer_bytes >= 0
    for block in part.blocks:
        sound = sound and block.offset >= end and block.length > 0 and block.rows > 0 and block.row_groups > 0
        sound = sound and 0 <= block.checksum < 1 << 32
        rows, end = rows + block.rows, block.offset + block.length
    if not sound or rows != part.rows or end + part.footer_bytes > part.encoded_bytes:
        raise InvalidArgument("a part's blocks do not make up the part", rows=part.rows, in_blocks=rows, end=end)


def _check_times(part: Part, lower: Antichain, upper: Antichain, *, truncated: bool) -> None:
    rewrite = part.ts_rewrite or 0
    if not 0 <= part.min_ts <= part.max_ts <= TIME_MAX or not 0 <= rewrite <= TIME_MAX:
        raise InvalidArgument("a part's times are out of range", min_ts=part.min_ts, max_ts=part.max_ts)
    if truncated:
        # Parts may even lie outside altogether: an append retried under tighter bounds keeps its parts as they are.
        return
    if not lower.less_equal_time(part.first_ts):
        raise InvalidBounds("a time lies before lower", time=part.first_ts, lower=lower, upper=upper)
    if upper.less_equal_time(part.last_ts):
        raise InvalidBounds(
            "a time lies at or beyond upper", hint="raise new_upper", time=part.last_ts, lower=lower, upper=upper
        )


@dataclass(frozen=True, slots=True)
class Behind:
    """A limit of what compaction may leave, by its setting, and what a shard has of it with the rows to come."""

    setting: str
    count: int
    limit: int


def check_merged(state: State, batch: HollowBatch, context: Context) -> None:
    """Raise Overloaded while compaction is so far behind that the shard costs its readers and servers too much."""
    found = behind(
        state.trace, batch.part_count, batches_max=context.shard_batches_max, parts_max=context.shard_parts_max
    )
    if found:
        raise overloaded(found.setting, count=found.count, limit=found.limit)


def behind(trace: Trace, parts: int = 1, *, batches_max: int, parts_max: int) -> Behind | None:
    """The limit by which another batch of so many parts is refused. None: it is taken."""
    counted = (
        Behind(BATCHES_LIMIT, trace.unmerged + 1, batches_max),
        Behind(PARTS_LIMIT, trace.parts + parts, parts_max),
    )
    return next((each for each in counted if each.count > each.limit), None)


def overloaded(setting: str, **details: int) -> Overloaded:
    """The refusal of rows by a limit."""
    return Overloaded(
        f"the shard has too many {TOO_MANY[setting]}: nothing was appended",
        hint="wait for compaction, which must run somewhere, or compact the shard; write less often",
        setting=setting,
        retry_after_ms=BEHIND_MS,
        **details,
    )
