"""Objects of the catalog as JSON: what people see, that nothing is lost, and what is said about wrong JSON."""

import json

import pytest
from hypothesis import given, settings
from property.core.catalog.objects import KEYS, LAW, VALUES

from persist.core.catalog.kinds import (
    AUDIT_LOG,
    CLUSTER,
    CONFIG,
    DATABASE,
    FENCE_TOKEN,
    HOLD,
    ITEM,
    KINDS,
    ROLE,
    SCHEMA,
    UNFINALIZED_SHARD,
)
from persist.core.catalog.objects import (
    AuditLogKey,
    CatalogSchema,
    Cluster,
    Config,
    Database,
    FenceToken,
    FenceTokenKey,
    ItemKey,
    Role,
)
from persist.core.catalog.values import (
    PUBLIC,
    Acl,
    AuditEventType,
    AuditNamedV1,
    FlatVar,
    Id,
    ListVar,
    ManagedCluster,
    ObjectType,
    RoleRef,
    RoleVar,
    Space,
    Unit,
)
from persist.errors import InvalidArgument
from persist.wire.catalog.json import SAFE, parse, read_key, read_value, show_key, show_value

OWNER = RoleRef(Space.USER, 3)
DATABASE_JSON = {"name": "shop", "owner": "u3", "acls": [], "oid": 7}
CLUSTER_JSON = {"name": "c", "owner": "u1", "acls": []}


def numbers(data):
    if isinstance(data, int):
        yield data
    for each in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from numbers(each)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_read_undoes_show_and_no_reader_of_json_rounds_a_number(kind):
    @settings(LAW, max_examples=20)
    @given(KEYS[kind], VALUES[kind])
    def law(key, value):
        shown = show_key(kind, key), show_value(kind, value)
        assert read_key(kind, parse(json.dumps(shown[0]))) == key
        assert read_value(kind, parse(json.dumps(shown[1], ensure_ascii=False))) == value
        assert max(numbers(list(shown)), default=0) <= SAFE

    law()


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (DATABASE, Database("shop", OWNER, (Acl(PUBLIC, RoleRef(Space.SYSTEM, 1), 5),), oid=7), {
            **DATABASE_JSON, "acls": [{"grantee": "p", "grantor": "s1", "mode_bits": 5}],
        }),
        (SCHEMA, CatalogSchema(None, "public", OWNER), {
            "database_id": None, "name": "public", "owner": "u3", "acls": [], "oid": 0,
        }),
        (CLUSTER, Cluster("c", OWNER), {**CLUSTER_JSON, "owner": "u3", "config": {"unmanaged": {}}}),
        (CLUSTER, Cluster("c", OWNER, config=ManagedCluster("1", availability_zones=("a",))), {
            **CLUSTER_JSON, "owner": "u3", "config": {"managed": {
                "size": "1",
                "replication_factor": 1,
                "availability_zones": ["a"],
                "logging": {"log_logging": False, "interval_ms": None},
                "schedule": {"manual": {}},
            }},
        }),
        (ROLE, Role("r", vars=(RoleVar("a", FlatVar("1")), RoleVar("b", ListVar(("1", "2"))))), {
            "name": "r",
            "attributes": {"inherit": True, "superuser": None, "login": None},
            "membership": [],
            "vars": [{"name": "a", "value": {"flat": {"value": "1"}}},
                     {"name": "b", "value": {"list": {"values": ["1", "2"]}}}],
            "oid": 0,
        }),
        (CONFIG, Config(SAFE), {"value": SAFE}),
        (CONFIG, Config(SAFE + 1), {"value": "9007199254740992"}),
        (FENCE_TOKEN, FenceToken(2, 5), {"deploy_generation": 2, "epoch": 5}),
        (UNFINALIZED_SHARD, Unit(), {}),
    ],
)  # fmt: skip
def test_values_are_readable(kind, value, shown):
    assert show_value(kind, value) == shown
    assert read_value(kind, shown) == value


@pytest.mark.parametrize(
    ("kind", "key", "shown"),
    [
        (ITEM, ItemKey(Id(Space.INTROSPECTION, 4)), {"id": "si4"}),
        (ITEM, ItemKey(Id(Space.USER, 2**64 - 1)), {"id": "u18446744073709551615"}),
        (FENCE_TOKEN, FenceTokenKey(), {}),
        (
            AUDIT_LOG,
            AuditLogKey(1, AuditEventType.CREATE, ObjectType.MATERIALIZED_VIEW, None, 5, AuditNamedV1("u1", "v")),
            {
                "id": 1,
                "event_type": "create",
                "object_type": "materialized_view",
                "user": None,
                "occurred_at_ms": 5,
                "details": {"named_v1": {"id": "u1", "name": "v"}},
            },
        ),
    ],
)
def test_keys_are_readable(kind, key, shown):
    assert show_key(kind, key) == shown
    assert read_key(kind, shown) == key


