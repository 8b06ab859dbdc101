"""Every pair of timelines over every path that reads names: the right answer, or the error at once, and never a wait.

Quoted: design 004, Timelines.
"""

import itertools
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from client.collections.support import SCHEMA, TIMELINES, Items, found, reads_of, shard_of, source_of, table_of, updates
from client.support import Place, client_of, memory_place
from sure import as_a

from persist import InvalidArgument, aio
from persist.client.collections.reading.choosing import AskedTime, timed
from persist.client.collections.reading.transaction import ReadTransaction
from persist.client.shard.read.snapshot import Snapshot
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.values import ObjectType
from persist.core.time.collections import TimelineDependent
from persist.core.time.errors import MultipleTimelines
from persist.core.time.timeline import timeline_of

PAIRS = list(itertools.product(TIMELINES, TIMELINES))
ANOTHER = {"external": "E.u901", "user": "U.theirs", "counter": "C.kafka:9092/others"}
"""Of the same variant, and yet another timeline."""
SECONDS = 1.0


async def items_of(client: aio.Client, one: str, other: str) -> Items:
    """``a`` and ``b`` in these timelines, and what may be made of them."""
    items = Items()
    for name, timeline in (("a", one), ("b", other)):
        if timeline == "M":
            await (await table_of(client, items, name)).insert([{"id": 1, "name": name}])
        else:
            # Neither is complete beyond what the other has.
            writer = await source_of(client, items, name, timeline=timeline)
            upper = 10 if name == "a" else 6
            rows = [(1, name, 2, 1), (1, name, 5, -1), (2, name, 5, 1), (3, name, 9, 1)]
            given = updates(*(row for row in rows if row[2] < upper))
            await writer.compare_and_append(given, 0, upper)
    items.add("view_of_b", ObjectType.VIEW, "b")
    items.add("joined", ObjectType.VIEW, "a", "view_of_b", schema=SCHEMA)
    items.add("on_joined", ObjectType.VIEW, "joined", schema=SCHEMA)
    for name, kind, on in (
        ("kept", ObjectType.MATERIALIZED_VIEW, "on_joined"),
        ("index_of_a", ObjectType.INDEX, "a"),
    ):
        writer = await client.open_writer(shard_of(name), schema=SCHEMA)
        await writer.compare_and_append(updates((1, name, 5, 1)), 0, [])
        items.add(name, kind, on, data=writer.shard)
    return items


async def _together(client, items):
    return await reads_of(client, items).read_together(["a", "b"], timeout=SECONDS * 20)


async def _index_and_other(client, items):
    return await reads_of(client, items).read_together(["index_of_a", "b"], timeout=SECONDS * 20)


async def _explain(client, items):
    return await reads_of(client, items).explain(["a", "view_of_b"], timeout=SECONDS * 20)


async def _view(client, items):
    names = [items.by_name["on_joined"]]
    async with reads_of(client, items).readers.reading(items, names, AskedTime(), timeout=SECONDS * 20) as both:
        return both


async def _materialized(client, items):
    return await reads_of(client, items).explain(["kept"], timeout=SECONDS * 20)


async def _subscribe(client, items):
    async with await reads_of(client, items).subscribe("kept", timeout=SECONDS * 20) as subscription:
        return subscription


async def _in_transaction(client, items):
    """Of one that has read ``b``."""
    first = timed(items, [items.by_name["b"]])
    assert isinstance(first, TimelineDependent)
    readers = reads_of(client, items).readers
    async with readers.reading(items, [items.by_name["a"]], AskedTime(transaction=first.timeline), timeout=20) as both:
        return both


PATHS = [_together, _index_and_other, _explain, _view, _materialized, _subscribe, _in_transaction]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__.strip("_"))
async def test_every_pair_of_timelines_is_answered_or_refused_at_once(path):
    """«Prevent users from doing things that are silently meaningless.» «Prevent user queries blocking forever.»

    «At the points in the system at which it is possible to join different sources together, we will return an error to
    the user if there is more than one timeline present.»
    """
    for one, other in PAIRS:
        async with client_of(memory_place()) as client:
            items = await items_of(client, TIMELINES[one], TIMELINES[other])
            await reads_of(client, items).explain(["a"])  # what is opened once is opened
            began = time.monotonic()
            if one == other:
                await path(client, items)
                continue
            with pytest.raises(MultipleTimelines) as refused:
                await path(client, items)
            assert time.monotonic() - began < SECONDS
            told = refused.value.details["timelines"]
            assert TIMELINES[one] in told
            assert TIMELINES[other] in told


@pytest.mark.parametrize("one", ["external", "user", "counter"])
async def test_two_of_one_variant_are_still_two_timelines(one):
    """«For example, two separate Debezium consistency topics. Although they both start counting at 1 and thus have
    relatively close numbers, there's no meaning in the transaction counter, and joining data on that will not produce
    results that are meaningful. We should inform users when they attempt to join data from differing timelines that
    they have not asked us a useful question.»

    «External(String) for CDCv2 sources with the source's name attached, making a CDCv2 source only joinable with
    itself.» «Counter(struct) for Debezium consistency topics, with a struct to track broker/topic to tell apart
    different sources.»
    """
    async with client_of(memory_place()) as client:
        items = await items_of(client, TIMELINES[one], ANOTHER[one])
        for path in PATHS:
            began = time.monotonic()
            with pytest.raises(MultipleTimelines):
                await path(client, items)
            assert time.monotonic() - began < SECONDS


