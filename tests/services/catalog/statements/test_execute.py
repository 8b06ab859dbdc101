"""Execute and Describe with nothing but generated stubs: statements, tokens, roles, pages, and what is refused."""

from typing import Any

import grpc
import pytest
from client.support import Place
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from services.catalog.cataloging import catalog_server, stub_of

from persist.v1 import catalog_ddl_pb2 as ddl
from persist.v1 import catalog_objects_pb2 as objects
from persist.v1 import catalog_pb2 as pb
from persist.v1.catalog_objects_pb2 import CatalogObjectType

TOKEN = "t00000000-0000-4000-8000-00000000000"
FIRST, THIRD, UNKNOWN = map(ddl.CatalogEntryKind.ValueType, (1, 3, 77))


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(f"file:{tmp_path}/blob", f"sqlite:{tmp_path}/consensus.db")


def name(*parts: str) -> ddl.ObjectName:
    return ddl.ObjectName(**dict(zip(("item", "schema", "database"), reversed(parts), strict=False)))


def table(*parts: str, **more) -> ddl.DdlStatement:
    schema = ddl.TableSchema(
        columns=[
            ddl.TableColumn(name="id", type="int64", key=True),
            ddl.TableColumn(name="price", type="decimal128(12, 2)", nullable=True),
        ]
    )
    return ddl.DdlStatement(create_table=ddl.CreateTableStatement(name=name(*parts), schema=schema, **more))


def drop(*parts: str, cascade: bool = False) -> ddl.DdlStatement:
    kind = objects.CATALOG_OBJECT_TYPE_TABLE
    return ddl.DdlStatement(drop=ddl.DropStatement(type=kind, names=[name(*parts)], cascade=cascade))


def comment_on(column: str, text: str, *parts: str) -> ddl.DdlStatement:
    kind = objects.CATALOG_OBJECT_TYPE_TABLE
    return ddl.DdlStatement(comment=ddl.CommentStatement(type=kind, name=name(*parts), text=text, column=column))


def role_of(name: str) -> ddl.DdlStatement:
    return ddl.DdlStatement(create_role=ddl.CreateRoleStatement(name=name))


async def execute(stub, *statements, token: str = "", role: str = "", **more) -> ddl.ExecuteResponse:
    metadata = (("persist-role", role),) if role else ()
    request = ddl.ExecuteRequest(statements=statements, token=token, **more)
    return await stub.Execute(request, timeout=20, metadata=metadata)


async def describe(stub: Any, kind: Any, **more: Any) -> list[Any]:
    """All entries of a kind, page by page."""
    entries, token = list[Any](), ""
    while True:
        answer = await stub.Describe(ddl.DescribeRequest(kind=kind, page_token=token, **more), timeout=20)
        entries += [getattr(entry, entry.WhichOneof("entry")) for entry in answer.entries]
        token = answer.next_page_token
        if not token:
            return entries


def reason(error: grpc.aio.AioRpcError) -> str:
    info = ErrorInfo()
    details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    assert any(detail.Unpack(info) for detail in Status.FromString(details).details)
    return info.reason


async def refused(call) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return reason(error.value)


