"""Opening: modes, what there is before, versions; and allocators. Catalog-semantics.md sections 0, 1.2.2 and 1.2.9."""

import pytest
from unit.core.catalog.samples import system, user

from persist.core.catalog.allocation import FIRST_IDS, FIRST_OID, take_ids, take_oids
from persist.core.catalog.errors import IdExhaustion, IncompatibleContentVersion, NotWritable, Uninitialized
from persist.core.catalog.open_rules import Mode, check_content_version, check_open, initial_rows, is_initialized
from persist.core.catalog.rows import RowUpdate, contents
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import U64_MAX, Id, Space
from persist.errors import InvalidArgument, InvalidId
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC

INITIAL = [RowUpdate(row, 0, 1) for row in initial_rows(CODEC, MIGRATIONS.current, "1.2.3")]


@pytest.mark.parametrize(
    ("upper", "rows", "initialized"),
    [(0, [], False), (5, [], False), (0, INITIAL, False), (1, INITIAL, True), (1, INITIAL[1:], False)],
    ids=["nothing", "an upper that others advanced", "no upper", "both", "no data version"],
)
def test_catalog_is_initialized_with_an_upper_and_a_version(upper, rows, initialized):
    assert is_initialized(upper, contents(rows), CODEC) is initialized


def test_initial_catalog_is_current_and_starts_every_allocator():
    assert MIGRATIONS.version(contents(INITIAL)) == MIGRATIONS.current
    tx = CatalogTransaction(Snapshot.of(CODEC, INITIAL), bootstrap=True)
    firsts = {name: tx.allocate_oids()[0] if name == "oid" else tx.allocate(name)[0] for name in FIRST_IDS}
    assert firsts == FIRST_IDS
    assert (firsts["database"], firsts["schema"], firsts["user_compute"], firsts["replica"]) == (2, 7, 2, 2)


@pytest.mark.parametrize("mode", [Mode.WRITABLE, Mode.SAVEPOINT])
def test_writable_and_savepoint_need_a_generation(mode):
    with pytest.raises(InvalidArgument):
        check_open(mode, None, initialized=True)
    check_open(mode, 1, initialized=True)


def test_read_only_needs_no_generation_but_a_catalog():
    check_open(Mode.READ_ONLY, None, initialized=True)
    with pytest.raises(Uninitialized):
        check_open(Mode.READ_ONLY, None, initialized=False)
    with pytest.raises(Uninitialized):
        check_open(Mode.READ_ONLY, None, initialized=False, allow_uninitialized=True)


def test_writable_makes_a_catalog():
    check_open(Mode.WRITABLE, 1, initialized=False)


def test_savepoint_of_no_catalog_is_refused_unless_allowed():
    with pytest.raises(NotWritable) as told:
        check_open(Mode.SAVEPOINT, 1, initialized=False)
    assert told.value.details["recoverable_by"] == "opening writable"
    check_open(Mode.SAVEPOINT, 1, initialized=False, allow_uninitialized=True)


ORDER = ["0.9.0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1"]
ORDER += ["1.0.0", "1.0.1", "1.2.0", "1.10.0"]


@pytest.mark.parametrize("older", range(len(ORDER) - 1), ids=ORDER[:-1])
def test_older_release_is_refused_by_precedence(older):
    for newer in range(older + 1, len(ORDER)):
        check_content_version(ORDER[older], ORDER[newer])
        with pytest.raises(IncompatibleContentVersion):
            check_content_version(ORDER[newer], ORDER[older])


def test_build_metadata_does_not_count():
    check_content_version("1.2.3+z", "1.2.3+a")
    check_content_version("1.2.3", "1.2.3+a")
    check_content_version("1.2.3+a", "1.2.3")


def test_skipping_a_major_is_refused():
    check_content_version("1.2.3", "2.0.0")
    with pytest.raises(IncompatibleContentVersion) as told:
        check_content_version("1.2.3", "3.0.0")
    assert told.value.details == {"found": "1.2.3", "running": "3.0.0"}


def test_no_version_at_all_is_refused():
    with pytest.raises(InvalidArgument):
        check_content_version("newest", "1.2.3")


# ---- allocators ------------------------------------------------------------------------------------------------------


def test_ids_are_exhausted_rather_than_overflow():
    assert take_ids("user", U64_MAX - 2, 2) == (range(U64_MAX - 2, U64_MAX), U64_MAX)
    with pytest.raises(IdExhaustion):
        take_ids("user", U64_MAX - 2, 3)
    with pytest.raises(InvalidArgument):
        take_ids("user", 1, -1)


def test_oids_are_exhausted_after_one_full_lap():
    last = FIRST_OID + 9
    taken = {FIRST_OID + n for n in range(10) if n != 3}
    assert take_oids(FIRST_OID + 7, 1, taken.__contains__, last) == ([FIRST_OID + 3], FIRST_OID + 4)
    with pytest.raises(IdExhaustion):
        take_oids(FIRST_OID + 7, 2, taken.__contains__, last)
    with pytest.raises(InvalidArgument):
        take_oids(FIRST_OID, -1, taken.__contains__)


def test_oids_of_one_lap_are_all_given_once():
    oids, after = take_oids(FIRST_OID + 7, 10, lambda _: False, FIRST_OID + 9)
    assert sorted(oids) == list(range(FIRST_OID, FIRST_OID + 10))
    assert after == FIRST_OID + 7


@pytest.mark.parametrize("it", [user(12), system(0), Id(Space.INTROSPECTION, U64_MAX)], ids=str)
def test_id_has_one_text(it):
    assert Id.parse(str(it)) == it


@pytest.mark.parametrize("text", ["", "u", "12", "u-1", "u01", "x1", "u1 ", "p0", f"u{U64_MAX + 1}", "u٣"])
def test_other_texts_are_no_ids(text):
    with pytest.raises(InvalidId):
        Id.parse(text)
