"""What is recorded of sources, as far as readers of what they feed need it: which of it gets no further, and why.

Their ingesters write the records (``persist_ingest.pipeline.records``), where all else in them is known.
Source: sources.md section 1; catalog-semantics.md section 4.2.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from persist.core.ids import ShardId
from persist.typed import Fields

RECORDS: Final = ShardId.named("persist", "sources")
"""The shard of every location's records of sources."""
SOURCE: Final = "source"
"""The kind of the records of sources, by name, in that shard."""
STATUS: Final = "status"
"""The kind of what an ingester says of itself, by its id, in the shard of its source's statuses."""
STALLED: Final = "stalled"
"""The state of an export that goes on when it is mended, and not before."""
FAILED: Final = "failed"
"""The state of an ingester that ended with an error."""
SILENT_MS: Final = 30_000
"""An ingester that has said nothing for this long is taken for gone."""


def status_shard(name: str, generation: int) -> ShardId:
    """The shard of what the ingesters of a life of a source say of themselves."""
    return ShardId.named("persist", f"status of source {name}, life {generation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """An export gets no further by itself. ``is_whole``: nor does any other of its source, whose ingesters failed."""

    source: str
    export: str
    since_ms: int
    error: str
    hint: str
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Feeds:
    """The export of a source whose shard is asked for. ``stall``: it stands aside, while the source may go on."""

    source: str
    export: str
    statuses: ShardId
    stall: Standstill | None = None


def all_fed(records: Mapping[str, str]) -> Mapping[str, Feeds]:
    """What sources feed, by shard, by the records of sources, texts by name.

    A record that this release cannot read says nothing.
    """
    found: dict[str, Feeds] = {}
    for name, text in records.items():
        record: Fields = json.loads(text)
        troubles: Mapping[str, Fields] = record.get("troubles", {})
        for export, shard in record.get("exports", {}).items():
            trouble = troubles.get(export, {})
            stall = None
            if trouble.get("state") == STALLED:
                told = {key: trouble.get(key, "") for key in ("error", "hint")}
                stall = Standstill(source=name, export=export, since_ms=trouble["since_ms"], **told)
            found.setdefault(shard, Feeds(name, export, status_shard(name, record["generation"]), stall))
    return found


def failed(fed: Feeds, said: Mapping[str, str], now_ms: int) -> Standstill | None:
    """Why a source goes no further, by what its ingesters said last, texts by their ids; None: that is not known.

    One that died says nothing: the next one goes on. So it is where the newest word is that of one that ended with what
    the next one would end with, too, and no other has said since then that it goes on.
    """
    words: list[Fields] = [json.loads(text) for text in said.values()]
    last = max(words, key=lambda word: int(word["at_ms"]), default=None)
    if last is None or last.get("state") != FAILED or not last.get("definite", False):
        return None
    if any(word["state"] in ("running", STALLED) and now_ms - int(word["at_ms"]) <= SILENT_MS for word in words):
        return None
    return Standstill(
        source=fed.source,
        export=fed.export,
        since_ms=int(last["at_ms"]),
        error=str(last.get("error", "")),
        hint=str(last.get("hint", "")),
        is_whole=True,
    )
