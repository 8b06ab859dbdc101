"""Schemas and rollups: what may be registered, found again, evolved and linked."""

import dataclasses

import pyarrow as pa
import pytest
from property.core.shard.histories import SCHEMA, SHARD, WIDER, first_state, sixteen

from persist.core.data.schema import Schema
from persist.core.frontier import CLOSED
from persist.core.ids import ShardId, rollup_key
from persist.core.shard import commands as c
from persist.core.shard.state import State
from persist.core.shard.trace import Trace
from persist.core.shard.transitions.apply import SCHEMA_BYTES_MAX, apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.errors import (
    CodecMismatch,
    InvalidArgument,
    InvalidId,
    RequestTooLarge,
    SchemaMismatch,
    ShardClosed,
)

NOW = Context(now_ms=2_000)
KEY_CHANGED = Schema(key={"id": pa.int32()}, val={"name": pa.string()})
VAL_DROPPED = Schema(key={"id": pa.int64()})
REQUIRED = Schema(
    key={"id": pa.int64()},
    val={"name": pa.field("name", pa.string()), "note": pa.field("note", pa.string(), nullable=False)},
)


def bare() -> State:
    return dataclasses.replace(first_state(), schemas=())


def register(schema: Schema, codec: str | None = None) -> c.RegisterSchema:
    return c.RegisterSchema(schema=schema.to_bytes(), codec=codec or schema.codec_name)


def evolve(schema: Schema, expected_id: int, codec: str | None = None) -> c.EvolveSchema:
    return c.EvolveSchema(expected_id=expected_id, schema=schema.to_bytes(), codec=codec or schema.codec_name)


def test_first_schema_gets_id_0_and_is_found_again():
    state, outcome = apply(bare(), register(SCHEMA), NOW)
    assert outcome.entry == c.SchemaEntry(schema_id=0, schema=SCHEMA.to_bytes(), codec=SCHEMA.codec_name)
    assert state.schemas == (outcome.entry,)
    again, found = apply(state, register(SCHEMA), NOW)
    assert found == outcome
    assert again is state


def test_other_schema_is_refused_and_the_columns_that_differ_are_named():
    state = first_state()
    with pytest.raises(SchemaMismatch) as refused:
        apply(state, register(KEY_CHANGED), NOW)
    assert "int64" in refused.value.details["registered_key"]
    assert "int32" in refused.value.details["given_key"]
    assert "registered_val" not in refused.value.details


def test_schema_of_another_codec_is_refused():
    other = dataclasses.replace(first_state().schemas[0], codec="json")
    state = dataclasses.replace(first_state(), schemas=(other,))
    for command in (register(SCHEMA), evolve(WIDER, 0)):
        with pytest.raises(CodecMismatch):
            apply(state, command, NOW)


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (InvalidArgument, c.RegisterSchema(schema=b"not a schema", codec="arrow")),
        (CodecMismatch, register(SCHEMA, codec="another")),
        (RequestTooLarge, c.RegisterSchema(schema=b"x" * (SCHEMA_BYTES_MAX + 1), codec="arrow")),
    ],
    ids=["garbage", "codec of another name", "too large"],
)
def test_bad_first_schema_is_refused_and_changes_nothing(error, command):
    state = bare()
    with pytest.raises(error):
        apply(state, command, NOW)
    assert state == bare()


def test_evolving_adds_columns_under_the_next_id_and_older_schemas_are_still_found():
    state, outcome = apply(first_state(), evolve(WIDER, 0), NOW)
    assert outcome.entry.schema_id == 1
    assert [entry.schema_id for entry in state.schemas] == [0, 1]
    assert apply(state, register(SCHEMA), NOW)[1].entry.schema_id == 0
    assert apply(state, register(WIDER), NOW)[1].entry.schema_id == 1


def test_evolving_twice_to_the_same_schema_finds_it():
    state, first = apply(first_state(), evolve(WIDER, 0), NOW)
    again, second = apply(state, evolve(WIDER, 0), NOW)
    assert second == first
    assert again is state


@pytest.mark.parametrize(
    ("schema", "expected_id"),
    [(WIDER, 1), (KEY_CHANGED, 0), (VAL_DROPPED, 0), (REQUIRED, 0)],
    ids=["wrong expected id", "key changed", "column dropped", "required column added"],
)
def test_bad_evolution_is_refused_and_changes_nothing(schema, expected_id):
    state = first_state()
    with pytest.raises(SchemaMismatch):
        apply(state, evolve(schema, expected_id), NOW)
    assert state == first_state()


def test_evolving_without_any_schema_is_refused():
    with pytest.raises(SchemaMismatch):
        apply(bare(), evolve(WIDER, 0), NOW)


def test_tombstone_takes_no_new_schema():
    gone = dataclasses.replace(bare(), trace=Trace(since=CLOSED, upper=CLOSED))
    with pytest.raises(ShardClosed):
        apply(gone, register(SCHEMA), NOW)


def rollup(seqno: int, number: int, shard: ShardId = SHARD) -> c.AddRollup:
    made = c.Rollup(key=rollup_key(shard, seqno, sixteen(number)), encoded_bytes=100, checksum=3)
    return c.AddRollup(seqno=seqno, rollup=made)


def advanced(count: int) -> State:
    state = first_state()
    for _ in range(count):
        state = finish(state, dataclasses.replace(state), NOW)
    return state


def test_rollup_is_linked_once_and_the_newest_one_is_told():
    state, outcome = apply(advanced(5), rollup(4, 1), NOW)
    assert outcome == c.RollupAdded(applied=True)
    assert state.latest_rollup[0] == 4
    again, outcome = apply(state, rollup(4, 1), NOW)
    assert outcome == c.RollupAdded(applied=True)
    assert again is state
    lost, outcome = apply(state, rollup(4, 2), NOW)
    assert outcome == c.RollupAdded(applied=False)
    assert lost is state


@pytest.mark.parametrize("seqno", [6, 7], ids=["next seqno", "far future"])
def test_rollup_of_a_state_that_is_not_there_yet_is_not_linked(seqno):
    state = advanced(5)
    moved, outcome = apply(state, rollup(seqno, 1), NOW)
    assert outcome == c.RollupAdded(applied=False)
    assert moved is state


def test_rollup_of_another_shard_is_refused():
    with pytest.raises(InvalidId):
        apply(advanced(5), rollup(4, 1, ShardId.of(b"o" * 16)), NOW)


def test_walltime_moves_on_when_the_clock_does_not():
    state = first_state()
    times = []
    for now_ms in (2_000, 2_000, 1_500, 9_000):
        state = finish(state, dataclasses.replace(state), Context(now_ms=now_ms, hostname="there"))
        times.append(state.walltime_ms)
    assert times == [2_000, 2_001, 2_002, 9_000]
    assert state.hostname == "there"


def test_unknown_command_is_refused():
    class Surprise(c.Command[None]):
        pass

    with pytest.raises(InvalidArgument):
        apply(first_state(), Surprise(), NOW)
