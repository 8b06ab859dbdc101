"""Rows of every data version that were written once must be read, and upgraded to the same, for ever."""

import hashlib
from collections import Counter

import pytest
from golden.catalog import sample

from persist.core.catalog.kinds import BY_TAG, FENCE_TOKEN, KINDS
from persist.core.catalog.leadership.migrations import Upgrade
from persist.core.catalog.objects import (
    AuditLogKey,
    Cluster,
    ClusterKey,
    Commit,
    CommitKey,
    Config,
    ConfigKey,
    Cursor,
    CursorKey,
    FenceToken,
    FenceTokenKey,
    Hold,
    HoldKey,
    Item,
    ItemKey,
)
from persist.core.catalog.rows import Row, RowUpdate, apply_changes, contents
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.values import (
    PUBLIC,
    Acl,
    AuditEventType,
    AuditRenamedV1,
    Id,
    ItemDetails,
    ItemOption,
    ItemVersion,
    KnownColumns,
    ManagedCluster,
    ObjectType,
    Refresh,
    Retain,
    RoleRef,
    Space,
    Unit,
)
from persist.core.time.hold import OnLag
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CATALOG_SCHEMA, CODEC

VERSIONS = range(MIGRATIONS.min, MIGRATIONS.current + 1)
ME = RoleRef(Space.USER, 1)

DETAILS = ItemDetails(
    timeline="U.x",
    depends_on=(Id(Space.USER, 5), Id(Space.SYSTEM, 4)),
    fed_by=Id(Space.USER, 6),
    schema=b"\x00\x01",
    retain=Retain(),
    refresh=Refresh(7),
    mode="wal",
    multiset=True,
    claims_epoch=True,
    asks_time=True,
    query="q",
    options=(ItemOption("a", "b"),),
)
KNOWING = ItemDetails(known=(KnownColumns(Id(Space.USER, 5), ("a", "b")), KnownColumns(Id(Space.USER, 6), ())))

UPGRADED = {
    1: "33eec3b80ffa465aeb9089597693d3cae1f72a29b9a3cb34d073a9ccf74afb81",
    2: "7fc3438c3df745e762de925f4989e6ff5da8f722b5c8474d928271792c3baf08",
    3: "a26e9e59fcd0cf1bb8e8cce1fe3f55347f6a4f09dcb9020b5ca20955a0a00b77",
    4: "36b2aeaa1b40220f970dc404c8656d4d680907971a6f6cdb1149c58aa345de5a",
    5: "c1b3a79ce0e030e8b0f4163f88b270f9f78dd8d4dada14e4126fea87e32821e6",
}
"""SHA-256 of the rows that each stored version becomes."""

ROWS = [
    (("fence_token", FenceTokenKey(), FenceToken(3, 300)), "", "080310ac02"),
    (("commit", CommitKey("t"), Commit(3)), "0a0174", "0803"),
    (("commit", CommitKey("t"), Commit(3, bytes(range(16)))), "0a0174", "08031210000102030405060708090a0b0c0d0e0f"),
    (("config", ConfigKey("user_version"), Config(3)), "0a0c757365725f76657273696f6e", "0803"),
    (
        (
            "cluster",
            ClusterKey(Id(Space.SYSTEM, 2)),
            Cluster("c", ME, (Acl(PUBLIC, ME, 256),), ManagedCluster("small", 2, ("z",))),
        ),
        "0a021002",
        "0a0163120208011a0b0a02180112020801188002221412120a05736d616c6c10021a017a22002a020a00",
    ),
    (
        (
            "item",
            ItemKey(Id(Space.USER, 1)),
            Item(
                Id(Space.USER, 7),
                "t",
                ObjectType.TABLE,
                "x",
                ME,
                oid=20_000,
                global_id=Id(Space.USER, 0),
                extra_versions=(ItemVersion(1, Id(Space.USER, 9)),),
                session="",
            ),
        ),
        "0a020801",
        "0a02080712017418012201782a02080138a09c01420208004a0608011202080952005a00",
    ),
    (
        (
            "item",
            ItemKey(Id(Space.USER, 1)),
            Item(Id(Space.USER, 7), "t", ObjectType.CURSOR, "x", ME, global_id=Id(Space.USER, 0), details=DETAILS),
        ),
        "0a020801",
        "0a02080712017418132201782a020801420208005a310a03552e7812020805120210041a020806220200012a00320208073a0377616c4001480150015a017162060a0161120162",
    ),
    (
        (
            "item",
            ItemKey(Id(Space.USER, 1)),
            Item(Id(Space.USER, 7), "t", ObjectType.VIEW, "x", ME, global_id=Id(Space.USER, 0), details=KNOWING),
        ),
        "0a020801",
        "0a02080712017418032201782a020801420208005a126a0a0a0208051201611201626a040a020806",
    ),
    (
        (
            "hold",
            HoldKey(Id(Space.USER, 1)),
            Hold(0, 9, (Id(Space.USER, 3), Id(Space.USER, 2)), "M", OnLag.ERROR, 5, 6, 7, 8, 9),
        ),
        "0a020801",
        "10091a0208031a02080222014d280230053806400748085009",
    ),
    (("cursor", CursorKey(Id(Space.USER, 1)), Cursor(0)), "0a020801", "0800"),
    (("cursor", CursorKey(Id(Space.USER, 1)), Cursor()), "0a020801", ""),
    (
        (
            "audit_log",
            AuditLogKey(1, AuditEventType.ALTER, ObjectType.ROLE, None, 5, AuditRenamedV1("u1", "a", "b")),
            Unit(),
        ),
        "0801100318102805320c120a0a0275311201611a0162",
        "",
    ),
]


