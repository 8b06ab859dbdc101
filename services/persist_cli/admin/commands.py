"""``persist admin``: clean up and mend. Without --commit each command only tells what it would do."""

from typing import Annotated

import typer

from persist_cli.options import (
    TIMEOUT_SECONDS,
    AllowUnsafe,
    BlobUri,
    ConsensusUri,
    Endpoint,
    Json,
    Location,
    ShardArgument,
    Target,
    Timeout,
    invocation,
    is_typed,
)

app = typer.Typer(
    help="Clean up: every command only tells what it would do, unless --commit is given.", no_args_is_help=True
)

Commit = Annotated[bool, typer.Option("--commit", help="Do it. Otherwise only tell what would be done.")]
Shards = Annotated[
    list[str] | None, typer.Option("--shard", metavar="SHARD", help="A shard id or table name; repeatable.")
]
All = Annotated[bool, typer.Option("--all", help="Every shard of the location.")]
Age = Annotated[
    float,
    typer.Option(
        "--safe-age",
        metavar="HOURS",
        min=0.0,
        help="Writers that began earlier, and that the shard does not know, are refused from then on.",
    ),
]


@app.command()
def compact(
    context: typer.Context,
    shard: Shards = None,
    every: All = False,
    whole: Annotated[bool, typer.Option("--whole", help="Into one run, also what is not worth it yet.")] = False,
    engine: Annotated[str, typer.Option(help="local: in this process; spark: on executors, into one run.")] = "local",
    master: Annotated[str | None, typer.Option(help="The Spark cluster; this machine if not given.")] = None,
    pieces: Annotated[int | None, typer.Option(min=1, help="Spark tasks of each shard, about.")] = None,
    commit: Commit = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="A PersistCompaction that is to do it (with --shard); several, comma separated."
        ),
    ] = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Merge the batches of shards, so that reads get faster and what cancels out takes no room."""
    settings = invocation(context, json=json).settings(allow_unsafe)
    if engine not in ("local", "spark"):
        raise typer.BadParameter(f"--engine {engine} is unknown: use --engine local or --engine spark")
    if engine == "local" and (master or pieces):
        raise typer.BadParameter("--master and --pieces go with --engine spark")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import work as admin_work

    machine.check_choice(shard or [], every)
    if endpoint is not None:
        if every or engine == "spark" or location or blob or consensus:
            _refuse_beside_endpoint(context, every=every, engine=engine)
        from persist_cli.admin import remote as admin_remote

        admin_remote.compact(endpoint, shard or [], settings, whole=whole, commit=commit, json=json)
        return
    target = Target.of_stores(context, "persist admin compact", None, location, blob, consensus)
    if engine == "spark":
        whole = True
        if commit:
            from persist_cli.admin import spark as admin_spark

            named = machine.run(target, settings, lambda m: m.chosen(shard or []))
            admin_spark.compact(target, list(map(str, named)), master=master, pieces=pieces, json=json)
            return
    machine.run(target, settings, lambda m: admin_work.compact(m, shard or [], whole=whole, commit=commit, json=json))


def _refuse_beside_endpoint(context: typer.Context, *, every: bool, engine: str) -> None:
    """Raise BadParameter for what a PersistCompaction cannot be asked for."""
    if every:
        raise typer.BadParameter(
            "a PersistCompaction cannot tell which shards there are: name them with --shard SHARD (repeatable; "
            "persist shard list tells them), or give --location DIR, or --blob and --consensus"
        )
    if engine == "spark":
        raise typer.BadParameter("--engine spark needs the stores: give --location DIR, or --blob and --consensus")
    for name in ("location", "blob", "consensus"):
        if is_typed(context, name):
            raise typer.BadParameter(f"name one place: --endpoint HOST:PORT or --{name}, not both")


@app.command()
def upgrade(
    context: typer.Context,
    shard: Shards = None,
    every: All = False,
    commit: Commit = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Also where programs of an older release committed lately: they will stop.")
    ] = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Let this release's newest format be written, once every program of the location is of it (with --all).

    Programs that do not know it refuse the location from then on: until then one can go back to the older release,
    afterwards not. Refused while programs that do not know it committed lately. Shards in a format that is not written
    any more are moved to one that is.
    """
    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of_stores(context, "persist admin upgrade", endpoint, location, blob, consensus)
    from persist_cli.admin import administration as machine
    from persist_cli.admin import upgrade as admin_upgrade

    machine.check_choice(shard or [], every)
    machine.run(target, settings, lambda m: admin_upgrade.upgrade(m, shard or [], commit=commit, yes=yes, json=json))


