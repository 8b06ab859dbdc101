"""What a webhook takes: its options, as ``create`` checks them, and the columns of its table.

Source: design 003; sources.md section 3, decode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from persist import InvalidArgument, Schema
from persist.arrow import ArrowField
from persist.typed import Fields
from persist_ingest.decode.exact import Decoder
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.decode.raw_rows import RawDecoder
from persist_ingest.given import Given
from persist_ingest.sources.options import check_options, columns, listed, one_of
from persist_ingest.sources.renames import OPTION as RENAMES
from persist_ingest.sources.renames import Renames
from persist_ingest.sources.webhook import signatures
from persist_ingest.sources.webhook.signatures import Check

JSON: Final = "json"
LINES: Final = "json-lines"
TEXT: Final = "text"
BYTES: Final = "bytes"
FORMATS: Final = (JSON, LINES, TEXT, BYTES)
BODY: Final = "body"
"""The column of bodies that are kept as they came."""
BODY_BYTES: Final = 1 << 20
BODY_BYTES_MAX: Final = 64 << 20
REMEMBER_HOURS: Final = 24
KEY_LETTERS: Final = 255

RECEIVED: Final = pa.field("received", pa.timestamp("ms", tz="UTC"), nullable=False)
DELIVERY: Final = pa.field("delivery", pa.string(), nullable=False)
FINGERPRINT: Final = pa.field("fingerprint", pa.int64(), nullable=False)
HEADERS: Final = pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())])))
_INCLUDED: Final = {each.name: each for each in (RECEIVED, HEADERS)}
_KNOWN: Final = (
    "format",
    "schema",
    "key",
    "include",
    "includeHeaders",
    "idempotencyHeader",
    "rememberHours",
    "maxBodyBytes",
    "export",
    RENAMES,
    *signatures.OPTIONS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDefinition:
    """What ``create`` fixed. ``fields``: as they were declared, or empty: bodies are kept as they came.

    ``key``: columns; none: which delivery it is, or else when it was received, are the key.
    ``headers``: pairs of a header's name and its column. ``once_by``: the header whose value names a delivery, in
    lower case; empty: each request is another one. ``remember_hours``: for how long a repetition is recognised.
    """

    format: str
    fields: str
    key: tuple[str, ...]
    include: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    once_by: str
    remember_hours: int
    body_bytes: int
    export: str
    renames: Renames
    check: Check

    @classmethod
    def of(cls, raw: Mapping[str, str]) -> "WebhookDefinition":
        """From options. Raises InvalidArgument."""
        given = check_options(raw, _KNOWN, "a webhook")
        once_by = (given.get("idempotencyHeader") or "").strip().lower()
        given.requires("rememberHours", "idempotencyHeader")
        found = cls(
            format=one_of(given, "format", FORMATS, JSON),
            fields=given.get("schema") or "",
            key=listed(given, "key"),
            include=_include(given),
            headers=_headers(given),
            once_by=once_by,
            remember_hours=given.whole("rememberHours", least=1) or REMEMBER_HOURS,
            body_bytes=given.whole("maxBodyBytes", least=1) or BODY_BYTES,
            export=(given.get("export") or "rows").strip(),
            renames=Renames.of(given),
            check=Check.of(given),
        )
        if found.body_bytes > BODY_BYTES_MAX:
            raise InvalidArgument("bodies are held in memory", hint=f"maxBodyBytes of at most {BODY_BYTES_MAX:,}")
        if found.fields and found.format not in (JSON, LINES):
            raise InvalidArgument(
                f"a body of format {found.format} is one column", hint="leave schema out, or format=json"
            )
        found.schema()
        return found

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` takes it."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {
            **named,
            "key": list(self.key),
            "include": list(self.include),
            "headers": [list(pair) for pair in self.headers],
            "renames": self.renames.to_json(),
            "check": self.check.to_json(),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, object]) -> "WebhookDefinition":
        """What ``to_json`` gave."""
        fields: Fields = given
        changed = {
            "key": tuple(fields["key"]),
            "include": tuple(fields["include"]),
            "headers": tuple((str(name), str(column)) for name, column in fields["headers"]),
            "renames": Renames.from_json(fields["renames"]),
            "check": Check.from_json(fields["check"]),
        }
        return cls(**{**fields, **changed})

    @property
    def payload(self) -> pa.Schema:
        """The columns that a body has, as they are called there."""
        if self.fields:
            return columns(self.fields)
        return pa.schema([pa.field(BODY, pa.binary() if self.format == BYTES else pa.string(), nullable=False)])

    @property
    def beside(self) -> pa.Schema:
        """The columns that are of a request, not of its body."""
        named: list[ArrowField] = [_INCLUDED[each] for each in self.include]
        added: list[ArrowField] = [DELIVERY, RECEIVED, FINGERPRINT] if self.once_by else [] if self.key else [RECEIVED]
        told: list[ArrowField] = [pa.field(column, pa.string()) for _, column in self.headers]
        return pa.schema(told + named + [each for each in added if each not in named])

    def schema(self) -> Schema:
        """The table's. Raises InvalidArgument: a column that is there twice, or whose name is taken."""
        ours = self.beside.names
        for old, _ in self.renames.pairs:
            if old in ours:
                raise InvalidArgument(f"option {RENAMES} is about columns of the body", hint="leave it out", column=old)
        both: list[ArrowField] = [*self.payload, *self.beside]
        names = [each.name.lower() for each in both]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidArgument("a column is there twice", hint=f"rename it: {RENAMES}={twice[0]}:…", column=twice[0])
        found = self.key or ((DELIVERY if self.once_by else RECEIVED).name,)
        return self.renames.keyed(pa.schema(both), found)

    def decoder(self) -> Decoder:
        """Rows of payloads: of a body, of one of its lines, of one of its objects."""
        return JsonDecoder(self.payload) if self.fields else RawDecoder(self.payload)


def _include(given: Given) -> tuple[str, ...]:
    names = listed(given, "include")
    for name in names:
        if name not in _INCLUDED:
            raise InvalidArgument("there is no such column to include", hint=f"of {', '.join(_INCLUDED)}", got=name)
    return names


def _headers(given: Given) -> tuple[tuple[str, str], ...]:
    pairs = []
    for each in listed(given, "includeHeaders"):
        name, colon, column = (part.strip() for part in each.partition(":"))
        if not name or not colon or not column:
            raise InvalidArgument(
                "option includeHeaders is malformed", hint="such as includeHeaders=X-GitHub-Event:event", at=each
            )
        pairs.append((name.lower(), column))
    return tuple(pairs)
