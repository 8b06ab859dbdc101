"""The work behind ``persist source``. Spark is imported when something is to run there."""

import contextlib
import dataclasses
import functools
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

import persist_ingest as ingest
from persist.errors import MissingExtra, PersistError
from persist.runtime import system
from persist_cli.options import Invocation, LocationTarget
from persist_cli.source.screen import is_wrong, print_exports, print_overview, print_status, shown, some, status_json
from persist_cli.terminal import counted, note, print_json, print_json_line, print_list, print_table, progress
from persist_ingest.items import item_names
from persist_ingest.pipeline.altering import alterable
from persist_ingest.pipeline.anew.again import check_export
from persist_ingest.pipeline.newest.trouble import check_folder
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.registry import going_on

if TYPE_CHECKING:
    import persist


LINE_SECONDS = 10.0
"""Between two lines about a running source where there is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How ``persist source run`` was asked to run."""

    tick_ms: int
    commit_late: int
    retain_seconds: int
    steps: int | None
    snapshot_rows_per_second: int
    state_dir: str
    key_ranges: int
    side_listen: str
    minter: str
    spark: bool
    master: str | None


def parse_options(given: list[str]) -> dict[str, str]:
    """``key=value`` pairs. Raises BadParameter."""
    options: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"--option takes KEY=VALUE, not {each!r}")
        if key in options:
            raise typer.BadParameter(f"option {key} is given twice")
        options[key] = value
    return options


def create_source(
    run: Invocation,
    target: LocationTarget,
    name: str,
    type_name: str,
    options: Mapping[str, str],
    *,
    interval_ms: int,
    rows_per_second: int,
    state_dir: str,
    minter: str,
    spark: bool,
    master: str | None,
) -> None:
    """Create it and say what there is now."""
    with (
        _sessions(spark, master, f"persist source create {name}", says=False) as session,
        progress(f"reading {name}") as report,
    ):
        source = ingest.create(
            _location(run, target, begin=True),
            name,
            type_name,
            options,
            interval_ms=interval_ms,
            minter=minter,
            session=session,
            report=report,
            pace=_pace(rows_per_second, state_dir),
            finished=lambda _: note(f"an earlier creation of {name}, broken off, was finished: it is an item now"),
            taken_over=lambda claim: note(f"an abandoned attempt to create {name} was cleared away: {claim.described}"),
        )
    if run.json:
        print_json(shown(source))
        return
    names = item_names(_location(run, target), source)
    print_exports(source, names)
    note(f"created; now: {going_on(source.type, name)} {_flag(target)}")
    if not names:
        note(f"so that SQL, views and holds have names for them, too: persist catalog adopt {name} {_flag(target)}")


def show_sources(run: Invocation, target: LocationTarget) -> None:
    """All sources."""
    records = ingest.Records(_client(run, target))
    sources, creating = records.sources(), ingest.claims(records)
    if run.json:
        begun = {"creating": [dataclasses.asdict(each) for each in creating.values()]} if creating else {}
        print_json({"sources": [shown(source) for source in sources.values()], **begun})
        return
    columns = ("source", "type", "exports")
    rows = [[each.name, each.type, some(list(each.exports))] for each in sources.values()]
    rows += [[each.name, each.type, f"creating {each.described}"] for each in creating.values()]
    if not rows:
        print_list(columns, rows, "source", "persist source create NAME --type TYPE … makes one")
        return
    print_table(columns, rows)
    note(f"{counted(len(sources), 'source')}; how they fare: persist source status")


def show_status(
    run: Invocation, target: LocationTarget, name: str, *, ask_upstream: bool, count: bool, every: bool
) -> bool:
    """One source; whether it failed, or holds what cannot be."""
    told = ingest.status(_location(run, target), name, ask_upstream=ask_upstream, count_rows=count)
    if run.json:
        print_json(status_json(told))
    else:
        print_status(told, every=every)
    return is_wrong(told)


def show_overview(run: Invocation, target: LocationTarget, *, ask_upstream: bool) -> bool:
    """All sources; whether one of them failed."""
    location = _location(run, target)
    names = ingest.Records(_client(run, target)).sources()
    told = {name: ingest.status(location, name, ask_upstream=ask_upstream) for name in names}
    if not told and not run.json:
        print_list((), [], "source", "persist source create NAME --type TYPE … makes one")
    else:
        print_overview(told, json=run.json)
    return any(map(is_wrong, told.values()))


