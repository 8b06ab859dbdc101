"""Arguments that name what a location has. A shell completes them."""

from typing import Annotated

import typer

from persist_cli import completion

ShardArgument = Annotated[
    str,
    typer.Argument(
        metavar="SHARD",
        help="A shard id (s…), or a table name, whose shard id derives from it.",
        autocompletion=completion.tables,
    ),
]
OnlyShards = Annotated[
    list[str] | None,
    typer.Option("--shard", metavar="SHARD", help="Only this one; repeatable.", autocompletion=completion.tables),
]
