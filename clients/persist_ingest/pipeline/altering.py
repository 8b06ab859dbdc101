"""What of a source may be decided otherwise later: its pipelines go by it from their next look on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from persist import InvalidArgument
from persist_ingest.location import Location, client
from persist_ingest.pipeline.records import Records, Source
from persist_ingest.pipeline.troubles import amend
from persist_ingest.sources.port import Alters
from persist_ingest.sources.registry import source_type


def alter(location: Location, name: str, options: Mapping[str, str]) -> Source:
    """Give a source these options, beside those that it has, while it runs or not; as it is recorded then.

    A pipeline goes by them within a second or two (once it has looked at the record again), and what was decided before
    stays as it is: an export that is stalled is. Raises SourceNotFound, InvalidArgument (this type, or this option, is
    as it was created; no such value), LocationError.
    """
    records = Records(client(location.resolved()))
    source = records.source(name)
    kind = _alters(source)
    if not options:
        raise InvalidArgument("no option is given", hint=f"of {', '.join(kind.alterable)}", source=name)

    def place(now: Source) -> Source:
        found = kind.altered(now.definition, options)
        # SUBTLE: as a turn, which pipelines look for; one that does not know it does not record what it had instead.
        return now if found == now.definition else replace(now, definition=found, turn=now.turn + 1)

    return amend(records, source, place)


def alterable(source: Source) -> Sequence[str]:
    """The options of a source that may be decided otherwise, as they are spelt. Raises InvalidArgument: none."""
    return _alters(source).alterable


def altered(source: Source, definition: Mapping[str, object], options: Mapping[str, str]) -> Mapping[str, object]:
    """A definition of a source with these options, of which there may be none. Raises InvalidArgument."""
    return _alters(source).altered(definition, options) if options else definition


def _alters(source: Source) -> Alters:
    kind = source_type(source.type)
    if not isinstance(kind, Alters):
        hint = "make another source with other options"
        raise InvalidArgument(
            "this type of source has the options it was created with", hint=hint, source=source.name, type=source.type
        )
    return kind