async def test_statements_make_an_environment_and_entries_tell_what_is_in_it(place):
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        assert await refused(describe(stub, ddl.CATALOG_ENTRY_KIND_ITEM)) == "CATALOG_UNINITIALIZED"
        done = await execute(
            stub,
            ddl.DdlStatement(create_schema=ddl.CreateSchemaStatement(name="sales")),
            table("sales", "orders", sql="CREATE TABLE orders …"),
            role_of("ann"),
            ddl.DdlStatement(
                grant=ddl.GrantStatement(
                    privileges="ra",
                    type=objects.CATALOG_OBJECT_TYPE_TABLE,
                    name=name("sales", "orders"),
                    roles=["ann"],
                )
            ),
            comment_on("price", "who owes", "sales", "orders"),
        )
        assert [each.tag for each in done.executed][:3] == ["CREATE SCHEMA", "CREATE TABLE", "CREATE ROLE"]
        assert done.executed[1].name == "persist.sales.orders"
        databases = await describe(stub, ddl.CATALOG_ENTRY_KIND_DATABASE)
        assert [(each.name, each.owner) for each in databases] == [("persist", "persist")]
        schemas = {(each.database, each.name) for each in await describe(stub, ddl.CATALOG_ENTRY_KIND_SCHEMA)}
        assert {("persist", "public"), ("persist", "sales"), ("", "mz_catalog")} <= schemas
        (item,) = await describe(stub, ddl.CATALOG_ENTRY_KIND_ITEM, name=name("sales", "orders"))
        assert (item.id, item.owner, item.timeline, item.mode) == (done.executed[1].id, "persist", "M", "wal")
        assert item.name == name("persist", "sales", "orders")
        told = [(each.name, each.type, each.key, each.nullable) for each in item.schema.columns]
        assert told == [("id", "int64", True, False), ("price", "decimal128(12, 2)", False, True)]
        assert item.sql == "CREATE TABLE orders …"
        assert item.data.startswith("s")
        roles = {each.name: each.superuser for each in await describe(stub, ddl.CATALOG_ENTRY_KIND_ROLE)}
        assert roles == {"persist": True, "ann": False}
        privileges = await describe(stub, ddl.CATALOG_ENTRY_KIND_PRIVILEGE)
        mine = [each for each in privileges if (each.type, each.object) == (item.type, item.id)]
        assert [(each.grantee, each.grantor, sorted(each.privileges)) for each in mine] == [
            ("ann", "persist", ["a", "r"])
        ]
        variables = {each.name: each.value for each in await describe(stub, ddl.CATALOG_ENTRY_KIND_VARIABLE)}
        assert variables["max_hold_lag"] == "7d"
        (comment,) = await describe(stub, ddl.CATALOG_ENTRY_KIND_COMMENT)
        assert (comment.object, comment.column, comment.text) == (item.id, 2, "who owes")
        events = await describe(stub, ddl.CATALOG_ENTRY_KIND_AUDIT_EVENT)
        assert (events[0].event, events[0].role) == ("create", "persist")
        assert [each.id for each in events] == sorted(each.id for each in events)


async def test_a_role_that_is_not_there_is_told_nothing(place):
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        await execute(stub, role_of("ann"))
        asked = ddl.DescribeRequest(kind=ddl.CATALOG_ENTRY_KIND_ROLE)
        unknown, known = (("persist-role", "nobody"),), (("persist-role", "ann"),)
        assert await refused(stub.Describe(asked, timeout=60, metadata=unknown)) == "CATALOG_UNKNOWN_OBJECT"
        assert await refused(execute(stub, role_of("bob"), role="nobody")) == "CATALOG_UNKNOWN_OBJECT"
        assert {each.role.name for each in (await stub.Describe(asked, timeout=60, metadata=known)).entries} >= {"ann"}


async def test_holds_are_told_with_what_they_hold(place):
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        await execute(stub, table("t"))
        hold = ddl.CreateHoldStatement(name=name("h"), objects=[name("t")], max_lag=ddl.MaxLag(ms=3_600_000))
        await execute(stub, ddl.DdlStatement(create_hold=hold))
        (entry,) = await describe(stub, ddl.CATALOG_ENTRY_KIND_HOLD)
        (item,) = await describe(stub, ddl.CATALOG_ENTRY_KIND_ITEM, name=name("t"))
        assert (list(entry.objects), entry.max_lag, entry.timeline) == ([item.id], 3_600_000, "M")
        assert entry.name == name("persist", "public", "h")
        at = entry.at
        await execute(stub, ddl.DdlStatement(advance_hold=ddl.AdvanceHoldStatement(name=name("h"), to=at)))
        assert (
            await refused(describe(stub, ddl.CATALOG_ENTRY_KIND_HOLD, name=name("nothing"))) == "CATALOG_UNKNOWN_OBJECT"
        )


