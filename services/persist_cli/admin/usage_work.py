"""What ``persist usage`` counts and prints. Only what was measured: bytes that are there, requests that were sent."""

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

from persist.core.ids import ShardId
from persist.errors import Determinate, InvalidArgument
from persist.machine.garbage.inventory import BlobVerdict
from persist.machine.upkeep.usage import CountedRequests, Prices, Usage, usage_of
from persist.runtime import Runtime
from persist.typed import Record
from persist_cli.admin.administration import Machine
from persist_cli.admin.walk import AT_ONCE, Walk
from persist_cli.options import EXIT_INTERRUPTED
from persist_cli.outcomes import Outcomes
from persist_cli.terminal import note, priced, print_json, print_rows, print_table, progress, sized

REQUESTS: Final = "persist_store_requests_total"
_LINE: Final = re.compile(rf'^{REQUESTS}{{kind="([A-Za-z0-9]+)"}} ([0-9.e+]+)$', re.MULTILINE)
_VERDICTS: Final = tuple(BlobVerdict)


async def usage(
    machine: Machine,
    shards: list[str],
    *,
    safe_age_ms: int,
    metrics: list[str],
    over: float,
    prices: Prices,
    json: bool,
    after: str,
) -> int:
    """Print bytes by shard, requests by kind, and their cost. The exit code."""
    for url in metrics:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument("metrics are read over HTTP", hint="http://host:9100/metrics", got=url)
    found: list[Usage] = []
    outcomes = Outcomes(alone=len(shards) == 1)
    fence_ms = max(0, machine.runtime.now_ms() - safe_age_ms)

    async def count(shard: ShardId) -> Usage:
        return await usage_of(machine.survey, shard, fence_ms=fence_ms, deadline=machine.deadline())

    walk = Walk(await machine.chosen(shards), count, after=after, at_once=AT_ONCE)
    with progress("counting", walk.count, unit="shards") as steps:
        async with aclosing(walk.results()) as counted:
            async for shard, task in counted:
                with outcomes.of(shard):
                    found.append(await task)
                steps(1)
    own = CountedRequests(requests=dict(machine.meter.requests))
    servers = await _servers(metrics, over, machine.runtime)
    total = sum(each.total for each in found)
    written = await machine.upgrade.write_version(machine.deadline())
    costs = {
        "storage_per_year": prices.of_bytes(total),
        "requests_of_this_command": prices.of_requests(own.requests),
        "requests_of_servers_per_year": prices.of_requests(servers.per_year()),
    }
    if json:
        print_json(
            {
                "shards": [*(_row(each) for each in found), *outcomes.rows],
                "total": {"bytes": total},
                "write_version": written,
                "requests": {"this_command": own.requests, "servers": servers.requests, "seconds": servers.seconds},
                "costs": costs,
            }
        )
        return EXIT_INTERRUPTED if walk.interrupted else outcomes.code
    _tables(found, own, servers, costs)
    print_rows(outcomes.rows, title="Not counted:")
    outcomes.say(machine.place)
    note(f"write-version {written or 'none'}")
    return EXIT_INTERRUPTED if walk.interrupted else outcomes.code


def _row(each: Usage) -> Record:
    return {
        "shard": each.shard,
        **{verdict.value: each.bytes[verdict] for verdict in _VERDICTS},
        "total": each.total,
        "blobs": sum(each.blobs.values()),
    }


def _tables(found: list[Usage], own: CountedRequests, servers: CountedRequests, costs: Mapping[str, float]) -> None:
    rows = [list(_row(each).values()) for each in found]
    columns = ("shard", *(verdict.value for verdict in _VERDICTS), "total", "blobs")
    if rows:
        rows.append(["total", *(sum(row[at] for row in rows) for at in range(1, len(columns)))])
    print_table(columns, [[row[0], *map(sized, row[1:-1]), row[-1]] for row in rows])
    kinds = sorted({*own.requests, *servers.requests})
    if kinds:
        per_year = servers.per_year()
        print_table(
            ("request", "by this command", f"by servers in {servers.seconds:.0f} s", "by servers in a year"),
            [[kind, own.requests.get(kind, 0), servers.requests.get(kind, 0), per_year.get(kind, 0)] for kind in kinds],
        )
    print_table(("cost", "price"), [[name.replace("_", " "), priced(cost)] for name, cost in costs.items()])


async def _servers(urls: list[str], over: float, runtime: Runtime) -> CountedRequests:
    """The requests that servers send meanwhile. One that restarts in between counts from zero."""
    if not urls:
        return CountedRequests()
    before = [await runtime.offload(_requests, url) for url in urls]
    await runtime.sleep(over)
    after = [await runtime.offload(_requests, url) for url in urls]
    requests: dict[str, float] = {}
    for old, new in zip(before, after, strict=True):
        for kind, count in new.items():
            earlier = old.get(kind, 0.0)
            requests[kind] = requests.get(kind, 0.0) + (count - earlier if count >= earlier else count)
    return CountedRequests(requests=requests, seconds=over)


def _requests(url: str) -> dict[str, float]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise Determinate(
            "the metrics cannot be read", hint="give the side port: http://host:9100/metrics", url=url, error=str(error)
        ) from error
    return {kind: float(count) for kind, count in _LINE.findall(text)}