def resnapshot_source(
    run: Invocation,
    target: LocationTarget,
    name: str,
    export: str,
    *,
    minter: str,
    rows_per_second: int,
    state_dir: str,
) -> None:
    """Snapshot one of its exports again."""
    pace = _pace(rows_per_second, state_dir)
    with progress(f"reading {export}") as report:
        source = ingest.resnapshot(_location(run, target), name, export, minter=minter, pace=pace, report=report)
    _adopt(run, target, name)
    if run.json:
        print_json({"source": name, "export": export, "shard": source.exports[export]})
        return
    note(f"{export} holds what {source.type} holds now, and goes on with the others: persist source status {name}")


def alter_source(run: Invocation, target: LocationTarget, name: str, options: Mapping[str, str]) -> None:
    """Give it other options."""
    source = ingest.alter(_location(run, target), name, options)
    if run.json:
        print_json(shown(source))
        return
    names = {each.lower(): each for each in alterable(source)}
    note(f"{name} has {', '.join(f'{names[key.lower()]}={value}' for key, value in options.items())} from now on")


def add_to_source(
    run: Invocation,
    target: LocationTarget,
    name: str,
    table: str,
    options: Mapping[str, str],
    *,
    minter: str,
    rows_per_second: int,
    state_dir: str,
) -> None:
    """Take one more table in."""
    location, before = _location(run, target), ingest.Records(_client(run, target)).source(name)
    pace = _pace(rows_per_second, state_dir)
    with progress(f"reading {table}") as report:
        source = ingest.add_export(location, name, table, minter=minter, pace=pace, report=report, options=options)
    _adopt(run, target, name)
    added = {export: shard for export, shard in source.exports.items() if export not in before.exports}
    if run.json:
        print_json({"source": name, "added": added})
        return
    print_table(("export", "shard"), [list(each) for each in added.items()])
    note(f"{table} goes on with the others: persist source status {name}")


def drop_from_source(run: Invocation, target: LocationTarget, name: str, export: str, *, commit: bool) -> None:
    """Have it go on without one of its tables, or say what that would do."""
    source = ingest.Records(_client(run, target)).source(name)
    check_export(source, export)
    if commit:
        ingest.drop_export(_location(run, target), name, export)
    if run.json:
        print_json({"source": name, "export": export, "shard": source.exports[export], "dropped": commit})
        return
    note(f"{'dropped' if commit else 'would drop'} {export} of {name}, its shard {source.exports[export]}")
    if not commit:
        note("nothing was done; add --commit")


def run_source(run: Invocation, target: LocationTarget, name: str, running: Running) -> None:
    """Ingest until stopped."""
    _adopt(run, target, name)
    options = ingest.PipelineOptions(
        tick_ms=running.tick_ms,
        commit_steps_late=running.commit_late,
        retain_ms=running.retain_seconds * 1000,
        minter=running.minter,
        pace=ingest.Pace(rows_per_second=running.snapshot_rows_per_second),
        state_dir=running.state_dir,
        key_ranges=running.key_ranges,
    )
    with (
        _sessions(running.spark, running.master, f"persist source run {name}") as session,
        ingest.Pipeline(
            _location(run, target), name, options=options, session=session, complain=_Patient()
        ) as pipeline,
        _stopped_by_signals(pipeline.stop),
        _watched(running.side_listen, pipeline),
        _telling(run, name) as tell,
    ):
        note(f"ingesting {name}; Ctrl-C ends it")
        pipeline.run(steps=running.steps, until=tell)


@contextlib.contextmanager
def _watched(listen: str, pipeline: ingest.Pipeline) -> Iterator[None]:
    """Metrics for as long as this lasts, where they were asked for."""
    if not listen:
        yield
        return
    from persist_cli.source.watching import watched

    with watched(listen, pipeline) as address:
        note(f"metrics at http://{address}/metrics")
        yield


def _adopt(run: Invocation, target: LocationTarget, name: str) -> None:
    """Make the item of the source, or bring it up to date, where there is an environment; ingesting needs none."""
    location = _location(run, target)
    try:
        ingest.adopt(location, name)
    except ingest.SourceNotFound:
        raise
    except PersistError as error:
        note(f"{name} is ingested, and has no item in the environment: {error}")


