"""Materialized views that another engine computes, kept up by a process that has it, not by the process that leads.

The leader leaves views to others that were made for them (WITH (RUNNER = 'spark')), and holds what they read from as
for its own. Any number of processes may keep up the same ones, and each may be killed at any point: a result is
appended at exactly where the view stood when it was computed, so it is there once. Source: ADR 23.
"""

import contextlib
from dataclasses import dataclass

from persist.client.collections.environment import Environment
from persist.client.collections.reading.inputs import made_of
from persist.client.collections.views.maintainer import Maintainer
from persist.client.shard.handles import Closes
from persist.client.sql.keeping import RefreshedElsewhere
from persist.client.sql.run.port import Runner
from persist.core.catalog.values import ObjectType
from persist.core.frontier import Antichain
from persist.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """A view that is kept up here. ``upper``: how far it is. ``stalled``: why it does not go on; empty: it does."""

    name: str
    upper: Antichain
    stalled: str = ""


class ViewUpkeep(Closes):
    """Keeps up the materialized views of an environment that were made for an engine. Close it.

    For one task at a time.
    """

    _noun = "upkeep of views"
    _again = "make another one"

    def __init__(self, environment: Environment, runner: Runner, *, patience: float | None = None) -> None:
        """Owns the environment. ``patience``: seconds after which ``work`` returns while what takes long goes on; None:
        it returns when all are done.
        """
        self._environment = environment
        self._runner = runner
        location = environment.access.client.location
        self._maintainer = Maintainer(
            environment.access.client,
            lambda: environment.view,
            RefreshedElsewhere(runner),
            runner=runner.name,
            now_ms=location.runtime.now_ms,
            patience=patience,
        )

    async def work(self) -> bool:
        """Bring each to what its inputs have, at its refresh times; whether any moved.

        May be cancelled at any point, and repeated. One that cannot go on keeps no other from it: see ``states``.
        Raises Uninitialized (there is no environment yet), LocationError.
        """
        await self._environment.strict_view()
        await self._complete()
        return await self._maintainer.work()

    async def _complete(self) -> None:
        """What users have put into tables by now is complete there: where no process leads, only readers do that."""
        view = self._environment.view
        views = [each for each in view.items(ObjectType.MATERIALIZED_VIEW) if each.runner == self._runner.name]
        for table in {table.id: table for each in views for table in made_of(view, each)}.values():
            # What is wrong with one table stalls the views over it, which say so.
            with contextlib.suppress(UsageError):
                await (await self._environment.read(table.name)).release()

    def states(self) -> list[ViewState]:
        """The views, and how far each was when ``work`` was called last. No RPC."""
        uppers, stalled = self._maintainer.uppers, self._maintainer.stalled
        items = self._environment.view.items(ObjectType.MATERIALIZED_VIEW)
        return [
            ViewState(
                name=str(each.name),
                upper=uppers.get(each.id, Antichain.of(0)),
                stalled=stalled[each.id].reason if each.id in stalled else "",
            )
            for each in sorted(items, key=lambda each: str(each.name))
            if each.runner == self._runner.name
        ]

    async def close(self) -> None:
        """End what is under way, of which nothing is left, and release everything."""
        await self._maintainer.close()
        await self._environment.close()
