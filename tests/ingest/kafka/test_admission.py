"""Users, passwords and certificates, of a real broker: what lets a source in, and what keeps it out says what to do."""

import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin as kafka_admin
from ingest.kafka.conftest import SCRAM_PASSWORD, SCRAM_USER, USERS, Certificates, Topic, ids

from persist import InvalidArgument, PersistError
from persist_ingest import Location, Pipeline, PipelineOptions, Records, create, status
from persist_ingest.location import client
from persist_ingest.sources.kafka import KAFKA, librdkafka
from persist_ingest.sources.kafka.complaints import NotAdmitted

KAFKA_ADMIN: Any = kafka_admin  # its stub does not export what is public
OPTIONS = PipelineOptions(tick_ms=1, forget_ms=0, told_ms=0, commit_steps_late=0)


@dataclass
class Guarded:
    """A topic with three messages, and the ways to it."""

    feed: Topic
    ports: dict[str, int]
    certificates: Certificates
    folder: Path

    def options(self, protocol: str, user: str = "", password: str = "", **more: str) -> dict[str, str]:
        given = {"security.protocol": protocol, "bootstrapServers": f"127.0.0.1:{self.ports[protocol]}"}
        if "SSL" in protocol:
            given["ssl.ca.location"] = self.certificates["ca.pem"]
        if user:
            (self.folder / "password").write_text(password + "\n")
            given |= {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": f"file:{self.folder}/password"}
        given |= {name.replace("_", "."): text for name, text in more.items()}
        return {**self.feed.options(), **given}


@pytest.fixture
def guarded(topic: Callable[..., Topic], ports: dict[str, int], certificates: Certificates, tmp_path: Path) -> Guarded:
    feed = topic()
    feed.put(range(3))
    return Guarded(feed, ports, certificates, tmp_path)


def ingested(here: Location, options: dict[str, str]) -> list[int]:
    create(here, "feed", "kafka", options, interval_ms=1)
    with Pipeline(here, "feed", options=OPTIONS) as pipeline:
        pipeline.step()
    return ids(here)


def test_a_user_with_a_password_over_tls(here: Location, guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_PASSWORD", USERS["admin"])
    options = guarded.options("SASL_SSL", "admin", "not this one")
    assert ingested(here, {**options, "sasl.password": "env:THE_PASSWORD"}) == [0, 1, 2]


def test_a_user_by_scram_reads_what_it_is_granted(here: Location, guarded: Guarded) -> None:
    admin = guarded.feed.admin
    mechanism = KAFKA_ADMIN.ScramCredentialInfo(KAFKA_ADMIN.ScramMechanism.SCRAM_SHA_512, 4096)
    made = KAFKA_ADMIN.UserScramCredentialUpsertion(SCRAM_USER, mechanism, SCRAM_PASSWORD.encode())
    admin.alter_user_scram_credentials([made])[SCRAM_USER].result(60)
    options = guarded.options("SASL_PLAINTEXT", SCRAM_USER, SCRAM_PASSWORD, sasl_mechanism="SCRAM-SHA-512")
    with pytest.raises(NotAdmitted, match="may not read") as refused:
        create(here, "feed", "kafka", options, interval_ms=1)
    assert "grant it read" in refused.value.hint
    grants = [
        KAFKA_ADMIN.AclBinding(
            kind,
            name,
            KAFKA_ADMIN.ResourcePatternType.LITERAL,
            f"User:{SCRAM_USER}",
            "*",
            operation,
            KAFKA_ADMIN.AclPermissionType.ALLOW,
        )
        for kind, name, operation in (
            (KAFKA_ADMIN.ResourceType.TOPIC, guarded.feed.name, KAFKA_ADMIN.AclOperation.READ),
            (KAFKA_ADMIN.ResourceType.GROUP, "persist-feed", KAFKA_ADMIN.AclOperation.READ),
        )
    ]
    for each in admin.create_acls(grants).values():
        each.result(60)
    assert ingested(here, options) == [0, 1, 2]


def test_a_client_with_a_certificate(here: Location, guarded: Guarded) -> None:
    known = guarded.certificates
    mine = {"ssl_certificate_location": known["client.pem"], "ssl_key_location": known["client.key"]}
    assert ingested(here, guarded.options("SSL", **mine)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("protocol", "user", "more", "says", "next_step"),
    [
        ("SASL_SSL", "admin", {"sasl_password": "env:WRONG"}, "user and password", "sasl.password"),
        ("SASL_PLAINTEXT", "nemo", {}, "user and password", "sasl.username"),
        ("SASL_PLAINTEXT", "sam", {"sasl_mechanism": "SCRAM-SHA-512"}, "user and password", "sasl.username"),
        ("SASL_PLAINTEXT", "admin", {"sasl_mechanism": "SCRAM-SHA-256"}, "sasl.mechanism", "PLAIN,SCRAM-SHA-512"),
        ("SASL_SSL", "admin", {"ssl_ca_location": "stranger.pem"}, "authority that is not known", "ssl.ca.location"),
        ("SASL_SSL", "admin", {"bootstrapServers": "localhost"}, "another name", "names in theirs"),
        ("SSL", "", {}, "want a certificate", "ssl.certificate.location"),
        ("SSL", "", {"security_protocol": "PLAINTEXT"}, "in plain text", "SSL or SASL_SSL"),
        ("SASL_SSL", "admin", {"security_protocol": "SASL_PLAINTEXT"}, "in plain text", "SSL or SASL_SSL"),
        ("SASL_PLAINTEXT", "", {"security_protocol": "PLAINTEXT"}, "in plain text", "security.protocol"),
        ("PLAINTEXT", "", {"security_protocol": "SSL"}, "do not speak TLS", "security.protocol"),
        ("PLAINTEXT", "admin", {"security_protocol": "SASL_PLAINTEXT"}, "no user and password", "security.protocol"),
    ],
)
def test_who_is_not_let_in_reads_what_to_do(
    guarded: Guarded,
    protocol: str,
    user: str,
    more: dict[str, str],
    says: str,
    next_step: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("WRONG", "wr0ng-s3cret")
    guarded.ports = {**guarded.ports, "PLAINTEXT": guarded.feed.server.port}
    options = guarded.options(protocol, user, "wr0ng-s3cret" if user == "sam" else USERS["admin"], **more)
    if "ssl_ca_location" in more:
        options["ssl.ca.location"] = guarded.certificates[more["ssl_ca_location"]]
    if "bootstrapServers" in more:
        options["bootstrapServers"] = f"localhost:{guarded.ports[protocol]}"
    with pytest.raises(NotAdmitted, match=says) as refused, KAFKA.create(options, source="feed"):
        pass
    assert next_step in refused.value.hint
    shown = f"{refused.value!r} {refused.value} {refused.value.details} {caplog.text}"
    assert not any(secret in shown for secret in ("wr0ng-s3cret", *USERS.values()))


def test_a_password_that_is_changed_is_waited_for_and_never_shown(
    here: Location, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that runs reads the file again whenever it connects."""
    monkeypatch.setattr(librdkafka, "ANSWER_SECONDS", 30.0)
    options = guarded.options("SASL_PLAINTEXT", "admin", USERS["admin"])
    create(here, "feed", "kafka", options, interval_ms=1)
    (guarded.folder / "password").write_text("wr0ng-s3cret")
    complaints: list[PersistError] = []

    def complained(error: PersistError) -> None:
        complaints.append(error)
        (guarded.folder / "password").write_text(USERS["admin"])

    with Pipeline(here, "feed", options=OPTIONS, complain=complained) as pipeline:
        pipeline.run(until=lambda step: ids(here) == [0, 1, 2])
        told = status(here, "feed")
    assert complaints
    assert all(isinstance(each, NotAdmitted) for each in complaints)
    source = Records(client(here)).source("feed")
    kept = json.dumps(dict(source.definition)) + repr(told) + repr(pickle.dumps(source))
    assert f"file:{guarded.folder}/password" in kept
    assert not any(secret in kept for secret in ("wr0ng-s3cret", *USERS.values()))


def test_settings_of_security_have_their_own_names_too_and_are_given_once() -> None:
    twice = {"bootstrapServers": "x:1", "topic": "t", "ssl.ca.location": "a", "kafka.ssl.ca.location": "b"}
    with pytest.raises(InvalidArgument, match="given twice"), KAFKA.create(twice, source="feed"):
        pass
