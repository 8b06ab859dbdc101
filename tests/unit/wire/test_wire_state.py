"""Durable bytes: golden ones decode for ever, all others are refused before they are believed."""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from google.protobuf.message import Message
from sure import sure
from unit.core.shard.sample import AFTER, BEFORE, FIRST, SECOND, SHARD, WRITER

from persist.core.frontier import Antichain, Description
from persist.core.ids import ShardId, WriterId, part_key
from persist.core.shard.batch import Block, ColumnStats, HollowBatch, Part, Run
from persist.core.shard.diff import apply_diff, diff
from persist.core.shard.state import STATE_FORMAT, State
from persist.core.shard.table import Table
from persist.core.shard.trace import Trace, spine_batch
from persist.errors import CorruptData, InvalidArgument, PersistError, VersionMismatch
from persist.machine.garbage.released import let_go, taken_up
from persist.storage.ports import VALUE_BYTES_MAX
from persist.v1 import state_pb2, types_pb2
from persist.wire.frame import framed
from persist.wire.shard.batch import batch_from_bytes, batch_from_proto, batch_to_bytes, batch_to_proto
from persist.wire.shard.shown import state_to_json
from persist.wire.shard.state import decode_diff, decode_rollup, encode_diff, encode_rollup

GOLDEN = Path(__file__).parents[2] / "golden" / "state"
ROLLUP = encode_rollup(AFTER)
DIFF = encode_diff(diff(BEFORE, AFTER), SHARD)
OTHER = ShardId.of(b"o" * 16)
DECODE = {"rollup": (decode_rollup, ROLLUP), "diff": (decode_diff, DIFF)}
EMPTIED = (dataclasses.replace(FIRST, runs=()),)
BOTH = pytest.mark.parametrize(("decode", "data"), DECODE.values(), ids=DECODE.keys())


def test_golden_rollup_decodes_and_encodes_to_the_same_bytes():
    data = (GOLDEN / "rollup-2.bin").read_bytes()
    assert decode_rollup(data, SHARD, 301) == AFTER
    assert encode_rollup(AFTER) == data


def test_golden_diff_leads_from_state_to_state_and_encodes_to_the_same_bytes():
    data = (GOLDEN / "diff-2.bin").read_bytes()
    assert apply_diff(BEFORE, decode_diff(data, SHARD, 301)) == AFTER
    assert encode_diff(diff(BEFORE, AFTER), SHARD) == data


def test_golden_diff_of_a_merge_names_what_goes():
    [first, *others] = AFTER.trace.spine
    merged = dataclasses.replace(AFTER.trace, spine=(spine_batch(first.lo, first.hi, EMPTIED), *others))
    after = dataclasses.replace(AFTER, seqno=302, walltime_ms=AFTER.walltime_ms + 1, trace=merged)
    data = (GOLDEN / "diff-2-gone.bin").read_bytes()
    assert encode_diff(diff(AFTER, after), SHARD) == data
    change = decode_diff(data, SHARD, 302)
    assert apply_diff(AFTER, change) == after
    assert let_go(change) == {part.key for part in FIRST.parts if part.key}


def joined_and_stepped() -> tuple[State, State]:
    """A state of format 3 that joins two batches in one commit with a step of them."""
    third = dataclasses.replace(SECOND, desc=dataclasses.replace(SECOND.desc, lower=Antichain.of(10)), truncated=False)
    [one, two] = FIRST.runs
    [few] = third.runs
    new = dataclasses.replace(one.parts[1], key=part_key(SHARD, WriterId(WRITER), 1, b"n" * 16), rows=7)
    desc = Description(lower=Antichain.of(0), upper=Antichain.of(20), since=Antichain.of(6))
    after = HollowBatch(desc=desc, runs=(Run(parts=(one.parts[0], new)), two))
    before = dataclasses.replace(
        AFTER, format=3, known_format=3, trace=Trace(
            since=Antichain.of(6), upper=Antichain.of(20), next_id=2, spine=(spine_batch(0, 2, (FIRST, third)),)
        )
    )  # fmt: skip
    trace = dataclasses.replace(before.trace, spine=(spine_batch(0, 2, (after,)),))
    assert few.parts[0].inline
    return before, dataclasses.replace(before, seqno=302, walltime_ms=before.walltime_ms + 1, trace=trace)


