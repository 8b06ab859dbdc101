"""Random command histories for a shard, and short ways to make parts and batches."""

import dataclasses
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from persist.core.data.schema import Schema
from persist.core.frontier import Antichain, Description
from persist.core.ids import ReaderId, SessionId, ShardId, Token, WriterId, part_key, rollup_key
from persist.core.shard import commands as c
from persist.core.shard.batch import Block, ColumnStats, HollowBatch, Part, Run, fingerprint
from persist.core.shard.compaction import claimed_by
from persist.core.shard.state import State

SHARD = ShardId.of(b"s" * 16)
SCHEMA = Schema(key={"id": pa.int64()}, val={"name": pa.string()})
WIDER = Schema(key={"id": pa.int64()}, val={"name": pa.string(), "note": pa.string()})
HOLDERS = st.integers(0, 2)


def sixteen(number: int) -> bytes:
    return number.to_bytes(16, "big")


def first_state() -> State:
    bare = State.initial(SHARD, now_ms=1_000, hostname="here")
    rollup = c.Rollup(key=rollup_key(SHARD, 0, bytes(16)), encoded_bytes=10, checksum=7)
    entry = c.SchemaEntry(schema_id=0, schema=SCHEMA.to_bytes(), codec=SCHEMA.codec_name)
    return dataclasses.replace(bare, rollups={0: rollup}, schemas=(entry,))


def part(writer: WriterId, number: int, *, rows: int, lower: int, upper: int, inline: bool = False) -> Part:
    """A part with all fields set, times in ``[lower, upper)``."""
    data = b"x" * 50
    return Part(
        key=None if inline else part_key(SHARD, writer, 1, sixteen(number)),
        inline=data if inline else None,
        encoded_bytes=50 if inline else 4_000,
        decoded_bytes=9_000,
        rows=rows,
        checksum=number & 0xFFFFFFFF,
        key_lower=b"\x02a",
        key_upper=b"\x02b" if number % 2 else None,
        min_ts=lower,
        max_ts=upper - 1,
        diffs_sum=-rows,
        schema_id=0,
        stats=(ColumnStats(name="id", null_count=0, lower=b"a", upper=None), ColumnStats(name="name", null_count=3)),
        blocks=() if inline else (block(rows),),
        footer_bytes=0 if inline else 200,
        footer_checksum=0 if inline else 5,
    )


def block(rows: int) -> Block:
    return Block(first_key=b"\x02a", rows=rows, row_groups=1, offset=0, length=3_800, checksum=1)


def call(holder: int, number: int) -> c.Call:
    """The call ``number`` of a holder's session, which has final answers to all but the newest 20."""
    return c.Call(session=SessionId.of(sixteen(holder)), number=number, first=max(number - 20, 0), known_seqno=0)


def naming(writer: int, number: int) -> dict[str, Any]:
    """A token for every third append, a number for all others."""
    return {"call": call(writer, number)} if number % 3 else {"token": Token.of(sixteen(number))}


def append(
    state: State,
    *,
    rows: int,
    width: int | None,
    writer: int = 0,
    number: int = 0,
    inline: bool = False,
    version: int = -1,
) -> c.CompareAndAppend:
    """An append at the state's upper; ``width`` None closes the shard, 0 is a heartbeat."""
    lower = state.upper
    start = lower.time or 0
    upper = Antichain() if width is None else Antichain.of(start + width) if lower.elements else lower
    writer_id = WriterId.of(sixteen(writer))
    end = start + (width or 1)
    runs = (Run(parts=(part(writer_id, number, rows=rows, lower=start, upper=end, inline=inline),)),) if rows else ()
    return c.CompareAndAppend(
        writer_id=writer_id,
        batch=HollowBatch(desc=Description(lower=lower, upper=upper), runs=runs),
        **naming(writer, number),
        lease_ms=5_000,
        transaction=c.Transaction(app_id="app", version=version) if version >= 0 else None,
    )


def rebasing(state: State, amount: int, *, writer: int, number: int) -> c.CompareAndAppend:
    """A batch from before, at or beyond the upper that is to be moved to it."""
    start = max((state.upper.time or 0) + amount - 20, 0)
    writer_id, end = WriterId.of(sixteen(writer)), start + 1 + amount % 3
    runs = (Run(parts=(part(writer_id, number, rows=3, lower=start, upper=end, inline=False),)),) if amount % 5 else ()
    desc = Description(lower=Antichain.of(start), upper=Antichain.of(end))
    return c.CompareAndAppend(
        writer_id=writer_id,
        batch=HollowBatch(desc=desc, runs=runs),
        **naming(writer, number),
        lease_ms=5_000,
        rebase=True,
    )


def merge(state: State, holder: int, number: int, *, stale: bool) -> c.ApplyMerge:
    """The result of what the holder has claimed, else of any two adjacent batches; or of batches that never were."""
    owner = WriterId.of(sixteen(holder))
    mine = claimed_by(state.trace, owner) or next((each for each in state.trace.spine if len(each.batches) > 1), None)
    if mine is None or stale:
        nothing = HollowBatch(desc=Description(lower=Antichain.of(0), upper=Antichain.of(1)))
        return c.ApplyMerge(owner=owner, inputs=(sixteen(number),), output=nothing, incarnation=state.incarnation)
    return merge_of(state, mine.batches, owner, number)


