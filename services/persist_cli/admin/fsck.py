"""``persist fsck``: rebuild every live state and look for everything it names."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from persist_cli.arguments import OnlyShards
from persist_cli.options import EXIT_INTERRUPTED, After, Age, Run, Where

if TYPE_CHECKING:
    from persist.core.ids import ShardId
    from persist.errors import PersistError
    from persist.machine.upkeep.fsck import Problem
    from persist_cli.admin.administration import Machine


def fsck(
    shard: OnlyShards = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every blob, check its bytes, and count impossible rows.")
    ] = False,
    safe_age: Age = 24.0,
    after: After = "",
    *,
    at: Where,
    run: Run,
) -> None:
    """Check shards: all that live states name is there and whole. Exits with 1 when something is not.

    What only costs room, as crashed writers and cut calls leave it, is noted. --deep counts rows that are there less
    than no times, too: of a source's collection they are wrong. Changes nothing, and may run beside everything else.
    """
    target = at.stores("persist fsck")
    settings = run.settings()
    from persist_cli.admin import administration as machine

    safe_age_ms = int(safe_age * 3_600_000)
    code = machine.run(
        target,
        settings,
        lambda m: _check(m, shard or [], deep=deep, safe_age_ms=safe_age_ms, json=run.json, after=after),
    )
    raise typer.Exit(code)


async def _check(m: "Machine", shards: list[str], *, deep: bool, safe_age_ms: int, json: bool, after: str) -> int:
    """Print what is wrong. The exit code."""
    from persist.errors import LocationError
    from persist.machine.parts.one_blob import IN_A_ROW_MAX
    from persist_cli.admin.negative import negative_rows
    from persist_cli.admin.walk import AT_ONCE, Walk
    from persist_cli.terminal import counted, print_json, print_table, progress

    problems: list[Problem] = []
    chosen = await m.chosen(shards)
    alone = len(chosen) == 1
    with progress("checking", None if alone else len(chosen), unit="steps" if alone else "shards") as steps:

        async def check(shard: "ShardId") -> "list[Problem]":
            if shards:
                await m.check_known(shard)
            report = steps if alone else lambda _: None
            found = await m.fsck.check(shard, deep=deep, safe_age_ms=safe_age_ms, report=report)
            return found + await negative_rows(m, shard, found) if deep else found

        # Deep checks hold whole parts in memory.
        walk = Walk(chosen, check, after=after, at_once=1 if deep else AT_ONCE)
        checked = in_a_row = 0
        away: LocationError | None = None
        async with aclosing(walk.results()) as results:
            async for last, task in results:
                try:
                    problems += await task
                    in_a_row = 0
                except LocationError as error:
                    # What was found of the others is not to be lost, and a store that is away is not asked for ever.
                    in_a_row += 1
                    if alone or in_a_row >= IN_A_ROW_MAX:
                        away = error
                        break
                    problems.append(_unchecked(last, error))
                checked += 1
                if not alone:
                    steps(1)
        if not shards and not walk.interrupted and away is None:
            for shard in await m.survey.strangers():
                problems += await m.fsck.check(shard)
    if away is not None and not problems:
        raise away
    # Blobs and no shard at all are no notes: this may be the wrong Consensus.
    wrong = [problem for problem in problems if not problem.note or not chosen]
    notes = [problem for problem in problems if problem not in wrong]
    rows, noted = ([_row(each, m.place) for each in found] for found in (wrong, notes))
    if json:
        print_json({"shards": checked, "deep": deep, "problems": rows, "notes": noted})
    else:
        columns = ("shard", "invariant", "where", "what")
        for found, title in ((rows, "Problems"), (noted, "Notes: nothing is missing")):
            if found:
                print_table(columns, [[row[name] for name in columns] for row in found], title=title)
                for line in dict.fromkeys(line for row in found for line in row["next_step"].splitlines()):
                    print(line)
        told = f"{counted(len(rows), 'problem')}, {counted(len(noted), 'note')}"
        print(f"{counted(checked, 'shard')} checked, {told}")
    if away is not None:
        raise away
    return EXIT_INTERRUPTED if walk.interrupted else int(bool(rows))


def _unchecked(shard: str, error: "PersistError") -> "Problem":
    from persist.machine.upkeep.fsck import Problem
    from persist.machine.upkeep.next_step import check

    return Problem(
        shard=shard, invariant="I8", where=shard, what=f"not checked to the end: {error}", steps=(check(shard),)
    )


def _row(problem: Any, place: Sequence[str]) -> dict[str, Any]:
    """A problem with its next steps as they are typed here."""
    steps = [{"text": step.text, "command": step.command(place)} for step in problem.steps]
    return {
        "shard": problem.shard,
        "invariant": problem.invariant,
        "where": problem.where,
        "what": problem.what,
        "next_step": "\n".join(step.line(place) for step in problem.steps),
        "next_steps": steps,
        "note": problem.note,
    }
