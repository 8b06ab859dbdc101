"""What every service process shares: the gRPC server, its guard, health, telemetry, start and stop."""

from persist_host.address import Address
from persist_host.findings import Durability, Store
from persist_host.guard import Guard
from persist_host.host import Host, Service
from persist_host.process import EXIT_FAILED, EXIT_REFUSED, run_service
from persist_host.telemetry import Telemetry

__all__ = [
    "EXIT_FAILED",
    "EXIT_REFUSED",
    "Address",
    "Durability",
    "Guard",
    "Host",
    "Service",
    "Store",
    "Telemetry",
    "run_service",
]