def merge_of(state: State, batches: tuple[HollowBatch, ...], owner: WriterId, number: int) -> c.ApplyMerge:
    """A result with all rows of its inputs, advanced to the shard's since."""
    rows = sum(batch.rows for batch in batches)
    since, lower, upper = state.since, batches[0].desc.lower, batches[-1].desc.upper
    at = max(since.time or 0, lower.time or 0)
    runs = (Run(parts=(part(owner, number, rows=rows, lower=at, upper=at + 1),)),) if rows else ()
    output = HollowBatch(desc=Description(lower=lower, upper=upper, since=since), runs=runs)
    inputs = tuple(map(fingerprint, batches))
    return c.ApplyMerge(owner=owner, inputs=inputs, output=output, incarnation=state.incarnation)


def reader(number: int) -> ReaderId:
    return ReaderId.of(sixteen(number))


# A step is (kind, holder, amount): what it means depends on the state it meets.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "append", "empty", "inline", "rebase", "transaction", "stale", "replay", "heartbeat",
             "register", "downgrade", "beat", "expire", "critical", "compare", "uncritical", "rollup", "evolve",
             "unwriter", "close", "give up", "claim", "merge", "merge", "release", "collect", "fence", "finalize"]
        ),
        HOLDERS,
        st.integers(0, 40),
    ),
    max_size=60,
)  # fmt: skip


def command(state: State, kind: str, holder: int, amount: int, number: int) -> c.Command[object]:
    """The command that a step means in ``state``."""
    time = Antichain.of((state.upper.time or 0) + amount)
    known = state.critical_readers.get(f"c{holder}")
    made: dict[str, object] = {
        "append": lambda: append(state, rows=1 + amount * 7, width=1 + amount, writer=holder, number=number),
        "inline": lambda: append(state, rows=1, width=1, writer=holder, number=number, inline=True),
        "empty": lambda: append(state, rows=0, width=1 + amount, writer=holder, number=number),
        "heartbeat": lambda: append(state, rows=0, width=0, writer=holder, number=number),
        "transaction": lambda: append(state, rows=2, width=2, writer=holder, number=number, version=amount),
        "stale": lambda: dataclasses.replace(
            append(state, rows=0, width=3, writer=holder, number=number),
            batch=HollowBatch(desc=Description(lower=time, upper=Antichain.of(time.elements[0] + 5))),
        ),
        "rebase": lambda: rebasing(state, amount, writer=holder, number=number),
        "replay": lambda: append(state, rows=1, width=1, writer=holder, number=max(number - 1 - amount, 0)),
        "close": lambda: append(state, rows=0, width=None if amount == 0 else 1, writer=holder, number=number),
        "register": lambda: c.RegisterLeasedReader(
            reader_id=reader(holder), lease_ms=1 + amount * 50, use_critical_since=bool(amount % 2)
        ),
        "downgrade": lambda: c.DowngradeSince(
            reader_id=reader(holder), since=time, outstanding_seqno=state.seqno - amount if amount % 3 else None
        ),
        "beat": lambda: c.HeartbeatReader(reader_id=reader(holder)),
        "expire": lambda: c.ExpireReader(reader_id=reader(holder)),
        "critical": lambda: c.RegisterCriticalReader(
            critical_id=f"c{holder}", opaque=b"o", call=call(holder, number) if amount % 2 else None
        ),
        "compare": lambda: c.CompareAndDowngradeSince(
            critical_id=f"c{holder}", expected=known.opaque if known and amount % 4 else b"?", opaque=b"n", since=time
        ),
        "uncritical": lambda: c.ExpireCriticalReader(
            critical_id=f"c{holder}", call=call(holder, number) if amount % 2 else None
        ),
        "give up": lambda: c.CloseCall(call=call(holder, max(number - amount % 4, 0))),
        "rollup": lambda: c.AddRollup(
            seqno=max(state.seqno - amount, 0),
            rollup=c.Rollup(
                key=rollup_key(SHARD, max(state.seqno - amount, 0), sixteen(number)), encoded_bytes=9, checksum=1
            ),
        ),
        "evolve": lambda: c.EvolveSchema(expected_id=0, schema=WIDER.to_bytes(), codec=WIDER.codec_name),
        "claim": lambda: c.ClaimCompaction(
            owner=WriterId.of(sixteen(holder)), takeover_ms=amount * 50, whole=bool(amount % 3)
        ),
        "merge": lambda: merge(state, holder, number, stale=amount == 0),
        "release": lambda: c.ReleaseCompaction(owner=WriterId.of(sixteen(holder))),
        "collect": lambda: c.RemoveRollups(below=sorted(state.rollups)[amount % len(state.rollups)]),
        "fence": lambda: c.FenceWriters(born_before_ms=amount * 100),
        "finalize": lambda: c.Finalize(force=amount == 7),
        "unwriter": lambda: c.ExpireWriter(writer_id=WriterId.of(sixteen(holder))),
    }
    return made[kind]()  # type: ignore[operator]  # every value is a function
