"""What servers of shards export of stores, background work and compaction that is behind, and alerts on it."""

import asyncio
import dataclasses
import re
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, client_of, memory_place, table
from ingest.alert_rules import check_expression, check_texts, expressions, rules
from services.process import serve_process
from services.proxy import free_endpoint
from services.support import new_shard

import persist
from persist import aio
from persist.machine.compaction.compactor import Compactor
from persist.retry.tasks import Tasks
from persist_host import Telemetry

RULES = rules("shards")


def labels_of(text: str) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(persist_\w+)(\{.*\})? ", text, re.MULTILINE):
        found[name].update(re.findall(r'(\w+)="', labels))
    return found


async def failed_work() -> str:
    telemetry = Telemetry(service="test")
    tasks = Tasks(telemetry)

    async def fail() -> None:
        raise persist.Determinate("read-only")

    tasks.spawn(fail(), "writing a rollup")
    while not telemetry.prometheus():
        await asyncio.sleep(0.01)
    await tasks.close()
    return telemetry.prometheus()


async def full_shard(directory: Path) -> str:
    """The metrics of a server that refused an append, since nothing compacts."""
    stores = "--blob", f"file:{directory}/blob", "--consensus", f"sqlite:{directory}/consensus.db"
    side = await free_endpoint()
    environment = {"PERSIST_COMPACTION": "off", "PERSIST_SHARD_BATCHES_MAX": "3"}
    async with (
        serve_process("shard", *stores, "--side-listen", side, **environment) as server,
        await aio.connect(server.endpoint) as client,
    ):
        writer = await client.open_writer(new_shard(), schema=SCHEMA)
        for number in range(4):
            await writer.append_at_upper(table([(number, "row", 0, 1)]))
        with pytest.raises(persist.Overloaded, match="batches that wait"):
            await writer.append_at_upper(table([(4, "row", 0, 1)]), timeout=5)
        return await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{side}/metrics").read().decode())


async def taken_back() -> str:
    """The metrics of a compaction of a row that was taken back without having come."""
    telemetry = Telemetry(service="test")
    settings = dataclasses.replace(SMALL, compaction=False, inline_part_bytes_max=0)
    async with client_of(memory_place(), settings=settings) as client:
        writer = await client.open_writer(new_shard(), schema=SCHEMA)
        for time, diff in enumerate((-1, 1)):
            await writer.append(table([(time, "row", time, diff)]), time + 1)
        shards: Any = client._location.shards
        compactor = Compactor(shards, shards, counts=telemetry)
        assert await compactor.compact(writer.shard, compactor.new_owner(), whole=True)
    return telemetry.prometheus()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric, of servers to which this happened."""
    text = asyncio.run(full_shard(tmp_path_factory.mktemp("full")))
    assert re.search(r'^persist_appends_refused_total\{limit="shard_batches_max"\} [1-9]', text, re.MULTILINE)
    for shown in (
        "persist_unmerged_batches_most 4",
        "persist_unmerged_batches 4",
        "persist_parts_most 4",
        "persist_parts 4",
        'persist_appends_limit{limit="shard_batches_max"} 3',
    ):
        assert f"\n{shown}\n" in text
    return labels_of(text + asyncio.run(failed_work()) + asyncio.run(taken_back()))


def test_there_are_rules() -> None:
    for about in ("store_up", 'work="writing a rollup"', "appends_refused_total", "unmerged_batches_most"):
        assert about in RULES
    check_texts(RULES)


@pytest.mark.parametrize("expression", expressions(RULES))
def test_a_rule_names_what_is_exported(expression: str, exported: dict[str, set[str]]) -> None:
    check_expression(expression, exported)
