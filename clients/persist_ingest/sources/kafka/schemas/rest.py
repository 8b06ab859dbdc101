"""What is asked of a schema registry, by the protocol of Confluent's, which Apicurio, Karapace and Redpanda speak, too.

Two questions, so the standard library asks them. What an id means never changes; what is newest does.
Source: Confluent, Schema Registry API reference; wire format (Formats, Serializers, and Deserializers).
"""

import base64
import functools
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument, LocationError
from persist.redaction import learn, scrub, without_password
from persist_ingest.sources.kafka.complaints import NotAdmitted
from persist_ingest.sources.secret import check_place, looked_up

ANSWER_SECONDS: Final = 10.0
_ACCEPTED: Final = "application/vnd.schemaregistry.v1+json, application/json"
_NO_SUBJECT: Final = 40401
_NO_SCHEMA: Final = 40403


class UnknownSchema(LookupError):
    """The registry has no such schema, or subject."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as it is registered: its id, its type (``AVRO``, ``JSON``, ``PROTOBUF``), its text."""

    id: int
    type: str
    text: str
    is_whole: bool = True
    """It refers to no other schemas."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Where a registry is, and as who it is asked. ``password``: the place it is in. Picklable, without secrets."""

    url: str
    user: str = ""
    password: str = ""
    ca: str = ""

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.url)
            is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_sound = False
        if not is_sound:
            learn(self.url)
            raise InvalidArgument(
                "option schemaRegistry must be a URL",
                hint="such as http://registry:8081",
                got=without_password(self.url),
            )
        if parts.username is not None or parts.password is not None:
            learn(self.url)
            raise InvalidArgument(
                "a secret is not kept with the source",
                hint="give the URL without user and password, schemaRegistryUser, and schemaRegistryPassword=file:PATH",
                got=without_password(self.url),
            )
        if self.password:
            check_place("schemaRegistryPassword", self.password)
        if bool(self.user) != bool(self.password):
            raise InvalidArgument(
                "options schemaRegistryUser and schemaRegistryPassword belong together", hint="give both, or none"
            )

    def schema(self, id: int) -> Registered:
        """What was registered under this id; asked once in a process. Raises UnknownSchema, LocationError."""
        return _schema(self, id)

    def newest(self, subject: str) -> Registered:
        """The newest schema of a subject. Raises UnknownSchema, LocationError, NotAdmitted."""
        found = self._asked(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest", _NO_SUBJECT)
        return _registered(self, found.get("id"), found)

    def _asked(self, path: str, absent: int) -> Mapping[str, object]:
        request = urllib.request.Request(self.url.rstrip("/") + path, headers={"Accept": _ACCEPTED})
        if self.user:
            password = looked_up("schemaRegistryPassword", self.password, is_secret=True)
            pair = base64.b64encode(f"{self.user}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {pair}")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=self._context()) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as cause:
            raise self._refused(cause, absent) from cause
        except urllib.error.URLError as cause:
            if isinstance(cause.reason, ssl.SSLError):
                raise self._no_tls(cause.reason) from cause
            raise self._away(cause) from cause
        except (OSError, http.client.HTTPException, ValueError) as cause:
            raise self._away(cause) from cause
        if not isinstance(found, dict):
            raise _not_understood(self)
        return found

    def _context(self) -> ssl.SSLContext | None:
        if not self.url.lower().startswith("https"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ssl.SSLError) as cause:
            raise InvalidArgument(
                "option schemaRegistryCa is no file of certificates", hint="give a PEM file", got=self.ca, cause=cause
            ) from cause

    def _refused(self, cause: urllib.error.HTTPError, absent: int) -> Exception:
        with cause:
            said = cause.read(4096)
        if cause.code in (401, 403):
            return NotAdmitted(
                "the schema registry does not accept this user and password",
                hint="check schemaRegistryUser, and what is in the place that schemaRegistryPassword names",
                registry=self.url,
                status=cause.code,
            )
        try:
            code = json.loads(said).get("error_code")
        except (ValueError, AttributeError):
            code = None
        if cause.code == 404 and code == absent:
            return UnknownSchema(scrub(said.decode(errors="replace"), 200))
        return LocationError(
            "the schema registry does not answer as it must",
            hint="it is tried again later; check option schemaRegistry",
            registry=self.url,
            status=cause.code,
            cause=scrub(said.decode(errors="replace"), 200),
        )

    def _no_tls(self, cause: ssl.SSLError) -> NotAdmitted:
        return NotAdmitted(
            "the schema registry's certificate is not accepted here, or it does not speak TLS",
            hint="set schemaRegistryCa to its authority's certificate (a PEM file), or http:// in schemaRegistry",
            registry=self.url,
            cause=cause,
        )

    def _away(self, cause: Exception) -> LocationError:
        return LocationError(
            "the schema registry does not answer",
            hint="it is tried again later",
            registry=self.url,
            cause=scrub(str(cause)),
        )


@functools.lru_cache(maxsize=1024)
def _schema(registry: Registry, id: int) -> Registered:
    return _registered(registry, id, registry._asked(f"/schemas/ids/{id}", _NO_SCHEMA))


def _registered(registry: Registry, id: object, found: Mapping[str, object]) -> Registered:
    try:
        kind = str(found.get("schemaType") or "AVRO")
        return Registered(int(str(id)), kind, str(found["schema"]), is_whole=not found.get("references"))
    except (KeyError, ValueError) as cause:
        raise _not_understood(registry) from cause


def _not_understood(registry: Registry) -> LocationError:
    return LocationError(
        "the schema registry does not answer as it must", hint="check option schemaRegistry", registry=registry.url
    )
