"""What statements say of the names in them: all that is to be there, and where what they make is made."""

from typing import get_args

import pyarrow as pa
import pytest
from unit.core.catalog.ddl.world import World
from unit.wire.catalog.test_ddl import STATEMENTS

from persist.core.catalog.ddl.asking.seen import Seen, check_seen, meant_by, seen_by
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import (
    CreateDatabase,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateTable,
    QualifiedName,
    Statement,
)
from persist.core.catalog.errors import NameChanged
from persist.core.catalog.values import ObjectType
from persist.core.data.schema import Schema

FREE = {CreateDatabase, CreateRole}
"""What names nothing that is there."""
ROWS = Schema({"id": pa.int64()})
PATH = Session(path=(("persist", "a"), ("persist", "public")))


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: type(each).__name__)
def test_every_statement_says_what_it_is_about_and_where_it_makes_something(statement: Statement) -> None:
    cls = type(statement)
    assert cls in get_args(Statement)
    meant = [each for names in meant_by(statement, Session()) for each in names]
    assert bool(meant) == (cls not in FREE)
    if cls.__name__.startswith(("Create", "Adopt")) and cls not in FREE | {CreateIndex}:
        container = ObjectType.DATABASE if cls is CreateSchema else ObjectType.SCHEMA
        assert container in [kind for kind, _ in meant]
    named = [value for name in cls.__dataclass_fields__ if isinstance(value := getattr(statement, name), QualifiedName)]
    about = {name for _, name in meant}
    for each in named:
        schemas = {QualifiedName(each.schema or "public", each.database or "persist")}
        assert each in about or schemas <= about


def test_there_is_a_case_of_every_statement() -> None:
    assert {type(each) for each in STATEMENTS} == set(get_args(Statement))


def test_what_is_made_is_made_in_the_first_schema_of_the_path_that_was_there() -> None:
    world = World()
    create = CreateTable(QualifiedName("t"), ROWS)
    seen = seen_by(world.view, [create], PATH)
    public = str(world.view.schema("public", ["persist"]))
    assert seen == (
        Seen(ObjectType.SCHEMA, QualifiedName("a", "persist")),
        Seen(ObjectType.SCHEMA, QualifiedName("public", "persist"), public),
        # Who acts is a name as well.
        Seen(ObjectType.ROLE, QualifiedName("persist"), str(world.view.role("persist"))),
    )
    check_seen(world.view, seen, PATH)
    world.run(CreateSchema("a"))
    with pytest.raises(NameChanged):
        check_seen(world.view, seen, PATH)
    assert [each.name.item for each in seen_by(world.view, [create], PATH)] == ["a", "persist"]
