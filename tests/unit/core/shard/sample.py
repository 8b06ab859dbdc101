"""One state with every field set, and the state before it: what golden bytes are made of. Never change it."""

import dataclasses

from persist.core.frontier import CLOSED, MINIMUM, Antichain, Description
from persist.core.ids import ReaderId, SessionId, ShardId, Token, WriterId, part_key, rollup_key
from persist.core.shard.batch import Block, ColumnStats, HollowBatch, Part, Run
from persist.core.shard.commands import Rollup, SchemaEntry
from persist.core.shard.state import (
    CallOutcome,
    CallSession,
    CriticalReader,
    LeasedReader,
    State,
    TokenOutcome,
    TransactionRecord,
    Verdict,
    Writer,
)
from persist.core.shard.table import Table
from persist.core.shard.trace import Claim, SpineBatch, Trace

SHARD = ShardId.of(bytes(range(16)))
WRITER, OTHER = WriterId.of(b"w" * 16), WriterId.of(b"v" * 16)
SESSION, SILENT = SessionId.of(b"n" * 16), SessionId.of(b"m" * 16)
READER, GONE = ReaderId.of(b"r" * 16), ReaderId.of(b"q" * 16)


def _part(number: int, *, inline: bytes | None = None) -> Part:
    blob = inline is None
    return Part(
        key=part_key(SHARD, WRITER, 1, bytes([number]) * 16) if blob else None,
        inline=inline,
        encoded_bytes=4_000 if inline is None else len(inline),
        decoded_bytes=9_000,
        rows=100,
        checksum=0xFEDCBA98,
        key_lower=b"\x02a",
        key_upper=b"\x02z" if blob else None,
        min_ts=10 * number,
        max_ts=10 * number + 9,
        diffs_sum=-(2**63),
        schema_id=1,
        stats=(
            ColumnStats(name="id", null_count=0, lower=b"\x02\x00", upper=b"\x02\xff"),
            ColumnStats(name="größe", null_count=7, has_nan=True),
        ),
        blocks=(
            Block(first_key=b"\x02a", rows=60, row_groups=2, offset=0, length=2_000, checksum=1),
            Block(first_key=b"\x02k", rows=40, row_groups=1, offset=2_000, length=1_800, checksum=0xFFFFFFFF),
        )
        if blob
        else (),
        footer_bytes=200 if blob else 0,
        footer_checksum=77 if blob else 0,
        ts_rewrite=None if blob else 2**64 - 1,
        consolidated_since=5,
    )


def _batch(lower: int, upper: int | None, *runs: Run, since: int = 0, truncated: bool = False) -> HollowBatch:
    bound = CLOSED if upper is None else Antichain.of(upper)
    desc = Description(lower=Antichain.of(lower), upper=bound, since=Antichain.of(since))
    return HollowBatch(desc=desc, runs=runs, truncated=truncated)


def _spine_batch(lo: int, hi: int, level: int, *batches: HollowBatch, claim: Claim | None = None) -> SpineBatch:
    rows, inline = sum(each.rows for each in batches), sum(each.inline_bytes for each in batches)
    return SpineBatch(lo=lo, hi=hi, level=level, rows=rows, inline_bytes=inline, batches=batches, claim=claim)


FIRST = _batch(0, 10, Run(parts=(_part(0), _part(1))), Run(parts=(_part(2),)), since=4)
SECOND = _batch(10, 20, Run(parts=(_part(3, inline=b"few rows"),)), truncated=True)
THIRD = _batch(20, 30)
FOURTH = _batch(30, 2**64 - 1, Run(parts=(_part(4),)))


def _tokens(*numbers: int) -> Table[TokenOutcome]:
    return Table(
        {
            Token.of(bytes([number]) * 16): TokenOutcome(
                upper=Antichain.of(10 * number), seqno=number, committed_ms=100 * number, body=bytes([number]) * 32
            )
            for number in numbers
        }.items()
    )


def _outcomes(*numbers: int) -> tuple[CallOutcome, ...]:
    """Of each kind in turn."""
    kinds = ((Verdict.APPENDED, Antichain.of(7)), (Verdict.CLOSED, None), (Verdict.DONE, None))
    return tuple(
        CallOutcome(number=number, verdict=kinds[number % 3][0], upper=kinds[number % 3][1], seqno=number)
        for number in numbers
    )


