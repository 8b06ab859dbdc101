"""ReadTransaction: several reads at one time, of whatever the first one made its timedomain.

The first read decides on the timeline and on the time; held from then on is all that may be read later: what is in the
same schemas and of the same timeline. Source: catalog-semantics.md sections 6.1 and 6.2; design 004.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

from persist.client.collections.reading.choosing import AskedTime, AtOneTime, Readers, timed
from persist.client.collections.reading.inputs import Names, stored
from persist.core.catalog.ddl.described import Described
from persist.core.time.collections import TimelineContext, timedomain, timeline_read_in
from persist.core.time.errors import MultipleTimelines
from persist.core.time.timeline import Timeline
from persist.errors import InvalidArgument


class ReadTransaction:
    """Reads at one time. An async context manager; not for several tasks at once."""

    def __init__(self, readers: Readers, names: Names, asked: AskedTime) -> None:
        self._readers = readers
        self._names = names
        self._asked = asked
        self._domain: AtOneTime | None = None
        self._first: tuple[Described, ...] = ()

    @property
    def timeline(self) -> Timeline | None:
        """What its time means; None before the first read, and of one that began with what needs no time."""
        return None if self._domain is None else self._domain.explanation.timeline

    async def read(self, roots: Sequence[Described], *, timeout: float | None = None) -> AtOneTime:
        """These at the time of the transaction; what it holds stays held until its end.

        Raises MultipleTimelines (of another timeline than what was read first), InvalidArgument (of no schema that was
        read first), and as ``Readers.at_one_time``.
        """
        deadline = self._readers.location.attempts.deadline(timeout)
        context = timed(self._names, roots)
        if self._domain is None:
            beside = self._beside(roots)
            self._domain = await self._readers.held(self._names, roots, self._asked, deadline, beside=beside)
            self._first = tuple(roots)
        elif self.timeline is not None:
            self._check_timeline(context, roots)
        wanted = stored(self._names, roots)
        if missing := [str(each.name) for each in wanted if each.id not in self._domain.held]:
            raise InvalidArgument(
                "a transaction reads what is in the schemas that its first query read, as it was then",
                hint="read this in another transaction, or name it in the first query",
                objects=", ".join(missing),
            )
        subset = replace(self._domain, held={each.id: self._domain.held[each.id] for each in wanted})
        await self._readers.reach(subset, deadline)
        return await self._readers.snapshots(subset, deadline)

    async def end(self) -> None:
        """Release all of it. Ending again does nothing."""
        if self._domain is not None:
            await self._domain.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    def _check_timeline(self, context: TimelineContext, roots: Sequence[Described]) -> None:
        try:
            timeline_read_in(context, self.timeline)
        except MultipleTimelines:
            # Read together they are refused with the names of all; unless what was read first is gone by now.
            with contextlib.suppress(InvalidArgument):
                timed(self._names, [*self._first, *roots])
            raise

    def _beside(self, roots: Iterable[Described]) -> list[Described]:
        """What else may be read later."""
        read = [*roots, *stored(self._names, roots)]
        schemas = {(each.name.database, each.name.schema) for each in read}
        near = {
            str(each.id): each
            for each in self._names.items()
            if each.data is not None and (each.name.database, each.name.schema) in schemas
        }
        fitting = timedomain(self._names.timed(), timed(self._names, roots), near)
        return [each for id, each in near.items() if id in fitting]
