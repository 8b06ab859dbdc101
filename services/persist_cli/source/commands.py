"""``persist source``: upstreams that are ingested into shards.

Source: architecture.md section 8; design 003.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from persist_cli import completion
from persist_cli.bundles import App
from persist_cli.options import Report, Where
from persist_cli.output import Effect

app = App(help="Ingest PostgreSQL, MariaDB, Kafka, files, webhooks.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The source's name.", autocompletion=completion.sources)]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="One source, or several.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the source's type; repeatable."),
]


@dataclass(kw_only=True)
class Means:
    """What the work on a source is done with."""

    minter: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", envvar="PERSIST_MINTER", help="TimestampMinter servers; empty: mint in this process."
        ),
    ] = ""
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Start Spark when there is much to read at once; else never.")
    ] = True
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="PERSIST_SPARK_MASTER", help="The Spark cluster; default: local."),
    ] = None


Table = Annotated[str, typer.Argument(metavar="TABLE", help="A table, as public.orders.")]
Rate = Annotated[
    int, typer.Option("--rows-per-second", min=0, help="Read no more rows than that, on average; 0: as fast as it can.")
]
Minting = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", envvar="PERSIST_MINTER", help="TimestampMinter servers; empty: mint in this process."
    ),
]


StateDir = Annotated[
    str,
    typer.Option(metavar="DIR", envvar="PERSIST_STATE_DIR", help="Where newest rows of keys are; default: below /tmp."),
]


@app.command("create")
def create(
    name: Name,
    type_name: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="postgres, mysql, kafka, files, webhook, cdcv2, debezium, loadgen, or package.module:attribute.",
            autocompletion=completion.source_types,
        ),
    ],
    option: Options = None,
    interval_ms: Annotated[int, typer.Option(min=1, help="Times of bindings are rounded down to multiples.")] = 1_000,
    rows_per_second: Rate = 0,
    state_dir: StateDir = "",
    *,
    means: Means,
    at: Where,
    report: Report,
) -> None:
    """Set a source up and ingest what is there already. Fails whole; without an answer: source list.

    persist source create shop --type postgres -o dsn=postgresql://me@db/shop -o tables=public.orders
    """
    from persist_cli.source.work import create_source, parse_options

    target = at.target()
    options = parse_options(option or [])
    create_source(
        report.invocation,
        target,
        name,
        type_name,
        options,
        interval_ms=interval_ms,
        rows_per_second=rows_per_second,
        state_dir=state_dir,
        minter=means.minter,
        spark=means.spark,
        master=means.master,
    )


@app.command("list", effect=Effect.READS)
def list_sources(
    *,
    at: Where,
    report: Report,
) -> None:
    """The sources of a location, and their shards."""
    from persist_cli.source.work import show_sources

    show_sources(report.invocation, at.target())


@app.command("status", effect=Effect.READS)
def status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One; else: a line of each.", autocompletion=completion.sources),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="A row for each of its tables, also those that run.")] = False,
    upstream: Annotated[
        bool | None,
        typer.Option("--upstream/--no-upstream", help="Ask the upstream, too; default: where one source is named."),
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Read all it holds, to count rows, also impossible ones.")
    ] = False,
    *,
    at: Where,
    report: Report,
) -> None:
    """How sources fare: who ingests them, how far they are, which tables do not run, why, and what to do.

    Exits with 1 if something failed or stalled.
    """
    from persist_cli.source.work import show_overview, show_status

    target = at.target()
    if name is None:
        if count or every:
            raise typer.BadParameter("--count and --all are of one source: name it")
        failed = show_overview(report.invocation, target, ask_upstream=bool(upstream))
    else:
        asked = upstream is not False
        failed = show_status(report.invocation, target, name, ask_upstream=asked, count=count, every=every)
    raise typer.Exit(1 if failed else 0)


@app.command("run")
def run(
    name: Name,
    tick_ms: Annotated[int, typer.Option(min=1, help="Time between the beginnings of two steps.")] = 250,
    commit_late: Annotated[
        int, typer.Option(min=0, help="Steps that the upstream keeps data for after it is durable.")
    ] = 1,
    retain_seconds: Annotated[int, typer.Option(min=0, help="How far back the collections stay readable.")] = 600,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps; default: go on for ever.")] = None,
    snapshot_rows_per_second: Annotated[
        int, typer.Option(min=0, help="Of snapshots that it goes on with: rows on average; 0: as fast as it can.")
    ] = 0,
    state_dir: StateDir = "",
    key_ranges: Annotated[
        int,
        typer.Option(min=0, max=65_536, help="Parts of an export's keys for upserts; 0: 4 where Spark is, else 1."),
    ] = 0,
    side_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            envvar="PERSIST_SIDE_LISTEN",
            help="Where /healthz, /readyz and /metrics are; empty: nowhere.",
        ),
    ] = "",
    *,
    means: Means,
    at: Where,
    report: Report,
) -> None:
    """Ingest a source until SIGTERM or Ctrl-C. Run it as often as you like: all write the same data, once."""
    from persist_cli.source.work import Running, run_source

    run_source(
        report.invocation,
        at.target(),
        name,
        Running(
            tick_ms=tick_ms,
            commit_late=commit_late,
            retain_seconds=retain_seconds,
            steps=steps,
            snapshot_rows_per_second=snapshot_rows_per_second,
            state_dir=state_dir,
            key_ranges=key_ranges,
            side_listen=side_listen,
            minter=means.minter,
            spark=means.spark,
            master=means.master,
        ),
    )


@app.command("resnapshot")
def resnapshot(
    name: Name,
    export: Annotated[str, typer.Argument(metavar="TABLE", help="One of its exports, as public.orders.")],
    minter: Minting = "",
    rows_per_second: Rate = 0,
    state_dir: StateDir = "",
    *,
    at: Where,
    report: Report,
) -> None:
    """Read one table of a source anew, in place, at one time, while the others go on; also one that is stalled.

    One that was broken off goes on where it was. A pipeline that runs does that, too, within half a minute.

    persist source resnapshot shop public.orders
    """
    from persist_cli.source.work import resnapshot_source

    resnapshot_source(
        report.invocation,
        at.target(),
        name,
        export,
        minter=minter,
        rows_per_second=rows_per_second,
        state_dir=state_dir,
    )


@app.command("alter")
def alter(
    name: Name,
    option: Annotated[
        list[str], typer.Option("--option", "-o", metavar="KEY=VALUE", help="What it is to have from now on.")
    ],
    *,
    at: Where,
    report: Report,
) -> None:
    """Give a source another option than it was created with, while it runs or not.

    Of PostgreSQL onAltered, specialValues and excludeColumns.
    Columns are left out from a table's next snapshot on.

    persist source alter shop -o onAltered=resnapshot

    persist source alter shop -o excludeColumns=public.orders.valid_to
    """
    from persist_cli.source.work import alter_source, parse_options

    alter_source(report.invocation, at.target(), name, parse_options(option))


@app.command("add-table")
def add_table(
    name: Name,
    table: Table,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="One that alter takes, too.")
    ] = None,
    minter: Minting = "",
    rows_per_second: Rate = 0,
    state_dir: StateDir = "",
    *,
    at: Where,
    report: Report,
) -> None:
    """Take one more table into a source, while it runs or not; once it returns, all of the table is there.

    persist source add-table shop public.customers
    persist source add-table shop public.customers -o excludeColumns=public.customers.password
    """
    from persist_cli.source.work import add_to_source, parse_options

    add_to_source(
        report.invocation,
        at.target(),
        name,
        table,
        parse_options(option or []),
        minter=minter,
        rows_per_second=rows_per_second,
        state_dir=state_dir,
    )


@app.command("drop-table")
def drop_table(
    name: Name,
    export: Annotated[str, typer.Argument(metavar="TABLE", help="One of its exports, as public.orders.")],
    commit: Annotated[bool, typer.Option("--commit", help="Do it; without, say what would be done.")] = False,
    *,
    at: Where,
    report: Report,
) -> None:
    """Have a source go on without a table, and end that: its collection, with all its history."""
    from persist_cli.source.work import drop_from_source

    drop_from_source(report.invocation, at.target(), name, export, commit=commit)


@app.command("drop")
def drop(
    name: Name,
    commit: Annotated[bool, typer.Option("--commit", help="Do it; without, say what would be done.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also when the upstream is gone: what it keeps for the source stays there.")
    ] = False,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="With what depends on it in an environment: views, holds, …")
    ] = False,
    *,
    at: Where,
    report: Report,
) -> None:
    """End a source: what it keeps upstream (a replication slot) goes, and its collections with all their history."""
    from persist_cli.source.work import drop_source

    target = at.target()
    drop_source(report.invocation, target, name, commit=commit, force=force, cascade=cascade)
