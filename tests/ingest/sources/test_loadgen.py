"""Load generators: the same messages for ever, and collections that agree at every offset."""

import hashlib
import json
from typing import Any

import pytest
from ingest.sources.suite import Contents, check_laws, check_probe, reached, read, rows_of

from persist import InvalidArgument
from persist.sources import Point, SourceFrontier, SourceKind
from persist_ingest.sources.loadgen import LOADGEN
from persist_ingest.sources.loadgen.reader import LoadgenDefinition, LoadgenReader
from persist_ingest.sources.port import SourceFailure

KIND = SourceKind.PARTITIONS


def made(**options: str) -> LoadgenReader:
    with LOADGEN.create(options, source="test") as beginning:
        json.dumps(beginning.definition)
        return LOADGEN.open(json.loads(json.dumps(beginning.definition)), beginning.reader.exports())


def at(**bounds: int) -> SourceFrontier:
    return SourceFrontier.at(KIND, {int(name[1:]): bound for name, bound in bounds.items()})


@pytest.mark.parametrize(
    "options",
    [
        {"generator": "counter", "maxCardinality": "7"},
        {"generator": "counter", "partitions": "3"},
        {"generator": "auction", "partitions": "2", "seed": "5"},
        {"generator": "tpcb", "accounts": "37", "branches": "2", "partitions": "2"},
    ],
    ids=lambda options: options["generator"],
)
def test_generators_keep_the_laws_of_readers(options: dict[str, str]) -> None:
    reader = made(**options, messages="18000")
    end = reached(reader)
    middle = SourceFrontier.at(KIND, {0: 5_431, **dict.fromkeys(end.keys[1:], 0)})
    check_laws(reader, [SourceFrontier.minimum(KIND), SourceFrontier.at(KIND, {0: 3}), middle, end])
    check_probe(reader)


# What was given out once is in shards that may be read again any day: these may never change.
GOLDEN = {
    "counter": "25614dac8f21c574",
    "auction": "a952ebd82674123c",
    "tpcb": "44b3bd8e864b682e",
}


@pytest.mark.parametrize("generator", GOLDEN)
def test_messages_are_the_same_for_ever(generator: str) -> None:
    reader = made(generator=generator, messages="3000", seed="42", partitions="2")
    found = read(reader, SourceFrontier.minimum(KIND), reached(reader))
    text = json.dumps(sorted(found.items()), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == GOLDEN[generator]


def test_messages_depend_on_the_seed() -> None:
    one, two = (made(generator="tpcb", messages="500", seed=seed) for seed in "12")
    assert one.incarnation != two.incarnation
    start, end = SourceFrontier.minimum(KIND), reached(one)
    assert read(one, start, end) != read(two, start, end)


def test_the_counter_counts_across_partitions_and_forgets() -> None:
    reader = made(messages="1000", partitions="3", maxCardinality="10")
    rows = rows_of(read(reader, SourceFrontier.minimum(KIND), reached(reader)), "counter")
    held: dict[int, int] = {}
    for _, sign, number, value in rows:
        if sign < 0:
            assert held.pop(number) == value
        else:
            assert held.setdefault(number, value) == value
    assert sorted(held) == list(range(970, 1000))


def balances(found: Contents, export: str, bounds: dict[int, int]) -> dict[int, int]:
    """The balances of an export before these offsets; every retraction must be of what is there."""
    held: dict[int, tuple[Any, ...]] = {}
    for (name, partition), rows in found.items():
        for offset, sign, key, *val in rows if name == export else ():
            if offset >= bounds[partition]:
                continue
            if sign < 0:
                assert held.pop(key) == tuple(val)
            else:
                assert key not in held
                held[key] = tuple(val)
    return {key: val[-1] for key, val in held.items()}


def test_bank_balances_agree_at_every_offset() -> None:
    reader = made(generator="tpcb", accounts="13", branches="2", partitions="2", messages="400")
    found = read(reader, SourceFrontier.minimum(KIND), reached(reader))
    for offset in range(0, 201, 3):
        bounds = {0: offset, 1: offset // 2}
        sums = [sum(balances(found, export, bounds).values()) for export in ("accounts", "tellers", "branches")]
        assert sums == [sum(balances(found, "history", bounds).values())] * 3
    touched = balances(found, "accounts", {0: 200, 1: 200})
    assert len(touched) == 2 * 2 * 13
    assert len(set(touched.values())) > 40


def test_tellers_and_branches_own_what_they_serve() -> None:
    reader = made(generator="tpcb", accounts="20", branches="3", messages="2000")
    found = read(reader, SourceFrontier.minimum(KIND), reached(reader))
    homes = {key: branch for _, _, key, branch, _ in rows_of(found, "tellers")}
    served: dict[int, set[int]] = {}
    for _, _, _, account, teller, branch, _ in rows_of(found, "history"):
        assert homes[teller] == branch
        served.setdefault(account, set()).add(teller)
    assert len(served) == 60
    assert all(len(tellers) == 1 for tellers in served.values())
    orders = [[row[3] for row in rows_of(found, "history")[start : start + 60]] for start in (0, 60, 120)]
    assert all(sorted(order) == list(range(60)) for order in orders)
    assert orders[0] != orders[1] != orders[2]


def test_auctions_refer_to_what_was_there_before() -> None:
    reader = made(generator="auction", partitions="2", messages="6000")
    found = read(reader, SourceFrontier.minimum(KIND), reached(reader))
    born = {(export, row[2]): (partition, row[0]) for (export, partition), rows in found.items() for row in rows}
    for (export, partition), rows in found.items():
        for offset, sign, _, *val in rows:
            assert sign == 1
            wanted = (
                {"users": [], "auctions": [("users", val[0])], "bids": [("auctions", val[0]), ("users", val[1])]}[
                    export
                ]
                if len(val) > 1
                else []
            )
            for reference in wanted:
                assert born[reference][0] == partition
                assert born[reference][1] < offset
    assert {export for export, _ in found} == {"users", "auctions", "bids"}


def test_messages_come_as_time_passes() -> None:
    definition = LoadgenDefinition.of({"rate": "2.5", "partitions": "2", "messages": "9"}, 10_000)
    assert [definition.existing(now) for now in (0, 10_000, 10_399, 10_400, 12_000, 60_000)] == [0, 0, 0, 1, 5, 9]
    reader = LoadgenReader(definition)  # started in 1970: everything is there
    assert reader.probe().high == (Point(0, 5), Point(1, 4))


def test_without_an_end_the_rate_is_the_default_one() -> None:
    with LOADGEN.create({}, source="test") as beginning:
        assert beginning.definition["rate"] == 1000.0
        assert beginning.definition["messages"] is None
        assert beginning.bound == at(p0=0)
        assert not beginning.snapshot


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"generator": "tcpb"}, "did you mean tpcb"),
        ({"generator": "counter", "branches": "2"}, "unknown option branches"),
        ({"generator": "tpcb", "account": "100"}, "did you mean accounts"),
        ({"generator": "tpcb", "accounts": "9"}, "at least 10"),
        ({"partitions": "0"}, "at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says), LOADGEN.create(options, source="test"):
        pass


def test_columns_do_not_change() -> None:
    reader = made(generator="auction")
    reader.adopt("users", reader.exports()["users"])
    with pytest.raises(SourceFailure, match="do not change"):
        reader.adopt("users", reader.exports()["bids"])
    reader.commit(at(p0=4))
    assert reader.status().committed == at(p0=4)
    reader.close()
    LOADGEN.drop({})
