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

``all``: every test, over mem+mem local and, by turns, over some of the other places: three for a test of one case, two
for each of several cases (other parameters). Over all of them in ``make sim``. ``everywhere``: only tests marked
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
from simulation.budget import FULL

STORES = ("mem+mem", "file+sqlite", "s3+redis", "file+postgres", "file+redis")
ACCESS = ("local", "remote", "failover")
FOR_ALL = (
    *((stores, "local") for stores in STORES[:4]),
    ("mem+mem", "remote"), ("file+redis", "remote"),
    ("file+sqlite", "failover"), ("file+redis", "failover"),
)  # fmt: skip
EVERYWHERE = tuple((stores, access) for stores in STORES for access in ACCESS)
FEW = (("mem+mem", "local"), ("file+redis", "remote"), ("file+sqlite", "failover"))
BETWEEN_PROCESSES = tuple((stores, "local") for stores in STORES[1:3])
BLOB_TESTS = ("test_append", "test_ledger", "test_corruption", "test_prepared")


MARKS = {"everywhere": EVERYWHERE, "between_processes": BETWEEN_PROCESSES, "few": FEW}
Found: TypeAlias = pytest.Item | pytest.Collector | list[pytest.Item | pytest.Collector] | None
DEAL_TO, DEAL_ONE_TO = 2, 3
"""Places beside the first that one of several cases is dealt to, and the case of a test that has but one."""


def pytest_configure(config: pytest.Config) -> None:
    for name in MARKS:
        config.addinivalue_line("markers", f"{name}: see tests/client/conftest.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        marked = next((name for name in MARKS if metafunc.definition.get_closest_marker(name)), None)
        places = MARKS[marked] if marked else FOR_ALL
        if metafunc.module.__name__.rpartition(".")[2] not in BLOB_TESTS and places is FOR_ALL:
            places = tuple(place for place in FOR_ALL if not place[0].startswith("s3"))
        metafunc.parametrize("place", places, indirect=True, ids="-".join)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Found, Found]:
    """Deal the cases of each test out over the places: where one is not dealt to, it is not made."""
    found = yield
    return _dealt(found) if isinstance(found, list) else found


def _dealt(items: list[pytest.Item | pytest.Collector]) -> list[pytest.Item | pytest.Collector]:
    cases: dict[frozenset[str], int] = {}
    return [item for item in items if not isinstance(item, pytest.Function) or _is_dealt_to(item, cases)]


def _is_dealt_to(item: pytest.Function, cases: dict[frozenset[str], int]) -> bool:
    call = getattr(item, "callspec", None)
    if FULL or call is None or call.params.get("place") not in FOR_ALL or any(map(item.get_closest_marker, MARKS)):
        return True
    place = FOR_ALL.index(call.params["place"])
    case = frozenset(f"{name} {at}" for name, at in call.indices.items() if name != "place")
    number = cases.setdefault(case, len(cases))
    first, count = (number * DEAL_TO, DEAL_TO) if case else (zlib.crc32(item.originalname.encode()), DEAL_ONE_TO)
    return place == 0 or (place - 1 - first) % (len(FOR_ALL) - 1) < count


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