async def test_a_request_is_executed_once_by_this_leader_and_the_next(place):
    token = f"{TOKEN}1"
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        first = await execute(stub, table("t"), token=token)
        assert await execute(stub, table("t"), token=token) == first
        assert await refused(execute(stub, table("u"), token=token)) == "INVALID_ARGUMENT"
    async with catalog_server(place, generation=1) as server, stub_of(server.endpoint) as stub:
        again = await execute(stub, table("t"), token=token)
        assert (again.executed[0].tag, again.executed[0].id) == (first.executed[0].tag, first.executed[0].id)
        assert await refused(execute(stub, table("u"), token=token)) == "INVALID_ARGUMENT"
        assert await refused(execute(stub, table("t"))) == "CATALOG_UNIQUENESS_VIOLATION"


async def test_pages_tell_each_entry_once_whatever_comes_meanwhile(place):
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        await execute(stub, *(table(f"t{number}") for number in range(25)))
        kind = [objects.CATALOG_OBJECT_TYPE_TABLE]
        request = ddl.DescribeRequest(kind=ddl.CATALOG_ENTRY_KIND_ITEM, types=kind, page_size=10)
        told: list[str] = []
        while True:
            answer = await stub.Describe(request, timeout=20)
            assert len(answer.entries) <= 10
            told += [entry.item.name.item for entry in answer.entries if entry.item.name.database]
            if len(told) == 10:
                await execute(stub, drop("t0"), table("later"))
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
        assert len(told) == len(set(told))
        assert {f"t{number}" for number in range(25)} <= set(told)
        assert (
            await refused(
                stub.Describe(ddl.DescribeRequest(kind=ddl.CATALOG_ENTRY_KIND_ITEM, page_size=100_000), timeout=20)
            )
            == "INVALID_ARGUMENT"
        )


