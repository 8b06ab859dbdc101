"""Webhooks: what was answered as durable is there once, whichever servers die and senders repeat or are slow."""

import asyncio
import hashlib
import hmac
import http.client
import json
import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from services.process import ShardProcess
from services.proxy import free_endpoint
from services.webhook.senders import post, process, raw, rows, served

from persist import InvalidArgument
from persist_cli.app import run
from persist_ingest import Location, Pipeline, Records, create, drop, status
from persist_ingest.location import client, release
from persist_ingest.receiving.receiver import ReceiverOptions
from persist_webhook import serving
from persist_webhook.exchange import HEAD_BYTES
from persist_webhook.server import Limits

ONCE = {"check": "none", "schema": "id bigint not null, name string", "idempotencyHeader": "Idempotency-Key"}
SECRET = "cloudy with a chance"
SENDERS = 64


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Location]:
    place = Location(directory=str(tmp_path / "data"))
    yield place
    release(place)


@pytest.fixture
def once(here: Location) -> Location:
    """A place with a webhook whose deliveries have names."""
    create(here, "hook", "webhook", ONCE)
    return here


def signed(body: bytes) -> str:
    return f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}"


def test_what_was_answered_is_in_the_next_strict_read_and_an_idle_one_is_complete(here: Location, tmp_path: Path):
    (tmp_path / "secret").write_text(f"{SECRET}\n")

    def sql(text: str) -> list[dict[str, Any]]:
        (result,) = client(here).sql(text)
        return result.to_arrow().to_pylist()

    sql("CREATE TABLE mine (id bigint)")
    options = {"check": "github", "secret": f"file:{tmp_path}/secret", "include": "headers"}
    create(here, "hook", "webhook", {**options, "includeHeaders": "X-GitHub-Event:event"}, interval_ms=50)
    with served(here) as port:
        for nth in range(5):
            body = json.dumps({"nth": nth}, indent=1).encode()
            answer = post(port, body, X_Hub_Signature_256=signed(body), X_GitHub_Event="push", Cookie="secret")
            assert (answer.status, answer.json["rows"], answer.json["repeated"]) == (200, 1, False)
            assert sql("SELECT count(*) AS n FROM rows WHERE event = 'push'") == [{"n": nth + 1}]
        # None is sent: a table that is written now can be read together with it all the same.
        for nth in range(3):
            sql(f"INSERT INTO mine VALUES ({nth})")
            (both,) = sql("SELECT (SELECT count(*) FROM rows) AS n, count(*) AS m FROM mine")
            assert both == {"n": 5, "m": nth + 1}
        wrong = post(port, b"{}", X_Hub_Signature_256=signed(b"{ }"))
        assert (wrong.status, wrong.reason) == (401, "WRONG_SIGNATURE")
        assert post(port, b"{}").reason == "NOT_SIGNED"
        assert {each["name"] for row in sql("SELECT headers FROM rows") for each in row["headers"]} == {
            "host", "accept-encoding", "content-length", "x-github-event"
        }  # fmt: skip
        with pytest.raises(InvalidArgument, match="persist serve webhook hook"):
            Pipeline(here, "hook")
        told = status(here, "hook")
        assert (told.state, told.upstream_error) == ("running", "")
    assert rows(here, "event") == {"push": 5}


def test_a_repeated_delivery_is_answered_as_before_and_another_body_under_its_key_is_refused(once: Location):
    with served(once) as one, served(once) as other:
        first = post(one, b'{"id": 1}', Idempotency_Key="a").json
        assert first["repeated"] is False
        again = post(other, b'{"id": 1}', Idempotency_Key="a").json
        assert again == {**first, "repeated": True}
        reused = post(other, b'{"id": 2}', Idempotency_Key="a")
        assert (reused.status, reused.reason) == (422, "KEY_REUSED")
        several = post(one, b'[{"id": 3}, {"id": 3}, {"id": 4, "name": "x"}]', Idempotency_Key="b")
        assert several.json["rows"] == 3
        bad = post(one, b'[{"id": 5}, {"name": "x"}]', Idempotency_Key="c")
        assert (bad.status, bad.reason) == (400, "BAD_BODY")
        assert "row 2" in bad.json["error"]["message"]
        assert post(one, b'{"id": 5}').reason == "KEY_MISSING"
        # What was refused took no key.
        assert post(other, b'{"id": 5}', Idempotency_Key="c").json["repeated"] is False
    with served(once) as later:
        assert post(later, b'{"id": 1}', Idempotency_Key="a").json["repeated"] is True
        assert post(later, b'{"id": 9}', Idempotency_Key="a").reason == "KEY_REUSED"
    assert rows(once, "id") == {1: 1, 3: 2, 4: 1, 5: 1}


