"""``persist source``: upstreams that are ingested into shards.

Source: architecture.md section 8; design 003.
"""

from typing import Annotated

import typer

from persist_cli.options import BlobUri, ConsensusUri, Endpoint, Json, Location, Target, invocation

app = typer.Typer(help="Ingest PostgreSQL, Kafka, files or generated loads.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The source's name.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="One source, or several.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the source's type; repeatable."),
]
Minter = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", envvar="PERSIST_MINTER", help="TimestampMinter servers; empty: mint in this process."
    ),
]
Spark = Annotated[
    bool, typer.Option("--spark/--no-spark", help="Start Spark when there is much to read at once; else never.")
]
Master = Annotated[
    str | None, typer.Option(metavar="URL", envvar="PERSIST_SPARK_MASTER", help="The Spark cluster; default: local.")
]


@app.command("create")
def create(
    context: typer.Context,
    name: Name,
    type_name: Annotated[
        str,
        typer.Option("--type", metavar="TYPE", help="postgres, kafka, files, loadgen, or package.module:attribute."),
    ],
    option: Options = None,
    interval_ms: Annotated[int, typer.Option(min=1, help="Times of bindings are rounded down to multiples.")] = 1_000,
    minter: Minter = "",
    spark: Spark = True,
    master: Master = None,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
) -> None:
    """Set a source up and ingest what is there already. Fails whole; without an answer: source list.

    persist source create shop --type postgres -o dsn=postgresql://me@db/shop -o tables=public.orders
    """
    from persist_cli.source.work import create_source, parse_options

    run = invocation(context, json=json)
    target = Target.of(context, endpoint, location, blob, consensus)
    options = parse_options(option or [])
    create_source(
        run, target, name, type_name, options, interval_ms=interval_ms, minter=minter, spark=spark, master=master
    )


@app.command("list")
def list_sources(
    context: typer.Context,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
) -> None:
    """The sources of a location, and their shards."""
    from persist_cli.source.work import show_sources

    show_sources(invocation(context, json=json), Target.of(context, endpoint, location, blob, consensus))


@app.command("status")
def status(
    context: typer.Context,
    name: Name,
    upstream: Annotated[bool, typer.Option("--upstream/--no-upstream", help="Ask the upstream, too.")] = True,
    count: Annotated[
        bool, typer.Option("--count", help="Read all it holds, to count rows, also impossible ones.")
    ] = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
) -> None:
    """How a source fares: who ingests it, how far it is, how far behind, and why it failed. Exits with 1 if it did."""
    from persist_cli.source.work import show_status

    target = Target.of(context, endpoint, location, blob, consensus)
    failed = show_status(invocation(context, json=json), target, name, ask_upstream=upstream, count=count)
    raise typer.Exit(1 if failed else 0)


@app.command("run")
def run(
    context: typer.Context,
    name: Name,
    tick_ms: Annotated[int, typer.Option(min=1, help="Time between the beginnings of two steps.")] = 250,
    commit_late: Annotated[
        int, typer.Option(min=0, help="Steps that the upstream keeps data for after it is durable.")
    ] = 1,
    retain_seconds: Annotated[int, typer.Option(min=0, help="How far back the collections stay readable.")] = 600,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps; default: go on for ever.")] = None,
    minter: Minter = "",
    spark: Spark = True,
    master: Master = None,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
) -> None:
    """Ingest a source until SIGTERM or Ctrl-C. Run it as often as you like: all write the same data, once."""
    from persist_cli.source.work import Running, run_source

    run_source(
        invocation(context, json=json),
        Target.of(context, endpoint, location, blob, consensus),
        name,
        Running(
            tick_ms=tick_ms,
            commit_late=commit_late,
            retain_seconds=retain_seconds,
            steps=steps,
            minter=minter,
            spark=spark,
            master=master,
        ),
    )


@app.command("drop")
def drop(
    context: typer.Context,
    name: Name,
    commit: Annotated[bool, typer.Option("--commit", help="Do it; without, say what would be done.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also when the upstream is gone: what it keeps for the source stays there.")
    ] = False,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    json: Json = False,
) -> None:
    """End a source: what it keeps upstream (a replication slot) goes, and its collections with all their history."""
    from persist_cli.source.work import drop_source

    target = Target.of(context, endpoint, location, blob, consensus)
    drop_source(invocation(context, json=json), target, name, commit=commit, force=force)
