"""``persist catalog``: look into the durable catalog of an environment, and repair it by hand.

Source: design document 2 (catalog debug tool); catalog-semantics.md section 1.2.12.
"""

from typing import Annotated

import typer

from persist_cli import completion
from persist_cli.bundles import App
from persist_cli.catalog.place import Whose
from persist_cli.options import Run
from persist_cli.output import Effect

app = App(
    help="Look into the catalog of an environment (its databases, schemas, items, roles, …), and repair it by hand.",
    no_args_is_help=True,
)

KindArgument = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help="What kind of object, as in dump: database, item, role, …",
        autocompletion=completion.kinds,
    ),
]
KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help='Its key as JSON, as dump prints it: \'{"id": "u12"}\'. Or a file with it; - for standard input.',
    ),
]
ValueArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="VALUE",
        help="Its new value as JSON, a file with it, or -. Not needed when KEY is a file with both, as in dump.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed where there is no terminal.")]


ItemArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help='Of the item: flights, public.flights or persist.public.flights; "Odd.Name".'),
]
RoleOption = Annotated[
    str, typer.Option("--role", metavar="NAME", envvar="PERSIST_ROLE", help="In whose name.", show_default="persist")
]


@app.command("items", effect=Effect.READS)
def items(
    system: Annotated[bool, typer.Option("--system", help="Also what the system made.")] = False,
    *,
    at: Whose,
    run: Run,
) -> None:
    """Print what has a name in an environment: tables, sources, views, holds, …, and the shard of each.

    Disturbs no other process, and needs no leader.
    """
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import items as catalog_items

    catalog_items.items(place, settings, system=system, json=run.json)


@app.command("adopt", effect=Effect.ONE_COMMIT)
def adopt(
    name: ItemArgument,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="ID", help="This shard. Without: the one that has the name already."),
    ] = None,
    timeline: Annotated[
        str,
        typer.Option("--timeline", metavar="TEXT", help="Of its times, where its id does not say it: M, U.name, …"),
    ] = "",
    role: RoleOption = "",
    *,
    at: Whose,
    run: Run,
) -> None:
    """Make an item of a shard that exists, so that SQL, holds and privileges know it. Makes the environment if need be.

    The shard stays as it is, everything of it readable, and its writers go on. Where two shards have the name
    both are listed: give the id of the one that is meant.
    """
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import items as catalog_items

    catalog_items.adopt(place, settings, name, shard=shard, timeline=timeline, role=role, json=run.json)


@app.command("leave", effect=Effect.ONE_COMMIT)
def leave(
    name: ItemArgument,
    cascade: Annotated[bool, typer.Option("--cascade", help="With all that depends on it.")] = False,
    role: RoleOption = "",
    *,
    at: Whose,
    run: Run,
) -> None:
    """Forget an item and give its shard back as it is: the reverse of adopt."""
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import items as catalog_items

    catalog_items.leave(place, settings, name, cascade=cascade, role=role, json=run.json)


@app.command("dump", effect=Effect.READS)
def dump(
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", "-k", metavar="KIND", help="Only this kind; repeatable.", autocompletion=completion.kinds
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="KIND", help="All but this kind; repeatable.", autocompletion=completion.kinds
        ),
    ] = None,
    ignore_large: Annotated[
        bool, typer.Option("--ignore-large", help="Without the kinds that only grow: audit_log, storage_usage.")
    ] = False,
    consolidate: Annotated[
        bool,
        typer.Option(
            "--consolidate/--no-consolidate", help="What is there now; or every change that is still kept, by time."
        ),
    ] = True,
    *,
    at: Whose,
    run: Run,
) -> None:
    """Print all objects as one JSON document: for each kind a list of key, value, time and diff (1 came, -1 went).

    Disturbs no other process. Key and value of an object can be changed for edit. What this release cannot read (a
    catalog of another data version) is shown in hexadecimal digits: key_hex, value_hex. With --json all is on one line.
    """
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import reads as catalog_reads

    tags = catalog_reads.chosen_tags(kind or [], ignore or [], ignore_large=ignore_large)
    catalog_reads.dump(place, settings, tags, asked=bool(kind), consolidated=consolidate, json=run.json)


@app.command("edit", effect=Effect.ONE_COMMIT)
def edit(
    kind: KindArgument,
    key: KeyArgument,
    value: ValueArgument = None,
    yes: Yes = False,
    *,
    at: Whose,
    run: Run,
) -> None:
    """Set one object to a value, or insert it, and print its previous value. For repairs: check the value yourself.

    A process that writes to the catalog meanwhile is fenced: it fails and has to open the catalog again. Nothing
    but the form of the value is checked, not names that clash nor ids of objects that are not there.

    persist catalog edit setting '{"name": "motto"}' '{"value": "carpe diem"}' --location DIR
    """
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import writes as catalog_writes

    wanted = catalog_writes.wanted_edit(kind, key, value)
    catalog_writes.change(place, settings, wanted, yes=yes, json=run.json)


@app.command("delete", effect=Effect.ONE_COMMIT)
def delete(
    kind: KindArgument,
    key: KeyArgument,
    yes: Yes = False,
    *,
    at: Whose,
    run: Run,
) -> None:
    """Delete one object and print its previous value; when there is none, say so and do nothing.

    A process that writes to the catalog meanwhile is fenced: it fails and has to open the catalog again. What
    refers to the object keeps doing so: delete that, too.
    """
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import writes as catalog_writes

    catalog_writes.change(place, settings, catalog_writes.wanted_delete(kind, key), yes=yes, json=run.json)


@app.command("epoch")
def epoch(
    *,
    at: Whose,
    run: Run,
) -> None:
    """Print who leads: deploy generation and epoch of the process that opened the catalog for writing last.

    Disturbs no other process. The epoch is one more after every such opening, and after every edit and delete.
    """
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import reads as catalog_reads

    catalog_reads.epoch(place, settings, json=run.json)


@app.command("upgrade-check", effect=Effect.READS)
def upgrade_check(
    *,
    at: Whose,
    run: Run,
) -> None:
    """Say whether this release can go on with the catalog, and what it would change when it first opens it.

    Changes and disturbs nothing, so run it before a deployment beside the old release. Exits with 0 when it can.
    """
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import reads as catalog_reads

    catalog_reads.upgrade_check(place, settings, json=run.json)


@app.command("repair")
def repair(
    commit: Annotated[
        bool, typer.Option("--commit", help="Do it. Without, say what is wrong and what would change, and do nothing.")
    ] = False,
    generation: Annotated[
        int | None,
        typer.Option("--generation", metavar="N", min=0, help="Set the deploy generation back to this one."),
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option("--epoch", metavar="N", min=0, help="Set the epoch back to this one; opening takes the next."),
    ] = None,
    *,
    at: Whose,
    run: Run,
) -> None:
    """Make a catalog whole that cannot be opened because its rows do not sum up, and print what that changes.

    What went without being there never was, what is there several times is there once, and of several values of a key
    the one stays that came last: look at each, and use edit where another one is right. With --commit all is done in
    one append, which fences the leader; where nothing is wrong nothing is done. Exits with 1 while something is
    wrong.

    With --generation or --epoch the fence token is set back, too: for a deployment that was rolled out with a number
    far too high. Every earlier opening is fenced for ever, whatever numbers come again. It is refused while a server
    leads: stop that first, and programs that lead, or the next of them to open the catalog takes the wrong number
    again.
    """
    place, settings = at.place(), run.settings()
    from persist_cli.catalog import repairs as catalog_repairs

    catalog_repairs.repair(place, settings, commit=commit, json=run.json, back=(generation, epoch))