def test_what_may_be_null_may_be_left_out_and_numbers_may_be_text():
    shown = {"name": "public", "owner": "u3", "acls": [], "oid": "12"}
    assert read_value(SCHEMA, shown) == CatalogSchema(None, "public", OWNER, oid=12)


@pytest.mark.parametrize(
    ("kind", "wrong", "field", "expected"),
    [
        (DATABASE, [], "value", "an object with the fields name, owner, acls, oid"),
        (DATABASE, {"name": "shop"}, "value.owner", "the fields name, owner, acls, oid"),
        (DATABASE, {**DATABASE_JSON, "ownr": 1}, "value.ownr", "an object with the fields name, owner, acls, oid"),
        (DATABASE, {**DATABASE_JSON, "name": None}, "value.name", "text"),
        (DATABASE, {**DATABASE_JSON, "name": "\ud800"}, "value.name", "surrogate"),
        (DATABASE, {**DATABASE_JSON, "owner": "si3"}, "value.owner", '"p" (PUBLIC)'),
        (DATABASE, {**DATABASE_JSON, "owner": ["p"]}, "value.owner", '"p" (PUBLIC)'),
        (DATABASE, {**DATABASE_JSON, "owner": "u" + "9" * 9999}, "value.owner", '"p" (PUBLIC)'),
        (DATABASE, {**DATABASE_JSON, "acls": {}}, "value.acls", "a list"),
        (DATABASE, {**DATABASE_JSON, "acls": [{}]}, "value.acls[0].grantee", "grantee, grantor, mode_bits"),
        (DATABASE, {**DATABASE_JSON, "oid": 2**32}, "value.oid", "from 0 to 4294967295"),
        (DATABASE, {**DATABASE_JSON, "oid": -1}, "value.oid", "from 0 to 4294967295"),
        (DATABASE, {**DATABASE_JSON, "oid": True}, "value.oid", "from 0 to 4294967295"),
        (DATABASE, {**DATABASE_JSON, "oid": 1.0}, "value.oid", "from 0 to 4294967295"),
        (DATABASE, {**DATABASE_JSON, "oid": "1 "}, "value.oid", "from 0 to 4294967295"),
        (DATABASE, {**DATABASE_JSON, "oid": "٣"}, "value.oid", "from 0 to 4294967295"),
        (CONFIG, {"value": "9" * 9999}, "value.value", "from 0 to 18446744073709551615"),
        (UNFINALIZED_SHARD, {"a": 1}, "value.a", "an empty object"),
        (CLUSTER, {**CLUSTER_JSON, "config": {}}, "value.config", "one of the fields unmanaged, managed"),
        (
            CLUSTER,
            {**CLUSTER_JSON, "config": {"managed": {}, "unmanaged": {}}},
            "value.config",
            "one of the fields unmanaged, managed",
        ),
        (
            CLUSTER,
            {**CLUSTER_JSON, "config": {"managed": {"size": 1}}},
            "value.config.managed.replication_factor",
            "size, replication_factor",
        ),
    ],
)  # fmt: skip
def test_wrong_json_is_refused_by_the_name_of_its_field(kind, wrong, field, expected):
    with pytest.raises(InvalidArgument) as refused:
        read_value(kind, wrong)
    assert refused.value.details["field"] == field
    assert expected in refused.value.details["expected"]
    assert len(refused.value.details["got"]) < 100


@pytest.mark.parametrize(
    "wrong",
    [{"id": "p"}, {"id": "u01"}, {"id": 1}, {"id": "u-1"}, {"id": "u18446744073709551616"}, {"id": None}, {}],
)
def test_a_wrong_id_is_refused(wrong):
    with pytest.raises(InvalidArgument) as refused:
        read_key(ITEM, wrong)
    assert refused.value.details["field"] == "key.id"


def test_the_nearest_name_is_told():
    hold = {
        "at": 0,
        "max_lag": 1,
        "objects": [],
        "timeline": "m",
        "on_lag": "advanc",
        "last_ack_ms": 0,
        "auto_advanced_count": 0,
    }
    with pytest.raises(InvalidArgument, match="did you mean advance"):
        read_value(HOLD, hold)
    with pytest.raises(InvalidArgument, match="did you mean owner"):
        read_value(DATABASE, {**DATABASE_JSON, "ownr": "u1"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1"),
        ("", "line 1"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": 1, "b": 2, "a": 1}', "a is there twice"),
        ("[" * 100_000, ""),
        ("9" * 9999, ""),
    ],
)
def test_what_is_no_json_is_refused(text, says):
    with pytest.raises(InvalidArgument, match="no JSON") as refused:
        parse(text)
    assert says in refused.value.hint


def test_what_cannot_be_stored_cannot_be_shown():
    with pytest.raises(InvalidArgument):
        show_value(CONFIG, Config(-1))
