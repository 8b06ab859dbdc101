"""Counters, logs and addresses."""

import json
import logging
import sys

import pytest

from persist.errors import InvalidArgument, MissingExtra
from persist_host import Address, Telemetry, logs


def test_counters_and_gauges_are_prometheus_text():
    telemetry = Telemetry(service="test")
    telemetry.count("persist_rpc_total", (("method", 'a"b\\c'), ("code", "OK")))
    telemetry.count("persist_rpc_total", (("method", 'a"b\\c'), ("code", "OK")), by=2)
    telemetry.gauge("persist_consensus_unsafe", (("finding", "x"),), 1)
    telemetry.count("persist_lane_commits_total")
    lines = telemetry.prometheus().splitlines()
    assert r'persist_rpc_total{method="a\"b\\c",code="OK"} 3' in lines
    assert 'persist_consensus_unsafe{finding="x"} 1' in lines
    assert "persist_lane_commits_total 1" in lines
    assert "# TYPE persist_rpc_total counter" in lines
    assert "# TYPE persist_consensus_unsafe gauge" in lines


def test_spans_without_a_collector_cost_nothing():
    with Telemetry(service="test").span("persist.shard.append", shard="s") as span:
        assert span is None


def test_collector_without_the_exporter_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    # As in an installation without it, whatever this one has.
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(MissingExtra, match=r"pip install 'persist-tvc\[otlp\]'"):
        Telemetry(service="test", otlp_endpoint="http://127.0.0.1:4317")


def test_log_line_is_json_without_credentials():
    record = logging.makeLogRecord(
        {
            "name": "persist.x",
            "levelname": "INFO",
            "msg": "opened %s",
            "args": ("postgres://bob:hunter2@db/x",),
            "seqno": 7,
            "uri": "redis://:hunter2@host/0",
        }
    )
    try:
        raise ValueError("password=hunter2")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    text = logs.JsonFormatter().format(record)
    line = json.loads(text)
    assert (line["logger"], line["level"], line["seqno"]) == ("persist.x", "info", 7)
    assert line["message"] == "opened postgres://***@db/x"
    assert "\n" not in text
    assert "hunter2" not in text


def test_log_lines_are_bounded_whatever_strangers_named():
    name = "://" * 300_000
    record = logging.makeLogRecord({"name": "persist.x", "msg": "no key %s", "args": (name,), "key": name})
    try:
        raise ValueError(name)
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    assert len(logs.JsonFormatter().format(record)) < 2 * logs.SHOWN_CHARS_MAX + logs.TRACEBACK_CHARS_MAX + 1000


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("127.0.0.1:7100", "127.0.0.1", 7100, "127.0.0.1:7100"),
        ("localhost:0", "localhost", 0, "localhost:0"),
        (":7100", "0.0.0.0", 7100, "0.0.0.0:7100"),
        ("[::1]:7100", "::1", 7100, "[::1]:7100"),
    ],
)
def test_address_is_parsed_and_shown(text, host, port, shown):
    address = Address.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, shown)


@pytest.mark.parametrize("text", ["", "7100", "host", "host:", "host:http", "host:70000", "::1:7100", "host:-1"])
def test_address_malformed_is_refused(text):
    with pytest.raises(InvalidArgument):
        Address.parse(text)


def test_configuring_logs_replaces_what_it_added_and_nothing_else():
    logger, others = logging.getLogger("asyncio"), logging.NullHandler()
    before = (logger.handlers[:], logger.propagate, logger.level)
    logger.addHandler(others)
    try:
        for _ in range(2):
            logs.configure()
        assert others in logger.handlers
        assert sum(isinstance(each.formatter, logs.JsonFormatter) for each in logger.handlers) == 1
    finally:
        logger.handlers[:], logger.propagate, level = before
        logger.setLevel(level)
