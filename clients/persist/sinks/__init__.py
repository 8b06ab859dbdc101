"""Targets of cursors: where updates are written with the position up to which they are there, each of them once.

    async with await environment.cursor("c") as cursor:
        await cursor.deliver(persist.sinks.SqliteSink("orders.db", "orders"))

A target of your own is a ``Target``. Source: collections: cursors.
"""

from typing import TYPE_CHECKING

from persist import extras
from persist.client.collections.sinks.port import PositionMoved, Target
from persist.sinks.files import FilesSink
from persist.sinks.named import target_of
from persist.sinks.sqlite import SqliteSink

if TYPE_CHECKING:
    from persist.sinks.postgres import PostgresSink

__all__ = ["FilesSink", "PositionMoved", "PostgresSink", "SqliteSink", "Target", "target_of"]


def __getattr__(name: str) -> "type[PostgresSink]":
    if name != "PostgresSink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extras.extra("postgres"):
        from persist.sinks.postgres import PostgresSink

    return PostgresSink
