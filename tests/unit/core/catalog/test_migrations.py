"""Migrations: a chain of steps, each whole or not at all. Catalog-semantics.md sections 1.2.4 and 1.2.5."""

import copy
from typing import Any

import pytest
from sure import sure
from unit.core.catalog.samples import OWNER, database, updates, user

from persist.core.catalog.errors import IncompatibleDataVersion
from persist.core.catalog.kinds import CLUSTER_REPLICA, CONFIG, DATABASE, SETTING, TIMESTAMP
from persist.core.catalog.leadership.migrations import Migrations, Step, Upgrade
from persist.core.catalog.objects import (
    ClusterReplica,
    ClusterReplicaKey,
    Config,
    ConfigKey,
    DatabaseKey,
    Hold,
    HoldKey,
    Item,
    ItemKey,
    Setting,
    SettingKey,
    Timestamp,
    TimestampKey,
)
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Row, RowUpdate, apply_changes, contents
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.values import PUBLIC, Acl, ItemDetails, ItemVersion, ManagedLocation, ObjectType
from persist.core.time.hold import OnLag
from persist.errors import CorruptData, InvalidArgument
from persist.v1 import catalog_objects_v1_pb2 as v1
from persist.v1 import catalog_objects_v2_pb2 as v2
from persist.v1 import catalog_objects_v3_pb2 as v3
from persist.wire.catalog.migrations import MIGRATIONS, STEPS
from persist.wire.catalog.rows import CODEC

ZONED, ANYWHERE = (ClusterReplicaKey(user(n)) for n in (1, 2))


def at_version(version: int) -> dict[str, dict[bytes, bytes]]:
    """The same catalog as a release of each data version would have it."""
    config = (CONFIG, DATA_VERSION, Config(version))
    rows = updates(config, (DATABASE, DatabaseKey(user(1)), database("d")), (CONFIG, ConfigKey("other"), Config(7)))
    time = CODEC.encode("timestamp", TimestampKey("epoch"), Timestamp(5, 5))
    if version < 2:
        time = time._replace(value=v1.CatalogTimestampValueV1(ts=5).SerializeToString())
    rows.append(RowUpdate(time, 0, 1))
    for key, zone in ((ZONED, "here"), (ANYWHERE, None)):
        replica = ClusterReplica(user(3), f"r{key.id}", OWNER, ManagedLocation("small", zone))
        row = CODEC.encode("cluster_replica", key, replica)
        if version < 3:
            old = v2.CatalogClusterReplicaValueV2(
                cluster_id=v2.CatalogIdV2(user=3),
                name=f"r{key.id}",
                owner=v2.CatalogRoleRefV2(user=OWNER.number),
                size="small",
                availability_zone=zone or "",
            )
            row = row._replace(value=old.SerializeToString())
        rows.append(RowUpdate(row, 0, 1))
    rows += [RowUpdate(row, 0, 1) for row in (*items(version), *holds(version))]
    return contents(rows)


def items(version: int) -> list[Row]:
    """A table and a source: sources had the timeline of clocks, and did not say so."""
    found = []
    for number, kind in ((1, ObjectType.TABLE), (2, ObjectType.SOURCE)):
        acls, versions = (Acl(PUBLIC, OWNER, 3),), (ItemVersion(1, user(9)),)
        details = ItemDetails(timeline="M" if kind is ObjectType.SOURCE else None)
        item = Item(
            user(7),
            f"i{number}",
            kind,
            "create",
            OWNER,
            acls,
            5,
            versions,
            "s",
            global_id=user(number),
            details=details,
        )
        row = CODEC.encode("item", ItemKey(user(number)), item)
        if version < 4:
            me, id = v2.CatalogRoleRefV2(user=OWNER.number), v2.CatalogIdV2
            old = v3.CatalogItemValueV3(
                schema_id=id(user=7),
                name=f"i{number}",
                item_type=number,
                create_sql="create",
                owner=me,
                acls=[v3.CatalogAclV3(grantee=v2.CatalogRoleRefV2(public=True), grantor=me, mode_bits=3)],
                oid=5,
                global_id=id(user=number),
                extra_versions=[v3.CatalogItemVersionV3(version=1, global_id=id(user=9))],
                session="s",
            )
            row = row._replace(value=old.SerializeToString())
        found.append(row)
    return found


def holds(version: int) -> list[Row]:
    """One with every bound, one without any over what was closed, one that had ended with a deadline, one without."""
    max = 2**64 - 1
    now: dict[str, Any] = {"timeline": "M", "last_ack_ms": 100}
    of = v2.CatalogIdV2
    forms = [
        (
            Hold(5, 9, (user(1), user(2)), "M", deadline_ms=50, last_ack_ms=100, auto_advanced_count=2),
            v3.CatalogHoldValueV3(
                at=5, max_lag=9, object_ids=[of(user=1), of(user=2)], deadline_ms=150, auto_advanced_count=2, **now
            ),
        ),
        (Hold(max, max, (), "M", last_ack_ms=100), v3.CatalogHoldValueV3(**now)),
        (
            Hold(0, 1, (), "M", OnLag.ERROR, 0, 100, 1, 77, 90),
            v3.CatalogHoldValueV3(
                at=0,
                max_lag=1,
                state=v3.CatalogHoldStateV3.ValueType(2),
                deadline_ms=90,
                auto_advanced_count=1,
                last_auto_advance_ms=77,
                **now,
            ),
        ),
        (
            Hold(0, 1, (), "M", OnLag.ERROR, last_ack_ms=100, overdue_since_ms=100),
            v3.CatalogHoldValueV3(at=0, max_lag=1, state=v3.CatalogHoldStateV3.ValueType(2), **now),
        ),
    ]
    for _, old in forms:
        old.state = old.state or v3.CATALOG_HOLD_STATE_V3_ACTIVE
    rows = [CODEC.encode("hold", HoldKey(user(10 + each)), new) for each, (new, _) in enumerate(forms)]
    if version < 4:
        return [row._replace(value=old.SerializeToString()) for row, (_, old) in zip(rows, forms, strict=True)]
    return rows


