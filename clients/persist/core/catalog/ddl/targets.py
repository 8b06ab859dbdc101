"""Targets that a sink may name, and what each has to say: the catalog keeps that, and who runs the sink opens them.

Source: collections: cursors.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from persist.errors import InvalidArgument


class TargetOptions(NamedTuple):
    """Names of options: those that must be given, and those that may."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


TARGETS: Final[Mapping[str, TargetOptions]] = {
    "files": TargetOptions(("path",), ("format",)),
    "postgres": TargetOptions(("uri", "table")),
    "sqlite": TargetOptions(("path", "table")),
}
"""Types, and their options."""

_SECRET: Final = re.compile(r"password|://.*:.*@", re.IGNORECASE | re.DOTALL)
"""However it may be misread: what stands between a colon and a sign @ may be a password with a slash in it."""


def check_target(type: str, options: Mapping[str, str]) -> None:
    """Raises InvalidArgument: no such type, an option that is missing or unknown, or a secret in one."""
    wanted = TARGETS.get(type)
    if wanted is None:
        raise InvalidArgument("a sink has no such type", hint=" or ".join(TARGETS), got=type[:80])
    known = (*wanted.required, *wanted.optional)
    missing = [name for name in wanted.required if not options.get(name)]
    unknown = [name for name in options if name not in known]
    if missing or unknown:
        raise InvalidArgument(
            "options of a sink are missing, or unknown",
            hint=f"{type} has {', '.join(known)}",
            missing=", ".join(missing),
            unknown=", ".join(unknown)[:200],
        )
    if any(_SECRET.search(value) for value in options.values()):
        raise InvalidArgument(
            "a password is not kept in a catalog", hint="PGPASSWORD, PGPASSFILE or a service file where the sink runs"
        )
