"""``persist usage``: bytes in Blob by shard and by what they are to it, requests, and what both cost."""

from typing import Annotated

import typer

from persist_cli.arguments import OnlyShards
from persist_cli.options import After, Age, Run, Where, finite


def usage(
    shard: OnlyShards = None,
    safe_age: Age = 24.0,
    metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Count the requests of a server, too: http://host:9100/metrics; repeatable."),
    ] = None,
    over: Annotated[
        float, typer.Option(metavar="SECONDS", callback=finite, min=0.1, help="How long to count them.")
    ] = 10.0,
    after: After = "",
    price_put: Annotated[
        float, typer.Option(callback=finite, min=0.0, help="Of 1,000 requests that write or list.")
    ] = 0.005,
    price_get: Annotated[float, typer.Option(callback=finite, min=0.0, help="Of 1,000 requests that read.")] = 0.0004,
    price_storage: Annotated[float, typer.Option(callback=finite, min=0.0, help="Of 1 GB for a month.")] = 0.023,
    *,
    at: Where,
    run: Run,
) -> None:
    """Show what shards keep in Blob: current, held for readers, unlinked, leaked; and what it costs."""
    target = at.stores("persist usage")
    settings = run.settings()
    from persist.machine.upkeep.usage import Prices
    from persist_cli.admin import administration as machine
    from persist_cli.admin import usage_work

    prices = Prices(put=price_put, get=price_get, storage=price_storage)
    code = machine.run(
        target,
        settings,
        lambda m: usage_work.usage(
            m,
            shard or [],
            safe_age_ms=int(safe_age * 3_600_000),
            metrics=metrics or [],
            over=over,
            prices=prices,
            json=run.json,
            after=after,
        ),
    )
    raise typer.Exit(code)
