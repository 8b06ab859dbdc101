"""Every test that takes ``place`` runs over several stores and several ways to a shard.

=======================  ==========  ==========  ==========
stores (Blob+Consensus)  local       remote      failover
=======================  ==========  ==========  ==========
mem+mem                  all         all         everywhere
file+sqlite              all         everywhere  all
s3+redis                 blob        everywhere  everywhere
file+postgres            all         everywhere  everywhere
file+redis               everywhere  all         all
=======================  ==========  ==========  ==========

``all``: each case of a test (its other parameters) on one of these, by turns; ``blob``: of those, tests of what lies in
Blob (BLOB_TESTS), as every request to the S3 server takes its time. ``everywhere``: only tests marked
``@pytest.mark.everywhere``: appends, compare-and-appends, the ledger of random histories. Each of their cases on all
stores, and on each of them in one of the ways, by turns. ``@pytest.mark.between_processes`` leaves out mem, which
another process cannot see, and keeps to local, as those tests start processes of their own; ``@pytest.mark.few``, for
tests that must wait, has one place for each way: one of them for each case, by turns, too; so has
``@pytest.mark.direct``, for tests that look into the stores, one for each way of storing.

``make sim PART=places`` runs every case on all that it is for.

local: the loop in this process. remote: a server over a real socket, one for each client. failover: two servers over
the same stores for each client, which also has the stores. So two clients of one place meet in the stores alone.
mem with servers means servers in this process. The blocking façade has its own table in test_blocking.
"""

import random
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeAlias

import pytest
from client.support import Place, memory_place
from dealing import Case, call_of, case_of
from simulation.budget import FULL

STORES = ("mem+mem", "file+sqlite", "s3+redis", "file+postgres", "file+redis")
ACCESS = ("local", "remote", "failover")
FOR_ALL = (
    ("mem+mem", "local"),
    ("file+sqlite", "local"), ("file+redis", "remote"), ("s3+redis", "local"), ("file+sqlite", "failover"),
    ("file+postgres", "local"), ("mem+mem", "remote"), ("file+redis", "failover"),
)  # fmt: skip
"""Neighbours are not reached alike."""
EVERYWHERE = tuple((stores, access) for stores in STORES for access in ACCESS)
FEW = (("mem+mem", "local"), ("file+redis", "remote"), ("file+sqlite", "failover"))
DIRECT = tuple((stores, "local") for stores in STORES[:3])
BETWEEN_PROCESSES = tuple((stores, "local") for stores in STORES[1:3])
BLOB_TESTS = ("test_append", "test_ledger", "test_corruption", "test_prepared")


Places: TypeAlias = tuple[tuple[str, str], ...]
MARKS: dict[str, Places] = {
    "everywhere": EVERYWHERE,
    "between_processes": BETWEEN_PROCESSES,
    "few": FEW,
    "direct": DIRECT,
}
Found: TypeAlias = pytest.Item | pytest.Collector | list[pytest.Item | pytest.Collector] | None


def pytest_configure(config: pytest.Config) -> None:
    for name in MARKS:
        config.addinivalue_line("markers", f"{name}: see tests/client/conftest.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        places = places_for(metafunc.definition.get_closest_marker, metafunc.module.__name__)
        metafunc.parametrize("place", places, indirect=True, ids="-".join)


def places_for(marker: Callable[[str], object], module: str) -> Places:
    """Everywhere a test of that module runs in full, by how it is marked."""
    marked = next((name for name in MARKS if marker(name)), None)
    of_blob = module.rpartition(".")[2] in BLOB_TESTS
    return MARKS[marked] if marked else tuple(place for place in FOR_ALL if of_blob or not place[0].startswith("s3"))


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Found, Found]:
    """Deal the cases of each test out over the places: where one is not dealt to, it is not made."""
    found = yield
    return _dealt(found) if isinstance(found, list) else found


def _dealt(items: list[pytest.Item | pytest.Collector]) -> list[pytest.Item | pytest.Collector]:
    cases: dict[Case, int] = {}
    return [item for item in items if not isinstance(item, pytest.Function) or _is_dealt_to(item, cases)]


def _is_dealt_to(item: pytest.Function, cases: dict[Case, int]) -> bool:
    call = call_of(item)
    if FULL or call is None or "place" not in call.params:
        return True
    case = case_of(call, "place")
    turn = zlib.crc32(item.originalname.encode()) + cases.setdefault(case, len(cases))
    if item.get_closest_marker("everywhere"):
        stores, access = call.params["place"]
        return (ACCESS.index(access) - STORES.index(stores) - turn) % len(ACCESS) == 0
    places = places_for(item.get_closest_marker, item.module.__name__)
    return places.index(call.params["place"]) == turn % len(places)


@pytest.fixture
def entropy() -> random.Random:
    """The same randomness every time."""
    return random.Random(1)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place on some stores, and how clients reach it."""
    stores, access = request.param
    if stores == "mem+mem":
        return memory_place(access)
    blob, _, consensus = stores.partition("+")
    blob_uri = request.getfixturevalue("fresh_s3_uri")() if blob == "s3" else f"file:{tmp_path / 'blob'}"
    if consensus == "sqlite":
        return Place(blob_uri, f"sqlite:{tmp_path / 'consensus.db'}", access)
    return Place(blob_uri, request.getfixturevalue(f"fresh_{consensus}_uri")(), access)
