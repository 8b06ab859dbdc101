"""What may be repeated: every method of every service has its row, and the row is true of the method."""

import dataclasses

import pytest

from persist.core.shard import commands as c
from persist.errors import Determinate, Indeterminate
from persist.retry.methods import RULES, Repeat, repeat_of, unanswered
from persist.v1 import catalog_pb2, compaction_pb2, minter_pb2, oracle_pb2, shard_pb2
from persist.wire.rpc import METHODS

FILES = (catalog_pb2, compaction_pb2, minter_pb2, oracle_pb2, shard_pb2)
SERVICES = [each for file in FILES for each in file.DESCRIPTOR.services_by_name.values()]
INPUTS = {method.name: method.input_type for service in SERVICES for method in service.methods}
WRITES = {
    *("OpenSession", "CloseSession", "Commit", "AllocateIds", "ConfirmLeadership", "AdvanceUpper"),
    *("PruneStorageUsage", "EditRow", "GetBinding", "Mint", "CompactBindings", "WriteTs", "ApplyWrite"),
    *("Compact", "CancelCompaction", "Session", "Execute", "StageChanges"),
}
"""Methods that are no commands of a shard and may change something."""


def named(repeat: Repeat) -> set[str]:
    return {name for name, rule in RULES.items() if rule.repeat is repeat}


def fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def test_every_method_of_every_service_has_its_row():
    methods = [method.name for service in SERVICES for method in service.methods]
    assert len(methods) == len(set(methods)), "the table goes by the name of the method"
    assert set(methods) == set(RULES)


def test_what_reads_is_told_from_what_may_change_something():
    assert set(RULES) - named(Repeat.READ) == WRITES | {method.rpc for method in METHODS}


def test_numbered_are_the_commands_that_carry_a_call():
    kinds = [cls for cls in vars(c).values() if isinstance(cls, type) and issubclass(cls, c.Command)]
    numbered = {cls.__name__ for cls in kinds if "call" in fields(cls)}
    assert named(Repeat.NUMBERED) == numbered


def test_only_who_takes_a_token_is_advised_to_repeat_it():
    """An append takes one, too; its caller knows whether it was given."""
    tokens = named(Repeat.TOKEN)
    assert tokens
    assert all("token" in INPUTS[name].fields_by_name for name in tokens)


@pytest.mark.parametrize("name", RULES)
def test_without_an_answer_a_read_has_not_happened_and_all_else_may_have(name: str):
    error = unanswered(repeat_of(name), "no answer from h:1", status="UNAVAILABLE")
    assert type(error) is (Determinate if name in named(Repeat.READ) else Indeterminate)
    assert error.hint
    assert type(unanswered(repeat_of(name, reads=False), "no answer")) is Indeterminate
    assert ("token" in error.hint) == (name in named(Repeat.TOKEN))
