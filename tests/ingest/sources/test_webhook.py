"""What a webhook takes: signatures as senders make them, bodies to rows, and what it remembers of deliveries."""

import base64
import hashlib
import hmac
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from persist import InvalidArgument
from persist.runtime import system
from persist_ingest.receiving import memory as memories
from persist_ingest.receiving.memory import Known, Memory
from persist_ingest.sources.webhook.definition import WebhookDefinition
from persist_ingest.sources.webhook.kind import definition_of
from persist_ingest.sources.webhook.refusals import Refused
from persist_ingest.sources.webhook.rows import Delivery, Rows
from persist_ingest.sources.webhook.signatures import Checker

SECRET, OLD = b"whsec_k\xc3\xb6y", b"whsec_earlier"
BODY = b'{"id": 1}'


def mac(message: bytes, secret: bytes = SECRET) -> bytes:
    return hmac.new(secret, message, hashlib.sha256).digest()


def stripe(moment: int, secret: bytes = SECRET) -> str:
    return f"t={moment},v1={'0' * 64},v1={mac(b'%d.' % moment + BODY, secret).hex()},v0=x"


def slack(moment: int) -> dict[str, str]:
    signature = f"v0={mac(b'v0:%d:' % moment + BODY).hex()}"
    return {"x-slack-signature": signature, "x-slack-request-timestamp": str(moment)}


SHA1 = hmac.new(SECRET, BODY, hashlib.sha1).hexdigest()
GENERIC = {"check": "hmac-sha256", "signatureHeader": "X-Sig", "signatureEncoding": "base64", "signaturePrefix": "k "}


