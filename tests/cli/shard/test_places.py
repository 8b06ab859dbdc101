"""Which location is meant: the command line, sources and Spark take the same one from the environment, or refuse."""

import pytest

from persist import InvalidArgument
from persist_ingest import Location

A, B = "PERSIST_LOCATION", "PERSIST_ENDPOINT"
BLOB, CONSENSUS = "PERSIST_BLOB", "PERSIST_CONSENSUS"
TWO = {
    "directory and server": (A, B),
    "directory and stores": (A, BLOB, CONSENSUS),
    "server and stores": (B, BLOB, CONSENSUS),
    "half of a pair": (BLOB,),
    "the other half": (CONSENSUS,),
    "none": (),
}


@pytest.fixture
def values(begun, tmp_path):
    return {
        A: begun[1],
        B: "127.0.0.1:1",
        BLOB: f"file:{begun[1]}/blob",
        CONSENSUS: f"sqlite:{begun[1]}/consensus.db",
    }


@pytest.mark.parametrize("names", TWO.values(), ids=TWO)
def test_what_names_no_one_location_is_refused_by_all(persist, values, names):
    there = {name: values[name] for name in names}
    done = persist("shard", "list", **there)
    assert (done.code, "name one place" in done.err or "go together" in done.err) == (2, True), done.err
    with pytest.raises(InvalidArgument, match=r"location|go together"):
        Location().resolved()


@pytest.mark.parametrize("names", [(A,), (BLOB, CONSENSUS)])
def test_what_the_environment_names_is_what_all_take(persist, values, names):
    there = {name: values[name] for name in names}
    assert persist("shard", "list", "--json", **there).json == []
    found = Location().resolved()
    named = {A: found.directory, B: found.endpoint, BLOB: found.blob, CONSENSUS: found.consensus}
    assert {name: value for name, value in named.items() if value} == there


def test_what_is_given_wins_and_an_endpoint_may_have_a_blob_beside_it(persist, values):
    assert persist("shard", "list", "--location", values[A], **{B: values[B]}).code == 0
    assert Location(directory="d").resolved() == Location(directory="d")
    assert Location(blob="mem:x").resolved() == Location(endpoint=values[B], blob="mem:x")
