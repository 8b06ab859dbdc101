"""A broker of Kafka in a JVM of its own, started by the first test that wants it, and topics on it.

It answers in plain text, where everything is allowed, and at ports that want certificates, users and passwords.
"""

import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from ingest.pipeline.conftest import contents

from persist.testing import servers
from persist_ingest import Location

JARS = Path(__file__).parents[3] / ".kafka"
"""Where ``make setup`` puts them."""
CLASSES = Path(__file__).parents[3] / ".venv" / "kafka.jsa"
"""Made by deploy/setup.sh: the broker's classes as they are once loaded."""
QUICK = {
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}


USERS = {"admin": "adm1n-s3cret", "reader": "re4der-s3cret"}
"""Of SASL PLAIN, with their passwords; only the first one may do anything."""
SCRAM_USER, SCRAM_PASSWORD = "sam", "scr4m-s3cret"


@dataclass(frozen=True)
class Certificates:
    """Those of an authority, made by openssl: the brokers', which names 127.0.0.1 alone, and a client's."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> "Certificates":
        each = cls(folder)
        for authority in ("ca", "stranger"):
            each._openssl(
                *("req", "-x509", *EC, "-days", "2", "-subj", f"/CN={authority}", "-keyout", f"{authority}.key"),
                *("-out", f"{authority}.pem", "-addext", "basicConstraints=critical,CA:TRUE"),
            )
        for name, names in (("broker", "IP:127.0.0.1"), ("client", "DNS:client")):
            each._openssl("req", *EC, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
            (folder / "names").write_text(f"subjectAltName={names}\n")
            each._openssl(
                *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
                *("-days", "2", "-out", f"{name}.pem", "-extfile", "names"),
            )
        whole = (folder / "broker.key").read_text() + (folder / "broker.pem").read_text()
        (folder / "broker.both.pem").write_text(whole)
        return each

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=self.folder)


EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def ports() -> dict[str, int]:
    """Where the broker answers otherwise than in plain text."""
    return {each: servers.free_port() for each in ("SSL", "SASL_SSL", "SASL_PLAINTEXT")}


@pytest.fixture(scope="session")
def kafka(certificates: Certificates, ports: dict[str, int]) -> Iterator[servers.Server]:
    if not JARS.is_dir():
        pytest.skip("there is no Kafka broker: make setup fetches it, with Maven")
    with pytest.MonkeyPatch.context() as environment:
        if CLASSES.exists():
            environment.setenv("JDK_JAVA_OPTIONS", f"-Xlog:disable -XX:SharedArchiveFile={CLASSES}")
        started = servers.start_kafka(JARS, {**QUICK, **guarded(certificates)}, listeners=ports)
    with started as server:
        yield server


def guarded(certificates: Certificates) -> dict[str, str]:
    """Settings of a broker: who comes in plain text may do everything, as admin may; others what they are granted."""
    login = "org.apache.kafka.common.security"
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates["broker.both.pem"],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates["ca.pem"],
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin;User:CN=client",
    }
    for listener in ("sasl_ssl", "sasl_plaintext"):
        at = f"listener.name.{listener}"
        settings[f"{at}.plain.sasl.jaas.config"] = f"{login}.plain.PlainLoginModule required {users};"
        settings[f"{at}.scram-sha-512.sasl.jaas.config"] = f"{login}.scram.ScramLoginModule required;"
    return settings


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
