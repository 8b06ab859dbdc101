"""Checks that what is committed is readable: inline parts are compared with their descriptions first.

Any client may send an append, with parts that another program made. A part in Blob is taken as it is described, as
looking at it costs a request; an inline one is at hand, and checking it costs less than the commit does. A merge takes
the place of rows that others wrote, so its parts must at least be there, in the size it says: one listing beside
minutes of merging, where another process wrote them. Every command that comes from outside passes here, once, before
it is folded.
Source: design 001, compare_and_append; docs/formats.md, parts; reliability.md I24.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

from persist.core.data.schema import Schema
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import (
    AnyCommand,
    ApplyMerge,
    CompareAndAppend,
    InlineBackpressure,
    MergeRefused,
    SchemaEntry,
)
from persist.core.shard.state import State
from persist.errors import InvalidArgument, LocationError, PersistError, ShardNotFound
from persist.machine.applier import Applier
from persist.machine.parts.written import WrittenParts
from persist.machine.unforeseen import Unforeseen
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob
from persist.typed import AnyOutcome
from persist.wire.columnar.inline import inline_message_bytes
from persist.wire.columnar.verify import PartFlaw, verify_inline_run

EXPANSION_MAX: Final = 16
"""Inline parts of one append may expand to so many times what a state may hold of them; clients expand less."""

_ON_LOOP_BYTES_MAX: Final = 64 << 10
"""Expanding less than this is done on the event loop: a thread hop would cost more."""


class Intake:
    """Checks incoming commands. Keeps nothing but schemas it has parsed."""

    def __init__(
        self,
        blob: Blob,
        written: WrittenParts,
        *,
        settings: Settings,
        runtime: Runtime,
        counts: Counts = UNCOUNTED,
    ) -> None:
        """``written``: what this process knows to be in ``blob``."""
        self._blob = blob
        self._written = written
        self._settings = settings
        self._runtime = runtime
        self._unforeseen = Unforeseen(runtime, counts)

    async def refused(
        self, applier: Applier, commands: Sequence[AnyCommand], deadline: Deadline
    ) -> dict[int, AnyOutcome]:
        """Outcomes or errors of the commands that must not be applied, by their places. Empty as a rule.

        No request where this process knows the shard and its schemas. Raises LocationError, ShardNotFound.
        """
        found: dict[int, Any] = {}
        for place, command in enumerate(commands):
            if isinstance(command, CompareAndAppend | ApplyMerge):
                try:
                    outcome = await self._outcome_of(applier, command, deadline)
                except (LocationError, ShardNotFound):
                    raise
                except PersistError as error:
                    outcome = error
                except Exception as error:
                    # Whatever is wrong with one of them says nothing about the other commands.
                    outcome = self._unforeseen.of(command, error)
                if outcome is not None:
                    found[place] = outcome
        return found

    async def _outcome_of(
        self, applier: Applier, command: CompareAndAppend | ApplyMerge, deadline: Deadline
    ) -> AnyOutcome:
        if isinstance(command, CompareAndAppend):
            return await self._outcome(applier, command.batch, deadline)
        if await self._is_written(command, deadline):
            return None
        # It may also have been applied long ago, and its parts collected since: nothing changes either way.
        return MergeRefused(reason="its parts are not in Blob in the sizes it says")

    async def _is_written(self, merge: ApplyMerge, deadline: Deadline) -> bool:
        """Whether the parts that the owner wrote for a merge exist. Other parts are compared with the state.

        No request for those that this process wrote itself.
        """
        wanted = {
            part.key: part.encoded_bytes
            for part in merge.output.parts
            if part.key and merge.owner.hex in part.key and self._written.size_of(part.key) != part.encoded_bytes
        }
        for folder in {key.rpartition("/")[0] for key in wanted}:
            async for key, size in self._blob.list(
                f"{folder}/", timeout=deadline.slice(self._settings.store_timeout_ms)
            ):
                if wanted.get(key) == size:
                    del wanted[key]
        return not wanted

    async def _outcome(self, applier: Applier, batch: HollowBatch, deadline: Deadline) -> AnyOutcome:
        if not batch.inline_bytes:
            return None
        size = sum(inline_message_bytes(part) for part in batch.parts)
        limit = self._settings.inline_total_bytes_max
        if batch.inline_bytes >= limit or size > limit * EXPANSION_MAX:
            # The state would not take so much either: nothing of it needs to be expanded.
            return InlineBackpressure()
        state = applier.cached
        if state is None or not _knows_schemas(state, batch):
            state = await applier.refresh(deadline)
        check = functools.partial(_flaw, batch, state.schemas, self._settings.decoded_bytes_max)
        return check() if size <= _ON_LOOP_BYTES_MAX else await self._runtime.offload(check)


def _knows_schemas(state: State, batch: HollowBatch) -> bool:
    return all(part.schema_id < len(state.schemas) for part in batch.parts)


def _flaw(batch: HollowBatch, entries: Sequence[SchemaEntry], decoded_bytes_max: int) -> PersistError | None:
    try:
        schemas = schemas_of(entries)
        for run in batch.runs:
            verify_inline_run(run, schemas, decoded_bytes_max=decoded_bytes_max)
    except PartFlaw as flaw:
        return InvalidArgument(
            f"an inline part is not what it is described as: {flaw}",
            hint="nothing was appended; docs/formats.md says what a part is",
            lower=batch.desc.lower,
            upper=batch.desc.upper,
        )
    return None


def schemas_of(entries: Sequence[SchemaEntry]) -> list[Schema]:
    """The schemas of a shard, by id."""
    return [Schema.from_bytes(entry.schema) for entry in entries]
