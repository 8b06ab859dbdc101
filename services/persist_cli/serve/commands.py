"""``persist dev`` and ``persist serve``: services as processes."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persist_cli import completion
from persist_cli.bundles import App
from persist_cli.options import AllowUnsafe, Invocation, Run, Where, finite

if TYPE_CHECKING:
    from persist.settings import Settings
    from persist_host import ServiceSpec, ShardAccess

app = App(help="Run one service.", no_args_is_help=True)

ENVIRONMENT = "default"


class KeptIn(StrEnum):
    """What keeps a catalog, as Implementation has it, which would import all of it."""

    PERSIST = "persist"
    STASH = "stash"
    SHADOW = "shadow"


Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", envvar="PERSIST_LISTEN", help="Where to listen; port 0: any.")
]


@dataclass(kw_only=True)
class Watching:
    """How people see how a process fares."""

    side_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            envvar="PERSIST_SIDE_LISTEN",
            help="Where /healthz, /readyz and /metrics are; empty: nowhere.",
        ),
    ] = ""
    log_level: Annotated[str, typer.Option(envvar="PERSIST_LOG_LEVEL", help="debug, info, warning or error.")] = (
        "warning"
    )


@dataclass(kw_only=True)
class Serving(Watching):
    """What every service can be given."""

    otlp_endpoint: Annotated[
        str,
        typer.Option(
            metavar="URL", envvar="PERSIST_OTLP_ENDPOINT", help="Send traces and metrics there; empty: nowhere."
        ),
    ] = ""
    reflection: Annotated[bool, typer.Option(help="Answer gRPC reflection.")] = True

    def serve(self, spec: "ServiceSpec", listen: str, settings: "Settings", *, json: bool = False) -> None:
        """Serve until SIGTERM, and leave with its exit code."""
        from persist_host import serve

        code = serve(
            spec,
            listen,
            settings,
            side_listen=self.side_listen,
            otlp_endpoint=self.otlp_endpoint,
            with_reflection=self.reflection,
            log_level=self.log_level,
            json=json,
        )
        raise typer.Exit(code)


@dataclass(kw_only=True)
class Reaching(Where):
    """The location options of a service that serves no shards itself."""

    def reach(self) -> "ShardAccess":
        """How it reaches them."""
        from persist_host import ShardAccess

        target = self.target()
        if target.endpoint is not None:
            return ShardAccess(endpoints=target.endpoint, blob_uri=target.blob or "")
        blob_uri, consensus_uri = target.stores()
        return ShardAccess(blob_uri=blob_uri, consensus_uri=consensus_uri)


@app.command("shard")
def serve_shard(
    blob: Annotated[
        str, typer.Option(metavar="URI", envvar="PERSIST_BLOB", help="s3://bucket/prefix, file:/dir, mem:")
    ],
    consensus: Annotated[
        str, typer.Option(metavar="URI", envvar="PERSIST_CONSENSUS", help="postgres://…, redis://…, sqlite:/file, mem:")
    ],
    listen: Listen = "127.0.0.1:7100",
    compaction: Annotated[
        bool | None,
        typer.Option(
            "--compaction/--no-compaction",
            help="Compact in this process, too; off where PersistCompaction runs. Default: PERSIST_COMPACTION, or on.",
        ),
    ] = None,
    allow_unsafe: AllowUnsafe = None,
    *,
    context: typer.Context,
    serving: Serving,
) -> None:
    """Serve PersistShard until SIGTERM. Exits with 78 when a store is set up so that data could be lost."""
    import dataclasses

    from persist_shard import shard_spec

    settings = context.ensure_object(Invocation).settings(allow_unsafe)
    if compaction is not None:
        settings = dataclasses.replace(settings, compaction=compaction)
    serving.serve(shard_spec(blob, consensus), listen, settings)


@app.command("compaction")
def serve_compaction(listen: Listen = "127.0.0.1:7200", *, at: Reaching, serving: Serving, run: Run) -> None:
    """Serve PersistCompaction until SIGTERM: merge what the commits of PersistShard leave to merge.

    With --endpoint it learns of work at once, and the servers say where the parts are unless --blob does. With
    --blob and --consensus it looks at every shard once in PERSIST_COMPACTION_ROUND_MS. Run any number of them.
    """
    from persist_compaction import compaction_spec

    settings = run.settings()
    serving.serve(compaction_spec(at.reach(), settings), listen, settings, json=run.json)


@app.command("minter")
def serve_minter(listen: Listen = "127.0.0.1:7400", *, at: Reaching, serving: Serving, run: Run) -> None:
    """Serve TimestampMinter until SIGTERM: bind what happened upstream to times. Run any number of them."""
    from persist_minter import minter_spec

    settings = run.settings()
    serving.serve(minter_spec(at.reach()), listen, settings, json=run.json)


@app.command("webhook")
def serve_webhook(
    name: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Sources of type webhook.", autocompletion=completion.sources),
    ],
    listen: Listen = "127.0.0.1:7500",
    answer_seconds: Annotated[
        float, typer.Option(callback=finite, min=0.1, help="So long a sender waits for its answer at most.")
    ] = 20.0,
    waiting_mib: Annotated[
        int, typer.Option(min=1, help="Bodies that may wait to be appended, in MiB; more are refused with 503.")
    ] = 64,
    connections: Annotated[int, typer.Option(min=1, help="Senders that may be connected.")] = 1_000,
    retain_seconds: Annotated[int, typer.Option(min=0, help="How far back the collections stay readable.")] = 600,
    minter: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="PERSIST_MINTER", help="TimestampMinter servers; empty: none.")
    ] = "",
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Speak TLS by this certificate (PEM, with those that signed it)."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM, without a password).")
    ] = None,
    *,
    at: Where,
    watching: Watching,
    run: Run,
) -> None:
    """Take what is sent to webhooks by POST /NAME until SIGTERM, and answer once it is durable. Run any number of them.

    Senders are believed by their signatures (option check of the source). Without --tls-cert, put it behind something
    that speaks TLS.
    """
    from persist_cli.serve.webhook import Serves, serve_sources

    serves = Serves(
        listen=listen,
        answer_seconds=answer_seconds,
        waiting_bytes=waiting_mib << 20,
        connections=connections,
        retain_ms=retain_seconds * 1000,
        minter=minter,
        tls_cert=tls_cert,
        tls_key=tls_key,
        side_listen=watching.side_listen,
        log_level=watching.log_level,
    )
    raise typer.Exit(serve_sources(run.invocation, at.target(), name, serves))


@app.command("catalog")
def serve_catalog(
    environment: Annotated[
        str, typer.Option(metavar="NAME", envvar="PERSIST_ENVIRONMENT", help="Whose catalog; one per server.")
    ] = ENVIRONMENT,
    generation: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, envvar="PERSIST_GENERATION", help="Lead with this deploy generation. Default: follow."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Never lead, even when asked.")] = False,
    advertise: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="PERSIST_ADVERTISE", help="Where clients reach it, if elsewhere.")
    ] = "",
    listen: Listen = "127.0.0.1:7300",
    implementation: Annotated[
        KeptIn,
        typer.Option(
            envvar="PERSIST_CATALOG_IMPLEMENTATION",
            help="What keeps the catalog: a shard of the location, tables (--stash, no location), or both, compared.",
        ),
    ] = KeptIn.PERSIST,
    stash: Annotated[
        str,
        typer.Option(
            metavar="URI",
            envvar="PERSIST_STASH",
            help="The tables of stash and shadow: sqlite:PATH or postgres://user@host/database.",
        ),
    ] = "",
    *,
    at: Reaching,
    serving: Serving,
    run: Run,
) -> None:
    """Serve CatalogService until SIGTERM: lead the catalog of one environment, or follow the one that does.

    With --generation it leads at once and fences the earlier leader. Without, it leads when a client opens the catalog
    to write; with --follow never. One that is fenced follows, and leads again only with a higher generation.

    A shadow does everything to a shard and to a stash, and fails with CORRUPT_DATA where they differ: for tests.
    """
    if follow and generation is not None:
        raise typer.BadParameter("--follow never leads: leave out --generation")
    if bool(stash) != (implementation is not KeptIn.PERSIST):
        raise typer.BadParameter("--stash URI goes with --implementation stash or shadow, and they with it")
    if implementation is KeptIn.STASH and at.typed:
        raise typer.BadParameter("a stash is in no location: leave out " + ", ".join(f"--{name}" for name in at.typed))
    from persist.client.catalog.implementation import Implementation
    from persist_catalog import CatalogDuty, catalog_spec

    settings = run.settings()
    duty = CatalogDuty(
        environment=environment,
        generation=generation,
        follow=follow,
        advertise=advertise,
        implementation=Implementation(implementation.value),
        stash=stash,
    )
    reach = None if implementation is KeptIn.STASH else at.reach()
    serving.serve(catalog_spec(reach, duty), listen, settings, json=run.json)


def dev(
    data: Annotated[Path, typer.Option(metavar="DIR", envvar="PERSIST_DATA", help="Where everything is kept.")] = Path(
        "data"
    ),
    listen: Listen = "127.0.0.1:7100",
    *,
    watching: Watching,
    run: Run,
) -> None:
    """Run all services in one process, on SQLite and files. For one person on one machine; stop it with Ctrl-C."""
    from persist_cli.serve.dev import dev_spec
    from persist_host import serve

    code = serve(
        dev_spec(data, ENVIRONMENT),
        listen,
        run.settings(),
        side_listen=watching.side_listen,
        log_level=watching.log_level,
        json=run.json,
    )
    raise typer.Exit(code)
