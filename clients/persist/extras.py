"""Optional parts with more dependencies: each is an extra, and the error for a missing one says how to install it.

with extra("redis"):
    from persist.storage.consensus.redis import RedisConsensus
"""

import contextlib
from collections.abc import Iterator
from typing import Final

from persist.errors import MissingExtra

DISTRIBUTION: Final = "persist-tvc"
"""What ``pip install`` calls persist."""


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports within need the packages of extra ``name``. Raises MissingExtra when one of them is not installed.

    A module of persist's own that is not there is no missing extra, and is raised as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(("persist", "pyspark_persist")):
            raise
        raise missing(name, error.name) from error


def missing(name: str, module: str) -> MissingExtra:
    """The error of extra ``name``, of which ``module`` cannot be imported."""
    return MissingExtra(
        f"{module} is not installed", hint=f"pip install '{DISTRIBUTION}[{name}]'", extra=name, module=module
    )
