"""Servers whose files are put back or copied, with a standby or without, and where a source's connections lead to."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ingest.pipeline.lives.pairs import Pair
from ingest.pipeline.lives.put_back import DSN, Upstream, upstream
from ingest.pipeline.lives.standbys import CONFIG, standby_of

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


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Upstream]:
    with upstream(tmp_path) as made:
        yield made


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Without what makes the primary wait for its standby."""
    monkeypatch.setenv("PGPORT", "1")
    with servers.start_postgres(CONFIG, version=18) as primary, standby_of(primary, 18, CONFIG, "standby") as standby:
        yield Pair(primary, standby)
        let_go(check_dsn(DSN))