async def test_a_role_without_privileges_writes_neither_statements_nor_rows(place):
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        await execute(stub, table("t"), role_of("ann"), role_of("bob"))
        for statement in (table("u"), drop("t"), role_of("eve")):
            assert await refused(execute(stub, statement, role="ann")) == "CATALOG_PRIVILEGE_MISSING"
        assert await refused(execute(stub, table("u"), role="nobody")) == "CATALOG_UNKNOWN_OBJECT"
        ann = (("persist-role", "ann"),)
        session = (await stub.OpenSession(pb.OpenSessionRequest(), timeout=20)).session
        refusals = [
            stub.OpenSession(pb.OpenSessionRequest(), timeout=20, metadata=ann),
            stub.Commit(pb.CommitRequest(session=session, request_id=b"r" * 16), timeout=20, metadata=ann),
            stub.AllocateIds(
                pb.AllocateIdsRequest(session=session, allocator="user", count=1), timeout=20, metadata=ann
            ),
            stub.EditRow(pb.EditRowRequest(kind="setting", key=b""), timeout=20, metadata=ann),
        ]
        assert [await refused(each) for each in refusals] == ["CATALOG_PRIVILEGE_MISSING"] * 4
        grant = ddl.GrantStatement(
            privileges="A", type=objects.CATALOG_OBJECT_TYPE_SYSTEM, name=name("x"), roles=["bob"]
        )
        await execute(stub, ddl.DdlStatement(grant=grant))
        await stub.OpenSession(pb.OpenSessionRequest(), timeout=20, metadata=(("persist-role-bin", b"bob"),))


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (ddl.ExecuteRequest(), "INVALID_ARGUMENT"),
        (ddl.ExecuteRequest(statements=[ddl.DdlStatement()]), "INVALID_ARGUMENT"),
        (ddl.ExecuteRequest(statements=[ddl.DdlStatement()] * 1_001), "REQUEST_TOO_LARGE"),
        (ddl.ExecuteRequest(statements=[table("t")], token="t"), "INVALID_ID"),
        (ddl.ExecuteRequest(statements=[table("t")] * 2), "CATALOG_UNIQUENESS_VIOLATION"),
        (ddl.ExecuteRequest(statements=[table("mz_mine")]), "INVALID_ARGUMENT"),
        (ddl.ExecuteRequest(statements=[table("x" * 300)]), "INVALID_ARGUMENT"),
        (ddl.ExecuteRequest(statements=[table("no", "t")]), "CATALOG_UNKNOWN_OBJECT"),
        (ddl.ExecuteRequest(statements=[table("t")], search_path=[ddl.SearchPathEntry()] * 65), "REQUEST_TOO_LARGE"),
        (ddl.ExecuteRequest(statements=[table("t", mode="odd")]), "INVALID_ARGUMENT"),
        (ddl.ExecuteRequest(statements=[table("t", timeline="?")]), "INVALID_ARGUMENT"),
        (ddl.ExecuteRequest(statements=[table("mz_catalog", "t")]), "INVALID_ARGUMENT"),
        (ddl.ExecuteRequest(statements=[drop("mz_catalog", "mz_holds")]), "INVALID_ARGUMENT"),
        (
            ddl.ExecuteRequest(
                statements=[ddl.DdlStatement(create_view=ddl.CreateViewStatement(name=name("v"), query="q"))]
            ),
            "INVALID_ARGUMENT",
        ),
        (ddl.DescribeRequest(), "INVALID_ARGUMENT"),
        (ddl.DescribeRequest(kind=UNKNOWN), "INVALID_ARGUMENT"),
        (
            ddl.DescribeRequest(kind=FIRST, name=ddl.ObjectName(item="t")),
            "INVALID_ARGUMENT",
        ),
        (ddl.DescribeRequest(kind=THIRD, types=[CatalogObjectType.ValueType(99)]), "INVALID_ARGUMENT"),
        (ddl.DescribeRequest(kind=THIRD, page_token="x" * 2_000), "INVALID_ARGUMENT"),
    ],
    ids=range(19),
)
async def test_a_hostile_request_is_refused_and_changes_nothing(place, request_, told):
    async with catalog_server(place) as server, stub_of(server.endpoint) as stub:
        await execute(stub, table("there"))
        before = await describe(stub, ddl.CATALOG_ENTRY_KIND_AUDIT_EVENT)
        call = stub.Execute if isinstance(request_, ddl.ExecuteRequest) else stub.Describe
        assert await refused(call(request_, timeout=20)) == told
        assert await describe(stub, ddl.CATALOG_ENTRY_KIND_AUDIT_EVENT) == before
        assert await refused(call(request_)) == "MISSING_DEADLINE"


async def test_a_server_that_only_follows_executes_nothing_and_describes_all(place):
    async with (
        catalog_server(place) as leader,
        catalog_server(place, follow=True) as follower,
        stub_of(leader.endpoint) as led,
        stub_of(follower.endpoint) as stub,
    ):
        await execute(led, table("t"))
        assert await refused(execute(stub, table("u"))) == "CATALOG_NOT_WRITABLE"
        (item,) = await describe(stub, ddl.CATALOG_ENTRY_KIND_ITEM, name=name("t"))
        assert item.name.item == "t"
        await execute(led, table("v"))
        (item,) = await describe(stub, ddl.CATALOG_ENTRY_KIND_ITEM, name=name("v"))
        assert item.name.item == "v"


async def test_a_server_does_not_depose_another_one_that_leads(place):
    async with (
        catalog_server(place) as leader,
        catalog_server(place) as other,
        stub_of(leader.endpoint) as led,
        stub_of(other.endpoint) as stub,
    ):
        await execute(led, table("t"))
        assert await refused(execute(stub, table("u"))) == "CATALOG_NOT_WRITABLE"
        await execute(led, table("v"))
