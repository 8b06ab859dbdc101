"""What goes when something does, and what stands against that.

Indexes go with what they are on, and subsources with their source; all else that depends on something is dropped with
CASCADE only, holds as a whole. Source: design document 5, DROP; collections: who leads.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.values import Id, ObjectType
from persist.core.time.errors import DependentObjects

ALONG: Final = frozenset({ObjectType.INDEX, ObjectType.SUBSOURCE})
"""What goes along unasked: it is nothing by itself."""
NAMED_MAX: Final = 20
"""Dependants that a refusal names."""
CASCADED_MAX: Final = 200
"""Objects that went along that a notice names; the audit log has all."""


def closure(view: CatalogView, roots: Iterable[Id], *, along_only: bool = False) -> list[Id]:
    """These and all that depends on them, each once, the dependent ones first; or only what goes along unasked."""
    found: dict[Id, None] = {}
    seen: set[Id] = set()
    waiting = [(id, False) for id in roots][::-1]
    while waiting:
        id, is_done = waiting.pop()
        if is_done:
            found[id] = None
        elif id not in seen:
            seen.add(id)
            waiting.append((id, True))
            on_it = dict.fromkeys((*view.dependants(id), *view.held(id)))
            waiting += [(each, False) for each in on_it if not along_only or view.item(each).item_type in ALONG]
    return list(found)


def refusal(view: CatalogView, name: str, dependants: Iterable[Id]) -> DependentObjects:
    """The error for what others depend on. ``details['ids']``: their names and kinds."""
    found = sorted(f"{view.name_of(id)} ({view.item(id).item_type.words})" for id in dependants)
    return DependentObjects(
        "other objects depend on this",
        hint="drop them first, or drop with cascade",
        name=name,
        ids=listed(found),
    )


def along(names: Sequence[str]) -> str:
    """The notice that names what went along; empty when nothing did."""
    return f"drop cascades to {listed(names, CASCADED_MAX)}" if names else ""


def listed(names: Sequence[str], most: int = NAMED_MAX) -> str:
    """Names, as many as people read."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
