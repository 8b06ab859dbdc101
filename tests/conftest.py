"""Real servers and coroutine tests for the whole suite.

Fixtures: ``redis_uri``, ``postgres_uri``, ``s3_uri`` start a real server at first use, one per session;
``fresh_redis_uri``, ``fresh_postgres_uri``, ``fresh_s3_uri`` are functions giving an empty place on it each time.
``async def test_...`` runs under asyncio.run with a limit of 240 s (an hour in ``make sim``), or by
``@pytest.mark.timeout_s(n)``.
A test fails when a background task ended with an exception that was not looked at, unless it takes ``unseen`` and
empties it.
"""

import asyncio
import contextlib
import gc
import inspect
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from costs import Costs
from hypothesis import HealthCheck, settings
from kinds import KINDS, kind_of
from simulation.budget import FULL, examples
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from persist.testing import servers

COROUTINE_TEST_SECONDS = 3_600.0 if FULL else 240.0

# The same examples every time, so that a failure is the change's and not the day's. To look for new ones:
# make test ARGS="tests/property --hypothesis-profile=explore"
# How fast examples are made says how busy the machine is.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", print_blob=True)
settings.load_profile("steady")


HERE = Path(__file__).parent
SPARK, KAFKA = "tests/spark/", "tests/ingest/kafka/"
JVM_WORKERS = {SPARK: 2, KAFKA: 1}
"""Processes that may have a JVM of Spark, and others that may have one of Kafka; more do not fit in 8 GB."""
GARBAGE_AFTER = 10_000
"""Objects between two looks for cycles; our servers and commands have their own."""
LONG = ("tests/simulation/", "tests/soak/", "tests/machine/compaction/test_memory.py")
"""Tests that take long each, and share nothing with others of their file."""
ABOUT_SOURCES = (
    *(f"tests/test_{name}.py" for name in ("tidy", "words")),
    *(
        f"tests/unit/test_{name}.py"
        for name in ("exact_casts", "optional_imports", "reached", "rules_once", "signatures", "timed_calls")
    ),
    "tests/unit/retry/test_deadline.py",
)
"""Tests over our own modules, which one process runs: it parses them once (``trees``)."""
ORDER = (
    *(f"{SPARK}{name}" for name in ("test_deaths", "read/test_holds", "read/test_streams", "test_batch", "")),
    *LONG, "tests/scenarios/", "tests/e2e/", KAFKA, "tests/conformance/", "tests/control/", "tests/ingest/",
    "tests/cli/", "tests/machine/", "tests/services/", "tests/pages/", "tests/client/", "tests/test_",
    "tests/catalog/", "tests/property/", "",
)  # fmt: skip
"""What starts first: the longest, so that no process is left with much to do when the others have ended."""

# Compiling well takes a JVM longer than the short lives of tests pay back: a quarter of all that Spark costs here. What
# is compiled so has little room, which is swept for what is not used, to be compiled again later: a tenth of what the
# driver costs. Collections of all memory come for want of room for classes, and for pages of 64 MiB, which each sort
# and aggregate of a few rows fills with nothing.
JVM_OPTIONS = [
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=240m", "-XX:MetaspaceSize=256m"),
    "-Dspark.buffer.pageSize=1m",
]
CLASSES = HERE.parent / ".venv" / "spark.jsa"
"""Made by deploy/setup.sh: Spark's classes as they are once loaded, half of what a JVM costs that begins."""
if CLASSES.exists():
    JVM_OPTIONS += ["-Xlog:disable", f"-XX:SharedArchiveFile={CLASSES}"]
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(JVM_OPTIONS))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout_s(seconds): limit of a coroutine test, 240 s by default")
    for kind, what in KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {what}")
    if path := os.environ.get("PERSIST_TEST_COSTS"):
        config.pluginmanager.register(Costs(Path(path).absolute()))