async def test_the_error_names_each_object_its_timeline_and_the_way_to_it():
    """«A solution to this problem is to inform the system what the timestamp number means for all data, and allow the
    system to reject queries that request data from multiple meanings.»"""
    async with client_of(memory_place()) as client:
        items = await items_of(client, "E.u900", "U.mine")
        with pytest.raises(MultipleTimelines) as refused:
            await reads_of(client, items).read("on_joined")
        assert refused.value.details == {
            "timelines": "E.u900: persist.public.a; U.mine: persist.public.b",
            "paths": "E.u900: persist.public.on_joined > persist.public.joined > persist.public.a; "
            "U.mine: persist.public.on_joined > persist.public.joined > persist.public.view_of_b > persist.public.b",
        }


@pytest.mark.parametrize("one", list(TIMELINES))
async def test_objects_of_one_timeline_are_read_together_at_a_time_that_all_have(one, place: Place):
    """«All sources can specify WITH (timeline='some_name') to choose the User variant. This will group any set of
    sources together if users need to join CDCv2 and realtime sources, or multiple CDCv2 sources.»

    «our current best understanding of how to do that is to have one timestamp per timeline that always increases when
    serving reads.»
    """
    async with client_of(place) as client:
        items = await items_of(client, TIMELINES[one], TIMELINES[one])
        reads = reads_of(client, items)
        both = await reads.read_together(["a", "b"])
        rows = [found(await both[name].to_pylist()) for name in ("a", "b")]
        if one == "epoch":
            assert rows == [[(1, "a", 1)], [(1, "b", 1)]]
        else:
            assert both["a"].ts == both["b"].ts == 5
            assert rows == [[(2, "a", 1)], [(2, "b", 1)]]
        assert both["a"].timeline == timeline_of(TIMELINES[one])
        # To read only one of them later reads no earlier time, and does not wait for the other.
        assert (await reads.read("b")).ts >= both["b"].ts


async def test_a_table_of_a_timeline_without_a_clock_follows_what_sources_bring():
    async with client_of(memory_place()) as client:
        items = Items()
        table = await table_of(client, items, "t", timeline="U.mine")
        written = await table.insert([{"id": 1, "name": "t"}])
        await source_of(client, items, "s", timeline="U.mine", upper=100)
        both = await reads_of(client, items).read_together(["t", "s"])
        assert both["t"].ts == both["s"].ts == 99 >= written
        assert found(await both["t"].to_pylist()) == [(1, "t", 1)]
        assert found(await both["s"].to_pylist()) == [(99, "s", 1)]
        assert await table.insert([{"id": 2, "name": "t"}]) > 99


async def test_a_transaction_reads_its_timedomain_at_one_time():
    """«The third concern is linearizability. We would like to provide that property when users issue SELECT queries. If
    we can distinguish the meaning of timestamps across data, we can provide linearizability across sources correctly.»
    """
    async with client_of(memory_place()) as client:
        items = Items()
        first, second = await table_of(client, items, "first"), await table_of(client, items, "second")
        await source_of(client, items, "brought", timeline="E.u900", upper=10)
        items.add("elsewhere", ObjectType.TABLE, data=shard_of("elsewhere"), timeline="M", schema=SCHEMA)
        items.by_name["elsewhere"] = replace(
            items.by_name["elsewhere"], name=QualifiedName("elsewhere", "other", "persist"), data=second.shard
        )
        items.add("not_written_yet", ObjectType.TABLE, data=shard_of("nothing"), timeline="M", schema=SCHEMA)
        await first.insert([{"id": 1, "name": "a"}])
        readers = reads_of(client, items).readers
        async with ReadTransaction(readers, cast(Any, items), AskedTime()) as transaction:
            began = await transaction.read([items.by_name["first"]])
            assert transaction.timeline == timeline_of("M")
            await first.insert([{"id": 2, "name": "a"}])
            await second.insert([{"id": 2, "name": "a"}])
            later = await transaction.read([items.by_name["second"], items.by_name["first"]])
            assert later.ts == began.ts
            contents = {id: await as_a(Snapshot, snapshot).to_pylist() for id, snapshot in later.snapshots.items()}
            assert contents == {
                items.by_name["first"].id: [{"id": 1, "name": "a", "diff": 1}],
                items.by_name["second"].id: [],
            }
            with pytest.raises(MultipleTimelines):
                await transaction.read([items.by_name["brought"]])
            with pytest.raises(InvalidArgument, match="elsewhere"):
                await transaction.read([items.by_name["elsewhere"]])
        state = await client.inspect(second.shard)
        assert not [lease for lease in state["leased_readers"].values() if lease["purpose"] == "query"]
