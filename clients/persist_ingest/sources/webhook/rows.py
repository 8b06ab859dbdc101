"""Requests to rows: many at once, each with the outcome that it would have had alone.

Source: sources.md section 3, decode.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persist.arrow import ArrowArray, array_of
from persist_ingest.decode.exact import Decoder
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.sources.webhook.definition import DELIVERY, FINGERPRINT, HEADERS, JSON, LINES, RECEIVED
from persist_ingest.sources.webhook.definition import WebhookDefinition as Definition
from persist_ingest.sources.webhook.refusals import BAD_BODY, Refused

_SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_SPACE: Final = " \t\r\n"
_SPACES: Final = _SPACE.encode()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request whose signature was right. ``headers``: by names in lower case; ``key``: which delivery it is."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    received_ms: int = 0
    key: str = ""

    @property
    def fingerprint(self) -> int:
        """64 bits of a hash of the body."""
        return int.from_bytes(hashlib.sha256(self.body).digest()[:8], "little", signed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """``rows``: of all deliveries that can be taken, in their order; ``owners``: of each row, which delivery.

    ``refused``: the others, by their places.
    """

    rows: pa.RecordBatch
    owners: NDArray[np.int64]
    refused: Mapping[int, Refused]

    def counts(self, deliveries: int) -> NDArray[np.int64]:
        """How many rows each has."""
        return np.bincount(self.owners, minlength=deliveries)

    def without(self, places: Sequence[int]) -> pa.RecordBatch:
        """The rows but for those of some deliveries."""
        if not places:
            return self.rows
        kept = ~np.isin(self.owners, np.asarray(places, np.int64))
        return self.rows.filter(pa.array(kept))


class Rows:
    """The rows of a webhook's table."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._decoder: Decoder = definition.decoder()
        self._schema = definition.schema()
        secret = {definition.check.header, "x-slack-request-timestamp"} if definition.check.secrets else set()
        self._hidden = _SECRET_HEADERS | secret

    def of(self, deliveries: Sequence[Delivery]) -> Taken:
        """Of all of them. A delivery of which any row has not the declared form is refused whole."""
        refused: dict[int, Refused] = {}
        payloads: list[bytes | None] = []
        owners: list[int] = []
        for at, delivery in enumerate(deliveries):
            try:
                found = self._payloads(delivery.body)
            except Refused as error:
                refused[at] = error
            else:
                payloads += found
                owners += [at] * len(found)
        owned, decoder = np.asarray(owners, np.int64), self._decoder
        decoded = decoder.decode(payloads, owned) if isinstance(decoder, JsonDecoder) else decoder.decode(payloads)
        firsts = np.searchsorted(owned, owned, side="left")
        for bad in decoded.bad:
            nth = bad.index - int(firsts[bad.index]) + 1
            refused.setdefault(owners[bad.index], Refused(BAD_BODY, f"row {nth}: {bad.error}"))
        owned = owned[decoded.good]
        kept = ~np.isin(owned, np.asarray(list(refused), np.int64))
        rows, owned = decoded.rows.filter(pa.array(kept)), owned[kept]
        return Taken(rows=self._whole(rows, deliveries, owned), owners=owned, refused=refused)

    def _whole(self, rows: pa.RecordBatch, deliveries: Sequence[Delivery], owners: NDArray[np.int64]) -> pa.RecordBatch:
        """With the columns that are of the requests, in the table's order."""
        named = dict(zip(self._definition.renames.fields(rows.schema).names, rows.columns, strict=True))
        places = array_of(owners)
        for each in self._definition.beside:
            named[each.name] = self._beside(each, deliveries).take(places)
        fields = [*self._schema.key, *self._schema.val]
        return pa.RecordBatch.from_arrays([named[each.name] for each in fields], schema=pa.schema(fields))

    def _beside(self, column: "pa.Field[pa.DataType]", deliveries: Sequence[Delivery]) -> ArrowArray:
        if column.name == RECEIVED.name:
            return pa.array([each.received_ms for each in deliveries], pa.int64()).view(RECEIVED.type)
        if column.name == DELIVERY.name and self._definition.once_by:
            return pa.array([each.key for each in deliveries], pa.string())
        if column.name == FINGERPRINT.name and self._definition.once_by:
            return pa.array([each.fingerprint for each in deliveries], pa.int64())
        if column.name == HEADERS.name and HEADERS.name in self._definition.include:
            return pa.array([self._shown(each.headers) for each in deliveries], HEADERS.type)
        header = {column: name for name, column in self._definition.headers}[column.name]
        return pa.array([each.headers.get(header) for each in deliveries], pa.string())

    def _shown(self, headers: Mapping[str, str]) -> list[dict[str, str]]:
        return [{"name": name, "value": value} for name, value in headers.items() if name not in self._hidden]

    def _payloads(self, body: bytes) -> list[bytes | None]:
        """What of a body is a row each. Raises Refused."""
        if self._definition.format == LINES:
            lines: list[bytes | None] = [line for line in body.split(b"\n") if line.strip(_SPACES)]
            for line in lines:
                self._check(line or b"")
            return lines
        if self._definition.format != JSON:
            return [body]
        if self._definition.fields and body.lstrip(_SPACES).startswith(b"["):
            return _objects(body)
        self._check(body)
        return [body]

    def _check(self, text: bytes) -> None:
        """Raise Refused for what is not JSON, where whatever makes columns of it might take it for that."""
        if not self._definition.fields or b"NaN" in text or b"Inf" in text:
            _check_json(text)


def _check_json(text: bytes) -> None:
    try:
        json.loads(text.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(BAD_BODY, f"this is not JSON: {error}") from None


def _objects(body: bytes) -> list[bytes | None]:
    """The elements of a JSON array, as they are written there. Raises Refused."""
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    try:
        text = body.decode()
        found: list[bytes | None] = []
        at = _past_space(text, _past_space(text, 0) + 1)
        is_empty = text[at : at + 1] == "]"
        at = _past_space(text, at + 1) if is_empty else _elements(text, at, decoder, found)
        if at != len(text):
            raise ValueError(f"something stands after the array, at {at}")
    except (ValueError, RecursionError) as error:
        raise Refused(BAD_BODY, f"this is not JSON: {error}") from None
    return found


def _elements(text: str, at: int, decoder: json.JSONDecoder, found: list[bytes | None]) -> int:
    while True:
        _, end = decoder.raw_decode(text, at)
        found.append(text[at:end].encode())
        at = _past_space(text, end)
        mark = text[at : at + 1]
        if mark not in (",", "]"):
            raise ValueError(f"a comma or the array's end is missing at {at}")
        at = _past_space(text, at + 1)
        if mark == "]":
            return at


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
