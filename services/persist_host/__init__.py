"""What every service process shares: the gRPC server, its guard, health, telemetry, start and stop."""

from persist import extras

with extras.extra("server"):
    from persist_host.address import Address
    from persist_host.durability import Durability, DurableStore
    from persist_host.guard.door import Frames
    from persist_host.guard.interceptor import CallGuard
    from persist_host.guard.strangers import Strangers
    from persist_host.host import Host, Service
    from persist_host.process import EXIT_FAILED, EXIT_REFUSED, run_service
    from persist_host.serve import Built, ServiceSpec, serve, start
    from persist_host.shard_access import ShardAccess
    from persist_host.telemetry import Telemetry

__all__ = [
    "EXIT_FAILED",
    "EXIT_REFUSED",
    "Address",
    "Built",
    "CallGuard",
    "Durability",
    "DurableStore",
    "Frames",
    "Host",
    "Service",
    "ServiceSpec",
    "ShardAccess",
    "Strangers",
    "Telemetry",
    "run_service",
    "serve",
    "start",
]