def test_golden_diff_of_a_batch_that_changed_by_parts():
    before, after = joined_and_stepped()
    data = (GOLDEN / "diff-3-changed.bin").read_bytes()
    assert encode_diff(diff(before, after), SHARD) == data
    change = decode_diff(data, SHARD, 302)
    assert apply_diff(before, change) == after
    [splice] = sure(change.spine).splices
    assert [(each.run, each.at, each.count, len(each.come)) for each in sure(splice.changed).runs] == [
        (0, 1, 1, 1),
        (2, 0, 1, 0),
    ]
    assert let_go(change) == {FIRST.runs[0].parts[1].key}
    assert taken_up(change) == {after.trace.spine[0].batches[0].runs[0].parts[1].key}
    for wrong in (BEFORE, dataclasses.replace(before, trace=after.trace)):
        with pytest.raises(CorruptData):
            apply_diff(dataclasses.replace(wrong, seqno=301), change)


def test_parts_are_named_in_no_format_before_the_third():
    before, after = joined_and_stepped()
    with pytest.raises(CorruptData, match="its format does not have"):
        encode_diff(dataclasses.replace(diff(before, after), format=2), SHARD)
    before, after = (dataclasses.replace(each, format=2) for each in (before, after))
    change = diff(before, after)
    assert change.spine is not None
    assert [(len(each.gone), len(each.come), each.changed) for each in change.spine.splices] == [(2, 1, None)]
    assert apply_diff(before, decode_diff(encode_diff(change, SHARD), SHARD, 302)) == after


def test_golden_compressed_frames_are_read():
    assert decode_rollup((GOLDEN / "rollup-2-zstd.bin").read_bytes(), SHARD, 301) == AFTER
    assert apply_diff(BEFORE, decode_diff((GOLDEN / "diff-2-zstd.bin").read_bytes(), SHARD, 301)) == AFTER


def of_format_1(state: State) -> State:
    """What is left of a state that was written in format 1: it knew no sessions, and its tokens are forgotten."""
    nothing: Table = Table()
    transactions = Table({name: dataclasses.replace(each, owner="") for name, each in state.transactions.items()})
    return dataclasses.replace(
        state, format=1, known_format=0,
        incarnation=0, sessions=nothing, sessions_forgotten=0, tokens=nothing, tokens_forgotten=0,
        transactions=transactions,
    )  # fmt: skip


def test_golden_states_of_format_1_are_read():
    before, after = of_format_1(BEFORE), of_format_1(AFTER)
    assert decode_rollup((GOLDEN / "rollup-1.bin").read_bytes(), SHARD, 301) == after
    assert apply_diff(before, decode_diff((GOLDEN / "diff-1.bin").read_bytes(), SHARD, 301)) == after


def test_golden_batch_decodes_and_encodes_to_the_same_bytes():
    data = (GOLDEN / "batch-1.bin").read_bytes()
    assert batch_from_bytes(data) == FIRST
    assert batch_to_bytes(FIRST) == data


def test_golden_json_is_what_inspect_tells():
    assert state_to_json(AFTER) == json.loads((GOLDEN / "state-2.json").read_text("utf-8"))


def test_mark_of_forgotten_applications_is_kept_in_rollups_and_diffs():
    after = dataclasses.replace(AFTER, transactions_forgotten=2**64 - 1)
    assert decode_rollup(encode_rollup(after), SHARD, 301) == after
    assert apply_diff(BEFORE, decode_diff(encode_diff(diff(BEFORE, after), SHARD), SHARD, 301)) == after


def test_diff_does_not_repeat_batches_that_only_move():
    change = diff(BEFORE, AFTER).spine
    assert change is not None
    assert [(each.kept, len(each.gone), len(each.come)) for each in change.splices] == [(2, 0, 1)]
    assert [entry.lo for entry in change.removed] == [5, 6]


def test_diff_for_another_state_is_refused():
    later = dataclasses.replace(BEFORE, walltime_ms=BEFORE.walltime_ms + 1)
    for state in (AFTER, later):
        with pytest.raises(CorruptData):
            apply_diff(state, diff(BEFORE, AFTER))


@BOTH
def test_flipped_bit_anywhere_is_corrupt(decode, data):
    for at in range(0, len(data) * 8, 7):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptData):
            decode(bytes(flipped), SHARD, 301)


