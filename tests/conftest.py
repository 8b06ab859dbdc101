"""Real servers and coroutine tests for the whole suite.

Fixtures: ``redis_uri``, ``postgres_uri``, ``s3_uri`` start a real server at first use, one per session;
``fresh_redis_uri``, ``fresh_postgres_uri``, ``fresh_s3_uri`` are functions giving an empty place on it each time.
``async def test_...`` runs under asyncio.run with a limit of 120 s, or ``@pytest.mark.timeout_s(n)``.
"""

import asyncio
import inspect
import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from persist.testing import servers

COROUTINE_TEST_SECONDS = 120.0

# The same examples every time, so that a failure is the change's and not the day's. To look for new ones:
# make test ARGS="tests/property --hypothesis-profile=explore"
settings.register_profile("steady", derandomize=True, database=None)
settings.register_profile("explore", print_blob=True)
settings.load_profile("steady")


SPARK_ELSEWHERE = ("tests/spark/test_deaths.py", "tests/spark/test_flights.py", "tests/spark/test_tpcb.py")
"""Those that mostly start a Spark of their own."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout_s(seconds): limit of a coroutine test, 120 s unless told")


class Scheduling(LoadScopeScheduling):
    """Tests on Spark share one process, hence one JVM; the others go wherever there is time for them."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK_ELSEWHERE):
            return "spark elsewhere"
        return "spark" if nodeid.startswith("tests/spark/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Spark come first: no other process can take some of them over at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/spark/"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure is told when it happens: who waits for the rest, or never sees it, knows what to look at."""
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
