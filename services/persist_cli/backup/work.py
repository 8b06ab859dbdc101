"""What the commands of ``persist backup`` do."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import typer

from persist import aio
from persist.client.backup_order import BackupOrder
from persist.core.ids import ShardId
from persist.errors import InvalidArgument, InvalidId
from persist.machine.backup.copying import Store
from persist.machine.backup.create import BackupCreator
from persist.machine.backup.manifest import Manifest, manifest_to_restore, manifests, read_manifest
from persist.machine.backup.restore import Restorer
from persist.machine.backup.verify import verify
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus, safe
from persist.typed import Record
from persist_cli.admin.administration import Machine
from persist_cli.options import LocationTarget
from persist_cli.terminal import counted, note, print_json, print_rows, progress

T = TypeVar("T")

_SCHEMES = ("file", "s3")


async def create(
    machine: Machine, target: LocationTarget, destination: str, shards: list[str], *, lease_ms: int, json: bool
) -> int:
    """Take a backup. The exit code: 1 when a shard was left out."""
    _check_apart(destination, target, "a backup is not kept with what it is a backup of")
    only = await machine.chosen(shards) if shards else []

    async def work(to: Store) -> int:
        blob_uri, consensus_uri = target.stores()
        async with await aio.embedded(blob=blob_uri, consensus=consensus_uri, settings=machine.settings) as client:
            order = BackupOrder(client)
            with progress("backing up", None, unit="blobs and shards") as steps:
                creator = BackupCreator(
                    machine.shards, machine.versions, to, order=order, lease_ms=lease_ms, report=steps
                )
                created = await creator.create(only)
        manifest = created.manifest
        row = {
            "copied": created.copied.blobs,
            "copied_bytes": created.copied.bytes,
            "there_already": created.copied.there,
        }
        if json:
            print_json({"backup": created.key, **_summary(manifest), **row})
        else:
            _print_backup(created.key, manifest)
            print_rows([row])
            _print_left_out(manifest)
        return 1 if manifest.left_out else 0

    return await _with_store(destination, machine.settings, work)


def show(destination: str, settings: Settings, *, json: bool) -> None:
    """List the backups of a destination. Raises InvalidArgument: it is no place of backups."""
    _check_place(destination)

    async def work(store: Store) -> list[tuple[str, Manifest]]:
        keys = await manifests(store.blob, timeout=store.timeout)
        return [await read_manifest(store.blob, key, timeout=store.timeout) for key in keys]

    found = asyncio.run(_with_store(destination, settings, work))
    if json:
        rows = [
            {"backup": key, **_summary(manifest), "blob": manifest.blob, "consensus": manifest.consensus}
            for key, manifest in found
        ]
        print_json({"backups": rows})
        return
    for key, manifest in found:
        _print_backup(key, manifest)
    print(counted(len(found), "backup"))


def verify_all(destination: str, backup: str | None, settings: Settings, *, json: bool) -> int:
    """Verify a backup. The exit code: 1 when it is damaged, or lacks a shard that was damaged when it was taken.

    Raises InvalidArgument: there is none.
    """
    _check_place(destination)

    async def work(store: Store) -> int:
        key, manifest = await read_manifest(store.blob, backup, timeout=store.timeout)
        total = sum(entry.parts + 1 for entry in manifest.shards)
        with progress("verifying", total, unit="blobs") as steps:
            damages = await verify(store, manifest, report=steps)
        rows = [{"shard": each.shard, "where": each.where, "what": each.what} for each in damages]
        if json:
            print_json({"backup": key, **_summary(manifest), "damages": rows})
        else:
            print_rows(rows)
            _print_backup(key, manifest)
            _print_left_out(manifest)
            missing = f", {len(manifest.left_out):,} left out" if manifest.left_out else ""
            print(f"{counted(len(manifest.shards), 'shard')} verified, {counted(len(rows), 'problem')}{missing}")
            if rows:
                note("delete these blobs from the destination: the next persist backup create copies them again")
        return 1 if rows or manifest.left_out else 0

    return asyncio.run(_with_store(destination, settings, work))


def restore(
    destination: str,
    backup: str | None,
    target: LocationTarget,
    settings: Settings,
    *,
    resume: bool,
    partial: bool,
    json: bool,
) -> None:
    """Restore a backup into an empty location; one that left shards out only if ``partial``.

    Raises InvalidArgument: there is none.
    """
    _check_place(destination)
    _check_apart(destination, target, "a location is not restored to where its backup is kept")
    blob_uri, consensus_uri = target.stores()
    runtime = system()

    async def work(store: Store) -> None:
        key, manifest = await manifest_to_restore(store.blob, backup, partial=partial, timeout=store.timeout)
        # Not before there is something to put there.
        _make_folder(target)
        blob = open_blob(blob_uri, settings=settings, runtime=runtime)
        consensus = open_consensus(consensus_uri, settings=settings, runtime=runtime)
        try:
            await safe((blob, consensus), settings=settings, runtime=runtime)
            to = Store(blob, settings=settings, runtime=runtime)
            total = sum(entry.parts + 1 for entry in manifest.shards)
            with progress("restoring", total, unit="blobs and shards") as steps:
                restored = await Restorer(store, manifest, to, consensus, report=steps).restore(resume=resume)
        finally:
            await consensus.close()
            await blob.close()
        row = {
            "shards": restored.shards,
            "begun_now": restored.begun,
            "copied": restored.copied.blobs,
            "copied_bytes": restored.copied.bytes,
        }
        if json:
            print_json({"backup": key, **row, "left_out": _left_out(manifest)})
        else:
            _print_backup(key, manifest)
            print_rows([row])
            _print_left_out(manifest)
            note("check it with persist fsck --deep before it is used")

    asyncio.run(_with_store(destination, settings, work))


def destination_uri(destination: str) -> str:
    """The Blob URI of a destination: one as it stands, or that of a directory. Raises BadParameter for ``mem:``."""
    if destination.startswith("mem:"):
        raise typer.BadParameter("a backup in memory is gone when this command ends: name a directory, or s3://…")
    if destination.partition(":")[0] in _SCHEMES and ":" in destination:
        return destination
    return f"file:{quote(str(Path(destination).expanduser().absolute()))}"


def _folder(destination: str) -> Path | None:
    """The directory that a destination is; None: it is none."""
    scheme, _, path = destination_uri(destination).partition(":")
    return Path(unquote(path.partition("?")[0])) if scheme == "file" else None


def _check_place(destination: str) -> None:
    """Raises InvalidArgument: this directory is not there, or is of something else. Of buckets nothing is said here."""
    folder = _folder(destination)
    if folder is None:
        return
    if not folder.is_dir():
        raise InvalidArgument("no such directory", hint="is the name right? persist backup create makes it", got=folder)
    names = {each.name for each in folder.iterdir()}
    if "consensus.db" in names:
        what = "this directory is a location, and no backup of one"
    elif names and not any(map(_is_shard, names)):
        what = "this directory holds something else, and no backup"
    else:
        return
    raise InvalidArgument(what, hint="name the directory that persist backup create was given", got=folder)


def _is_shard(name: str) -> bool:
    try:
        ShardId.parse(name)
    except InvalidId:
        return False
    return True


def _check_apart(destination: str, target: LocationTarget, refusal: str) -> None:
    """Raises InvalidArgument: who deletes the location's directory would delete its backups, too, or the other way."""
    kept = _folder(destination)
    place = target.location or target.stores()[0]
    used = Path(place).expanduser() if target.location else None if place.startswith("mem:") else _folder(place)
    if kept is None or used is None:
        return
    there, here = kept.resolve(), used.resolve()
    if there == here or there in here.parents or here in there.parents:
        hint = "name a place of its own, best on another disk"
        raise InvalidArgument(refusal, hint=hint, destination=destination, location=place)


