"""A bank in PostgreSQL, ingested while it works: in every snapshot, at any time, the books balance.

Starts a real PostgreSQL, runs pgbench's TPC-B on it, ingests its four tables into shards, kills the ingesting process
in the middle and starts another, and looks at many times meanwhile: the sums of account, teller and branch balances and
of the history agree in every one, and in the end every row is the upstream's. Run it with
``python -m examples.tpcb``; exit code 0 when all of that held, 1 otherwise.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import persist
import persist_ingest as ingest
from examples import tpcb_report
from examples.tpcb_bank import MONEY, TABLES, Bank, rate_of, transactions_of
from examples.tpcb_checks import Snapshots, Watcher, same_rows
from examples.tpcb_report import Scenario, TpcbOutcome
from persist.runtime import system
from persist_ingest.location import client
from pyspark_persist.session import export_python, java_problem, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE: Final = "bank"
CATCH_UP_SECONDS: Final = 120.0
_SLEEP: Final = threading.Event()
"""Never set: waiting for it is sleeping."""


class Ingester:
    """``persist source run`` as a process of its own, that can be killed."""

    def __init__(self, data: Path, tick_ms: int) -> None:
        self._command = [sys.executable, "-m", "persist_cli", "source", "run", SOURCE, "--location", str(data)]
        self._command += ["--tick-ms", str(tick_ms), "--retain-seconds", "3600"]
        self._log = data.parent / "ingester.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it (again)."""
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(self._command, stdout=sink, stderr=sink)

    def end(self, number: int) -> None:
        """Send a signal and wait for its end. Does nothing when it is not running."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """The last of what it said."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""


def run(data: Path, scenario: Scenario) -> TpcbOutcome:
    """The whole job under ``data``. Raises LocationError, SourceFailure."""
    outcome = TpcbOutcome(scenario=scenario)
    data.mkdir(parents=True, exist_ok=True)
    where = ingest.Location(directory=str(data / "persist"))
    with contextlib.ExitStack() as stack:
        with tpcb_report.doing("starting Spark and PostgreSQL, filling the bank"):
            spark = stack.enter_context(session_of("persist tpcb", data / "spark"))
            bank = Bank.open(scenario.scale)
            stack.callback(bank.close)
        with tpcb_report.doing("creating the source: the snapshot, read by Spark"):
            _create(where, bank, spark, outcome)
        the_client = client(where)
        source = ingest.Records(the_client).source(SOURCE)
        snapshots = Snapshots(the_client, source.shards)
        stack.callback(snapshots.close)
        ingester = Ingester(data / "persist", scenario.tick_ms)
        stack.callback(ingester.end, signal.SIGKILL)
        _work(data, bank, ingester, snapshots, outcome)
        with tpcb_report.doing("catching up"):
            _catch_up(bank, the_client, source, ingester, outcome)
        ingester.end(signal.SIGTERM)
        with tpcb_report.doing("looking at more times of the past"):
            while len(outcome.watching.looks) < scenario.looks:
                outcome.watching.looks.append(snapshots.look(snapshots.random_time()))
        with tpcb_report.doing("comparing every row with PostgreSQL"):
            _compare(bank, where, spark, snapshots, source, outcome)
    return outcome


def _create(where: ingest.Location, bank: Bank, spark: "SparkSession", outcome: TpcbOutcome) -> None:
    begun = system().monotonic()
    rows = 0

    def report(count: int) -> None:
        nonlocal rows
        rows += count

    options = {"dsn": bank.dsn, "tables": ",".join(TABLES)}
    ingest.create(
        where, SOURCE, "postgres", options, interval_ms=100, session=lambda: spark, spark_bytes_min=0, report=report
    )
    outcome.snapshot_rows, outcome.snapshot_seconds = rows, system().monotonic() - begun


