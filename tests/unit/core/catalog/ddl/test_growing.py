"""ALTER TABLE … ADD COLUMN as the leader plans it: who may, what is recorded, and what goes on as it was."""

import pyarrow as pa
import pytest
from unit.core.catalog.ddl.world import ROWS, World, index, materialized, name, source, table, view

from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import AddColumns, AddedColumn, CreateCursor, CreateRole, CreateSink
from persist.core.catalog.errors import OutOfSync, PrivilegeMissing, UniquenessViolation, UnknownObject
from persist.core.catalog.values import AuditAlteredV1, AuditEventType, KnownColumns
from persist.core.data.schema import Schema
from persist.errors import InvalidArgument, TypeNotSupported

WIDE = Schema({"k": pa.int64()}, {"v": pa.string(), "n": pa.int32()})


def add(text: str, *columns: tuple[str, pa.DataType] | tuple[str, pa.DataType, bool], **options: bool) -> AddColumns:
    return AddColumns(name(text), tuple(AddedColumn(*each) for each in columns), **options)


@pytest.fixture
def world() -> World:
    made = World()
    made.run(table("t"))
    made.events.clear()
    return made


def test_columns_come_behind_those_that_there_are(world: World) -> None:
    id = world.get("t").id
    effects, (done,) = world.run(add("t", ("n", pa.int32())))
    assert (done.tag, done.id, done.notice) == ("ALTER TABLE", id, "")
    assert world.get("t").schema == WIDE
    assert [each.schema for each in effects.grown] == [WIDE]
    (event,) = world.events
    assert event.event_type is AuditEventType.ALTER
    assert event.details == AuditAlteredV1(str(id), "persist.public.t", "columns", "k, v", "k, v, n")
    effects, _ = world.run(add("t", ("a", pa.list_(pa.string())), ("B", pa.date32())))
    assert world.get("t").column_names == ("k", "v", "n", "a", "B")
    assert len(effects.grown) == 1


@pytest.mark.parametrize("there", ["v", "V", "K"])
def test_a_column_that_is_there_is_not_added_again(world: World, there: str) -> None:
    with pytest.raises(UniquenessViolation) as refused:
        world.run(add("t", ("n", pa.int32()), (there, pa.int32())))
    assert refused.value.details["column"] == there.lower()
    assert world.get("t").schema == ROWS
    effects, (done,) = world.run(add("t", (there, pa.int32(), True)))
    assert done.notice == f"column {there.lower()} of persist.public.t exists, skipping"
    assert (effects.grown, world.events) == ((), [])
    effects, (done,) = world.run(add("t", (there, pa.int32(), True), ("n", pa.int32(), True)))
    assert world.get("t").schema == WIDE
    with pytest.raises(UniquenessViolation):
        world.run(add("t", ("x", pa.int32()), ("X", pa.int32())))


@pytest.mark.parametrize("reserved", ["ts", "DIFF", "_commit_version", ""])
def test_reserved_names_are_refused(world: World, reserved: str) -> None:
    with pytest.raises(InvalidArgument):
        world.run(add("t", (reserved, pa.int32())))
    with pytest.raises(TypeNotSupported):
        world.run(add("t", ("n", pa.float16())))
    assert world.get("t").schema == ROWS


def test_only_the_owner_adds_columns_and_only_to_tables(world: World) -> None:
    world.run(CreateRole("alice"), source("s", "fed"))
    world.run(view("v", "t"), materialized("m", "t"))
    with pytest.raises(PrivilegeMissing):
        world.run(add("t", ("n", pa.int32())), session=Session("alice"))
    for other in ("s", "fed", "v", "m"):
        with pytest.raises(InvalidArgument):
            world.run(add(other, ("n", pa.int32())))
    with pytest.raises(InvalidArgument):
        world.run(add("mz_catalog.mz_holds", ("n", pa.int32())))
    with pytest.raises(UnknownObject):
        world.run(add("none", ("n", pa.int32())))
    _, (done,) = world.run(add("none", ("n", pa.int32()), if_exists=True))
    assert done.notice == "none does not exist, skipping"


def test_what_reads_the_table_by_a_query_keeps_the_columns_it_was_made_of(world: World) -> None:
    world.run(view("v", "t"), materialized("m", "t"))
    world.run(CreateCursor(name("c"), 'SELECT * FROM "persist"."public"."t"', (name("t"),), ROWS))
    world.run(CreateSink(name("k"), name("t"), "files", (("path", "p"),)), index("i", "t"), view("over", "v"))
    id = world.get("t").id
    before = {each: world.get(each) for each in ("i", "over")}
    world.run(add("t", ("n", pa.int32())))
    known = (KnownColumns(id, ("k", "v")),)
    names = [each.details.name for each in world.events[-5:] if isinstance(each.details, AuditAlteredV1)]
    assert list(zip([str(each.object_type) for each in world.events[-5:]], names, strict=True)) == [
        ("view", "persist.public.v"),
        ("materialized_view", "persist.public.m"),
        ("cursor", "persist.public.c"),
        ("sink", "persist.public.k"),
        ("table", "persist.public.t"),
    ]
    assert world.events[-2].details == AuditAlteredV1(
        str(world.get("k").id), "persist.public.k", "columns of persist.public.t", None, "k, v"
    )
    assert {each: world.get(each).known for each in ("v", "m", "c", "k")} == dict.fromkeys(("v", "m", "c", "k"), known)
    assert {each: world.get(each) for each in before} == before
    assert world.get("t").narrowed(world.get("v").known).schema == ROWS
    world.run(view("later", "t"))
    world.run(add("t", ("o", pa.int32())))
    assert world.get("v").known == known
    assert world.get("later").known == (KnownColumns(id, ("k", "v", "n")),)
    assert world.get("t").narrowed(world.get("later").known).schema == WIDE


def test_a_view_that_is_replaced_knows_all_columns_again(world: World) -> None:
    world.run(view("v", "t"))
    world.run(add("t", ("n", pa.int32())))
    assert world.get("v").known
    world.run(view("v", "t", replace=True))
    assert world.get("v").known == ()


def test_what_was_understood_before_is_refused_after(world: World) -> None:
    meant = world.get("t").meaning
    world.run(add("t", ("n", pa.int32())))
    with pytest.raises(InvalidArgument, match="come to mean something else"):
        world.run(view("v", "t", meant=(meant,)))


def test_in_one_transaction_what_is_made_has_all_columns_at_once(world: World) -> None:
    effects, _ = world.run(table("u"), add("u", ("n", pa.int32())), view("v", "u"))
    assert [each.schema for each in effects.created] == [WIDE]
    assert effects.grown == ()
    assert world.get("v").known == ()


def test_of_two_at_once_one_wins_and_the_other_begins_anew(world: World) -> None:
    one, _, _ = world.plan(add("t", ("n", pa.int32())))
    other, _, _ = world.plan(add("t", ("n", pa.int32())))
    made, _, _ = world.plan(view("v", "t"))
    world.commit(one)
    for late in (other, made):
        with pytest.raises(OutOfSync):
            late.batch()
    with pytest.raises(UniquenessViolation):
        world.run(add("t", ("n", pa.int32())))