@BOTH
def test_truncated_or_longer_bytes_are_corrupt(decode, data):
    for length in [*range(40), len(data) // 2, len(data) - 1]:
        with pytest.raises(CorruptData):
            decode(data[:length], SHARD, 301)
    with pytest.raises(CorruptData):
        decode(data + b"\0", SHARD, 301)


@BOTH
@pytest.mark.parametrize(
    ("shard", "seqno"), [(OTHER, 301), (SHARD, 300), (SHARD, 302)], ids=["shard", "older", "newer"]
)
def test_bytes_of_another_place_are_corrupt(decode, data, shard, seqno):
    with pytest.raises(CorruptData):
        decode(data, shard, seqno)


def test_diff_and_rollup_are_not_taken_for_each_other():
    with pytest.raises(CorruptData):
        decode_rollup(DIFF, SHARD, 301)
    with pytest.raises(CorruptData):
        decode_diff(ROLLUP, SHARD, 301)


def _binding(seqno: int = 301) -> bytes:
    return SHARD.encode() + seqno.to_bytes(8, "little")


def _diff(message: state_pb2.StateDiff, version: int = STATE_FORMAT) -> bytes:
    return framed(b"pDIF", version, _binding(), message)


def test_whole_bytes_of_another_format_are_a_version_mismatch():
    for version in (0, STATE_FORMAT + 1, 255):
        with pytest.raises(VersionMismatch) as refused:
            decode_diff(_diff(state_pb2.StateDiff(), version), SHARD, 301)
        assert refused.value.details["found"] == str(version)


@pytest.mark.parametrize("nested", [False, True], ids=["top level", "nested"])
def test_field_this_release_does_not_know_is_a_version_mismatch(nested):
    # Field 2000, varint 1: what a release with one more field would write.
    unknown = b"\x80\x7d\x01"
    message = state_pb2.StateDiff.FromString(DIFF[14:])
    if nested:
        message.splices[0].come[0].runs[0].parts[0].MergeFromString(unknown)
    else:
        message.MergeFromString(unknown)
    with pytest.raises(VersionMismatch):
        decode_diff(_diff(message), SHARD, 301)


@pytest.mark.parametrize(
    "at",
    [
        lambda message: message,
        lambda message: message.spine[0],
        lambda message: message.spine[0].batches[0],
        lambda message: message.spine[0].batches[0].runs[0].parts[0],
    ],
    ids=["top level", "spine batch", "batch", "part"],
)
def test_field_this_release_does_not_know_in_a_rollup_is_a_version_mismatch(at):
    message = state_pb2.StateRollup.FromString(ROLLUP[14:])
    at(message).MergeFromString(b"\x80\x7d\x01")
    with pytest.raises(VersionMismatch) as refused:
        decode_rollup(framed(b"pROL", STATE_FORMAT, _binding(), message), SHARD, 301)
    assert (refused.value.details["shard"], refused.value.details["seqno"]) == (str(SHARD), "301")


@pytest.mark.parametrize("bad", [b"\x0b", b"\x32\x05\x08"], ids=["group", "beyond the end"])
def test_spine_that_is_no_message_names_its_shard(bad):
    class Broken:
        """What else there is stands as it was written."""

        def SerializeToString(self, deterministic):
            return ROLLUP[14:] + b"\x5a" + bytes([len(bad)]) + bad

    with pytest.raises(CorruptData) as refused:
        decode_rollup(framed(b"pROL", STATE_FORMAT, _binding(), cast(Any, Broken())), SHARD, 301)
    assert (refused.value.details["shard"], refused.value.details["seqno"]) == (str(SHARD), "301")


def _without_since(message: state_pb2.StateRollup) -> None:
    message.ClearField("since")


def _two_uppers(message: state_pb2.StateRollup) -> None:
    message.upper.elements.extend([1, 2])


def _short_token(message: state_pb2.StateRollup) -> None:
    message.tokens[0].token = b"short"


def _short_reader(message: state_pb2.StateRollup) -> None:
    message.leased_readers[0].reader_id = b""


def _batch_without_bounds(message: state_pb2.StateRollup) -> None:
    message.spine[0].batches[0].ClearField("desc")


def _batch_upside_down(message: state_pb2.StateRollup) -> None:
    message.spine[0].batches[0].desc.lower.elements[0] = 11


def _part_of_nothing(message: state_pb2.StateRollup) -> None:
    message.spine[0].batches[0].runs[0].parts[0].key = ""


def _wrong_count(message: state_pb2.StateRollup) -> None:
    message.spine[0].count = 5


def _wrong_shard(message: state_pb2.StateRollup) -> None:
    message.shard_id = OTHER


def _no_shard(message: state_pb2.StateRollup) -> None:
    message.shard_id = "x"


def _wrong_seqno(message: state_pb2.StateRollup) -> None:
    message.seqno = 300


@pytest.mark.parametrize(
    "spoil",
    [
        _without_since, _two_uppers, _short_token, _short_reader, _batch_without_bounds, _batch_upside_down,
        _part_of_nothing, _wrong_count, _wrong_shard, _no_shard, _wrong_seqno,
    ],
)  # fmt: skip
def test_sound_frame_around_nonsense_is_corrupt(spoil):
    message = state_pb2.StateRollup.FromString(ROLLUP[14:])
    spoil(message)
    with pytest.raises(CorruptData):
        decode_rollup(framed(b"pROL", STATE_FORMAT, _binding(), message), SHARD, 301)


def test_sound_frame_around_bytes_that_are_no_message_is_corrupt():
    class Noise:
        def SerializeToString(self, *, deterministic: bool) -> bytes:
            return b"\xff" * 40

    with pytest.raises(CorruptData):
        decode_diff(framed(b"pDIF", STATE_FORMAT, _binding(), cast(Message, Noise())), SHARD, 301)


@pytest.mark.parametrize("damage", [b"", b"pBAT", batch_to_bytes(SECOND)[:-1], b"x" * 100])
def test_damaged_batch_is_corrupt(damage):
    with pytest.raises(CorruptData):
        batch_from_bytes(damage)


def test_batch_message_that_contradicts_itself_is_refused():
    message = types_pb2.HollowBatch()
    message.CopyFrom(batch_to_proto(SECOND))
    message.runs[0].parts[0].key = "both"
    with pytest.raises(InvalidArgument):
        batch_from_proto(message)


def test_batch_travels_between_processes_without_what_was_remembered_with_it():
    batch = dataclasses.replace(FIRST)
    assert batch.rows == 300
    batch_to_proto(batch)
    again = pickle.loads(pickle.dumps(batch))
    assert again == batch
    assert set(vars(again)) == {"desc", "runs", "truncated"}


def test_errors_say_where_the_bytes_were_found():
    with pytest.raises(PersistError) as refused:
        decode_diff(DIFF[:-1], SHARD, 301)
    assert refused.value.details == {"shard": str(SHARD), "seqno": "301"}


SCRIPT = """
import sys
from unit.core.shard.sample import AFTER, BEFORE, SHARD
from persist.core.shard.diff import diff
from persist.wire.shard.state import encode_diff, encode_rollup
sys.stdout.write((encode_rollup(AFTER) + encode_diff(diff(BEFORE, AFTER), SHARD)).hex())
"""


def test_bytes_do_not_depend_on_the_order_of_hashing():
    root = Path(__file__).parents[3]
    path = os.pathsep.join(str(root / name) for name in ("clients", "tests"))
    texts = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True, timeout=120
        )
        texts.append(ran.stdout.decode())
    assert texts[0] == texts[1] == (ROLLUP + DIFF).hex()


