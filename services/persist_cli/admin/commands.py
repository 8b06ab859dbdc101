"""``persist admin``: clean up and mend. Without --commit each command only shows what it would do."""

from dataclasses import dataclass
from typing import Annotated

import typer

from persist_cli import completion
from persist_cli.bundles import App
from persist_cli.options import After, Age, Commit, Run, Where
from persist_cli.shard.commands import finalize

app = App(help="Clean up: every command only shows what it would do, unless --commit is given.", no_args_is_help=True)


@dataclass(kw_only=True)
class Which:
    """The shards a command is about, and whether it is to do its work."""

    shard: Annotated[
        list[str] | None,
        typer.Option(
            "--shard", metavar="SHARD", help="A shard id or table name; repeatable.", autocompletion=completion.tables
        ),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="Every shard of the location.")] = False
    commit: Commit = False

    @property
    def shards(self) -> list[str]:
        """Those named one by one."""
        return self.shard or []


@dataclass(kw_only=True)
class WhereCompaction(Where):
    """The location options, of which the endpoint is another service's."""

    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="A PersistCompaction that is to do it (with --shard); several, comma separated."
        ),
    ] = None


@app.command()
def compact(
    whole: Annotated[bool, typer.Option("--whole", help="Into one run, also what is not worth it yet.")] = False,
    engine: Annotated[str, typer.Option(help="local: in this process; spark: on executors, into one run.")] = "local",
    master: Annotated[str | None, typer.Option(help="The Spark cluster; this machine if not given.")] = None,
    pieces: Annotated[int | None, typer.Option(min=1, help="Spark tasks of each shard, about.")] = None,
    after: After = "",
    *,
    which: Which,
    at: WhereCompaction,
    run: Run,
) -> None:
    """Merge the batches of shards, so that reads get faster and what cancels out takes no room."""
    settings = run.settings()
    if engine not in ("local", "spark"):
        raise typer.BadParameter(f"--engine {engine} is unknown: use --engine local or --engine spark")
    if engine == "local" and (master or pieces):
        raise typer.BadParameter("--master and --pieces go with --engine spark")
    if after and (engine == "spark" or at.endpoint is not None):
        raise typer.BadParameter("--after goes with --all, and with --engine local")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import work as admin_work

    machine.check_choice(which.shards, which.every)
    if at.endpoint is not None:
        _check_beside_endpoint(which, at, engine)
        from persist_cli.admin import remote as admin_remote

        raise typer.Exit(
            admin_remote.compact(at.endpoint, which.shards, settings, whole=whole, commit=which.commit, json=run.json)
        )
    target = at.stores("persist admin compact")
    if engine == "spark":
        whole = True
        if which.commit:
            from persist_cli.admin import spark as admin_spark

            named = machine.run(target, settings, lambda m: m.chosen(which.shards))
            shards = list(map(str, named))
            raise typer.Exit(admin_spark.compact(target, shards, master=master, pieces=pieces, json=run.json))
    code = machine.run(
        target,
        settings,
        lambda m: admin_work.compact(m, which.shards, whole=whole, commit=which.commit, json=run.json, after=after),
    )
    raise typer.Exit(code)


def _check_beside_endpoint(which: Which, at: WhereCompaction, engine: str) -> None:
    """Raise BadParameter for what a PersistCompaction cannot be asked for."""
    if which.every:
        raise typer.BadParameter(
            "a PersistCompaction does not know which shards there are: name them with --shard SHARD (repeatable; "
            "persist shard list lists them), or give --location DIR, or --blob and --consensus"
        )
    if engine == "spark":
        raise typer.BadParameter("--engine spark needs the stores: give --location DIR, or --blob and --consensus")
    for name in at.typed.keys() - {"endpoint"}:
        raise typer.BadParameter(f"name one place: --endpoint HOST:PORT or --{name}, not both")


@app.command()
def upgrade(
    yes: Annotated[
        bool, typer.Option("--yes", help="Also where programs of an older release committed lately: they will stop.")
    ] = False,
    *,
    which: Which,
    at: Where,
    run: Run,
) -> None:
    """Let this release's newest format be written, once every program of the location is of it (with --all).

    Programs that do not know it refuse the location from then on: until then one can go back to the older release,
    afterwards not. Refused while programs that do not know it committed lately. Shards in a format that is not written
    any more are moved to one that is.
    """
    settings = run.settings()
    target = at.stores("persist admin upgrade")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import upgrade as admin_upgrade

    machine.check_choice(which.shards, which.every)
    code = machine.run(
        target, settings, lambda m: admin_upgrade.upgrade(m, which.shards, commit=which.commit, yes=yes, json=run.json)
    )
    raise typer.Exit(code)


