"""Types that many signatures name: what is known of values by their names, and of work that is to be awaited.

For type checkers; at run time they are what they stand for.
"""

from collections.abc import Coroutine, Mapping
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Record: TypeAlias = dict[str, Any]
"""Values by name: a row as Python has it, an object of JSON."""
Fields: TypeAlias = Mapping[str, Any]
"""A Record that is only read."""
Json: TypeAlias = Any
"""What a text of JSON says: records, lists, text, numbers, truth values, None. Whoever reads it looks what it is."""
Work: TypeAlias = Coroutine[Any, Any, T]
"""A coroutine that nobody awaited yet; what it comes to."""
