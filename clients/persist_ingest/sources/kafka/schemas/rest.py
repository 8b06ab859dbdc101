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
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument, LocationError
from persist.redaction import learn, scrub, without_password
from persist.typed import Fields
from persist_ingest.sources.kafka.complaints import NotAdmitted
from persist_ingest.sources.secret import check_place, looked_up

ANSWER_SECONDS: Final = 10.0
PROTOBUF: Final = "PROTOBUF"
_ACCEPTED: Final = "application/vnd.schemaregistry.v1+json, application/json"
_NO_SUBJECT: Final = 40401
_NO_VERSION: Final = 40402
_NO_SCHEMA: Final = 40403
DEPTH_MAX: Final = 16
PARTS_MAX: Final = 128
"""How deep a schema may refer to others, and to how many."""


class UnknownSchema(LookupError):
    """The registry has no such schema, or subject."""


@dataclass(frozen=True, slots=True)
class Referred:
    """A schema that others refer to, by this name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as it is registered: its id, its type (``AVRO``, ``JSON``, ``PROTOBUF``), its text.

    ``parts``: what it refers to, each after what that itself refers to; ``is_whole``: it refers to nothing. The text of
    Protobuf is base64 of a file's descriptor.
    """

    id: int
    type: str
    text: str
    is_whole: bool = True
    parts: tuple[Referred, ...] = ()

    @classmethod
    def from_json(cls, given: Mapping[str, object]) -> "Registered":
        """As it was recorded, in this release or an earlier one."""
        fields: Fields = given
        return cls(**{**fields, "parts": tuple(Referred(**each) for each in fields.get("parts", ()))})


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
        # By its id, in the form that is wanted. SUBTLE: and not kept: readers ask themselves what their registry has.
        return _fetched(self, self._id(subject, "latest"))

    def _id(self, subject: str, version: str) -> int:
        """The id of a version of a subject. Raises as ``newest``."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{urllib.parse.quote(version, safe='')}"
        found = self._asked(path, _NO_SUBJECT, _NO_VERSION)
        try:
            return int(str(found["id"]))
        except (KeyError, ValueError) as cause:
            raise _not_understood(self) from cause

    def _asked(self, path: str, *absent: int) -> Mapping[str, object]:
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

    def _refused(self, cause: urllib.error.HTTPError, absent: Container[int]) -> Exception:
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
        if cause.code == 404 and code in absent:
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
    return _fetched(registry, id)


def _fetched(registry: Registry, id: int) -> Registered:
    kind, text, references = _alone(registry, id)
    parts: dict[str, Referred] = {}
    _refer(registry, references, parts, kind, 0)
    return Registered(id, kind, text, is_whole=not references, parts=tuple(parts.values()))


def _alone(registry: Registry, id: int) -> tuple[str, str, tuple[tuple[str, str, str], ...]]:
    """Type and text of a schema, and what it refers to: names, subjects and versions."""
    found = registry._asked(f"/schemas/ids/{id}", _NO_SCHEMA)
    kind = str(found.get("schemaType") or "AVRO")
    if kind == PROTOBUF:
        # Its text would take a parser of the language; the registry has one.
        found = {**found, **registry._asked(f"/schemas/ids/{id}?format=serialized", _NO_SCHEMA)}
    references = found.get("references") or ()
    try:
        if not isinstance(references, list | tuple):
            raise ValueError
        named = tuple((str(each["name"]), str(each["subject"]), str(each["version"])) for each in references)
        return kind, str(found["schema"]), named
    except (KeyError, TypeError, ValueError) as cause:
        raise _not_understood(registry) from cause


def _refer(
    registry: Registry, references: Sequence[tuple[str, str, str]], parts: dict[str, Referred], kind: str, depth: int
) -> None:
    """Collect what is referred to, each after what that refers to. Raises UnknownSchema, InvalidArgument."""
    for name, subject, version in references:
        if name in parts:
            continue
        if depth >= DEPTH_MAX or len(parts) >= PARTS_MAX:
            raise InvalidArgument(
                "a schema refers to too many others, or they to each other",
                hint=f"at most {PARTS_MAX}, {DEPTH_MAX} deep",
                subject=subject,
            )
        try:
            other, text, further = _alone(registry, registry._id(subject, version))
        except UnknownSchema as cause:
            raise InvalidArgument(
                "a schema refers to one that the registry does not have",
                hint="register that, too",
                subject=subject,
                version=version,
            ) from cause
        if other != kind:
            raise InvalidArgument(
                f"a schema of {kind} refers to one of {other}", hint="register it anew", subject=subject
            )
        _refer(registry, further, parts, kind, depth + 1)
        parts.setdefault(name, Referred(name, text))


def _not_understood(registry: Registry) -> LocationError:
    return LocationError(
        "the schema registry does not answer as it must", hint="check option schemaRegistry", registry=registry.url
    )
