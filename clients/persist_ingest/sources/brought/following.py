"""What readers that are followed have in common: nothing is bound, planned or committed upstream."""

from collections.abc import Mapping, Sequence
from typing import Never

from persist import Schema
from persist.sources import Probe, SourceFrontier, SourceKind
from persist_ingest.sources.brought.messages import Messages
from persist_ingest.sources.port import SourceFailure, UpstreamStatus


class FollowedReader:
    """A SourceReader but for ``follow`` and ``counter``."""

    def __init__(self, export: str, schema: Schema, messages: Messages) -> None:
        self._export = export
        self._schema = schema
        self._messages = messages

    @property
    def kind(self) -> SourceKind:
        """As the messages have it."""
        return self._messages.kind

    @property
    def incarnation(self) -> str:
        """As the messages have it."""
        return self._messages.incarnation

    def exports(self) -> Mapping[str, Schema]:
        """The one."""
        return {self._export: self._schema}

    def probe(self) -> Probe:
        """How far the messages are."""
        return self._messages.probe()

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[Never]:
        """None: it is followed."""
        return ()

    def adopt(self, export: str, schema: Schema) -> None:
        """Raises SourceFailure: the columns were declared once."""
        if self.exports().get(export) != schema:
            raise SourceFailure("the columns of these messages are declared once", export=export)

    def commit(self, frontier: SourceFrontier) -> None:
        """Nothing is confirmed upstream."""

    def status(self) -> UpstreamStatus:
        """How far the upstream is."""
        return UpstreamStatus(details={"partitions": len(self.probe().high)})

    def close(self) -> None:
        """Release the messages."""
        self._messages.close()
