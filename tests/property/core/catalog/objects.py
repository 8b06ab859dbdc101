"""Objects of the catalog at random: of any kind, from the type hints of its classes."""

import dataclasses
import types
import typing
from enum import StrEnum
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from simulation.budget import examples

from persist.core.catalog.kinds import KINDS, AnyKind
from persist.core.catalog.values import PUBLIC, Id, RoleRef, Space

LAW = settings(deadline=None, max_examples=examples(60))

SMALL_INTS = {"oid", "replication_factor", "workers", "column"}
"""Fields of 32 bits."""

U64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
U32 = st.integers(0, 2**32 - 1) | st.integers(0, 300)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDS = st.builds(Id, st.sampled_from([Space.USER, Space.SYSTEM, Space.INTROSPECTION]), U64)
ROLES = st.builds(RoleRef, st.sampled_from([Space.USER, Space.SYSTEM]), U64) | st.just(PUBLIC)


def of_hint(hint: Any, name: str) -> st.SearchStrategy[Any]:
    """Values of a field."""
    if isinstance(hint, types.UnionType):
        return st.one_of([of_hint(arm, name) for arm in typing.get_args(hint)])
    if typing.get_origin(hint) is tuple:
        return st.lists(of_hint(typing.get_args(hint)[0], name), max_size=3).map(tuple)
    if hint in (Id, RoleRef):
        return IDS if hint is Id else ROLES
    if dataclasses.is_dataclass(hint):
        return of_class(hint)
    if issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    return {
        int: U32 if name in SMALL_INTS else U64,
        str: TEXT,
        bytes: st.binary(max_size=16),
        bool: st.booleans(),
        type(None): st.none(),
    }[hint]


def of_class(cls: Any) -> st.SearchStrategy[Any]:
    """Objects of a dataclass."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{field.name: of_hint(hints[field.name], field.name) for field in dataclasses.fields(cls)})


KEYS = {kind: of_class(kind.key) for kind in KINDS}
VALUES = {kind: of_class(kind.value) for kind in KINDS}


@st.composite
def objects(draw: st.DrawFn) -> tuple[AnyKind, Any, Any]:
    """A kind, and a key and a value of it."""
    kind = draw(st.sampled_from(KINDS))
    return kind, draw(KEYS[kind]), draw(VALUES[kind])