def test_many_senders_repeat_to_two_servers_and_each_delivery_is_there_once(once: Location):
    with served(once) as one, served(once) as other:

        def send(sender: int) -> list[bool]:
            told = []
            for nth in range(4):
                body = json.dumps({"id": sender * 100 + nth}).encode()
                for port in (one, other) if sender % 2 else (other, one):
                    answer = post(port, body, Idempotency_Key=f"{sender}/{nth}")
                    assert answer.status == 200, answer
                    told.append(answer.json["repeated"])
            return told

        with ThreadPoolExecutor(SENDERS) as senders:
            told = list(senders.map(send, range(SENDERS)))
    assert told == [[False, True] * 4] * SENDERS
    assert rows(once, "id") == {sender * 100 + nth: 1 for sender in range(SENDERS) for nth in range(4)}


def test_deliveries_without_names_are_all_there_from_two_servers(here: Location):
    create(here, "hook", "webhook", {"check": "none", "format": "text"})
    with served(here) as one, served(here) as other, ThreadPoolExecutor(16) as senders:
        answers = list(senders.map(lambda nth: post((one, other)[nth % 2], f"{nth % 7}".encode()), range(128)))
    assert {each.status for each in answers} == {200}
    assert rows(here, "body") == Counter(f"{nth % 7}" for nth in range(128))


@pytest.mark.parametrize("killed_at", ["first answer", "first row"])
def test_a_server_that_is_killed_leaves_nothing_twice_and_loses_nothing_it_answered(once: Location, killed_at: str):
    """Senders that had no answer repeat to another server, as they do: some were appended before the kill, some not."""
    answered = threading.Event()

    def send(port: int, nth: int) -> bool:
        try:
            done = post(port, json.dumps({"id": nth}).encode(), Idempotency_Key=f"d{nth}").status == 200
        except (OSError, http.client.HTTPException):
            return False
        answered.set()
        return done

    with process(once) as (dying, port), ThreadPoolExecutor(SENDERS) as senders:
        sent = [senders.submit(send, port, nth) for nth in range(SENDERS)]
        if killed_at == "first answer":
            answered.wait(60)
        else:
            while not any(rows(once, "id").values()):
                pass
        dying.kill()
        dying.join()
        told = [each.result() for each in sent]
    there = rows(once, "id")
    assert {nth for nth, done in enumerate(told) if done} <= there.keys()
    with served(once) as port:
        for nth in range(SENDERS):
            answer = post(port, json.dumps({"id": nth}).encode(), Idempotency_Key=f"d{nth}")
            assert answer.json["repeated"] is (nth in there)
    assert rows(once, "id") == dict.fromkeys(range(SENDERS), 1)