class Scheduling(LoadScopeScheduling):
    """Each process takes the next file, or the next single test of those that take long. JVMs stay with a few."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if nodeid.startswith(LONG) else ABOUT_SOURCES[0] if file in ABOUT_SOURCES else file

    def _next_of(self, node: WorkerController) -> str | None:
        """The first unit of work that is for this process."""
        few = {SPARK: self.nodes[: JVM_WORKERS[SPARK]], KAFKA: self.nodes[-JVM_WORKERS[KAFKA] :]}
        others = tuple(folder for folder, nodes in few.items() if node not in nodes)
        return next((scope for scope in self.workqueue if not scope.startswith(others)), None)

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._next_of(node)
        if scope is None:
            node.shutdown()  # once what it has is done
            return
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_setupnodes(specs: list[object]) -> None:
    """After a fresh clone: one process compiles all, before many begin that would each compile all."""
    if len(specs) > 2 and not sys.dont_write_bytecode and len(not_compiled()) > 30:
        command = [sys.executable, "-m", "pytest", "-qq", "-n", "0", "--collect-only", str(HERE)]
        # What fails here fails again, and is shown, where it is collected.
        subprocess.run(command, cwd=HERE.parent, capture_output=True, check=False)


def not_compiled() -> list[Path]:
    """Test modules that are newer than what pytest compiled of them, with their asserts written out."""
    tail = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    found = ((path, path.parent / "__pycache__" / f"{path.stem}.{tail}") for path in HERE.rglob("test_*.py"))
    return [
        path for path, compiled in found if not compiled.exists() or compiled.stat().st_mtime < path.stat().st_mtime
    ]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind = kind_of(item.nodeid)
        if kind is None:
            raise pytest.UsageError(f"{item.nodeid} has no kind: add its folder to tests/kinds.py")
        item.add_marker(kind)
    items.sort(key=lambda item: next(at for at, first in enumerate(ORDER) if item.nodeid.startswith(first)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: looking for cycles in it again and again takes minutes.

    Nor are cycles looked for after each few hundred objects, which was a twentieth of what tests of SQL computed.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE_AFTER)
        gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure is printed when it happens, before the other tests have ended."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext[-4000:]}", flush=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    marker = pyfuncitem.get_closest_marker("timeout_s")
    limit = float(marker.args[0]) if marker else COROUTINE_TEST_SECONDS
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def limited() -> None:
        async with asyncio.timeout(limit):
            await pyfuncitem.obj(**arguments)

    asyncio.run(limited())
    return True


class Unseen(logging.Handler):
    """Failures of background work that were not looked at, as they are logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # Of what the event loop logs, only tasks and futures that were dropped with their exceptions.
        if record.name != "asyncio" or "exception was never retrieved" in record.getMessage():
            self.told.append(logging.Formatter().format(record))

    def check(self) -> None:
        told, self.told = self.told, []
        if told:
            pytest.fail("the failure of background work was not looked at:\n" + "\n".join(told), pytrace=False)


@pytest.fixture(scope="session")
def unseen_failures() -> Unseen:
    return Unseen()


@pytest.fixture(autouse=True)
def unseen(unseen_failures: Unseen) -> Iterator[list[str]]:
    """What background work failed with and was not looked at. A test that wants it empties the list."""
    unseen_failures.told = []
    # For each test anew: what tests run may configure the logs of their process, and does not put them back.
    with contextlib.ExitStack() as stack:
        for logger in map(logging.getLogger, ("asyncio", "persist.background")):
            logger.addHandler(unseen_failures)
            stack.callback(logger.removeHandler, unseen_failures)
        yield unseen_failures.told
    unseen_failures.check()


@pytest.fixture(autouse=True, scope="module")
def unseen_in_cycles(unseen_failures: Unseen) -> Iterator[None]:
    """Tasks that only a garbage collection finds, once for each module.

    What is left then is not looked at again: going over all that was ever imported, each time, was a tenth of the run.
    """
    yield
    logger = logging.getLogger("asyncio")
    logger.addHandler(unseen_failures)
    gc.collect()
    gc.freeze()
    logger.removeHandler(unseen_failures)
    unseen_failures.check()


@pytest.fixture(scope="session")
def redis_uri() -> Iterator[str]:
    with servers.redis_server() as uri:
        yield uri


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    with servers.postgres_server() as uri:
        yield uri


@pytest.fixture(scope="session")
def s3_uri() -> Iterator[str]:
    with servers.s3_server() as uri:
        yield uri


@pytest.fixture(scope="session")
def fresh_redis_uri(redis_uri: str) -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"{redis_uri.rpartition('/')[0]}/{next(numbers)}"


@pytest.fixture(scope="session")
def fresh_postgres_uri(postgres_uri: str) -> Callable[[], str]:
    return lambda: servers.fresh_schema(postgres_uri)


@pytest.fixture(scope="session")
def fresh_s3_uri(s3_uri: str) -> Callable[[], str]:
    return lambda: servers.fresh_prefix(s3_uri)