def _rollup(seqno: int) -> Rollup:
    return Rollup(key=rollup_key(SHARD, seqno, b"k" * 16), encoded_bytes=1_234, checksum=0x89ABCDEF)


BEFORE = State(
    shard=SHARD,
    seqno=300,
    walltime_ms=1_700_000_000_000,
    hostname="one",
    trace=Trace(
        since=Antichain.of(4),
        upper=Antichain.of(30),
        spine=(
            _spine_batch(0, 5, 9, FIRST, claim=Claim(start_ms=1_699_999_999_000, seqno=290, owner="compactor")),
            _spine_batch(5, 6, 7, SECOND),
            _spine_batch(6, 8, 0, THIRD),
        ),
        next_id=8,
    ),
    rollups={0: _rollup(0), 256: _rollup(256)},
    last_gc_req=17,
    active_gc=Claim(start_ms=1_699_999_999_500, seqno=280, owner="two"),
    leased_readers={
        READER: LeasedReader(since=Antichain.of(4), seqno=250, heartbeat_ms=5, lease_ms=60_000, purpose="naïve"),
        GONE: LeasedReader(since=CLOSED, seqno=251, heartbeat_ms=6, lease_ms=1),
    },
    critical_readers={"hold-1": CriticalReader(since=Antichain.of(4), opaque=b"\x00\xff", purpose="controller")},
    writers=Table(
        {WRITER: Writer(heartbeat_ms=7, lease_ms=3_600_000), OTHER: Writer(heartbeat_ms=8, lease_ms=1)}.items()
    ),
    sessions=Table(
        {
            SESSION: CallSession(first=1, seqno=3, heartbeat_ms=7, lease_ms=3_600_000, outcomes=_outcomes(1, 2, 3)),
            SILENT: CallSession(first=4, seqno=4, heartbeat_ms=8, lease_ms=1, outcomes=_outcomes(4)),
        }.items()
    ),
    tokens=_tokens(1, 2, 3, 4),
    tokens_forgotten=1,
    transactions=Table({"app": TransactionRecord(version=2**63 - 1, upper=Antichain.of(20), seqno=200)}),
    schemas=(SchemaEntry(schema_id=0, schema=b"first schema", codec="arrow"),),
)

AFTER = dataclasses.replace(
    BEFORE,
    seqno=301,
    known_format=2,
    walltime_ms=1_700_000_000_001,
    hostname="two",
    trace=Trace(
        since=Antichain.of(6),
        upper=Antichain.of(2**64 - 1),
        spine=(BEFORE.trace.spine[0], _spine_batch(5, 9, 8, SECOND, THIRD, FOURTH)),
        next_id=9,
    ),
    rollups={256: _rollup(256), 300: _rollup(300)},
    last_gc_req=299,
    active_rollup=Claim(start_ms=1_700_000_000_000, seqno=300, owner="two"),
    active_gc=None,
    leased_readers={
        READER: LeasedReader(
            since=Antichain.of(6), seqno=299, heartbeat_ms=9, lease_ms=60_000, purpose="naïve", hostname="here"
        )
    },
    critical_readers={"hold-2": CriticalReader(since=MINIMUM, opaque=b"")},
    incarnation=2**63 + 5,
    writers=Table({WRITER: Writer(heartbeat_ms=9, lease_ms=3_600_000)}.items()),
    sessions=Table(
        {
            SESSION: CallSession(first=2, seqno=301, heartbeat_ms=9, lease_ms=3_600_000, outcomes=_outcomes(2, 3, 5))
        }.items()
    ),
    sessions_forgotten=4,
    tokens=_tokens(2, 3, 5),
    tokens_forgotten=4,
    transactions=Table(
        {
            "app": TransactionRecord(version=2**63 - 1, upper=Antichain.of(20), seqno=200),
            "other": TransactionRecord(version=0, upper=CLOSED, seqno=301, owner="a query"),
        }
    ),
    schemas=(*BEFORE.schemas, SchemaEntry(schema_id=1, schema=b"second schema", codec="arrow")),
)
