"""Types that many signatures name: what is known of values by their names, and of work that is to be awaited.

For type checkers; at run time they are what they stand for.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Record: TypeAlias = dict[str, Any]
"""Values by name: a row as Python has it, an object of JSON."""
Fields: TypeAlias = Mapping[str, Any]
"""A Record that is only read."""
Json: TypeAlias = Any
"""What a text of JSON says: records, lists, text, numbers, truth values, None. Its reader checks which."""
Work: TypeAlias = Coroutine[Any, Any, T]
"""A coroutine that was not awaited yet, and the type of its result."""
Offload: TypeAlias = Callable[..., Awaitable[Any]]
"""See ``Runtime.offload``: what it gives is what it is given to compute."""

AnyMessage: TypeAlias = Any
"""A protobuf message of any class: its fields are reached by names that a table holds."""
Pickled: TypeAlias = Any
"""What a process says to another one that it has begun."""
AnyKey: TypeAlias = Any
AnyValue: TypeAlias = Any
"""Key and value of an object whose class its kind says, or of a field whose class its message says."""
AnyOutcome: TypeAlias = Any
"""What came of a command of any class: the command's type argument says what it can be."""
SqlRow: TypeAlias = tuple[Any, ...]
"""A row as a database's driver has it: the statement says what is in it."""
AnyStub: TypeAlias = Any
"""The calls of one gRPC service, by their names."""
AnyDescriptor: TypeAlias = Any
"""What a message, a field or a choice is declared as: protobuf has two classes of each, one of them private."""
