"""What ``persist admin forget-applications`` does."""

from collections.abc import Callable, Sequence

from persist.core.ids import ShardId
from persist.core.shard.commands import ApplicationsForgotten, ForgetApplications
from persist.core.shard.state import State
from persist.core.shard.transitions.applications import APPLICATIONS_MAX
from persist.core.shard.transitions.calls import by_age
from persist.errors import InvalidArgument
from persist_cli.admin.administration import Machine
from persist_cli.admin.work import each
from persist_cli.outcomes import Row


async def forget(
    machine: Machine, shards: list[str], app_ids: Sequence[str], *, keep: int | None, commit: bool, json: bool
) -> int:
    """Forget those named, or all but the ``keep`` that committed last. The exit code.

    Raises InvalidArgument for a shard that knows none of those named: a mistyped id is not taken for done.
    """

    async def one(shard: ShardId, steps: Callable[[int], None]) -> Row:
        state = (await machine.names(shard)).state
        chosen = _chosen(state, shard, app_ids, keep)
        row: Row = {"shard": shard, "applications": len(by_age(state.transactions)), "forgotten": len(chosen)}
        if not commit or not chosen:
            steps(len(chosen))
            return row
        timeout = machine.settings.timeout_ms / 1000
        await machine.shards.open(shard, create=False, timeout=timeout)
        row["forgotten"] = 0
        for at in range(0, len(chosen), APPLICATIONS_MAX):
            some = tuple(chosen[at : at + APPLICATIONS_MAX])
            done: ApplicationsForgotten = await machine.shards.apply(
                shard, ForgetApplications(app_ids=some), timeout=timeout
            )
            row["forgotten"] += done.applications
            row["new_since"] = done.new_since
            steps(len(some))
        return row

    return await each(machine, shards, one, commit=commit, json=json, what="forgetting", unit="applications")


def _chosen(state: State, shard: ShardId, app_ids: Sequence[str], keep: int | None) -> list[str]:
    known = state.transactions
    if keep is not None:
        oldest = by_age(known)
        return oldest[: max(len(oldest) - keep, 0)]
    chosen = [app_id for app_id in dict.fromkeys(app_ids) if app_id in known]
    if not chosen:
        hint = "persist shard inspect SHARD lists those it knows"
        raise InvalidArgument("the shard knows no such application", hint=hint, shard=shard, app_ids=list(app_ids)[:5])
    return chosen
