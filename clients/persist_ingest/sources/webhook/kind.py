"""The type ``webhook``: what is recorded of one, and what is said of it. Nothing is set up anywhere else."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from persist import Schema
from persist.runtime import system
from persist.sources import Probe, SourceFrontier, SourceKind
from persist_ingest.sources.port import Beginning, ReadTask, SourceFailure, UpstreamStatus
from persist_ingest.sources.webhook.definition import WebhookDefinition


class WebhookReader:
    """What ``source status`` and ``create`` ask. There is nothing to read."""

    kind = SourceKind.LSN

    def __init__(self, definition: WebhookDefinition, incarnation: str) -> None:
        self._definition = definition
        self.incarnation = incarnation

    def exports(self) -> Mapping[str, Schema]:
        return {self._definition.export: self._definition.schema()}

    def probe(self) -> Probe:
        raise SourceFailure("nothing can be asked of a webhook", hint="persist serve webhook NAME")

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[ReadTask]:
        return []

    def adopt(self, export: str, schema: Schema) -> None:
        """Its columns are those that it was made with."""

    def commit(self, frontier: SourceFrontier) -> None:
        """Senders have their answers."""

    def status(self) -> UpstreamStatus:
        return UpstreamStatus(details={"check": self._definition.check.kind})

    def close(self) -> None:
        """Nothing is open."""


class WebhookType:
    """Options: ``check``, ``secret``, ``format``, ``schema`` and others of ``WebhookDefinition``."""

    def pushed(self, name: str) -> str:
        return f"persist serve webhook {name}"

    @contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        definition = WebhookDefinition.of(options)
        # Who creates it on one machine and serves it on another needs the secret there only.
        incarnation = f"webhook-{source}-{system().random_bytes(8).hex()}"
        kept = {**definition.to_json(), "incarnation": incarnation}
        reader = WebhookReader(definition, incarnation)
        yield Beginning(definition=kept, reader=reader, bound=SourceFrontier.minimum(SourceKind.LSN))

    def open(self, definition: Mapping[str, object], schemas: Mapping[str, Schema]) -> WebhookReader:
        return WebhookReader(definition_of(definition), str(definition["incarnation"]))

    def drop(self, definition: Mapping[str, object]) -> None:
        """Nothing was set up."""


def definition_of(recorded: Mapping[str, object]) -> WebhookDefinition:
    """A webhook as it is recorded with its source."""
    return WebhookDefinition.from_json({name: each for name, each in recorded.items() if name != "incarnation"})
