"""What librdkafka says of its connections, and what to do about it: its calls end with "no answer" whatever it was.

Source: librdkafka, rdkafka_transport.c and rdkafka_sasl.c (texts of errors), as seen with brokers of Apache Kafka 3.9.
"""

import logging
import re
from collections import deque
from typing import Final, Protocol

from persist import Determinate
from persist.redaction import scrub

_LOG: Final = logging.getLogger(__name__)
_KEPT: Final = 32
_SHOWN: Final = 400

_CREDENTIALS: Final = "the brokers do not accept this user and password"
_NO_SASL: Final = "the brokers ask for no user and password at this port"
_PLAIN: Final = "the brokers do not speak TLS at this port"
_NOT_PLAIN: Final = "the brokers ended the connection at the first word in plain text"

# The first that is found counts: what is about one cause comes before what is about several.
_MEANINGS: Final = (
    (
        r"broker's supported mechanisms: *(?P<known>[A-Z][A-Z0-9_,-]*)",
        "the brokers do not know this sasl.mechanism",
        "set sasl.mechanism to one of {known}",
    ),
    (
        r"broker's supported mechanisms:|not valid in current SASL state",
        _NO_SASL,
        "set security.protocol to PLAINTEXT or SSL, or bootstrapServers to the port that asks for them",
    ),
    (
        r"SASL.*(?i:authentication (?:error|failed|failure))",
        _CREDENTIALS,
        "check sasl.username, and what is in the place that sasl.password names",
    ),
    (
        r"certificate verify failed|certificate could not be verified",
        "the brokers' certificate is of an authority that is not known here, or for another name",
        "set ssl.ca.location to the authority's certificate (a PEM file), and bootstrapServers to the names in theirs",
    ),
    (
        r"PLAINTEXT broker listener|wrong version number|SSL connection closed by peer",
        _PLAIN,
        "set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or bootstrapServers to the port that speaks TLS",
    ),
    (
        r"SSL alert number|ssl/tls alert|SSL routines::",
        "the brokers ended the TLS handshake: they want a certificate, or another one",
        "set ssl.certificate.location and ssl.key.location to one (PEM files) that they trust",
    ),
    (
        r"^(?!.*ssl://).*(?:SSL listener\?|Disconnected.*(?:APIVERSION_QUERY|\(after \d{1,3}ms in state UP)\))",
        _NOT_PLAIN,
        "set security.protocol as that port has it, such as SSL or SASL_SSL, or bootstrapServers to another port",
    ),
)


class NotAdmitted(Determinate):
    """The upstream does not accept who asks, or is not who it must be. Correct what the hint names.

    It is tried again, as what is in files and variables may change.
    """

    reason = "NOT_ADMITTED"


class ClientError(Protocol):
    """An error as the client has it."""

    def str(self) -> str:
        """What it says."""


class Complaints:
    """Those of one client, newest last. Given to it as its logger and for its errors; called by it as it is polled."""

    def __init__(self) -> None:
        self._said: deque[str] = deque(maxlen=_KEPT)

    def log(self, level: int, text: str, *given: object) -> None:
        """As a logger's. Kept is what is about a connection that failed."""
        line = text % given if given else text
        if level >= logging.WARNING or "FAIL" in line:
            self._said.append(line)
        _LOG.log(level, "%s", scrub(line, _SHOWN))

    def error(self, error: ClientError) -> None:
        """What the client calls for errors that are about none of its calls."""
        self._said.append(error.str())

    def forget(self) -> None:
        """What was is over."""
        self._said.clear()

    @property
    def last(self) -> str:
        """What was said last that says something, for people; empty: nothing."""
        telling = self._telling
        return scrub(telling[-1], _SHOWN) if telling else ""

    @property
    def _telling(self) -> list[str]:
        return [each for each in self._said if "brokers are down" not in each]

    def refusal(self, topic: str) -> NotAdmitted | None:
        """Why waiting will not help, and what to do; None: it may."""
        telling = self._telling[::-1]
        for pattern, message, hint in _MEANINGS:
            # Brokers that stop end connections, too, and then there is nothing that answers.
            for said in telling[:1] if message == _NOT_PLAIN else telling:
                found = re.search(pattern, said)
                if found is not None:
                    known = found.groupdict().get("known") or ""
                    return NotAdmitted(
                        message, hint=hint.format(known=known.rstrip(",")), topic=topic, cause=scrub(said, _SHOWN)
                    )
        return None