def updates(rows: list[Row]) -> list[RowUpdate]:
    return [RowUpdate(row, 0, 1) for row in rows]


@pytest.mark.parametrize(("it", "key", "value"), ROWS, ids=[row[0][0] for row in ROWS])
def test_row_has_the_bytes_it_always_had(it, key, value):
    row = CODEC.encode(*it)
    assert (row.key.hex(), row.value.hex()) == (key, value)
    assert CODEC.decode(row) == it[1:]


@pytest.mark.parametrize("version", VERSIONS)
def test_stored_rows_are_of_every_kind(version):
    counts = Counter(row.kind for row in sample.stored(version))
    kinds = sample.kinds_of(version)
    assert counts.keys() == {kind.tag for kind in kinds}
    assert min(counts[kind.tag] for kind in kinds if kind is not FENCE_TOKEN) > 10


@pytest.mark.parametrize("version", VERSIONS)
def test_stored_rows_decode_and_encode_to_themselves(version):
    for row in sample.stored(version):
        if row.kind not in sample.OLDER[version]:
            assert CODEC.encode(row.kind, *CODEC.decode(row)) == row


@pytest.mark.parametrize("version", VERSIONS)
def test_stored_catalog_upgrades_to_what_it_always_did(version):
    rows = contents(updates(sample.stored(version)))
    assert MIGRATIONS.check(rows) == Upgrade(version, MIGRATIONS.current, MIGRATIONS.check(rows).changed)
    while (changes := MIGRATIONS.next_step(rows)) is not None:
        apply_changes(rows, changes)
    flat = sorted((kind, key, value) for kind, of_kind in rows.items() for key, value in of_kind.items())
    assert hashlib.sha256(repr(flat).encode()).hexdigest() == UPGRADED[version]


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_of_frozen_kinds_are_readable_at_every_version(version):
    for row in sample.stored(version):
        if BY_TAG[row.kind].frozen:
            CODEC.decode(row)


def test_schema_of_the_shard_is_what_it_always_was():
    assert [(field.name, str(field.type), field.nullable) for field in CATALOG_SCHEMA.updates] == [
        ("kind", "string", False),
        ("key", "binary", False),
        ("value", "binary", False),
        ("ts", "uint64", False),
        ("diff", "int64", False),
    ]


def test_tags_are_what_they_always_were():
    assert [kind.tag for kind in KINDS] == [
        "audit_log",
        "cluster",
        "cluster_replica",
        "introspection_source_index",
        "config",
        "database",
        "default_privilege",
        "id_allocator",
        "item",
        "role",
        "schema",
        "setting",
        "storage_usage",
        "system_configuration",
        "system_object_fingerprint",
        "system_privilege",
        "timestamp",
        "fence_token",
        "comment",
        "storage_collection_metadata",
        "unfinalized_shard",
        "hold",
        "cursor",
        "commit",
    ]
    assert {kind.tag for kind in KINDS if kind.frozen} == {"audit_log", "config", "setting", "fence_token", "commit"}
    assert {kind.tag for kind in KINDS if kind.append_only} == {"audit_log", "storage_usage"}


def test_stored_catalog_is_read_whole():
    rows = sample.stored(MIGRATIONS.current)
    state = Snapshot()
    state.apply(CODEC, [(row, 1) for row in unclashing(rows)])
    assert all(state.count(kind) for kind in KINDS)


def unclashing(rows: list[Row]) -> list[Row]:
    """Random names clash now and then: the first keeps it."""
    taken: set[tuple[str, object]] = set()
    kept = []
    for row in rows:
        kind = BY_TAG[row.kind]
        names = {(kind.tag, name) for name in kind.names(CODEC.decode(row)[1])}
        if not names & taken:
            taken |= names
            kept.append(row)
    return kept
