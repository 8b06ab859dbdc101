"""How deliveries are sent: compressed, and bounded whatever they inflate to; by TLS, its certificate renewed."""

import gzip
import hashlib
import hmac
import json
import os
import ssl
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from services.webhook.senders import Answered, connected_by_tls, post, process, rows, served

from persist import InvalidArgument
from persist_cli.app import run
from persist_ingest import Location, create
from persist_ingest.location import release
from persist_webhook.certificates import Certificates

SECRET = "cloudy with a chance"
MIB = 1 << 20


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Location]:
    place = Location(directory=str(tmp_path / "data"))
    yield place
    release(place)


def raw_deflate(body: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(body) + deflater.flush()


def signed(body: bytes) -> str:
    return f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}"


WAYS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "members": ("gzip", lambda body: gzip.compress(body[:7]) + gzip.compress(b"") + gzip.compress(body[7:])),
    "zlib": ("deflate", zlib.compress),
    "raw": ("deflate", raw_deflate),
}


def test_a_compressed_body_is_the_row_it_was_before(here: Location, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    options = {"check": "github", "secret": f"file:{tmp_path}/secret", "idempotencyHeader": "Key"}
    create(here, "hook", "webhook", options)
    with served(here) as port:
        for nth, (way, (encoding, compressed)) in enumerate(WAYS.items()):
            body = json.dumps({"way": way, "filling": os.urandom(30_000).hex()}).encode()
            sent = compressed(body)
            # Either is signed by one who has the secret.
            signature = signed(sent if nth % 2 else body)

            def send(signature: str, sent: bytes = sent, encoding: str = encoding, way: str = way) -> Answered:
                return post(port, sent, Content_Encoding=encoding, X_Hub_Signature_256=signature, Key=way)

            assert send(signature).json["repeated"] is False
            # It is the same delivery, however it is sent.
            assert post(port, body, X_Hub_Signature_256=signed(body), Key=way).json["repeated"] is True
            wrong = send(signed(b""))
            assert (wrong.status, wrong.reason) == (401, "WRONG_SIGNATURE")
    assert {json.loads(body)["way"] for body in rows(here, "body")} == WAYS.keys()


def test_what_inflates_to_too_much_or_to_nothing_is_refused(here: Location) -> None:
    create(here, "hook", "webhook", {"check": "none", "maxBodyBytes": str(MIB)})
    with served(here) as port:

        def refused(body: bytes, encoding: str = "gzip") -> Answered:
            answer = post(port, body, Content_Encoding=encoding)
            assert answer.status // 100 == 4
            return answer

        bomb = gzip.compress(b"[" + b" " * (64 * MIB) + b"]")
        assert len(bomb) < MIB
        assert refused(bomb).reason == "BODY_TOO_LARGE"
        assert refused(gzip.compress(b"{}")[:-3]).reason == "BAD_ENCODING"
        assert refused(b"{}").reason == "BAD_ENCODING"
        assert refused(b"").reason == "BAD_ENCODING"
        assert refused(zlib.compress(b"{}") + b"{}", "deflate").reason == "BAD_ENCODING"
        assert refused(gzip.compress(b"") * 5_000).reason == "BAD_ENCODING"
        unknown = refused(b"{}", "br")
        assert (unknown.status, unknown.reason) == (415, "ENCODING_NOT_SUPPORTED")
        assert unknown.headers["accept-encoding"] == "gzip, deflate"
        assert refused(gzip.compress(gzip.compress(b"{}")), "gzip, gzip").reason == "ENCODING_NOT_SUPPORTED"
        assert post(port, gzip.compress(b"[" + b" " * (MIB - 2) + b"]"), Content_Encoding="gzip").status == 200


class Authority:
    """Certificates of 127.0.0.1, signed by an authority that the senders know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9",
                      "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip

    def issue(self, name: str) -> None:
        """``server.pem`` and ``server.key``, new ones."""
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                      "-keyout", "new.key", "-out", "new.csr")  # fmt: skip
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl("x509", "-req", "-in", "new.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                      "-days", "9", "-extfile", "names", "-out", "new.pem")  # fmt: skip
        for kind in ("key", "pem"):
            (self.folder / f"new.{kind}").replace(self.folder / f"server.{kind}")

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / "ca.pem")

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=self.folder)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    it = Authority(tmp_path_factory.mktemp("authority"))
    it.issue("first")
    return it


def subject(port: int, trusting: ssl.SSLContext) -> str:
    with connected_by_tls(port, trusting) as connection:
        found: Any = connection.getpeercert() or {}
        return str(dict(pair for each in found["subject"] for pair in each)["commonName"])


def test_deliveries_come_by_tls_whose_certificate_is_renewed_without_a_restart(
    here: Location, authority: Authority
) -> None:
    create(here, "hook", "webhook", {"check": "none"})
    words = ("--tls-cert", authority.folder / "server.pem", "--tls-key", authority.folder / "server.key")
    trusting = authority.trusting()
    with process(here, *words) as (_, port):
        large = b'"' + b"x" * (MIB - 2) + b'"'
        assert post(port, large, tls=trusting).status == 200
        assert post(port, b"x" * (MIB + 1), tls=trusting).reason == "BODY_TOO_LARGE"
        with pytest.raises(OSError):  # noqa: PT011, what a plain sender sees differs by kernel
            post(port, b"{}")
        assert subject(port, trusting) == "first"
        authority.issue("second")
        while subject(port, trusting) != "second":
            pass
        # What cannot be used is not: the one before goes on.
        (authority.folder / "server.pem").write_text("")
        assert post(port, b"2", tls=trusting).status == 200
    assert set(rows(here, "body")) == {large.decode(), "2"}


def test_a_certificate_that_cannot_be_used_is_refused_at_once(
    here: Location, authority: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    create(here, "hook", "webhook", {"check": "none"})
    authority.issue("third")
    certificate, key = authority.folder / "server.pem", authority.folder / "server.key"
    locked = authority.folder / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-in", key, "-out", locked, "-passout", "pass:zq81"],
        check=True, capture_output=True,
    )  # fmt: skip
    for files in ((certificate, locked), (key, certificate), (certificate, authority.folder / "none")):
        with pytest.raises(InvalidArgument, match="TLS cannot be spoken"):
            Certificates(*files)
    assert here.directory is not None
    command = ["serve", "webhook", "hook", "--location", here.directory, "--tls-cert", str(certificate)]
    assert run(command, {}) == 2
    assert "--tls-key" in capfd.readouterr().err