def _make_folder(target: LocationTarget) -> None:
    if target.location is not None:
        Path(target.location).expanduser().mkdir(parents=True, exist_ok=True)


def _print_backup(key: str, manifest: Manifest) -> None:
    """A backup for people: its key on a line of its own, to be copied, and below it what it holds."""
    sums = _summary(manifest)
    held = f"{counted(sums['shards'], 'shard')}, {counted(sums['rows'], 'row')}, {counted(sums['part_bytes'], 'byte')}"
    print(key)
    print(f"  {sums['created']}  {held}")
    print(f"  of {manifest.blob} and {manifest.consensus}")
    if manifest.left_out:
        print(f"  lacks {counted(len(manifest.left_out), 'damaged shard')}: persist backup verify names them")


def _print_left_out(manifest: Manifest) -> None:
    print_rows(_left_out(manifest), title="These were damaged and are not in the backup (persist fsck shows more):")


def _left_out(manifest: Manifest) -> list[dict[str, str]]:
    return [{"shard": each.shard, "why": each.why} for each in manifest.left_out]


def _created(manifest: Manifest) -> str:
    return datetime.fromtimestamp(manifest.created_ms / 1000, UTC).isoformat(timespec="seconds")


def _summary(manifest: Manifest) -> Record:
    return {
        "created_ms": manifest.created_ms,
        "created": _created(manifest),
        "shards": len(manifest.shards),
        "parts": sum(entry.parts for entry in manifest.shards),
        "part_bytes": sum(entry.part_bytes for entry in manifest.shards),
        "rows": sum(entry.rows for entry in manifest.shards),
        "left_out": _left_out(manifest),
    }


async def _with_store(destination: str, settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    runtime = system()
    blob = open_blob(destination_uri(destination), settings=settings, runtime=runtime)
    try:
        return await work(Store(blob, settings=settings, runtime=runtime))
    finally:
        await blob.close()