def run(rows, steps: int = 99):
    """The steps, each appended whole, as far as they are allowed to go."""
    for _ in range(steps):
        changes = MIGRATIONS.next_step(rows)
        if changes is None:
            break
        apply_changes(rows, changes)
    return rows


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_every_version_arrives_at_the_current_one(version):
    rows = run(at_version(version))
    assert rows == at_version(MIGRATIONS.current)
    state = Snapshot.of(CODEC, [RowUpdate(Row(t, k, v), 0, 1) for t, of in rows.items() for k, v in of.items()])
    assert state.objects(TIMESTAMP) == {TimestampKey("epoch"): Timestamp(5, 5)}
    assert state.objects(CLUSTER_REPLICA)[ZONED].location == ManagedLocation("small", "here")
    assert state.objects(CLUSTER_REPLICA)[ANYWHERE].location == ManagedLocation("small", None)


@pytest.mark.parametrize("stopped_after", [0, 1, 2, 3, 4])
def test_migration_stopped_after_any_step_is_taken_up_there(stopped_after):
    rows = copy.deepcopy(run(at_version(1), stopped_after))
    assert MIGRATIONS.version(rows) == 1 + stopped_after
    assert run(rows) == at_version(5)


def test_step_carries_its_version_in_the_same_append():
    changes = sure(MIGRATIONS.next_step(at_version(1)))
    assert changes[-2:] == [
        (CODEC.encode("config", DATA_VERSION, Config(1)), -1),
        (CODEC.encode("config", DATA_VERSION, Config(2)), 1),
    ]
    assert {row.kind for row, _ in changes} == {"timestamp", "config"}


def test_current_catalog_needs_no_step():
    assert MIGRATIONS.next_step(at_version(5)) is None


@pytest.mark.parametrize("version", [0, 6, 2**40])
def test_version_out_of_reach_is_refused_with_found_min_and_current(version):
    rows = at_version(5)
    changed = updates((CONFIG, DATA_VERSION, Config(version)))[0].row
    rows["config"][changed.key] = changed.value
    for refuse in (MIGRATIONS.version, MIGRATIONS.next_step, MIGRATIONS.check):
        with pytest.raises(IncompatibleDataVersion) as told:
            refuse(rows)
        assert told.value.details == {"found": str(version), "min": "1", "current": "5"}


def test_catalog_without_a_version_is_corrupt():
    with pytest.raises(CorruptData):
        MIGRATIONS.version({})


def test_upgrade_check_tells_what_would_happen_and_changes_nothing():
    rows = at_version(1)
    before = copy.deepcopy(rows)
    assert MIGRATIONS.check(rows) == Upgrade(1, 5, (4, 6, 14, 2))
    assert rows == before


def test_upgrade_check_finds_what_could_not_be_decoded_afterwards():
    rows = at_version(1)
    rows["database"] = dict.fromkeys(rows["database"], b"\xff")
    with pytest.raises(CorruptData):
        MIGRATIONS.check(rows)


@pytest.mark.parametrize(("kind", "version"), [("timestamp", 1), ("cluster_replica", 2), ("item", 3), ("hold", 3)])
def test_rows_a_step_cannot_read_are_corrupt(kind, version):
    rows = at_version(version)
    rows[kind] = dict.fromkeys(rows[kind], b"\xfa\x3e\x01x")
    with pytest.raises(CorruptData):
        MIGRATIONS.next_step(rows)


@pytest.mark.parametrize(
    "row",
    [
        CODEC.encode(SETTING.tag, SettingKey("x"), Setting("y")),
        CODEC.encode(CONFIG.tag, DATA_VERSION, Config(9)),
    ],
    ids=["setting", "version"],
)
def test_step_that_touches_a_frozen_kind_is_refused(row):
    chain = Migrations([Step(1, lambda _: [(row, 1)])], CODEC)
    with pytest.raises(InvalidArgument):
        chain.next_step(at_version(1))


def test_chain_with_a_gap_is_refused():
    with pytest.raises(InvalidArgument):
        Migrations([STEPS[1], STEPS[0]], CODEC)


def test_frozen_kinds_are_readable_at_every_version():
    for version in (1, 2, 3):
        config = at_version(version)["config"]
        decoded = dict(CODEC.decode(Row("config", *row)) for row in config.items())
        assert decoded == {DATA_VERSION: Config(version), ConfigKey("other"): Config(7)}