def test_what_is_too_large_or_too_slow_or_too_much_is_refused_before_it_is_parsed(here: Location):
    create(here, "hook", "webhook", {"check": "none", "maxBodyBytes": "1000"})
    head = b"POST /hook HTTP/1.1\r\nHost: x\r\n"
    limits, options = Limits(body=0.5, head=0.5), ReceiverOptions(waiting_bytes=1500)
    with served(here, limits=limits, options=options) as port:
        announced, answer = raw(port, head + b"Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b'"BODY_TOO_LARGE"' in answer
        chunk = b"300\r\n" + b"x" * 0x300 + b"\r\n"
        chunked, answer = raw(port, head + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk)
        assert b'"BODY_TOO_LARGE"' in answer
        large, answer = raw(port, head + b"".join(b"X-%d: %b\r\n" % (nth, b"x" * 1000) for nth in range(20)))
        assert b'"HEADERS_TOO_LARGE"' in answer
        padded = head + b"Content-Length: 2\r\nX-Pad: %b\r\n\r\n"
        room = HEAD_BYTES - len(padded % b"")
        for length, said in ((room, b"HTTP/1.1 200 "), (room + 1, b"HTTP/1.1 431 ")):
            # All of it at once: what is not whole yet is measured otherwise.
            whole, answer = raw(port, padded % (b"x" * length) + b"[]")
            assert answer.startswith(said)
            whole.close()
        stuttering, answer = raw(port, b"POST /hook HT")
        assert b'"TOO_SLOW"' in answer
        slow, answer = raw(port, head + b"Content-Length: 10\r\n\r\n", b"[")
        assert answer.startswith(b"HTTP/1.1 408 ")
        garbage, answer = raw(port, b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        assert b'"MALFORMED_REQUEST"' in answer
        for each in (announced, chunked, large, stuttering, slow, garbage):
            each.close()
        assert post(port, b"[]", path="/other").reason == "NOT_FOUND"
        assert post(port, b"", method="GET").status == 405
        assert post(port, b"{").reason == "BAD_BODY"
        assert post(port, b"{}").status == 200
    assert rows(here, "body") == {"{}": 1, "[]": 1}


async def test_a_location_that_is_away_is_answered_for_now_and_a_repetition_is_there_once(tmp_path: Path):
    shards = await ShardProcess(tmp_path).start()
    place = Location(endpoint=shards.endpoint, blob=f"file:{tmp_path}/blob")
    await asyncio.to_thread(create, place, "hook", "webhook", ONCE)

    def senders() -> Iterator[str]:
        with served(place, options=ReceiverOptions(answer_seconds=1.0)) as port:
            assert post(port, b'{"id": 1}', Idempotency_Key="a").status == 200
            yield "kill"
            away = post(port, b'{"id": 2}', Idempotency_Key="b")
            assert (away.status, away.headers["retry-after"]) == (503, "2")
            assert away.reason in ("UNAVAILABLE", "IN_DOUBT")
            yield "start"
            while post(port, b'{"id": 2}', Idempotency_Key="b").status != 200:
                pass
            assert post(port, b'{"id": 1}', Idempotency_Key="a").json["repeated"] is True
            assert rows(place, "id") == {1: 1, 2: 1}

    sending = senders()
    assert await asyncio.to_thread(next, sending) == "kill"
    await shards.kill()
    assert await asyncio.to_thread(next, sending) == "start"
    await shards.start()
    assert await asyncio.to_thread(next, sending, "end") == "end"
    await asyncio.to_thread(release, place)
    await shards.kill()


def test_a_source_that_was_dropped_is_gone_until_it_is_made_again(once: Location, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.05)
    side = asyncio.run(free_endpoint())

    def ready() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{side}/readyz") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    with served(once, side_listen=side) as port:
        assert post(port, b'{"id": 1}', Idempotency_Key="a").status == 200
        assert ready() == (200, "ready\n")
        drop(once, "hook")
        gone = post(port, b'{"id": 2}', Idempotency_Key="b")
        assert (gone.status, gone.reason) == (410, "SOURCE_DROPPED")
        assert ready() == (503, "not ready\nsource hook was dropped\n")
        create(once, "hook", "webhook", {**ONCE, "schema": "id bigint not null, other string"})
        while (again := post(port, b'{"id": 3, "other": "x"}', Idempotency_Key="b")).status == 410:
            pass
        assert (again.status, again.json["repeated"]) == (200, False)
        assert ready() == (200, "ready\n")
        assert post(port, b'{"id": 3, "other": "x"}', Idempotency_Key="b").json["repeated"] is True
        assert rows(once, "id", "other") == {(3, "x"): 1}


def test_one_is_made_by_sql_served_by_a_command_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    directory = str(tmp_path / "data")
    here = Location(directory=directory)
    made = "CREATE SOURCE hook FROM webhook (check = 'bearer', secret = 'env:HOOK', format = 'json-lines', "
    made += "schema = 'id bigint', key = 'id', rememberHours = 2, idempotencyHeader = 'Idempotency-Key')"
    assert run(["sql", "--location", directory, made], {}) == 0
    assert "persist serve webhook hook" in capfd.readouterr().err
    metrics = asyncio.run(free_endpoint())
    with process(here, "--side-listen", metrics, HOOK="sesame") as (serving, port):
        sent = b'{"id": 1}\n\n{"id": 2}\n'
        assert post(port, sent, Idempotency_Key="a", Authorization="Bearer sesame").json["rows"] == 2
        assert post(port, sent, Idempotency_Key="a", Authorization="Bearer sesame").json["repeated"] is True
        assert post(port, sent, Idempotency_Key="b", Authorization="Bearer other").reason == "WRONG_SIGNATURE"
        assert run(["sql", "--location", directory, "--csv", "SELECT id FROM rows ORDER BY id"], {}) == 0
        assert capfd.readouterr().out == '"id"\n1\n2\n'
        with urllib.request.urlopen(f"http://{metrics}/metrics") as answer:
            told = answer.read().decode()
        for each in (
            'persist_webhook_answers_total{source="hook",status="200"} 2',
            'persist_webhook_answers_total{source="hook",status="401",reason="WRONG_SIGNATURE"} 1',
            'persist_webhook_rows_total{source="hook"} 2',
            'persist_webhook_repeated_total{source="hook"} 1',
            'persist_webhook_lag_seconds{source="hook"} ',
        ):
            assert each in told
        serving.send_signal(signal.SIGTERM)
        assert serving.join(60) == 0
    assert run(["sql", "--location", directory, "DROP SOURCE hook"], {}) == 0
    assert Records(client(here)).sources() == {}
    release(here)


@pytest.mark.parametrize("named", [True, False])
def test_a_table_that_a_clock_ahead_of_others_completed_refuses_deliveries_before_they_are_rows(
    here: Location, named: bool
):
    options = {key: text for key, text in ONCE.items() if named or key != "idempotencyHeader"}
    shard = create(here, "hook", "webhook", options).shards["rows"]
    with served(here) as port:
        assert post(port, b'{"id": 1}', Idempotency_Key="a").status == 200
    upper = client(here).recent_upper(shard).time or 0
    client(here).open_writer(shard).compare_and_append([], upper, upper + 3_600_000)
    before = raw_rows(here, shard)
    with served(here) as port:
        for _ in range(3):
            told = post(port, b'{"id": 2}', Idempotency_Key="b")
            assert (told.status, told.reason) == (503, "UNAVAILABLE")
            assert "nothing was appended" in told.body.decode()
    assert raw_rows(here, shard) == before == 1


def raw_rows(place: Location, shard: Any) -> int:
    with client(place).open_reader(shard) as reader:
        return reader.snapshot((client(place).recent_upper(shard).time or 0) - 1).to_arrow().num_rows