def _large(number: int, parts: int) -> HollowBatch:
    """A batch of parts of 128 MB, as they are written: 64 blocks, five columns, keys that do not compress."""
    random = Random(number)

    def part(at: int) -> Part:
        return dataclasses.replace(
            FIRST.runs[0].parts[0],
            key=part_key(SHARD, WRITER, 1, random.randbytes(16)),
            checksum=random.getrandbits(32),
            stats=tuple(
                ColumnStats(name=f"column {each}", null_count=0, lower=random.randbytes(8), upper=random.randbytes(8))
                for each in range(5)
            ),
            blocks=tuple(
                Block(
                    first_key=random.randbytes(9),
                    rows=65_536,
                    row_groups=1,
                    offset=2_000_000 * each,
                    length=2_000_000 + random.getrandbits(16),
                    checksum=random.getrandbits(32),
                )
                for each in range(64)
            ),
        )

    desc = Description(lower=Antichain.of(number), upper=Antichain.of(number + 1))
    return HollowBatch(desc=desc, runs=(Run(parts=tuple(part(at) for at in range(parts))),))


def test_diffs_of_large_shards_fit_into_consensus():
    """Three batches of 150 GB are deleted at once; and merged into one that is as large as one of them."""
    batches = tuple(_large(number, 1_200) for number in range(3))
    before = dataclasses.replace(BEFORE, trace=Trace(upper=Antichain.of(3), spine=(spine_batch(0, 3, batches),)))
    merged = dataclasses.replace(
        batches[1], desc=Description(lower=Antichain.of(0), upper=Antichain.of(3)), runs=batches[1].runs
    )
    nothing = HollowBatch(desc=merged.desc)
    for left in (nothing, merged):
        trace = dataclasses.replace(before.trace, spine=(spine_batch(0, 3, (left,)),))
        after = dataclasses.replace(before, seqno=301, walltime_ms=before.walltime_ms + 1, trace=trace)
        data = encode_diff(diff(before, after), SHARD)
        assert len(data) < VALUE_BYTES_MAX
        change = decode_diff(data, SHARD, 301)
        assert apply_diff(before, change) == after
        assert let_go(change) - taken_up(change) == {
            part.key for batch in batches for part in batch.parts if part not in left.parts
        }
