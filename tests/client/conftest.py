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

``all``: every test, over mem+mem local and, by turns, over some of the other places: two for a test of one case, one
for each of several cases (other parameters). Over all in ``make sim PART=places``. ``everywhere``: only tests marked
``@pytest.mark.everywhere``, with each of their cases: appends, compare-and-appends, the ledger of random histories.
``@pytest.mark.between_processes`` leaves out mem, which another process cannot see, and keeps to local, as those tests
start processes of their own; ``@pytest.mark.few``, for tests that must wait, takes one place for each way.

``blob``: the tests of what lies in Blob (BLOB_TESTS), as every request to the S3 server takes its time.

local: the loop in this process. remote: a server over a real socket, one for each client. failover: two servers over
the same stores for each client, which also has the stores. So two clients of one place meet in the stores alone.
mem with servers means servers in this process. The blocking façade has its own table in test_blocking.
"""

import random
import zlib
from collections.abc import Generator
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
"""The first is for every test. Of the others, neighbours are not reached alike: two of them are two ways to a shard."""
EVERYWHERE = tuple((stores, access) for stores in STORES for access in ACCESS)
FEW = (("mem+mem", "local"), ("file+redis", "remote"), ("file+sqlite", "failover"))
BETWEEN_PROCESSES = tuple((stores, "local") for stores in STORES[1:3])
BLOB_TESTS = ("test_append", "test_ledger", "test_corruption", "test_prepared")


MARKS = {"everywhere": EVERYWHERE, "between_processes": BETWEEN_PROCESSES, "few": FEW}
Found: TypeAlias = pytest.Item | pytest.Collector | list[pytest.Item | pytest.Collector] | None
DEAL_TO, DEAL_ONE_TO = 1, 2
"""Places beside the first that one of several cases is dealt to, and the case of a test that has but one."""


def pytest_configure(config: pytest.Config) -> None:
    for name in MARKS:
        config.addinivalue_line("markers", f"{name}: see tests/client/conftest.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        marked = next((name for name in MARKS if metafunc.definition.get_closest_marker(name)), None)
        places = MARKS[marked] if marked else places_for_all(metafunc.module.__name__)
        metafunc.parametrize("place", places, indirect=True, ids="-".join)


def places_for_all(module: str) -> tuple[tuple[str, str], ...]:
    """Where tests of that module run that are for all places."""
    of_blob = module.rpartition(".")[2] in BLOB_TESTS
    return tuple(place for place in FOR_ALL if of_blob or not place[0].startswith("s3"))


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
    if FULL or call is None or call.params.get("place") not in FOR_ALL or any(map(item.get_closest_marker, MARKS)):
        return True
    places = places_for_all(item.module.__name__)
    place = places.index(call.params["place"])
    case = case_of(call, "place")
    number = cases.setdefault(case, len(cases))
    first = zlib.crc32(item.originalname.encode()) + number * DEAL_TO
    return place == 0 or (place - 1 - first) % (len(places) - 1) < (DEAL_TO if case else DEAL_ONE_TO)


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
