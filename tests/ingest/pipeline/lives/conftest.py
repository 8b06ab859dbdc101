"""Where a source's connections lead to."""

from collections.abc import Callable, Iterator

import pytest
from ingest.pipeline.lives.put_back import DSN

from persist.testing import servers
from persist_ingest.sources.postgres.session import check_dsn, let_go


@pytest.fixture
def led(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[servers.Server], None]]:
    """Have connections of sources of ``DSN`` lead to a server."""

    def lead(server: servers.Server) -> None:
        let_go(check_dsn(DSN))
        monkeypatch.setenv("PGPORT", str(server.port))

    yield lead
    let_go(check_dsn(DSN))
