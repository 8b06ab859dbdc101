"""Every location the client's suite runs over: each store, and each way to a shard."""

import random
from pathlib import Path

import pytest
from client.support import Place, file_place, memory_place

STORES = ("mem", "file", "file+redis", "s3+postgres")
ACCESS = ("local", "remote", "failover")
EVERYWHERE = [
    pytest.param(store, access, id=f"{store}-{access}")
    for store, access in [("mem", "local"), *((store, access) for store in STORES[1:] for access in ACCESS)]
    if store == "file" or access == "local"
]


@pytest.fixture
def entropy() -> random.Random:
    """The same randomness every time."""
    return random.Random(1)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place on the stores of ``store``, or in memory."""
    store = getattr(request, "param", "mem")
    if store == "mem":
        return memory_place()
    if store == "file":
        return file_place(tmp_path)
    blob, _, consensus = store.partition("+")
    blob_uri = request.getfixturevalue("fresh_s3_uri")() if blob == "s3" else f"file:{tmp_path / 'blob'}"
    return Place(blob_uri, request.getfixturevalue(f"fresh_{consensus}_uri")())
