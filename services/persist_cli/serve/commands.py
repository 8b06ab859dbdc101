"""``persist dev`` and ``persist serve``: services as processes."""

import json as jsons
from pathlib import Path
from typing import Annotated

import typer

from persist_cli.options import (
    AllowUnsafe,
    BlobUri,
    ConsensusUri,
    Endpoint,
    Invocation,
    Json,
    Location,
    Target,
    directory_stores,
    invocation,
)

app = typer.Typer(help="Run one service.", no_args_is_help=True)

ENVIRONMENT = "default"

Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", envvar="PERSIST_LISTEN", help="Where to listen; port 0: any.")
]
SideListen = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="PERSIST_SIDE_LISTEN",
        help="Where /healthz, /readyz and /metrics are; empty: nowhere.",
    ),
]
LogLevel = Annotated[str, typer.Option(envvar="PERSIST_LOG_LEVEL", help="debug, info, warning or error.")]
Reflection = Annotated[bool, typer.Option(help="Answer gRPC reflection.")]
OtlpEndpoint = Annotated[
    str,
    typer.Option(metavar="URL", envvar="PERSIST_OTLP_ENDPOINT", help="Send traces and metrics there; empty: nowhere."),
]


@app.command("shard")
def serve_shard(
    context: typer.Context,
    blob: Annotated[
        str, typer.Option(metavar="URI", envvar="PERSIST_BLOB", help="s3://bucket/prefix, file:/dir, mem:")
    ],
    consensus: Annotated[
        str, typer.Option(metavar="URI", envvar="PERSIST_CONSENSUS", help="postgres://…, redis://…, sqlite:/file, mem:")
    ],
    listen: Listen = "127.0.0.1:7100",
    side_listen: SideListen = "",
    otlp_endpoint: OtlpEndpoint = "",
    reflection: Reflection = True,
    log_level: LogLevel = "warning",
    allow_unsafe: AllowUnsafe = None,
    compaction: Annotated[
        bool | None,
        typer.Option(
            "--compaction/--no-compaction",
            help="Compact in this process, too; off where PersistCompaction runs. Default: PERSIST_COMPACTION, or on.",
        ),
    ] = None,
) -> None:
    """Serve PersistShard until SIGTERM. Exits with 78 when a store is set up so that data could be lost."""
    import dataclasses

    from persist_shard import serve_shard as serve

    settings = invocation(context).settings(allow_unsafe)
    if compaction is not None:
        settings = dataclasses.replace(settings, compaction=compaction)
    code = serve(
        listen,
        blob,
        consensus,
        settings,
        side_listen=side_listen,
        otlp_endpoint=otlp_endpoint,
        with_reflection=reflection,
        log_level=log_level,
    )
    raise typer.Exit(code)


