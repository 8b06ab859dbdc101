"""The side port of ``persist source run``: what its pipeline counts, as it is when it is asked for."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from persist_host.address import Address
from persist_host.http_endpoint import SidePort
from persist_host.telemetry import Telemetry
from persist_ingest import Pipeline
from persist_ingest.pipeline.reporting.figures import HELP, Figures


@contextlib.contextmanager
def watched(listen: str, pipeline: Pipeline) -> Iterator[Address]:
    """Answer at this address for as long as it lasts; the address, with the real port. Raises Determinate.

    In a thread of its own: a pipeline that stands still is seen to fall behind.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="side port", daemon=True)
    thread.start()
    side = SidePort(_Counted(pipeline.figures), lambda: True, lambda: _remarks(pipeline.figures))
    try:
        yield asyncio.run_coroutine_threadsafe(side.start(Address.parse(listen)), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(side.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Counted(Telemetry):
    """The figures of a pipeline at the moment they are asked for."""

    def __init__(self, figures: Figures) -> None:
        super().__init__(service="persist source", help=HELP)
        self._figures = figures

    def prometheus(self) -> str:
        self._counts.clear()
        self._gauges.clear()
        for name, labels, value in self._figures.counted():
            (self._counts if name.endswith("_total") else self._gauges)[name, labels] = value
        return super().prometheus()


def _remarks(figures: Figures) -> list[str]:
    """Exports that do not go on: the pipeline does."""
    return [f"{export}: {each['state']}" for export, each in sorted(figures.source.troubles.items())]
