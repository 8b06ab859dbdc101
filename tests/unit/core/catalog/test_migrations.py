"""Migrations: a chain of steps, each whole or not at all. Catalog-semantics.md sections 1.2.4 and 1.2.5."""

import copy

import pytest
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
    Setting,
    SettingKey,
    Timestamp,
    TimestampKey,
)
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Row, RowUpdate, apply_changes, contents
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.values import ManagedLocation
from persist.errors import CorruptData, InvalidArgument
from persist.v1 import catalog_objects_v1_pb2 as v1
from persist.v1 import catalog_objects_v2_pb2 as v2
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
    return contents(rows)


def run(rows, steps: int = 99):
    """The steps, each appended whole, as far as they are allowed to go."""
    for _ in range(steps):
        changes = MIGRATIONS.next_step(rows)
        if changes is None:
            break
        apply_changes(rows, changes)
    return rows


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_arrives_at_the_current_one(version):
    rows = run(at_version(version))
    assert rows == at_version(MIGRATIONS.current)
    state = Snapshot.of(CODEC, [RowUpdate(Row(t, k, v), 0, 1) for t, of in rows.items() for k, v in of.items()])
    assert state.objects(TIMESTAMP) == {TimestampKey("epoch"): Timestamp(5, 5)}
    assert state.objects(CLUSTER_REPLICA)[ZONED].location == ManagedLocation("small", "here")
    assert state.objects(CLUSTER_REPLICA)[ANYWHERE].location == ManagedLocation("small", None)


@pytest.mark.parametrize("stopped_after", [0, 1, 2])
def test_migration_stopped_after_any_step_is_taken_up_there(stopped_after):
    rows = copy.deepcopy(run(at_version(1), stopped_after))
    assert MIGRATIONS.version(rows) == 1 + stopped_after
    assert run(rows) == at_version(3)


def test_step_carries_its_version_in_the_same_append():
    changes = MIGRATIONS.next_step(at_version(1))
    assert changes[-2:] == [
        (CODEC.encode("config", DATA_VERSION, Config(1)), -1),
        (CODEC.encode("config", DATA_VERSION, Config(2)), 1),
    ]
    assert {row.kind for row, _ in changes} == {"timestamp", "config"}


def test_current_catalog_needs_no_step():
    assert MIGRATIONS.next_step(at_version(3)) is None


@pytest.mark.parametrize("version", [0, 4, 2**40])
def test_version_out_of_reach_is_refused_with_found_min_and_current(version):
    rows = at_version(3)
    changed = updates((CONFIG, DATA_VERSION, Config(version)))[0].row
    rows["config"][changed.key] = changed.value
    for refuse in (MIGRATIONS.version, MIGRATIONS.next_step, MIGRATIONS.check):
        with pytest.raises(IncompatibleDataVersion) as told:
            refuse(rows)
        assert told.value.details == {"found": str(version), "min": "1", "current": "3"}


def test_catalog_without_a_version_is_corrupt():
    with pytest.raises(CorruptData):
        MIGRATIONS.version({})


def test_upgrade_check_tells_what_would_happen_and_changes_nothing():
    rows = at_version(1)
    before = copy.deepcopy(rows)
    assert MIGRATIONS.check(rows) == Upgrade(1, 3, (4, 6))
    assert rows == before


def test_upgrade_check_finds_what_could_not_be_decoded_afterwards():
    rows = at_version(1)
    rows["database"] = dict.fromkeys(rows["database"], b"\xff")
    with pytest.raises(CorruptData):
        MIGRATIONS.check(rows)


@pytest.mark.parametrize(("kind", "version"), [("timestamp", 1), ("cluster_replica", 2)])
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
