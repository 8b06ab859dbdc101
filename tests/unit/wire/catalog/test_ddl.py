"""Statements that define, there and back again; and messages that no statement can be."""

from typing import get_args

import pyarrow as pa
import pytest

from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.statements import Export, QualifiedName, Refresh, Retain, Statement
from persist.core.catalog.values import Id, ObjectType, Space
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.time.hold import Interval, OnLag
from persist.errors import InvalidArgument, PersistError
from persist.v1 import catalog_ddl_pb2 as pb
from persist.v1.catalog_objects_pb2 import CatalogObjectType
from persist.wire.catalog.ddl import (
    KINDS,
    DdlOutcome,
    body_of,
    outcome_message,
    outcome_of,
    request_message,
    session_in,
    statement_in,
    statement_message,
)
from persist.wire.catalog.ddl_columns import schema_in, schema_message, type_of

ROWS = Schema({"id": pa.int64()}, {"price": pa.decimal128(12, 2), "tags": pa.list_(pa.string())})
BARE, FULL = QualifiedName("t"), QualifiedName("t", "s", "d")
SHARD = ShardId.named("table", "t")
STATEMENTS: list[Statement] = [
    ddl.CreateDatabase("d", True),
    ddl.CreateSchema("s"),
    ddl.CreateSchema("s", "d", True),
    ddl.CreateRole("r", True),
    ddl.CreateTable(BARE, ROWS),
    ddl.CreateTable(FULL, ROWS, "U.own", "direct", True, Retain(), True, "CREATE TABLE t"),
    ddl.CreateSource(BARE, "kafka", (("topic", "t"),), (Export("e", ROWS), Export("f", ROWS, SHARD)), retain=Retain(0)),
    ddl.CreateSource(BARE, "loadgen", claims_epoch=True, remap=SHARD),
    ddl.CreateView(BARE, "SELECT 1", (FULL, BARE), ROWS, asks_time=True, replace=True, meant=(b"", b"it")),
    ddl.CreateMaterializedView(BARE, "SELECT 1", (), ROWS),
    ddl.CreateMaterializedView(BARE, "SELECT 1", (FULL,), ROWS, Refresh(None), retain=Retain(7)),
    ddl.CreateIndex("i", FULL, ("price", "id")),
    ddl.CreateHold(BARE, (FULL,), at=0, max_lag=Interval(5), on_lag=OnLag.ERROR),
    ddl.CreateHold(BARE, all_of=("d", "s"), max_lag=5),
    ddl.CreateCursor(BARE, "SELECT 1", (FULL,), ROWS, at=7),
    ddl.CreateSink(BARE, FULL, "files", (("path", "p"),)),
    ddl.Adopt(BARE, SHARD, ROWS, "U.own", "wal"),
    ddl.Leave(BARE, True),
    ddl.Rename(ObjectType.MATERIALIZED_VIEW, FULL, "u", swap=True),
    ddl.SetOwner(ObjectType.SCHEMA, BARE, "r"),
    ddl.SetRetain(ObjectType.TABLE, BARE, Retain(None)),
    ddl.AddColumns(BARE, (ddl.AddedColumn("c", pa.int64()),)),
    ddl.AddColumns(FULL, (ddl.AddedColumn("c", pa.list_(pa.string())), ddl.AddedColumn("d", pa.date32(), True)), True),
    ddl.AdvanceHold(BARE),
    ddl.AdvanceHold(BARE, 0),
    ddl.Acknowledge(BARE, 0),
    ddl.Drop(ObjectType.CURSOR, (BARE, FULL), cascade=True),
    ddl.Grant("ra", ObjectType.TABLE, FULL, ("r", "PUBLIC"), revoke=True),
    ddl.CommentOn(ObjectType.TABLE, FULL, None, "price"),
    ddl.CommentOn(ObjectType.DATABASE, BARE, ""),
    ddl.SetSystem("max_hold_lag", None),
    ddl.SetSystem("max_hold_lag", "3d"),
]
KIND, UNKNOWN = map(CatalogObjectType.ValueType, (1, 99))


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: type(each).__name__)
def test_a_statement_is_the_same_there_and_back(statement):
    sent = statement_message(statement).SerializeToString()
    assert statement_in(pb.DdlStatement.FromString(sent)) == statement


def test_every_statement_has_a_message_and_a_case_here():
    every = set(get_args(Statement))
    assert set(KINDS) == every
    assert {type(each) for each in STATEMENTS} == every


