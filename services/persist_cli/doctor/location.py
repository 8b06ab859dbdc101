"""Checks of a persist location: does it answer, is it safe, do the clocks agree."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from persist.client.remote.addresses import endpoints_of, is_listening
from persist.core.shard.retention import rollup_distance
from persist.core.shard.state import STATE_FORMAT
from persist.errors import (
    CorruptData,
    InvalidArgument,
    LocationError,
    MissingExtra,
    PersistError,
    UnsafeConfiguration,
    VersionMismatch,
)
from persist.extras import extra
from persist.machine.gate import Gate
from persist.machine.local_shards import LocalShards
from persist.machine.upkeep import next_step
from persist.machine.upkeep.repair import PartRepair
from persist.retry.deadline import Deadline
from persist.runtime import Runtime, system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Blob, Consensus
from persist.typed import Work
from persist_cli.admin.administration import Machine
from persist_cli.doctor.checks import BAD, OK, WARN, Check
from persist_cli.options import LocationTarget

T = TypeVar("T")

SERVICES: Final = ("persist.v1.PersistShard",)
DURABLE: Final = "persist.durable"
SKEW_MS_MAX: Final = 1_000
SHARDS_LOOKED_AT: Final = 100
ROLLUPS_MISSED: Final = 4
"""So many rollups that were due and are not there are no rollup under way."""


def location(target: LocationTarget, settings: Settings, timeout: float, *, typed: bool = True) -> Iterator[Check]:
    """Everything about the location the options name; ``typed``: on the command line, so that it may be mistyped."""
    if target.endpoint is not None:
        for endpoint in endpoints_of(target.endpoint):
            yield from asyncio.run(_endpoint(endpoint, timeout))
    else:
        try:
            target.check_not_lost(settings)
            target.check_there()
        except UnsafeConfiguration as error:
            yield Check("stores", BAD, error.message, error.hint)
            return
        except InvalidArgument as error:
            # Looking further would make it.
            yield Check(
                "location", BAD if typed else WARN, str(target), f"{error.hint} The first write, or server, makes it"
            )
            return
        stores = asyncio.run(_stores(target, settings, timeout))
        yield from stores
        if all(check.state != BAD for check in stores):
            yield asyncio.run(_parts(target, settings, timeout))
    yield from _shards_and_clock(target, settings, timeout)


async def _stores(target: LocationTarget, settings: Settings, timeout: float) -> list[Check]:
    blob_uri, consensus_uri = target.stores()
    runtime = system()
    found: list[Check] = []
    found += await _store(
        "blob", lambda: open_blob(blob_uri, settings=settings, runtime=runtime), _list_blobs, timeout, settings
    )
    found += await _store(
        "consensus",
        lambda: open_consensus(consensus_uri, settings=settings, runtime=runtime),
        _list_keys,
        timeout,
        settings,
    )
    if all(check.state != BAD for check in found):
        found.append(await _write_version(target, timeout, settings))
        found += await _one_location(blob_uri, consensus_uri, timeout, settings)
    return found


async def _one_location(blob_uri: str, consensus_uri: str, timeout: float, settings: Settings) -> list[Check]:
    """Whether the two stores belong together: nothing to say where they do."""
    runtime = system()
    blob = open_blob(blob_uri, settings=settings, runtime=runtime)
    shards = LocalShards(
        blob, open_consensus(consensus_uri, settings=settings, runtime=runtime), settings=settings, runtime=runtime
    )
    try:
        await shards.check_place(timeout=timeout)
    except UnsafeConfiguration as error:
        return [Check("stores", BAD, error.message, error.hint)]
    finally:
        await shards.close()
    return []


async def _write_version(target: LocationTarget, timeout: float, settings: Settings) -> Check:
    """Whether this release knows what is written here, and writes all that it knows."""
    runtime = system()
    store = open_consensus(target.stores()[1], settings=settings, runtime=runtime)
    try:
        written = await Gate(store, settings=settings, runtime=runtime).write_version(Deadline(runtime, timeout))
    except PersistError as error:
        return Check("write-version", BAD, str(error), error.hint)
    finally:
        await store.close()
    if written is None or written < STATE_FORMAT:
        found = "none, as releases before write-versions left it" if written is None else f"{written}"
        step = next_step.upgrade().line(target.words)
        return Check("write-version", WARN, f"{found}; this release knows {STATE_FORMAT}", step)
    return Check("write-version", OK, f"{written}, the newest that this release knows")


async def _list_blobs(store: Blob, timeout: float) -> None:
    # A prefix no key has: reaches the store, lists nothing.
    async for _ in store.list("doctor", timeout=timeout):
        return


async def _list_keys(store: Consensus, timeout: float) -> None:
    async for _ in store.list_keys(timeout=timeout):
        return


async def _store(
    name: str,
    opened: Callable[[], Any],
    reach: Callable[[Any, float], Work[None]],
    timeout: float,
    settings: Settings,
) -> list[Check]:
    """Is the store there, and is it safe?"""
    try:
        store = opened()
    except PersistError as error:
        return [Check(name, BAD, error.message, error.hint or "correct the URI")]
    try:
        clock = system()
        began = clock.monotonic()
        async with asyncio.timeout(timeout):
            await reach(store, timeout)
            took_ms = (clock.monotonic() - began) * 1000
            findings = await store.findings()
    except (PersistError, TimeoutError) as error:
        why = str(error) or f"no answer within {timeout:g} s"
        return [Check(name, BAD, f"{store.uri}: {why}", "is the store running, and reachable from here?")]
    finally:
        await store.close()
    checks = [Check(name, OK, f"{store.uri} answers in {took_ms:.0f} ms")]
    for finding in findings:
        state = WARN if finding.name in settings.allow_unsafe else BAD
        checks.append(
            Check(
                finding.name,
                state,
                f"{finding.setting} is {finding.found}; otherwise {finding.consequence}",
                f"set it to {finding.required}, or accept it: --allow-unsafe {finding.name}",
            )
        )
    return checks


async def _endpoint(endpoint: str, timeout: float) -> list[Check]:
    """What the server says about itself."""
    try:
        with extra("grpc"):
            import grpc.aio
            from grpc_health.v1 import health_pb2, health_pb2_grpc
    except MissingExtra as error:
        return [Check(f"endpoint {endpoint}", BAD, error.message, error.hint)]
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def ask(service: str) -> str:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

        try:
            states = {service: await ask(service) for service in (*SERVICES, DURABLE)}
        except grpc.aio.AioRpcError as error:
            if not await is_listening(endpoint, timeout):
                step = "`persist dev` starts one, `persist serve shard` one for many; is the port open?"
                return [Check(f"endpoint {endpoint}", BAD, "nothing listens there", step)]
            step = "is `persist serve shard` running there, and is the port open?"
            return [Check(f"endpoint {endpoint}", BAD, f"{error.code().name}: {error.details()}", step)]
    return [
        *(_serving(endpoint, service, states[service]) for service in SERVICES),
        _durable(endpoint, states[DURABLE]),
    ]


def _serving(endpoint: str, service: str, state: str) -> Check:
    if state == "SERVING":
        return Check(f"endpoint {endpoint}", OK, f"{service} is serving")
    return Check(
        f"endpoint {endpoint}", BAD, f"{service} is {state}", "it is starting or draining: ask another replica"
    )


def _durable(endpoint: str, state: str) -> Check:
    if state == "SERVING":
        return Check(f"durability {endpoint}", OK, "its stores are set up safely")
    step = "an unsafe store setting was accepted there: its log names it"
    return Check(f"durability {endpoint}", WARN, f"{DURABLE} is {state}", step)


def _shards_and_clock(target: LocationTarget, settings: Settings, timeout: float) -> Iterator[Check]:
    """Reads go through, rollups are written, and no shard was written in this machine's future."""
    runtime: Runtime = system()
    walltimes, failures = [], {}
    behind: dict[str, tuple[int, int]] = {}
    try:
        with target.open(settings, begin=True) as client:
            for shard, _ in zip(client.list_shards(timeout=timeout), range(SHARDS_LOOKED_AT), strict=False):
                try:
                    state = client.inspect(shard, timeout=timeout)
                except CorruptData as error:
                    failures[shard] = error.message
                    continue
                walltimes.append(int(state.get("walltime_ms", 0)))
                commits = int(state["seqno"]) - max(map(int, state["rollups"]), default=0)
                behind[str(shard)] = commits, rollup_distance(int(state.get("parts", 0)), settings.rollup_every)
    except VersionMismatch as error:
        yield Check("shards", BAD, error.message, next_step.after(error, "").line(target.words))
        return
    except PersistError as error:
        yield Check("shards", BAD, error.message, error.hint or "mend what is reported above first")
        return
    yield from _rollups(behind)
    for shard, why in failures.items():
        found = f"{len(failures)} of {len(failures) + len(walltimes)} shards cannot be read, {shard} among them: {why}"
        yield Check("shards", BAD, found, next_step.check(shard).line(target.words))
        return
    ahead_ms = max(walltimes, default=0) - runtime.now_ms()
    if ahead_ms > SKEW_MS_MAX:
        step = "set the clocks of all machines by NTP: leases are measured by them"
        yield Check("clock", WARN, f"a shard was written {ahead_ms:,} ms in the future", step)
        return
    found = f"{len(walltimes)} shards read, none written in the future"
    if target.endpoint is not None:
        found += "; their parts are looked at where the stores are named, not through a server"
    yield Check("shards and clock", OK, found)


