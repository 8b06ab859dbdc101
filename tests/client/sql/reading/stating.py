"""Texts as the statements they are, of which tests know the kind."""

from typing import Any

from persist.client.sql.parse.text import one


def stated(text: str, **more: Any) -> Any:
    """The statement that a text is."""
    return one(text, **more).statement
