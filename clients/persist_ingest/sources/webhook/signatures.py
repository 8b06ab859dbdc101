"""Whether a request comes from who knows the secret: signatures of its body as senders make them.

Compared in constant time, before anything of the body is parsed. The secret is where the definition says, on the
machine that serves, and may be replaced there while it is served.
Source: RFC 2104; GitHub, "Validating webhook deliveries"; Stripe, "Verify webhook signatures manually"; Slack,
"Verifying requests from Slack"; RFC 6750; Standard Webhooks 1.0.0; GitLab, "Validate payloads by using a secret token".
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from persist import InvalidArgument
from persist.digits import whole_number
from persist.runtime import system
from persist.typed import Fields
from persist_ingest.given import Given
from persist_ingest.sources.options import one_of, required
from persist_ingest.sources.secret import check_place, looked_up
from persist_ingest.sources.webhook.refusals import NOT_SIGNED, SIGNED_TOO_LONG_AGO, WRONG_SIGNATURE, Refused

NONE: Final = "none"
BEARER: Final = "bearer"
HMAC: Final = "hmac-sha256"
HMAC_SHA1: Final = "hmac-sha1"
TOKEN: Final = "token"
GITLAB: Final = "gitlab"
STANDARD: Final = "standard"
GITHUB: Final = "github"
STRIPE: Final = "stripe"
SLACK: Final = "slack"
CHECKS: Final = (GITHUB, GITLAB, STRIPE, SLACK, STANDARD, HMAC, HMAC_SHA1, BEARER, TOKEN, NONE)
OPTIONS: Final = ("check", "secret", "signatureHeader", "signaturePrefix", "signatureEncoding", "toleranceSeconds")
TOLERANCE_SECONDS: Final = 300
"""How far the time that was signed may lie from the clock here; a recorded request cannot be played again later."""

_HEADERS: Final = {
    GITHUB: "x-hub-signature-256",
    STRIPE: "stripe-signature",
    SLACK: "x-slack-signature",
    GITLAB: "x-gitlab-token",
    STANDARD: "webhook-signature",
    BEARER: "authorization",
    NONE: "",
}
_SLACK_TIME: Final = "x-slack-request-timestamp"
_GENERIC: Final = (HMAC, HMAC_SHA1)
_TIMED: Final = (STRIPE, SLACK, STANDARD)
_STANDARD_SECRET: Final = b"whsec_"
_LOOK_SECONDS: Final = 1.0
_Expected: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How requests are checked. ``secrets``: the places they are in, of which any will do; ``header``: in lower case.

    ``tolerance``: seconds, of checks that sign a time.
    """

    kind: str
    secrets: tuple[str, ...] = ()
    header: str = ""
    prefix: str = ""
    encoding: str = "hex"
    tolerance: int = TOLERANCE_SECONDS

    @classmethod
    def of(cls, given: Given) -> "Check":
        """From options. Raises InvalidArgument; one that is not given is a mistake, and never an open door."""
        required(given, "check", GITHUB)
        kind = one_of(given, "check", CHECKS, NONE)
        for option, kinds in (
            ("signatureHeader", (*_GENERIC, TOKEN)),
            ("signaturePrefix", _GENERIC),
            ("signatureEncoding", _GENERIC),
        ):
            if kind not in kinds and given.get(option) is not None:
                of = " or ".join(f"check={each}" for each in kinds)
                raise InvalidArgument(f"option {option} goes with {of}", hint="leave it out", check=kind)
        if kind not in _TIMED and given.get("toleranceSeconds") is not None:
            raise InvalidArgument("no time is signed", hint="leave toleranceSeconds out", check=kind)
        if kind == NONE:
            if given.get("secret") is not None:
                raise InvalidArgument("a secret is for a check", hint="leave it out, or say which check", check=kind)
            return cls(kind=kind)
        secrets = tuple(place.strip() for place in required(given, "secret", "env:WEBHOOK_SECRET").split(","))
        for place in secrets:
            check_place("secret", place)
        header = _HEADERS.get(kind) or required(given, "signatureHeader", "X-Signature").lower()
        tolerance = given.whole("toleranceSeconds", least=1)
        return cls(
            kind=kind,
            secrets=secrets,
            header=header,
            prefix=given.get("signaturePrefix") or "",
            encoding=one_of(given, "signatureEncoding", ("hex", "base64"), "hex"),
            tolerance=TOLERANCE_SECONDS if tolerance is None else tolerance,
        )

    def to_json(self) -> dict[str, object]:
        """JSON-ready, without secrets."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {**named, "secrets": list(self.secrets)}

    @classmethod
    def from_json(cls, given: Mapping[str, object]) -> "Check":
        """What ``to_json`` gave."""
        fields: Fields = given
        return cls(**{**fields, "secrets": tuple(fields["secrets"])})


class Checker:
    """Checks requests by the secrets of this machine. Any thread."""

    def __init__(self, check: Check) -> None:
        """Raises InvalidArgument: a secret is not there, or empty."""
        self._check = check
        self._looked_at = float("-inf")
        self._secrets: Sequence[bytes] = ()
        self._look()

    def verify(self, headers: Mapping[str, str], body: bytes) -> None:
        """Return if a secret was used for these bytes; ``headers`` by names in lower case.

        Raises Refused; InvalidArgument (a secret is not there any more: it is for the operator).
        """
        if self._check.kind == NONE:
            return
        given = headers.get(self._check.header)
        if not given:
            raise Refused(NOT_SIGNED, f"header {self._check.header} is missing")
        self._look()
        kind = self._check.kind
        if kind in (BEARER, TOKEN, GITLAB):
            scheme, _, token = given.partition(" ") if kind == BEARER else ("bearer", "", given)
            if scheme.lower() != "bearer" or not self._any(lambda secret: secret, [token.strip().encode()]):
                raise Refused(WRONG_SIGNATURE, "this is not the token")
        elif kind == STRIPE:
            self._stripe(given, body)
        elif kind == SLACK:
            self._slack(given, headers, body)
        elif kind == STANDARD:
            self._standard(given, headers, body)
        else:
            prefix = "sha256=" if kind == GITHUB else self._check.prefix
            self._signed(body, [given.strip()], prefix)

    def _stripe(self, given: str, body: bytes) -> None:
        pairs = [pair.strip().partition("=") for pair in given.split(",")]
        moments = [value for name, _, value in pairs if name == "t"]
        signatures = [value for name, _, value in pairs if name == "v1"]
        if len(moments) != 1 or not signatures:
            raise Refused(WRONG_SIGNATURE, "the signature has no time, or none of version v1")
        self._signed(moments[0].encode() + b"." + body, signatures, "")
        self._timely(moments[0])

    def _slack(self, given: str, headers: Mapping[str, str], body: bytes) -> None:
        moment = headers.get(_SLACK_TIME, "")
        if not moment:
            raise Refused(NOT_SIGNED, f"header {_SLACK_TIME} is missing")
        self._signed(b"v0:" + moment.encode() + b":" + body, [given.strip()], "v0=")
        self._timely(moment)

    def _standard(self, given: str, headers: Mapping[str, str], body: bytes) -> None:
        delivery, moment = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not delivery or not moment:
            raise Refused(NOT_SIGNED, "header webhook-id or webhook-timestamp is missing")
        signed = b".".join((delivery.encode(), moment.encode(), body))
        self._signed(signed, given.split(), "v1,", encoding="base64")
        self._timely(moment)

    def _signed(self, message: bytes, signatures: Sequence[str], prefix: str, *, encoding: str = "") -> None:
        encoding = encoding or self._check.encoding
        digest = "sha1" if self._check.kind == HMAC_SHA1 else "sha256"
        found = [each for text in signatures if (each := _decoded(text, prefix, encoding)) is not None]
        if not self._any(lambda secret: hmac.digest(secret, message, digest), found):
            raise Refused(WRONG_SIGNATURE, "the signature is not that of this body under the secret")

    def _timely(self, moment: str) -> None:
        """After the signature was seen to be right: so the time is the sender's."""
        signed = whole_number(moment)
        if signed is None:
            raise Refused(WRONG_SIGNATURE, "the time that was signed is no number of seconds")
        if abs(system().now_ms() / 1000 - signed) > self._check.tolerance:
            raise Refused(SIGNED_TOO_LONG_AGO, "the time that was signed is not the present one: see both clocks")

    def _any(self, expected: _Expected, given: Sequence[bytes]) -> bool:
        """All pairs are compared, whatever is found: how long it takes says nothing."""
        found = False
        for secret in self._secrets:
            right = expected(secret)
            for each in given:
                found |= hmac.compare_digest(right, each)
        return found

    def _look(self) -> None:
        now = system().monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        secrets = [looked_up("secret", place, is_secret=True).encode() for place in self._check.secrets]
        if self._check.kind == STANDARD:
            secrets = [_standard_secret(each) for each in secrets]
        if not all(secrets):
            raise InvalidArgument("the secret is empty", hint="put it there", places=", ".join(self._check.secrets))
        self._secrets, self._looked_at = secrets, now


def _standard_secret(text: bytes) -> bytes:
    """Bytes in Base64, as they are handed out. Raises InvalidArgument."""
    try:
        return base64.b64decode(text.strip().removeprefix(_STANDARD_SECRET), validate=True)
    except binascii.Error:
        raise InvalidArgument("the secret is not Base64", hint="as the sender shows it: whsec_...") from None


def _decoded(text: str, prefix: str, encoding: str) -> bytes | None:
    if not text.startswith(prefix):
        return None
    try:
        rest = text.removeprefix(prefix)
        return bytes.fromhex(rest) if encoding == "hex" else base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        return None
