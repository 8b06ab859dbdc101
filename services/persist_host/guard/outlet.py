"""The one way out: every answer of a stream, and every large answer of a single call, is sent here.

Their bytes are in a budget until gRPC has got rid of them, and a stream whose reader takes nothing is ended. What is
small is in no budget: calls and streams are counted. Source: reliability.md section 5, back-pressure; docs/runbook.md,
limits.
"""

import asyncio
from typing import Any, Final

from google.protobuf.message import Message

from persist.errors import Determinate, Indeterminate, Overloaded
from persist.retry.attempts import AGAIN
from persist.typed import AnyMessage
from persist_host.calls import Context
from persist_host.guard.admission import FRAME_SECONDS, Admission

SMALL_ANSWER_BYTES: Final = 8 << 10
"""Answers up to here wait for no room: the allowance of each stream covers one of them."""
ANSWER_COST: Final = 12
"""Times its bytes that an answer takes: messages of many parts, with what makes them, were measured at ten."""


class Outlet:
    """A call's context whose ``write`` is bounded. ``close`` once the call has ended."""

    __slots__ = ("_answers", "_begun", "_connection", "_context", "_held", "_stall_seconds")

    def __init__(self, context: Context, admission: Admission, stall_seconds: float) -> None:
        self._context = context
        self._answers = admission.answers
        self._connection: str = context.peer()
        self._stall_seconds = stall_seconds
        self._held = 0
        self._begun = False

    async def write(self, message: AnyMessage) -> None:
        """Send a message. Raises Overloaded (no room), Determinate (the reader takes nothing)."""
        cost = self._answers.fitting(cost_of(message))
        if cost:
            await self._answers.wait(self._connection, cost, FRAME_SECONDS)
            self._held += cost
        if not self._begun:
            # SUBTLE: by itself, or gRPC would send it once more with the status when the first message got stuck.
            await self._context.send_initial_metadata(())
            self._begun = True
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._context.write(message)
        except TimeoutError:
            # gRPC keeps the message until its reader takes it or is gone, and so long the bytes are held.
            raise Determinate("the reader took nothing for too long", hint="ask again from where it is") from None
        self._give(cost)

    def close(self) -> None:
        """Give back what is held for messages that were not sent."""
        self._give(self._held)

    def _give(self, cost: int) -> None:
        if cost:
            self._held -= cost
            self._answers.give(self._connection, cost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


async def hold_answer(message: Message, connection: str, admission: Admission) -> None:
    """Wait for room for the answer of a single call, and hold it until the task of the call has ended.

    Raises Indeterminate: what the call did stays done.
    """
    answers = admission.answers
    cost = answers.fitting(cost_of(message))
    if not cost:
        return
    try:
        await answers.wait(connection, cost, FRAME_SECONDS)
    except Overloaded as full:
        raise Indeterminate("no room for the answer", hint=AGAIN, **full.details) from None
    task = asyncio.current_task()
    assert task is not None
    # Not the context's own callbacks: they hold the context, which holds them.
    task.add_done_callback(lambda _: answers.give(connection, cost))


def cost_of(message: Message) -> int:
    """Bytes of memory an answer takes from the budget."""
    size: int = message.ByteSize()
    return 0 if size <= SMALL_ANSWER_BYTES else ANSWER_COST * size