@app.command()
def gc(
    after: After = "",
    *,
    which: Which,
    at: Where,
    run: Run,
) -> None:
    """Write a rollup now, and collect what only older states need that no reader holds."""
    settings = run.settings()
    target = at.stores("persist admin gc")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import work as admin_work

    machine.check_choice(which.shards, which.every)
    code = machine.run(
        target, settings, lambda m: admin_work.gc(m, which.shards, commit=which.commit, json=run.json, after=after)
    )
    raise typer.Exit(code)


@app.command()
def sweep(
    safe_age: Age = 24.0,
    after: After = "",
    *,
    which: Which,
    at: Where,
    run: Run,
) -> None:
    """Delete blobs of crashed writers: those that no state names and no process can publish any more.

    A write that takes longer than the safe age is refused when it commits, and must be repeated.
    """
    settings = run.settings()
    target = at.stores("persist admin sweep")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import work as admin_work

    machine.check_choice(which.shards, which.every)
    safe_age_ms = int(safe_age * 3_600_000)
    code = machine.run(
        target,
        settings,
        lambda m: admin_work.sweep(
            m, which.shards, safe_age_ms=safe_age_ms, commit=which.commit, json=run.json, after=after
        ),
    )
    raise typer.Exit(code)


@app.command()
def restore(
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="The key of one blob.")] = None,
    *,
    which: Which,
    at: Where,
    run: Run,
) -> None:
    """Bring back blobs that a shard's state names and that are gone, from a bucket that keeps versions."""
    settings = run.settings()
    target = at.stores("persist admin restore")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import work as admin_work

    machine.check_choice(which.shards, which.every, key)
    code = machine.run(
        target, settings, lambda m: admin_work.restore(m, key, which.shards, commit=which.commit, json=run.json)
    )
    raise typer.Exit(code)


@app.command()
def repair(
    deep: Annotated[bool, typer.Option("--deep", help="Read every blob and decode it.")] = False,
    *,
    which: Which,
    at: Where,
    run: Run,
) -> None:
    """Take unreadable parts out of shards, and show which rows that loses.

    Try a backup, or persist admin restore, first: what is taken out is lost. Exits with 1 when something is damaged and
    stays so: without --commit, or because the state itself is damaged.
    """
    settings = run.settings()
    target = at.stores("persist admin repair")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import mend as admin_mend

    machine.check_choice(which.shards, which.every)
    code = machine.run(
        target, settings, lambda m: admin_mend.repair(m, which.shards, deep=deep, commit=which.commit, json=run.json)
    )
    raise typer.Exit(code)


@app.command("forget-applications")
def forget_applications(
    app_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[APP_ID]...", help="Their ids; persist shard inspect lists them.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=0, help="All but so many, those that committed last.", show_default=False)
    ] = None,
    *,
    which: Which,
    at: Where,
    run: Run,
) -> None:
    """Forget the newest committed version of applications that will not write any more: a state keeps 10,000 of them.

    Afterwards a shard asks for the new_since of each application that it does not know, also of new ones: a
    repetition of what one committed before is refused, not taken for new.
    """
    if (keep is None) == (not app_ids):
        raise typer.BadParameter("name applications, or give --keep N")
    settings = run.settings()
    target = at.stores("persist admin forget-applications")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import applications

    machine.check_choice(which.shards, which.every)
    code = machine.run(
        target,
        settings,
        lambda m: applications.forget(m, which.shards, app_ids or [], keep=keep, commit=which.commit, json=run.json),
    )
    raise typer.Exit(code)


@app.command()
def rebuild(
    *,
    which: Which,
    at: Where,
    run: Run,
) -> None:
    """Begin shards that only Blob still has in an empty Consensus, from their newest rollups.

    What was committed after those is lost. Only where Consensus is lost for ever: the old rollups are deleted.
    """
    settings = run.settings()
    target = at.stores("persist admin rebuild")
    from persist_cli.admin import administration as machine
    from persist_cli.admin import mend as admin_mend

    machine.check_choice(which.shards, which.every)
    code = machine.run_without_consensus(
        target,
        settings,
        lambda m: admin_mend.rebuild(m, which.shards, commit=which.commit, json=run.json),
        commit=which.commit,
    )
    raise typer.Exit(code)


app.command()(finalize)