def _work(data: Path, bank: Bank, ingester: Ingester, snapshots: Snapshots, outcome: TpcbOutcome) -> None:
    """The workload from beginning to end, with a killed ingester in its middle."""
    scenario, log = outcome.scenario, data / "pgbench.log"
    ingester.start()
    _wait(lambda: snapshots.upper() > snapshots.begin + 1, ingester)
    watcher = Watcher(snapshots, pause_seconds=scenario.pause_seconds)
    begun = system().monotonic()
    workload = bank.workload(scenario.rate, scenario.seconds, log)
    watcher.start()
    try:
        with tpcb_report.bar("TPC-B, while it is ingested", scenario.seconds) as advance:
            killed = False
            while workload.poll() is None:
                _SLEEP.wait(0.1)
                elapsed = system().monotonic() - begun
                advance(min(elapsed, scenario.seconds))
                if scenario.kill and not killed and elapsed >= scenario.seconds / 2:
                    ingester.end(signal.SIGKILL)
                    ingester.start()
                    killed, outcome.killed_at = True, elapsed
    finally:
        if workload.poll() is None:
            workload.kill()
        outcome.watching = watcher.stop()
    if workload.returncode:
        raise persist.LocationError("pgbench failed", hint=f"see {log}", said=log.read_text()[-500:])
    outcome.tps, outcome.transactions = rate_of(log), transactions_of(log)


def _catch_up(bank: Bank, the_client: "persist.Client", source: Any, ingester: Ingester, outcome: TpcbOutcome) -> None:
    """Until everything that was acknowledged is durable in all four shards."""
    begun, end = system().monotonic(), bank.end_of_log()
    minter = the_client.minter()

    def is_durable() -> bool:
        offsets = minter.resumption(source.remap_source, source.shards).source.offsets
        return offsets is not None and (offsets.bound(0) or 0) >= end

    try:
        _wait(is_durable, ingester)
    finally:
        minter.close()
    outcome.caught_up_seconds = system().monotonic() - begun
    status_of = ingest.Records(the_client).status(source)
    outcome.reread = sum(int(each.get("reread", 0)) for each in status_of.values())


def _compare(
    bank: Bank, where: ingest.Location, spark: "SparkSession", snapshots: Snapshots, source: Any, outcome: TpcbOutcome
) -> None:
    as_of = snapshots.upper() - 1
    for name in TABLES:
        found = snapshots.rows(name, as_of)
        outcome.tables[name] = same_rows(found, bank.rows(name, found.schema))
        if name.endswith("history"):
            outcome.history_rows = found.num_rows
    from pyspark.sql import functions as f

    for name, shard in source.exports.items():
        reading = spark.read.format("persist").option("location", where.directory).option("shard", shard)
        [row] = reading.option("asOf", as_of).load().agg(f.sum(MONEY[name]).alias("money")).collect()
        outcome.spark_sums[name] = int(row["money"] or 0)


def _wait(condition: Any, ingester: Ingester) -> None:
    end = system().monotonic() + CATCH_UP_SECONDS
    while not condition():
        if system().monotonic() > end:
            raise persist.LocationError("the ingester does not get on", hint="see what it said", said=ingester.log())
        _SLEEP.wait(0.05)


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="persist-tpcb-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and say by the exit code whether the books balanced."""
    parser = argparse.ArgumentParser(prog="tpcb", description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, help="keep shards and logs here (default: a folder that is removed again)")
    parser.add_argument("--seconds", type=int, default=Scenario.seconds, help="how long the bank works")
    parser.add_argument("--rate", type=int, default=Scenario.rate, help="transactions a second; 0: as many as go")
    parser.add_argument("--scale", type=int, default=Scenario.scale, help="100,000 accounts each")
    parser.add_argument("--pause", type=float, default=Scenario.pause_seconds, help="seconds between two looks")
    parser.add_argument("--looks", type=int, default=0, help="look at so many times at least")
    parser.add_argument("--no-kill", action="store_true", help="let the ingester live")
    parser.add_argument("--json", action="store_true", help="print what was found as one line of JSON")
    given = parser.parse_args(argv)
    problem = java_problem()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 1
    export_python()
    scenario = Scenario(
        seconds=given.seconds,
        rate=given.rate,
        scale=given.scale,
        pause_seconds=given.pause,
        kill=not given.no_kill,
        looks=given.looks,
    )
    begun = system().monotonic()
    with _folder(given.data) as data:
        try:
            outcome = run(data, scenario)
        except persist.PersistError as error:
            print(f"tpcb: {error}", file=sys.stderr)
            return 1
    if given.json:
        print(json.dumps(tpcb_report.as_json(outcome)), flush=True)
    else:
        tpcb_report.show(outcome, seconds=system().monotonic() - begun)
    return 0 if outcome.agrees else 1


if __name__ == "__main__":
    sys.exit(main())
