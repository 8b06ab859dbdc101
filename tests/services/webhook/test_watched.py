"""What servers of webhooks export, and rules for alerts on it."""

import asyncio
import re
import urllib.request
from collections import defaultdict

import pytest
from alert_rules import check_expression, check_texts, expressions, rules
from services.proxy import free_endpoint
from services.webhook.senders import post, served

from persist_ingest import Location, create
from persist_ingest.location import client, release
from persist_ingest.receiving.receiver import HELP

RULES = rules("webhooks")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric, of a server to which everything happened."""
    here = Location(directory=str(tmp_path_factory.mktemp("watched") / "data"))
    shard = create(here, "hook", "webhook", {"check": "none", "idempotencyHeader": "Key"}).shards["rows"]
    side = asyncio.run(free_endpoint())
    with served(here, side_listen=side) as port:
        for _ in range(2):
            assert post(port, b"1", Key="a").status == 200
        assert post(port, b"2", Key="a").status == 422
        # Another server's clock is ahead.
        upper = client(here).recent_upper(shard).time or 0
        while not client(here).open_writer(shard).compare_and_append([], upper, upper + 3_600_000).seqno:
            upper = client(here).recent_upper(shard).time or 0
        assert post(port, b"3", Key="b").status == 503
        found: defaultdict[str, set[str]] = defaultdict(set)
        text = ""
        while "failures_total{" not in text:
            with urllib.request.urlopen(f"http://{side}/metrics") as answer:
                text = answer.read().decode()
    release(here)
    for name, labels in re.findall(r"^(persist_\w+)(\{.*\})? ", text, re.MULTILINE):
        found[name].update(re.findall(r'(\w+)="', labels))
    return found


def test_all_that_is_described_is_exported(exported: dict[str, set[str]]) -> None:
    assert exported.keys() == HELP.keys()


def test_there_are_rules() -> None:
    for about in ("lag_seconds", 'status=~"5.."', "failures_total", "waiting_bytes", "sent_away_total"):
        assert about in RULES
    check_texts(RULES)


@pytest.mark.parametrize("expression", expressions(RULES))
def test_a_rule_names_what_is_exported(expression: str, exported: dict[str, set[str]]) -> None:
    check_expression(expression, exported)