@pytest.mark.parametrize(
    "message",
    [
        pb.DdlStatement(),
        pb.DdlStatement(create_table=pb.CreateTableStatement()),
        pb.DdlStatement(create_table=pb.CreateTableStatement(name=pb.ObjectName(item="t"))),
        pb.DdlStatement(create_table=pb.CreateTableStatement(name=pb.ObjectName(), schema=schema_message(ROWS))),
        pb.DdlStatement(adopt=pb.AdoptStatement(name=pb.ObjectName(item="t"), schema=schema_message(ROWS))),
        pb.DdlStatement(
            adopt=pb.AdoptStatement(name=pb.ObjectName(item="t"), schema=schema_message(ROWS), shard="../etc")
        ),
        pb.DdlStatement(drop=pb.DropStatement(names=[pb.ObjectName(item="t")])),
        pb.DdlStatement(drop=pb.DropStatement(type=KIND)),
        pb.DdlStatement(grant=pb.GrantStatement(privileges="r", type=KIND, name=pb.ObjectName(item="t"))),
        pb.DdlStatement(create_index=pb.CreateIndexStatement(name="i", on=pb.ObjectName(item="t"))),
        pb.DdlStatement(drop=pb.DropStatement(type=UNKNOWN, names=[pb.ObjectName(item="t")])),
        pb.DdlStatement(create_hold=pb.CreateHoldStatement(name=pb.ObjectName(item="h"), max_lag=pb.MaxLag())),
        pb.DdlStatement(set_retain=pb.SetRetainStatement(type=KIND, name=pb.ObjectName(item="t"))),
        *(
            pb.DdlStatement(add_columns=pb.AddColumnsStatement(name=pb.ObjectName(item="t"), columns=columns))
            for columns in (
                [],
                [pb.AddedColumn(type="int64")],
                [pb.AddedColumn(name="c")],
                [pb.AddedColumn(name="c", arrow=b"?")],
                [
                    pb.AddedColumn(
                        name="c", arrow=pa.schema([("c", pa.int64()), ("d", pa.int64())]).serialize().to_pybytes()
                    )
                ],
            )
        ),
    ],
    ids=lambda each: str(each.WhichOneof("statement")),
)
def test_what_is_no_statement_is_refused_with_the_next_step(message):
    with pytest.raises(PersistError) as refused:
        statement_in(message)
    assert isinstance(refused.value, InvalidArgument) or refused.value.reason == "INVALID_ID"
    assert refused.value.hint


TYPES = [
    pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(),
    pa.time64("us"), pa.duration("ms"), pa.timestamp("ns"), pa.timestamp("us", tz="Europe/Berlin"),
    pa.timestamp("s", tz="+02:00"), pa.decimal128(38, 10), pa.binary(16),
]  # fmt: skip


@pytest.mark.parametrize("given", TYPES, ids=str)
def test_a_type_is_read_as_arrow_writes_it(given):
    assert type_of(str(given)) == given


@pytest.mark.parametrize(
    "text", ["", "list<int64>", "decimal128(99, 1)", "decimal128(2, 3)", "fixed_size_binary[0]", "x"]
)
def test_an_unknown_type_is_refused_with_examples(text):
    with pytest.raises(InvalidArgument, match="no such type") as refused:
        type_of(text)
    assert "int64" in refused.value.hint


def test_columns_alone_make_a_schema_and_without_a_key_all_of_them_are():
    columns = [
        pb.TableColumn(name="id", type="int64", key=True),
        pb.TableColumn(name="name", type="string", nullable=True),
    ]
    keyed = schema_in(pb.TableSchema(columns=columns))
    assert keyed == Schema({"id": pa.field("id", pa.int64(), nullable=False)}, {"name": pa.string()})
    whole = schema_in(pb.TableSchema(columns=columns[1:]))
    assert (whole.key.names, whole.val.names) == (["name"], [])


def test_a_request_says_its_path_and_the_role_goes_beside_it():
    session = Session("ann", (("d", "s"), ("persist", "public")))
    request = request_message([ddl.CreateSchema("x")], session, "t")
    assert session_in(request, "ann") == session
    assert session_in(pb.ExecuteRequest(), "") == Session()


def test_the_body_of_a_request_tells_statements_roles_and_paths_apart():
    one = [ddl.CreateSchema("x")]
    bodies = {
        body_of(one, Session()),
        body_of(one * 2, Session()),
        body_of(one, Session("ann")),
        body_of(one, Session(path=(("d", "s"),))),
        body_of([ddl.CreateSchema("y")], Session()),
    }
    assert len(bodies) == 5
    assert body_of(one, Session()) in bodies


def test_outcomes_are_the_same_there_and_back():
    outcome = DdlOutcome(
        (Executed("CREATE TABLE", Id(Space.USER, 7), "d.s.t", "exists, skipping"), Executed("COMMENT")), 9
    )
    assert outcome_of(outcome_message(outcome)) == outcome
