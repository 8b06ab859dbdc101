"""A broker of Kafka in a JVM of its own, started by the first test that wants it, and topics on it."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from ingest.pipeline.conftest import contents

from persist.testing import servers
from persist_ingest import Location
from persist_ingest.location import release
from persist_ingest.pipeline.newest import kept

JARS = Path(__file__).parents[3] / ".kafka"
"""Where ``make setup`` puts them."""
QUICK = {
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="session")
def kafka() -> Iterator[servers.Server]:
    if not JARS.is_dir():
        pytest.skip("there is no Kafka broker: make setup fetches it, with Maven")
    with servers.start_kafka(JARS, QUICK) as server:
        yield server


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    monkeypatch.setattr(kept, "folder_of_user", lambda: tmp_path / "state")
    place = Location(directory=str(tmp_path / "data"))
    yield place
    release(place)


class Topic:
    """A topic, and what was put into it. ``rows``: the ids of messages that count."""

    def __init__(self, server: servers.Server, partitions: int, config: dict[str, str] | None = None) -> None:
        self.server, self.name = server, f"t{uuid.uuid4().hex}"
        self.admin = AdminClient({"bootstrap.servers": server.uri})
        self.producer = confluent_kafka.Producer({"bootstrap.servers": server.uri, "linger.ms": 0})
        self.create(partitions, config)

    def create(self, partitions: int, config: dict[str, str] | None = None) -> None:
        made = self.admin.create_topics([NewTopic(self.name, partitions, 1, config=config or {})])
        made[self.name].result(timeout=60)

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(timeout=60)

    def grow(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(timeout=60)

    def put(self, numbers: range, *, producer: Any = None, partitions: int = 1) -> None:
        """Messages with these ids, in partitions one after the other; they are there afterwards."""
        by = producer or self.producer
        for number in numbers:
            by.produce(self.name, value=f'{{"id":{number}}}', partition=number % partitions)
        assert by.flush(60) == 0

    def transactional(self) -> Any:
        settings = {"bootstrap.servers": self.server.uri, "transactional.id": uuid.uuid4().hex, "linger.ms": 0}
        made = confluent_kafka.Producer(settings)
        made.init_transactions(60)
        return made

    def options(self, **more: str) -> dict[str, str]:
        given = {"bootstrapServers": self.server.uri, "topic": self.name, "schema": "id bigint", "key": "id"}
        return {**given, **more}

    @property
    def segments(self) -> list[Path]:
        """The files in which its messages lie."""
        return sorted((self.server.directory / "data").glob(f"{self.name}-*/*.log"))


@pytest.fixture
def topic(kafka: servers.Server) -> Callable[..., Topic]:
    def made(partitions: int = 1, **config: str) -> Topic:
        return Topic(kafka, partitions, {name.replace("_", "."): text for name, text in config.items()})

    return made


def ids(here: Location, source: str = "feed") -> list[int]:
    """Those that its rows hold, each as often as it is there."""
    held: Counter[Any] = contents(here, source, "rows")
    return sorted(row[0] for row in held.elements())
