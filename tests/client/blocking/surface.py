"""What users can name of the blocking client: every public class with its properties, methods and their signatures."""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from sure import sure

import persist

CLASSES = {
    "persist": (
        *("Client", "Diffs", "Listen", "Oracle", "ReadHandle", "SinceHandle"),
        *("Snapshot", "Table", "TableTransaction", "WriteHandle"),
    ),
    "persist.catalog": ("Catalog", "ReadableCatalog", "WritableCatalog"),
    "persist.sources": ("Minter",),
    "persist.client.blocking.catalog": ("CatalogTransaction",),
    "persist.client.blocking.compaction": ("Compaction",),
    "persist.client.blocking.environment": ("Environment",),
}
PROTOCOLS = {"__iter__", "__next__", "__enter__", "__exit__", "__arrow_c_stream__"}


def classes() -> Iterator[type]:
    """Every blocking class, by whatever name users reach it."""
    for module, names in CLASSES.items():
        yield from (getattr(importlib.import_module(module), name) for name in names)


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public attributes of a class and what it inherits, and the protocols it takes part in."""
    for name in sorted(dir(owner)):
        if not name.startswith("_") or name in PROTOCOLS:
            yield name, inspect.getattr_static(owner, name)


def lines() -> Iterator[str]:
    """The surface as text: one line for each name."""
    for name in ("connect", "embedded"):
        yield name + signature(getattr(persist, name))
    for owner in classes():
        yield f"{owner.__name__}{signature(owner) if owner is persist.Client else ''}"
        for name, member in members(owner):
            if isinstance(member, property):
                yield f"    {name} -> {_text(inspect.signature(sure(member.fget)).return_annotation)}"
            else:
                yield f"    {name}{signature(member)}"


def signature(function: Any) -> str:
    """Its parameters, what they default to and what it returns, without the modules that types are in."""
    found = inspect.signature(function)
    parameters = [each for name, each in found.parameters.items() if name != "self"]
    kept = [each.replace(annotation=_Text(each.annotation)) for each in parameters]
    return str(found.replace(parameters=kept, return_annotation=_Text(found.return_annotation)))


class _Text:
    """An annotation that shows as its text."""

    def __init__(self, annotation: Any) -> None:
        self.text = _text(annotation)

    def __repr__(self) -> str:
        return self.text


def _text(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "?"
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"(?:\w+\.)+(?=\w)|['\"~]", "", written)
