"""Which kinds of upstream there are, by name. A kind is imported when it is first asked for.

Source: design 003; sources.md section 0.
"""

import difflib
import importlib
from typing import Final, cast

from persist import InvalidArgument, UsageError
from persist.extras import missing as missing_extra
from persist_ingest.sources.port import Pushed, SourceType

BUILT_IN: Final = {
    "cdcv2": "persist_ingest.sources.brought:CDCV2",
    "debezium": "persist_ingest.sources.brought:DEBEZIUM",
    "files": "persist_ingest.sources.files:FILES",
    "kafka": "persist_ingest.sources.kafka:KAFKA",
    "loadgen": "persist_ingest.sources.loadgen:LOADGEN",
    "mysql": "persist_ingest.sources.mysql:MYSQL",
    "postgres": "persist_ingest.sources.postgres:POSTGRES",
    "webhook": "persist_ingest.sources.webhook:WEBHOOK",
}
"""The types that come with persist, and where they are."""

_EXTRAS: Final = {
    "confluent_kafka": "kafka",
    "fastavro": "kafka",
    "psycopg": "postgres-source",
    "pymysql": "mysql",
}
_ASKED: Final = ("create", "open", "drop")


def source_type(name: str) -> SourceType:
    """The type of source of this name: a built-in one, or any other as ``package.module:attribute``.

    Raises InvalidArgument: unknown name (with the closest one), nothing there, or a package that is not installed;
    MissingExtra: one that an extra of persist brings.
    """
    place = BUILT_IN.get(name.strip().lower(), name.strip())
    module, colon, attribute = place.partition(":")
    if not colon or not module or not attribute:
        raise _unknown(name)
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as cause:
        raise _not_installed(name, module, cause.name or "") from cause
    if found is None or not all(callable(getattr(found, method, None)) for method in _ASKED):
        hint = f"{attribute} of {module} must have {', '.join(_ASKED)}: see persist_ingest.sources.port.SourceType"
        raise InvalidArgument("this is no type of source", hint=hint, got=name)
    return cast(SourceType, found)


def pulled_type(name: str, source: str) -> SourceType:
    """The type of a source that a pipeline can run. Raises InvalidArgument for one that is served, and as above."""
    found = source_type(name)
    if isinstance(found, Pushed):
        raise InvalidArgument("messages are sent to this source: it is served", hint=found.pushed(source), got=source)
    return found


def going_on(type_name: str, source: str) -> str:
    """The command that has a source of this type go on. Raises as above."""
    found = source_type(type_name)
    return found.pushed(source) if isinstance(found, Pushed) else f"persist source run {source}"


def _unknown(name: str) -> InvalidArgument:
    close = difflib.get_close_matches(name.strip().lower(), BUILT_IN, n=1, cutoff=0.5)
    known = f"known are {', '.join(BUILT_IN)}, and package.module:attribute for others"
    return InvalidArgument("unknown type of source", hint=f"did you mean {close[0]}?" if close else known, got=name)


def _not_installed(name: str, module: str, missing: str) -> UsageError:
    if missing and (module == missing or module.startswith(f"{missing}.")):
        return InvalidArgument("there is no such module", hint="check the name and PYTHONPATH", got=name)
    extra = _EXTRAS.get(missing.partition(".")[0])
    if extra is not None:
        return missing_extra(extra, missing)
    return InvalidArgument(f"a source of type {name} needs {missing}", hint=f"pip install {missing}", package=missing)
