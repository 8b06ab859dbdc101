"""``persist shard``: look into shards, append to them, read them, follow them."""

import re
from pathlib import Path
from typing import Annotated

import typer

from persist_cli.arguments import ShardArgument
from persist_cli.bundles import App
from persist_cli.options import TIMEOUT_SECONDS, Commit, Run, Timeout, Where, finite
from persist_cli.output import Effect
from persist_cli.times import AsOf, From, NewUpper, RowTime, Until

app = App(help="Look into shards, append to them, read them, follow them.", no_args_is_help=True)


@app.command("list", effect=Effect.READS)
def list_shards(
    frontiers: Annotated[
        bool | None,
        typer.Option("--frontiers/--no-frontiers", help="Read each shard for them; if not given, up to 500 shards."),
    ] = None,
    *,
    at: Where,
    run: Run,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """List every shard of a location, with its frontiers unless there are very many."""
    target, settings = at.target(), run.settings()
    from persist_cli.shard import reads as shard_reads

    with target.open(settings, reads=True) as client:
        code = shard_reads.list_shards(client, target.words, frontiers=frontiers, timeout=timeout, json=run.json)
    raise typer.Exit(code)


@app.command(effect=Effect.READS)
def inspect(
    shard: ShardArgument,
    *,
    at: Where,
    run: Run,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Show a shard's state: frontiers, batches, readers, writers, schemas. All of it with --json."""
    target, settings = at.target(), run.settings()
    from persist_cli.shard import reads as shard_reads

    with target.open(settings, reads=True) as client:
        shard_reads.inspect(client, shard, timeout=timeout, json=run.json)


@app.command(effect=Effect.ONE_COMMIT)
def append(
    shard: ShardArgument,
    file: Annotated[str, typer.Argument(help="A CSV, JSON lines, Parquet or Arrow file; - for standard input.")] = "-",
    file_format: Annotated[
        str | None, typer.Option("--format", help="csv, tsv, json, parquet or arrow; by the file's suffix otherwise.")
    ] = None,
    key: Annotated[str, typer.Option(metavar="A,B", help="Key columns of a new shard, each NAME or NAME:TYPE.")] = "",
    val: Annotated[
        str, typer.Option(metavar="C,D", help="Val columns of a new shard; all that are left otherwise.")
    ] = "",
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="Call a column of the file differently in the shard; repeatable."),
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of text that is not UTF-8, such as latin-1.")] = "utf-8",
    time_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column with each row's time, a number or a date; else ts.")
    ] = None,
    diff_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column with each row's diff; else diff.")
    ] = None,
    time: RowTime = None,
    diff: Annotated[
        int | None, typer.Option(help="The diff of every row: -1 takes rows away. Otherwise the diff column, or 1.")
    ] = None,
    new_upper: NewUpper = None,
    *,
    at: Where,
    run: Run,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Append rows in one commit. A new shard is made when --key names its key columns."""
    target, settings = at.target(), run.settings()
    from persist_cli.shard import rows_in
    from persist_cli.shard import writes as shard_writes

    request = shard_writes.AppendFile(
        shard=shard,
        file=rows_in.File(
            source=file,
            file_format=file_format,
            encoding=encoding,
            names=rows_in.renamed(rename or (), time=time_column, diff=diff_column),
        ),
        key=_names(key),
        val=_names(val),
        time=time,
        diff=diff,
        new_upper=new_upper,
    )
    if request.key and not target.is_there():
        shard_writes.check_new(request)
    with target.open(settings, begin=bool(request.key)) as client:
        shard_writes.append(client, request, timeout=timeout, json=run.json)


@app.command(effect=Effect.READS)
def snapshot(
    shard: ShardArgument,
    as_of: AsOf = None,
    where: Annotated[str | None, typer.Option(help="For example: id >= 5 and name = 'x'")] = None,
    columns: Annotated[str, typer.Option(metavar="A,B", help="Only these columns, in this order.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many rows.")] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help="table, json (lines), csv, tsv, parquet or arrow.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    *,
    at: Where,
    run: Run,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Read what a shard holds at a time. The answer for a time is the same for ever."""
    if run.json and file_format not in (None, "json"):
        raise typer.BadParameter("rows have one format: --json, or --format")
    target, settings = at.target(), run.settings()
    from persist_cli.shard import reads as shard_reads

    request = shard_reads.SnapshotFile(
        shard=shard,
        as_of=as_of,
        where=where,
        columns=_names(columns),
        limit=limit,
        file_format=file_format,
        output=output,
    )
    with target.open(settings, reads=True) as client:
        shard_reads.snapshot(client, request, timeout=timeout, json=run.json)


@app.command(effect=Effect.READS)
def listen(
    shard: ShardArgument,
    start: From = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Begin with all that the shard holds at that time: the first rows, too.")
    ] = False,
    until: Until = None,
    idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", callback=finite, min=0.1, help="End after so long without news.")
    ] = None,
    *,
    at: Where,
    run: Run,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Follow the changes of a shard as they commit. Ends with Ctrl-C, or when the shard is closed."""
    target, settings = at.target(), run.settings()
    from persist_cli.shard import reads as shard_reads

    with target.open(settings, reads=True) as client:
        shard_reads.listen(
            client, shard, start=start, snapshot=snapshot, until=until, idle=idle, timeout=timeout, json=run.json
        )


@app.command()
def finalize(
    shard: ShardArgument,
    force: Annotated[bool, typer.Option("--force", help="Close it first, even while it is read and written.")] = False,
    commit: Commit = False,
    *,
    at: Where,
    run: Run,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Delete a closed shard for ever: only a marker stays, and its id can never be used again."""
    target, settings = at.target(), run.settings()
    from persist_cli.shard import finalizing

    with target.open(settings) as client:
        finalizing.finalize(client, shard, force=force, commit=commit, timeout=timeout, json=run.json)


def _names(text: str) -> tuple[str, ...]:
    # What is in brackets belongs to a type, such as decimal128(20, 2).
    names = re.split(r",(?![^(\[]*[)\]])", text)
    return tuple(name.strip() for name in names if name.strip())