@pytest.mark.parametrize(
    ("options", "headers", "outcome"),
    [
        ({"check": "github"}, {"x-hub-signature-256": f"sha256={mac(BODY).hex()}"}, ""),
        ({"check": "github"}, {"x-hub-signature-256": f"sha256={mac(BODY, OLD).hex()}"}, ""),
        ({"check": "github"}, {"x-hub-signature-256": f"sha256={mac(BODY, b'other').hex()}"}, "WRONG_SIGNATURE"),
        ({"check": "github"}, {"x-hub-signature-256": mac(BODY).hex()}, "WRONG_SIGNATURE"),
        ({"check": "github"}, {"x-hub-signature-256": "sha256=zz"}, "WRONG_SIGNATURE"),
        ({"check": "github"}, {"x-hub-signature-256": "sha256="}, "WRONG_SIGNATURE"),
        ({"check": "github"}, {"x-hub-signature": f"sha256={mac(BODY).hex()}"}, "NOT_SIGNED"),
        ({"check": "stripe"}, lambda now: {"stripe-signature": stripe(now)}, ""),
        ({"check": "stripe"}, lambda now: {"stripe-signature": stripe(now, b"other")}, "WRONG_SIGNATURE"),
        ({"check": "stripe"}, lambda now: {"stripe-signature": stripe(now - 4000)}, "SIGNED_TOO_LONG_AGO"),
        (
            {"check": "stripe", "toleranceSeconds": "9000"},
            lambda now: {"stripe-signature": stripe(now - 4000)},
            "",
        ),
        ({"check": "stripe"}, lambda now: {"stripe-signature": f"t={now},t={now - 1},v1=00"}, "WRONG_SIGNATURE"),
        ({"check": "stripe"}, {"stripe-signature": "nonsense"}, "WRONG_SIGNATURE"),
        ({"check": "slack"}, slack, ""),
        (
            {"check": "slack"},
            lambda now: {**slack(now), "x-slack-request-timestamp": str(now - 1)},
            "WRONG_SIGNATURE",
        ),
        ({"check": "slack"}, lambda now: slack(now + 4000), "SIGNED_TOO_LONG_AGO"),
        ({"check": "slack"}, {"x-slack-signature": "v0=00"}, "NOT_SIGNED"),
        (GENERIC, {"x-sig": f"k {base64.b64encode(mac(BODY)).decode()}"}, ""),
        (GENERIC, {"x-sig": base64.b64encode(mac(BODY)).decode()}, "WRONG_SIGNATURE"),
        ({"check": "hmac-sha1", "signatureHeader": "X-Sig", "signaturePrefix": "sha1="}, {"x-sig": f"sha1={SHA1}"}, ""),
        ({"check": "hmac-sha1", "signatureHeader": "X-Sig"}, {"x-sig": mac(BODY).hex()}, "WRONG_SIGNATURE"),
        ({"check": "hmac-sha256", "signatureHeader": "X-Sig"}, {"x-sig": SHA1}, "WRONG_SIGNATURE"),
        ({"check": "gitlab"}, {"x-gitlab-token": SECRET.decode()}, ""),
        ({"check": "gitlab"}, {"x-gitlab-token": f"{SECRET.decode()}x"}, "WRONG_SIGNATURE"),
        ({"check": "gitlab"}, {"authorization": f"Bearer {SECRET.decode()}"}, "NOT_SIGNED"),
        ({"check": "token", "signatureHeader": "X-Api-Key"}, {"x-api-key": SECRET.decode()}, ""),
        ({"check": "token", "signatureHeader": "X-Api-Key"}, {"x-api-key": "Bearer"}, "WRONG_SIGNATURE"),
        ({"check": "bearer"}, {"authorization": f"bearer {SECRET.decode()}"}, ""),
        ({"check": "bearer"}, {"authorization": f"Basic {SECRET.decode()}"}, "WRONG_SIGNATURE"),
        ({"check": "bearer"}, {"authorization": "Bearer "}, "WRONG_SIGNATURE"),
    ],
)
def test_a_signature_is_that_of_the_bytes_under_one_of_the_secrets(
    options: Mapping[str, str],
    headers: Mapping[str, str] | Callable[[int], Mapping[str, str]],
    outcome: str,
    tmp_path: Path,
) -> None:
    if callable(headers):
        headers = headers(system().now_ms() // 1000)
    (tmp_path / "new").write_bytes(SECRET + b"\n")
    (tmp_path / "old").write_bytes(OLD)
    places = {"secret": f"file:{tmp_path}/new, file:{tmp_path}/old"}
    definition = WebhookDefinition.of({**options, **places})
    checker = Checker(WebhookDefinition.from_json(json.loads(json.dumps(definition.to_json()))).check)
    if outcome:
        with pytest.raises(Refused) as refusal:
            checker.verify(headers, BODY)
        assert refusal.value.kind.reason == outcome
    else:
        checker.verify(headers, BODY)
        token = options["check"] in ("bearer", "gitlab", "token")
        with pytest.raises(Refused):
            checker.verify({definition.check.header: "Bearer x"} if token else headers, BODY + b" ")


def test_standard_webhooks_are_signed_with_their_name_and_time(tmp_path: Path) -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    (place := tmp_path / "secret").write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    options = {"check": "standard", "secret": f"file:{place}"}
    checker = Checker(WebhookDefinition.of({**options, "toleranceSeconds": "9" * 10}).check)
    # Of the specification of Svix, whose form it is.
    body = b'{"test": 2432232314}'
    known = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    checker.verify(known, body)
    with pytest.raises(Refused, match="not that of this body"):
        checker.verify({**known, "webhook-id": "msg_another"}, body)
    with pytest.raises(Refused) as old:
        Checker(WebhookDefinition.of(options).check).verify(known, body)
    assert old.value.kind.reason == "SIGNED_TOO_LONG_AGO"
    now = system().now_ms() // 1000
    signed = base64.b64encode(mac(b"m.%d.%s" % (now, body), key)).decode()
    several = {"webhook-id": "m", "webhook-timestamp": str(now), "webhook-signature": f"v1a,AA== v1,AA== v1,{signed}"}
    checker.verify(several, body)
    with pytest.raises(Refused) as unsigned:
        checker.verify({name: value for name, value in several.items() if name != "webhook-id"}, body)
    assert unsigned.value.kind.reason == "NOT_SIGNED"
    place.write_text("whsec_no base64")
    with pytest.raises(InvalidArgument, match="Base64"):
        Checker(WebhookDefinition.of(options).check)


def test_a_secret_that_is_replaced_counts_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place := tmp_path / "secret").write_bytes(OLD)
    checker = Checker(WebhookDefinition.of({"check": "github", "secret": f"file:{place}"}).check)
    place.write_bytes(SECRET)
    monkeypatch.setattr("persist_ingest.sources.webhook.signatures._LOOK_SECONDS", 0.0)
    checker.verify({"x-hub-signature-256": f"sha256={mac(BODY).hex()}"}, BODY)
    place.write_bytes(b"")
    with pytest.raises(InvalidArgument, match="empty"):
        checker.verify({"x-hub-signature-256": "sha256=00"}, BODY)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "check"),
        ({"check": "github"}, "secret"),
        ({"check": "github", "secret": "hunter2"}, "not kept with the source"),
        ({"check": "none", "secret": "env:X"}, "for a check"),
        ({"check": "none", "toleranceSeconds": "3"}, "no time is signed"),
        ({"check": "github", "secret": "env:X", "signatureHeader": "X"}, "check=hmac-sha256"),
        ({"check": "hmac-sha256", "secret": "env:X"}, "signatureHeader"),
        ({"check": "token", "secret": "env:X"}, "signatureHeader"),
        ({"check": "token", "secret": "env:X", "signatureHeader": "X", "signaturePrefix": "k"}, "check=hmac-sha1"),
        ({"check": "none", "format": "text", "schema": "a text"}, "one column"),
        ({"check": "none", "schema": "received bigint", "include": "received"}, "twice"),
        ({"check": "none", "schema": "a bigint", "key": "b"}, "key column"),
        ({"check": "none", "include": "cookies"}, "no such column"),
        ({"check": "none", "includeHeaders": "X-A"}, "malformed"),
        ({"check": "none", "rememberHours": "3"}, "idempotencyHeader"),
        ({"check": "none", "maxBodyBytes": "100000000"}, "in memory"),
        ({"check": "none", "chek": "x"}, "did you mean check"),
    ],
)
def test_a_mistake_is_refused_with_the_next_step(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        WebhookDefinition.of(options)


def made(**options: str) -> Rows:
    return Rows(WebhookDefinition.of({"check": "none", **options}))


def deliveries(*bodies: bytes) -> list[Delivery]:
    return [Delivery(body, {"x-event": f"e{nth}"}, 1_000 + nth, f"k{nth}") for nth, body in enumerate(bodies)]


def test_each_delivery_has_the_outcome_it_would_have_had_alone() -> None:
    rows = made(
        schema="id bigint not null, ts text", renameColumns="ts:moment", includeHeaders="X-Event:event", key="id"
    )
    bodies = (
        b'{"id": 1, "ts": "a,]b"}', b"[]", b'[{"id": 2} , {"id": 3, "ts": "[\\"}"}]', b'[{"id": 4}, {"ts": "x"}]',
        b'{"id": 5}{"id": 6}', b'[{"id": 7}', b'[{"id": 8}] 9', b"", b"null", b"[1]", b"\xff", b'{\n"id"\n:\n11}',
        b"[" * 9_000,
    )  # fmt: skip
    taken = rows.of(deliveries(*bodies))
    assert taken.rows.to_pylist() == [
        {"id": 1, "moment": "a,]b", "event": "e0"},
        {"id": 2, "moment": None, "event": "e2"},
        {"id": 3, "moment": '["}', "event": "e2"},
        {"id": 11, "moment": None, "event": "e11"},
    ]
    assert taken.counts(len(bodies)).tolist() == [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert sorted(taken.refused) == [3, 4, 5, 6, 7, 8, 9, 10, 12]
    assert "row 2" in taken.refused[3].message
    alone = [rows.of([each]) for each in deliveries(*bodies)]
    assert [bool(each.refused) for each in alone] == [at in taken.refused for at in range(len(bodies))]
    assert taken.without([2]).column("id").to_pylist() == [1, 11]


@pytest.mark.parametrize(
    ("options", "body", "found"),
    [
        ({}, b' {"a":\n1e400}', [' {"a":\n1e400}']),
        ({}, b"{} {}", None),
        ({}, b'{"a": NaN}', None),
        ({"schema": "a double"}, b'{"a": NaN}', None),
        ({"schema": "a double"}, b'{"a": -Inf}', None),
        ({"schema": "a double, body text"}, b'{"a": 1, "body": "NaN"}', ["NaN"]),
        ({"format": "json-lines", "schema": "a double"}, b'{"a": 1}\n{"a": Infinity}', None),
        ({"format": "json-lines"}, b'{"a":1}\r\n\n[2]\n', ['{"a":1}\r', "[2]"]),
        ({"format": "json-lines"}, b"{}\n{", None),
        ({"format": "text"}, "grüße\n".encode(), ["grüße\n"]),
        ({"format": "text"}, b"\xff", None),
        ({"format": "bytes"}, b"\xff\x00", [b"\xff\x00"]),
        ({"format": "bytes"}, b"", [b""]),
    ],
)
def test_bodies_are_kept_as_they_came(options: dict[str, str], body: bytes, found: list[object] | None) -> None:
    taken = made(**options).of(deliveries(body))
    assert (None if taken.refused else taken.rows.column("body").to_pylist()) == found


def test_what_is_remembered_is_what_came_within_the_hours() -> None:
    """Against a dictionary, beyond how many are looked up one by one."""
    random.seed(7)
    memory, model, hour = Memory(2), dict[str, Known](), 3_600_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memories, "FRESH_MAX", 50)
        for nth in range(2_000):
            now = nth * 20_000
            key = f"k{random.randrange(600)}"
            expected = model.get(key)
            is_known = expected is not None and expected.received_ms >= now - 2 * hour
            assert memory.of(key, now) == (expected if is_known else None)
            if not is_known:
                model[key] = Known(random.randrange(-(1 << 63), 1 << 63), now, nth)
                memory.add(key, model[key])
    assert len(memory) <= 600


def test_what_is_read_of_the_table_is_known() -> None:
    rows = made(idempotencyHeader="X-Key").of(deliveries(b"{}", b"[]"))
    times = pa.array([5, 5], pa.uint64())
    named = ["delivery", "fingerprint", "received"]
    memory = Memory(1)
    memory.read(
        [pa.RecordBatch.from_arrays([*(rows.rows.column(each) for each in named), times], [*named, "ts"])], timed=True
    )
    assert memory.of("k1", 2_000) == Known(Delivery(b"[]").fingerprint, 1_001, 5)
    memory.clear()
    assert memory.of("k1", 2_000) is None


def test_a_definition_is_recorded_whole() -> None:
    options = {"check": "stripe", "secret": "env:A,file:/b", "schema": "id bigint", "key": "id", "include": "headers"}
    definition = WebhookDefinition.of({**options, "idempotencyHeader": "X-Id", "includeHeaders": "A:b,C:d"})
    assert definition_of(json.loads(json.dumps({**definition.to_json(), "incarnation": "x"}))) == definition
    assert definition.schema().key.names == ["id"]
    assert definition.schema().val.names == ["b", "d", "headers", "delivery", "received", "fingerprint"]
