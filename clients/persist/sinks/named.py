"""The target that a sink of an environment names: opened where the sink is run, with what that process may reach."""

from collections.abc import Mapping
from typing import cast

from persist import extras
from persist.client.collections.sinks.port import Target
from persist.core.catalog.ddl.targets import check_target
from persist.sinks.files import FilesSink, Format
from persist.sinks.sqlite import SqliteSink


def target_of(options: Mapping[str, str]) -> Target:
    """The target of a sink, by the options of its item, of which ``type`` is one. Nothing is opened yet.

    Paths are those of this process. Raises InvalidArgument: options that such a target does not have; MissingExtra.
    """
    given = {name: value for name, value in options.items() if name != "type"}
    kind = options.get("type", "")
    check_target(kind, given)
    if kind == "files":
        return FilesSink(given["path"], cast(Format, given.get("format", "parquet")))
    if kind == "sqlite":
        return SqliteSink(given["path"], given["table"])
    with extras.extra("postgres"):
        from persist.sinks.postgres import PostgresSink
    return PostgresSink(given["uri"], given["table"])