@app.command()
def gc(
    context: typer.Context,
    shard: Shards = None,
    every: All = False,
    commit: Commit = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Write a rollup now, and collect what only older states need that nobody holds."""
    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of_stores(context, "persist admin gc", endpoint, location, blob, consensus)
    from persist_cli.admin import administration as machine
    from persist_cli.admin import work as admin_work

    machine.check_choice(shard or [], every)
    machine.run(target, settings, lambda m: admin_work.gc(m, shard or [], commit=commit, json=json))


@app.command()
def sweep(
    context: typer.Context,
    shard: Shards = None,
    every: All = False,
    safe_age: Age = 24.0,
    commit: Commit = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Delete blobs of crashed writers: those no state names and nobody can publish any more.

    A write that takes longer than the safe age is refused when it commits, and must be repeated.
    """
    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of_stores(context, "persist admin sweep", endpoint, location, blob, consensus)
    from persist_cli.admin import administration as machine
    from persist_cli.admin import work as admin_work

    machine.check_choice(shard or [], every)
    safe_age_ms = int(safe_age * 3_600_000)
    machine.run(
        target,
        settings,
        lambda m: admin_work.sweep(m, shard or [], safe_age_ms=safe_age_ms, commit=commit, json=json),
    )


@app.command()
def restore(
    context: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="The key of one blob.")] = None,
    shard: Shards = None,
    every: All = False,
    commit: Commit = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Bring back blobs that a shard's state names and that are gone, from a bucket that keeps versions."""
    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of_stores(context, "persist admin restore", endpoint, location, blob, consensus)
    from persist_cli.admin import administration as machine
    from persist_cli.admin import work as admin_work

    machine.check_choice(shard or [], every, key)
    code = machine.run(target, settings, lambda m: admin_work.restore(m, key, shard or [], commit=commit, json=json))
    raise typer.Exit(code)


@app.command()
def repair(
    context: typer.Context,
    shard: Shards = None,
    every: All = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every blob and decode it.")] = False,
    commit: Commit = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Take parts that nobody can read out of shards, and tell which rows that loses.

    Try a backup, or persist admin restore, first: what is taken out is lost. Exits with 1 when something is damaged and
    stays so: without --commit, or because the state itself is damaged.
    """
    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of_stores(context, "persist admin repair", endpoint, location, blob, consensus)
    from persist_cli.admin import administration as machine
    from persist_cli.admin import mend as admin_mend

    machine.check_choice(shard or [], every)
    code = machine.run(
        target, settings, lambda m: admin_mend.repair(m, shard or [], deep=deep, commit=commit, json=json)
    )
    raise typer.Exit(code)


@app.command()
def rebuild(
    context: typer.Context,
    shard: Shards = None,
    every: All = False,
    commit: Commit = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Begin shards that only Blob still has in an empty Consensus, from their newest rollups.

    What was committed after those is lost. Only where Consensus is lost for ever: the old rollups are deleted.
    """
    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of_stores(context, "persist admin rebuild", endpoint, location, blob, consensus)
    from persist_cli.admin import administration as machine
    from persist_cli.admin import mend as admin_mend

    machine.check_choice(shard or [], every)
    code = machine.run(
        target,
        settings,
        lambda m: admin_mend.rebuild(m, shard or [], commit=commit, json=json),
        consensus_lost=True,
    )
    raise typer.Exit(code)


@app.command()
def finalize(
    context: typer.Context,
    shard: ShardArgument,
    force: Annotated[bool, typer.Option("--force", help="Close it first, whoever reads or writes it.")] = False,
    commit: Commit = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Delete a closed shard for ever: only a marker stays, and its id can never be used again."""
    target = Target.of(context, endpoint, location, blob, consensus)
    settings = invocation(context, json=json).settings(allow_unsafe)
    from persist_cli.admin import work as admin_work

    with target.open(settings) as client:
        admin_work.finalize(client, shard, force=force, commit=commit, timeout=timeout, json=json)
