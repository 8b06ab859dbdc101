"""The work behind ``persist serve webhook``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import persist_ingest as ingest
from persist.errors import InvalidArgument, PersistError
from persist_cli.options import Invocation, LocationTarget
from persist_cli.terminal import note


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """How ``persist serve webhook`` was asked to serve."""

    listen: str
    answer_seconds: float
    waiting_bytes: int
    connections: int
    retain_ms: int
    minter: str
    tls_cert: Path | None
    tls_key: Path | None
    side_listen: str
    log_level: str


def serve_sources(run: Invocation, target: LocationTarget, names: Sequence[str], serves: Serves) -> int:
    """Serve until SIGTERM; the exit code. Each source gets its item where there is an environment."""
    from persist_ingest.receiving.receiver import ReceiverOptions
    from persist_webhook import Certificates, Limits, serve_webhooks

    certificates = None
    if serves.tls_cert is not None and serves.tls_key is not None:
        certificates = Certificates(serves.tls_cert, serves.tls_key)
    elif serves.tls_cert or serves.tls_key:
        raise InvalidArgument("TLS needs a certificate and its key", hint="give both --tls-cert and --tls-key")
    target.check_not_lost(run.settings())
    target.check_there()
    location = ingest.Location(
        directory=target.location, endpoint=target.endpoint, blob=target.blob, consensus=target.consensus
    ).resolved()
    for name in dict.fromkeys(names):
        try:
            ingest.adopt(location, name)
        except ingest.SourceNotFound:
            raise
        except PersistError as error:
            note(f"{name} is served, and has no item in the environment: {error}")
    return serve_webhooks(
        location,
        [*dict.fromkeys(names)],
        serves.listen,
        options=ReceiverOptions(
            answer_seconds=serves.answer_seconds,
            waiting_bytes=serves.waiting_bytes,
            retain_ms=serves.retain_ms,
            minter=serves.minter,
        ),
        limits=Limits(connections=serves.connections),
        certificates=certificates,
        side_listen=serves.side_listen,
        log_level=serves.log_level,
        json=run.json,
    )
