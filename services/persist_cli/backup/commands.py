"""``persist backup``: create, list, verify, restore."""

import dataclasses
from typing import Annotated, Final

import typer

from persist_cli.arguments import OnlyShards
from persist_cli.bundles import App
from persist_cli.options import LocationTarget, Report, Run, Where, finite
from persist_cli.output import Effect

app = App(help="Back a location up while it is used, and restore it elsewhere.", no_args_is_help=True)

_KEPT_BYTES: Final = 16 << 20
"""Of shards that a backup has looked at."""

Destination = Annotated[
    str, typer.Argument(metavar="DEST", help="Where backups lie: a directory, or file:/dir, s3://bucket/prefix.")
]
Chosen = Annotated[
    str | None,
    typer.Option(
        "--backup", metavar="KEY", help="Which one: its key, or how that or its last part begins; the newest otherwise."
    ),
]


@app.command()
def create(
    destination: Destination,
    shard: OnlyShards = None,
    lease: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", callback=finite, min=1.0, help="How long to hold garbage if this process stands still."
        ),
    ] = 900.0,
    *,
    at: Where,
    run: Run,
) -> None:
    """Copy all that the newest states name, beside whatever else runs. What an earlier backup has is not copied again.

    Cut off, run it again: it goes on. Exits with 1 when a damaged shard had to be left out.
    """
    target = at.stores("persist backup create")
    settings = run.settings()
    # Each shard is looked at once: what is kept of those that are done would be all that grows with their number.
    settings = dataclasses.replace(settings, shard_cache_bytes=min(settings.shard_cache_bytes, _KEPT_BYTES))
    from persist_cli.admin import administration as machine
    from persist_cli.backup import work as backup_work

    code = machine.run(
        target,
        settings,
        lambda m: backup_work.create(m, target, destination, shard or [], lease_ms=int(lease * 1000), json=run.json),
    )
    raise typer.Exit(code)


@app.command("list", effect=Effect.READS)
def list_(destination: Destination, *, report: Report) -> None:
    """The finished backups of a destination."""
    settings = report.invocation.settings()
    from persist_cli.backup import work as backup_work

    backup_work.show(destination, settings, json=report.json)


@app.command(effect=Effect.READS)
def verify(destination: Destination, backup: Chosen = None, *, report: Report) -> None:
    """Read back and decode every byte a backup stands for. Exits with 1 when something cannot be restored.

    A shard that was damaged when the backup was taken, and is not in it, counts as well.
    """
    settings = report.invocation.settings()
    from persist_cli.backup import work as backup_work

    raise typer.Exit(backup_work.verify_all(destination, backup, settings, json=report.json))


@app.command()
def restore(
    destination: Destination,
    to: Annotated[str | None, typer.Option("--to", metavar="DIR", help="A new directory to restore into.")] = None,
    to_blob: Annotated[str | None, typer.Option("--to-blob", metavar="URI", help="Or an empty Blob …")] = None,
    to_consensus: Annotated[
        str | None, typer.Option("--to-consensus", metavar="URI", help="… and an empty Consensus.")
    ] = None,
    backup: Chosen = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a restore of it that was killed. Is it gone? Look first.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Also one that a damaged shard was left out of: without that shard.")
    ] = False,
    *,
    run: Run,
) -> None:
    """Restore a backup into an empty location: Blob first, then Consensus. One that failed goes on when run again.

    Two at a time into one location are not possible: the second is refused. So is one after a restore that was killed,
    until --resume says that no process works on it any more.
    """
    settings = run.settings()
    if bool(to) == bool(to_blob or to_consensus) or bool(to_blob) != bool(to_consensus):
        raise typer.BadParameter("name one empty place: --to DIR, or --to-blob with --to-consensus")
    if (to_blob or "").startswith("mem:") or (to_consensus or "").startswith("mem:"):
        raise typer.BadParameter("what is restored into memory is gone when this command ends: name other stores")
    target = LocationTarget(endpoint=None, location=to, blob=to_blob, consensus=to_consensus)
    from persist_cli.backup import work as backup_work

    backup_work.restore(destination, backup, target, settings, resume=resume, partial=partial, json=run.json)
