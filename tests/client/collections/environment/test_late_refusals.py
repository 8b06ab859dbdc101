"""Answers that a leader gave from its memory: no later leader does anything else when another attempt arrives.

Guarantee 12: what was refused, or changed nothing, is in the catalog before it is answered. ADR 24.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from client.collections.environment.test_late_statements import QUICK, Standing, found
from client.collections.environment.test_requests_in_doubt import Nothing, executing
from client.support import client_of, memory_place
from services.catalog.cataloging import ENVIRONMENT, catalog_server

from persist.client.catalog.durable import DurableCatalog
from persist.client.collections.executor import Executor
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import AdvanceHold, CreateRole, QualifiedName, Statement
from persist.core.ids import Token
from persist.errors import PersistError, UsageError
from persist.runtime import system
from persist.settings import Settings
from persist.testing.twice import _raw

LOST, KEPT, DOUBLED = "lost", "kept", "doubled"


class Planned(Standing):
    """What becomes of the next attempts at Execute, in this order: ``lost``, carried out and its answer lost; ``kept``,
    it stands still; ``doubled``, passed on, and kept as well.
    """

    plan: tuple[str, ...] = ()

    def _unary(self, method: str, name: str) -> Callable[..., Any]:
        pass_on = super()._unary(method, name)

        async def handle(request: bytes, context: Any) -> bytes:
            if name != "Execute" or not self.plan:
                answer: bytes = await pass_on(request, context)
                return answer
            step, *rest = self.plan
            self.plan = tuple(rest)
            metadata = [each for each in context.invocation_metadata() if each[0].startswith("persist")]
            if step != LOST:
                self.kept.append((method, request, metadata))
            if step == DOUBLED:
                return await pass_on(request, context)
            if step == LOST:
                call = self._channels[0].unary_unary(method, _raw, _raw)
                with suppress(grpc.aio.AioRpcError):
                    await call(request, metadata=metadata, timeout=20)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no answer")
            raise AssertionError

        return handle


PLANS = [(LOST, KEPT), (DOUBLED,)]
CASES = {
    "refused drop": ("drop table t", "drop view v; drop hold h; insert into t values (42)", "select * from t"),
    "refused rename": ("alter table w rename to u", "drop table u", "show tables"),
    "nothing to make": ("create table if not exists u (id bigint)", "drop table u", "show tables"),
    "refused advance": ("alter hold h advance", "alter hold h owner to eve", "select at from mz_catalog.mz_holds"),
}


@pytest.mark.parametrize("plan", PLANS, ids=lambda each: " then ".join(each))
@pytest.mark.parametrize("case", CASES)
async def test_what_was_answered_from_memory_is_final_at_a_later_leader(case: str, plan: tuple[str, ...]):
    asked, since, look = CASES[case]
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as server,
        Planned([server.endpoint]) as proxy,
        client_of(place, settings=QUICK) as client,
    ):
        environment = await client.environment(endpoints=proxy.endpoint)
        session = SqlSession(environment)
        await session.execute(
            "create role eve; create table t (id bigint) with (retain history for '1h'); insert into t values (1); "
            "create view v as select * from t; create hold h on t; create table u (id bigint); "
            "create table w (id bigint)"
        )
        asking = SqlSession(environment, role="eve") if "advance" in case else session
        proxy.plan = plan
        if "nothing" in case:
            assert "skipping" in (await asking.execute(asked))[-1].notice
        else:
            with pytest.raises(PersistError):
                await asking.execute(asked)
        assert not proxy.plan
        assert len(proxy.kept) == 1
        if asking is not session:
            await asking.close()
        await session.execute(since)
        before = await found(session, look)
        async with catalog_server(place, generation=2) as later, client_of(place, settings=QUICK) as reader:
            told = await proxy.arrive(later.endpoint)
            assert ("done" if "nothing" in case else "refused when it came before") in told
            other = await reader.environment(endpoints=later.endpoint)
            looking = SqlSession(other)
            assert await found(looking, look) == before
            await looking.close()
            await other.close()
        await session.close()
        await environment.close()


REMEMBERED: dict[str, tuple[Statement, str]] = {
    "refused": (CreateRole("persist"), "refused when it came before"),
    "nothing to make": (CreateRole("persist", if_not_exists=True), ""),
    "refused move": (AdvanceHold(QualifiedName("h")), "refused when it came before"),
}


@pytest.mark.parametrize("asked", [None, CreateRole("other")], ids=["again", "another request"])
@pytest.mark.parametrize("case", REMEMBERED)
async def test_what_one_executor_remembers_is_final_for_the_next_one_once_it_is_repeated(
    case: str, asked: Statement | None
):
    statement, told = REMEMBERED[case]
    token = Token.named("tests", case)

    async def outcome(of: Executor, what: Statement, *, repeated: bool = False) -> str:
        try:
            (done,) = (await of.execute([what], Session(), token=token, repeated=repeated)).executed
        except UsageError as refused:
            return str(refused)
        return f"done: {done.notice}"

    async with executing() as (log, _, executor):
        first = await outcome(executor, statement)
        again = await outcome(executor, asked or statement, repeated=True)
        assert again == first if asked is None else "other statements came under this token" in again
        later = await DurableCatalog(log).open(2)
        next_one = Executor(later, Nothing(), ENVIRONMENT, settings=Settings(timeout_ms=60_000), runtime=system())
        assert (told or "before") in await outcome(next_one, statement)
        await next_one.close()
        await later.close()