def _rollups(behind: Mapping[str, tuple[int, int]]) -> Iterator[Check]:
    """Whether rollups are written; nothing to say where they are.

    ``behind``: by shard, the commits since the newest, and after how many the next one was due.
    """
    late = {shard: each for shard, each in behind.items() if each[0] > ROLLUPS_MISSED * each[1]}
    if not late:
        return
    shard, (commits, due) = max(late.items(), key=lambda each: each[1])
    found = (
        f"{len(late)} of {len(behind)} shards lack theirs: {shard} has none of its last {commits:,} commits, and one is"
        f" due every {due:,}; opening takes longer each time, and nothing is collected"
    )
    step = (
        "is Blob full, or read-only? What wrote says why: «maintenance failed» in the logs of its servers and programs"
    )
    yield Check("rollups", BAD, found, step)


async def _parts(target: LocationTarget, settings: Settings, timeout: float) -> Check:
    """Whether all that states name is there, in its length. No blob is read."""
    deeper = next_step.check_all(deep=True).command(target.words)
    machine = Machine(target, settings)
    repair = PartRepair(machine.shards, machine.versions, settings=machine.settings, runtime=machine.runtime)
    there = looked = parts = 0
    hurt = None
    try:
        async with asyncio.timeout(timeout):
            shards = await machine.survey.shards()
            there = len(shards)
            for shard in shards[:SHARDS_LOOKED_AT]:
                # A state that cannot be read is reported by the check of shards.
                with contextlib.suppress(CorruptData, VersionMismatch):
                    losses = await repair.find(shard)
                    looked, parts = looked + 1, parts + len(losses)
                    hurt = hurt or (shard if losses else None)
    except (LocationError, TimeoutError):
        found = f"{looked} of {there} shards looked at within {timeout:g} s"
        return Check("parts", WARN, found, f"all of them: {deeper}")
    finally:
        await machine.shards.close()
    if hurt is not None:
        found = f"{parts} parts of {looked} shards are missing or damaged, some of {hurt}"
        return Check("parts", BAD, found, next_step.check(hurt).line(target.words))
    return Check("parts", OK, f"all parts of {looked} of {there} shards are there; {deeper} reads them")
