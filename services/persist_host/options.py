"""gRPC settings of every server, with reasons. Source: reliability.md section 5."""

from typing import Final

from persist.settings import Settings

METADATA_BYTES_MAX: Final = 8 << 10
STREAMS_PER_CONNECTION: Final = 2048
"""Calls and streams of one connection at a time; its client lets more of them wait."""
PENDING_CALLS: Final = 32_768
"""Calls that have come and are not yet looked at, because the process was busy or stood still."""


def server_options(settings: Settings) -> list[tuple[str, int]]:
    """Channel arguments of a server."""
    return [
        # A second process on the same port must fail, not share it silently with an older release.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.connection_message_bytes),
        ("grpc.max_send_message_length", settings.connection_message_bytes),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
        # By default some calls are ended as CANCELLED from 1,000 waiting on, and all from 3,000: a caller cannot
        # distinguish that from its own cancellation. What is too much is refused by the guard, with a reason and a
        # delay.
        ("grpc.server.max_pending_requests", PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
        # Clients ping every 30 s, also without calls, and balancers every few seconds (deploy/envoy.yaml), to find out
        # soon that a server is frozen; the default would end their connection with "too many pings".
        # SUBTLE: gRPC ignores names it does not know; the C macro for this one says MIN_RECV_PING, the name does not.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Clients come back through the load balancer, so that new replicas get their share.
        ("grpc.max_connection_age_ms", 300_000),
        ("grpc.max_connection_age_grace_ms", 30_000),
    ]