@app.command("compaction")
def serve_compaction(
    context: typer.Context,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    listen: Listen = "127.0.0.1:7200",
    side_listen: SideListen = "",
    otlp_endpoint: OtlpEndpoint = "",
    reflection: Reflection = True,
    log_level: LogLevel = "warning",
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Serve PersistCompaction until SIGTERM: merge what the commits of PersistShard leave to merge.

    With --endpoint it learns of work at once, and the servers say where the parts are unless --blob does. With
    --blob and --consensus it looks at every shard once in PERSIST_COMPACTION_ROUND_MS. Run any number of them.
    """
    from persist_compaction import Reach
    from persist_compaction import serve_compaction as serve

    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of(context, endpoint, location, blob, consensus)
    code = serve(
        listen,
        Reach(**_reached(target)),
        settings,
        side_listen=side_listen,
        otlp_endpoint=otlp_endpoint,
        with_reflection=reflection,
        log_level=log_level,
        json=json,
    )
    raise typer.Exit(code)


@app.command("minter")
def serve_minter(
    context: typer.Context,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    listen: Listen = "127.0.0.1:7400",
    side_listen: SideListen = "",
    otlp_endpoint: OtlpEndpoint = "",
    reflection: Reflection = True,
    log_level: LogLevel = "warning",
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Serve TimestampMinter until SIGTERM: bind what happened upstream to times. Run any number of them."""
    from persist_minter import Reach
    from persist_minter import serve_minter as serve

    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of(context, endpoint, location, blob, consensus)
    code = serve(
        listen,
        Reach(**_reached(target)),
        settings,
        side_listen=side_listen,
        otlp_endpoint=otlp_endpoint,
        with_reflection=reflection,
        log_level=log_level,
        json=json,
    )
    raise typer.Exit(code)


@app.command("catalog")
def serve_catalog(
    context: typer.Context,
    endpoint: Endpoint = None,
    location: Location = None,
    blob: BlobUri = None,
    consensus: ConsensusUri = None,
    environment: Annotated[
        str, typer.Option(metavar="NAME", envvar="PERSIST_ENVIRONMENT", help="Whose catalog; one per server.")
    ] = ENVIRONMENT,
    generation: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, envvar="PERSIST_GENERATION", help="Lead with this deploy generation. Default: follow."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Never lead, whoever asks.")] = False,
    advertise: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="PERSIST_ADVERTISE", help="Where clients reach it, if elsewhere.")
    ] = "",
    listen: Listen = "127.0.0.1:7300",
    side_listen: SideListen = "",
    otlp_endpoint: OtlpEndpoint = "",
    reflection: Reflection = True,
    log_level: LogLevel = "warning",
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Serve CatalogService until SIGTERM: lead the catalog of one environment, or follow whoever does.

    With --generation it leads at once and fences whoever led. Without, it leads when a client opens the catalog to
    write; with --follow never. One that is fenced follows, and leads again only with a higher generation.
    """
    if follow and generation is not None:
        raise typer.BadParameter("--follow never leads: leave out --generation")
    from persist_catalog import Duty, Reach
    from persist_catalog import serve_catalog as serve

    settings = invocation(context, json=json).settings(allow_unsafe)
    target = Target.of(context, endpoint, location, blob, consensus)
    code = serve(
        listen,
        Reach(**_reached(target)),
        Duty(environment=environment, generation=generation, follow=follow, advertise=advertise),
        settings,
        side_listen=side_listen,
        otlp_endpoint=otlp_endpoint,
        with_reflection=reflection,
        log_level=log_level,
        json=json,
    )
    raise typer.Exit(code)


def _reached(target: Target) -> dict[str, str]:
    """How a service that serves no shards reaches them."""
    if target.endpoint is not None:
        return {"endpoints": target.endpoint, "blob_uri": target.blob or ""}
    blob_uri, consensus_uri = target.stores()
    return {"blob_uri": blob_uri, "consensus_uri": consensus_uri}


def dev(
    context: typer.Context,
    data: Annotated[Path, typer.Option(metavar="DIR", envvar="PERSIST_DATA", help="Where everything is kept.")] = Path(
        "data"
    ),
    listen: Listen = "127.0.0.1:7100",
    side_listen: SideListen = "",
    log_level: LogLevel = "warning",
    json: Json = False,
    allow_unsafe: AllowUnsafe = None,
) -> None:
    """Run all services in one process, on SQLite and files. For one person on one machine; stop it with Ctrl-C."""
    raise typer.Exit(_run_dev(invocation(context, json=json), data, listen, side_listen, log_level, allow_unsafe))


def _run_dev(
    run: Invocation, data: Path, listen: str, side_listen: str, log_level: str, allow_unsafe: list[str] | None
) -> int:
    from persist.runtime import system
    from persist_catalog import Duty, open_catalog
    from persist_host import Host, Telemetry, logs, run_service
    from persist_minter import Reach, open_minter
    from persist_shard import start_shard

    logs.configure(log_level)
    settings = run.settings(allow_unsafe)
    # The layout of an embedded location: `--location DIR` reaches the same shards.
    blob, consensus = directory_stores(str(data))

    where = str(data.absolute())

    async def start() -> Host:
        telemetry = Telemetry(service="persist-dev")
        # Through the stores like any other process: the shard service of the same port is not up yet.
        reach = Reach(blob_uri=blob, consensus_uri=consensus)
        reached, _ = await reach.location(settings, system())
        minter = open_minter(reached, telemetry=telemetry)
        # A location of its own: every service closes the one it works on. The catalog has a leader once it is written.
        reached, _ = await reach.location(settings, system())
        catalog = open_catalog(reached, Duty(environment=ENVIRONMENT), telemetry=telemetry)
        beside = (*minter, catalog)
        host, address = await start_shard(
            listen, blob, consensus, settings, telemetry=telemetry, side_listen=side_listen, beside=beside
        )
        catalog.listens(str(address), host.tell)
        if run.json:
            services = dict.fromkeys(("shard", "minter", "catalog"), str(address))
            print(jsons.dumps({**services, "data": where}), flush=True)
        else:
            print(f"persist dev: shard, minter and catalog service on {address}, data in {where}", flush=True)
            print(f"  persist shard list --endpoint {address}", flush=True)
        return host

    return run_service(start)
