"""``persist doctor``: what is wrong here, and what to do about it."""

from typing import Annotated

import typer

from persist_cli.options import EXIT_FAILED, Run, Where, finite

DOCTOR_SECONDS = 10.0


def doctor(
    spark: Annotated[bool, typer.Option("--spark", help="Also Java, PySpark and the Python its workers use.")] = False,
    *,
    at: Where,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", callback=finite, min=0.1, help="Longest wait per check.")
    ] = DOCTOR_SECONDS,
    run: Run,
) -> None:
    """Check this machine, and the location if one is named. Exits with 1 when something must be mended."""
    target = at.target() if at.given else None
    from persist_cli.doctor import checks
    from persist_cli.doctor import location as checks_location
    from persist_cli.doctor import spark as checks_spark
    from persist_cli.terminal import print_json, print_table

    found = list(checks.machine())
    if spark:
        found += checks_spark.spark(run.invocation.environ)
    if target is not None:
        typed = bool(at.typed.keys() - {"endpoint"})
        found += checks_location.location(target, run.settings(), timeout, typed=typed)
    found = [check.scrubbed() for check in found]
    if run.json:
        print_json([check.as_json() for check in found])
    else:
        rows = [(check.mark, check.name, check.found, check.next_step) for check in found]
        print_table(("", "check", "found", "next step"), rows, caption=checks.verdict(found))
    if any(check.state == checks.BAD for check in found):
        raise typer.Exit(EXIT_FAILED)