class _Patient:
    """Says what a source waits for, and which tables it leaves aside: each thing once in a while."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def __call__(self, error: Exception) -> None:
        text, now = str(error), system().monotonic()
        if now - self._said.get(text, float("-inf")) >= LINE_SECONDS:
            self._said[text] = now
            note(f"{'stalled' if isinstance(error, SourceFailure) else 'waiting'}: {text}")


def drop_source(
    run: Invocation, target: LocationTarget, name: str, *, commit: bool, force: bool, cascade: bool
) -> None:
    """Drop it, or say what that would do."""
    location = _location(run, target)
    left: list[str] = []
    attempt = ingest.claims(ingest.Records(_client(run, target))).get(name)
    if attempt is not None:
        if commit:
            ingest.abandon(location, name, force=force, left=lambda error: left.append(str(error)))
        if run.json:
            print_json({"dropped": commit, **({"left": left} if left else {}), "creating": dataclasses.asdict(attempt)})
            return
        for each in left:
            note(f"what {attempt.type} keeps for {name} stays there: {each}")
        note(f"{'dropped' if commit else 'would drop'} the attempt to create {name} {attempt.described}")
        if not commit:
            note("nothing was done; add --commit")
        return
    if commit:
        source = ingest.drop(location, name, cascade=cascade, force=force, left=lambda error: left.append(str(error)))
    else:
        source = ingest.Records(_client(run, target)).source(name)
    if run.json:
        print_json({"dropped": commit, **({"left": left} if left else {}), **shown(source)})
        return
    for each in left:
        note(f"what {source.type} keeps for {name} stays there: {each}")
    verb = "dropped" if commit else "would drop"
    note(f"{verb} {name}: its record, what {source.type} keeps for it, {counted(len(source.exports) + 1, 'shard')}")
    if not commit:
        note("nothing was done; add --commit")


def _pace(rows_per_second: int, state_dir: str) -> ingest.Pace:
    """How snapshots are read. Raises InvalidArgument: nothing can ever be kept in that folder."""
    if state_dir:
        check_folder(state_dir)
    return ingest.Pace(rows_per_second=rows_per_second, state_dir=state_dir)


def _location(run: Invocation, target: LocationTarget, *, begin: bool = False) -> ingest.Location:
    target.check_not_lost(run.settings())
    if not begin:
        target.check_there()
    return ingest.Location(
        directory=target.location, endpoint=target.endpoint, blob=target.blob, consensus=target.consensus
    ).resolved()


def _client(run: Invocation, target: LocationTarget) -> "persist.Client":
    from persist_ingest.location import client

    return client(_location(run, target))


def _flag(target: LocationTarget) -> str:
    if target.endpoint is not None:
        return f"--endpoint {target.endpoint}"
    if target.location is not None:
        return f"--location {target.location}"
    return f"--blob {target.blob} --consensus {target.consensus}"


def _spark_problem() -> str | None:
    """Why Spark cannot start here; None when it can."""
    try:
        from pyspark_persist.session import java_problem
    except MissingExtra as error:
        return str(error)
    return java_problem()


@contextlib.contextmanager
def _sessions(wanted: bool, master: str | None, name: str, *, says: bool = True) -> Iterator[Any]:
    """What makes the Spark session at its first use; None when Spark is not wanted or not possible here.

    ``says``: why it is not possible. A pipeline goes on for long without it; a command is done.
    """
    problem = _spark_problem() if wanted else None
    if not wanted or problem is not None:
        if problem is not None and (says or master is not None):
            note(f"everything runs in this process: {problem}")
        yield None
        return
    from persist_cli.admin.spark import session

    with contextlib.ExitStack() as stack:

        @functools.cache
        def make() -> Any:
            return stack.enter_context(session(master, name))

        yield make


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the run after the step it is at; another one, a second later or more, at once."""
    first: float | None = None

    def handle(number: int, _: Any) -> None:
        nonlocal first
        now = system().monotonic()
        # To end a process group often signals its processes twice.
        if first is not None and now - first > 1.0:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        first = first or now
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _telling(run: Invocation, name: str) -> Iterator[Callable[[Any], bool]]:
    """Gets every step: a moving line on a terminal, else a line now and then; JSON lines when asked for."""
    begun = told = system().monotonic()
    rows = fresh = 0

    def line(step: Any) -> str:
        upper = step.upper.time
        lag = "" if not upper else f", {max(0.0, (system().now_ms() - upper) / 1000):.1f} s behind"
        rate = fresh / max(system().monotonic() - told, 1e-9)
        return f"{name}: {rows:,} rows in {system().monotonic() - begun:,.0f} s, {rate:,.0f} rows/s now{lag}"

    moving = sys.stderr.isatty() and not run.json

    def tell(step: Any) -> bool:
        nonlocal rows, fresh, told
        rows, fresh = rows + step.rows, fresh + step.rows
        wait = 1.0 if moving else LINE_SECONDS
        if run.json and step.rows:
            seconds = round(step.seconds, 4)
            told_now = {"rows": step.rows, "reread": step.reread, "upper": step.upper.time, "seconds": seconds}
            print_json_line({"source": name, **told_now})
        elif not run.json and system().monotonic() - told >= wait:
            print(f"\r\x1b[K{line(step)}" if moving else line(step), end="" if moving else "\n", file=sys.stderr)
            sys.stderr.flush()
            told, fresh = system().monotonic(), 0
        return False

    try:
        yield tell
    finally:
        if moving:
            print(file=sys.stderr)
        note(f"{name}: {counted(rows, 'row')} ingested")
