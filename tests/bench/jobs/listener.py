"""Receives appends in a process of its own: `python -m bench.jobs.listener REQUEST`.

Says ready when it listens, then prints when each append arrived, on the clock all processes share.
"""

import asyncio
import json
import sys
import time
from typing import Any

import grpc.aio
import redis
import uvloop

from bench.floor.server import SERVICE, keys, message


async def main(request: dict[str, Any]) -> None:
    hear = {"persist": _persist, "push": _push, "redis": _redis}[request["system"]]
    heard = await asyncio.wait_for(hear(request), 300)
    print(json.dumps({"heard": heard}), flush=True)


def _ready() -> None:
    print(json.dumps({"ready": True}), flush=True)


async def _persist(request: dict[str, Any]) -> list[float]:
    from bench import ours

    heard: list[float] = []
    async with ours.client(request["endpoint"]) as client:
        reader = await client.open_reader(request["table"])
        listen = await reader.listen(0)
        async for event in listen:
            now = time.monotonic()
            table = getattr(event, "table", None)
            if table is None:
                continue
            first, last = table.column("ts")[0].as_py(), table.column("ts")[-1].as_py()
            if first != last or table.num_rows != request["rows"]:
                raise ValueError(
                    f"expected {request['rows']} rows of one time, got {table.num_rows} of {first}..{last}"
                )
            if first == 1:
                _ready()
                continue
            heard.append(now)
            if first != len(heard) + 1:
                raise ValueError(f"expected time {len(heard) + 1}, got {first}")
            if len(heard) == request["appends"]:
                break
        await listen.aclose()
        await reader.expire()
    return heard


async def _push(request: dict[str, Any]) -> list[float]:
    heard: list[float] = []
    async with grpc.aio.insecure_channel(request["endpoint"]) as channel:
        listen: Any = channel.unary_stream(f"/{SERVICE}/Listen")
        call = listen(message(request["table"], 0))
        async for news in call:
            now = time.monotonic()
            if not news:
                _ready()
                continue
            heard.append(now)
            if len(heard) == request["appends"]:
                break
        call.cancel()
    return heard


async def _redis(request: dict[str, Any]) -> list[float]:
    channel = redis.Redis(port=request["redis"]).pubsub()
    channel.subscribe(keys(request["table"])[0])
    heard: list[float] = []
    for news in channel.listen():
        now = time.monotonic()
        if news["type"] == "subscribe":
            _ready()
            continue
        heard.append(now)
        if len(heard) == request["appends"]:
            break
    return heard


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
