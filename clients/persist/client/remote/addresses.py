"""Addresses of servers as people write them, and whether anybody listens there.

Source: architecture.md section 8 (ports).
"""

import asyncio
import re
from typing import Final

from persist.errors import InvalidArgument

PORT: Final = 7100
"""Of an address without one."""

_NAMED: Final = re.compile(r"(?P<host>[^\s:/\[\]]+|\[[0-9A-Fa-f:.%\w]+\])(:(?P<port>\d{1,5}))?")
_BARE_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_OF_GRPC: Final = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|passthrough):.+")
"""What gRPC takes besides, for those who know it."""


def endpoints_of(text: str) -> tuple[str, ...]:
    """Each address once, with its port: ``HOST`` means port 7100. Commas separate. Raises InvalidArgument."""
    named = tuple(dict.fromkeys(_whole(name.strip()) for name in text.split(",") if name.strip()))
    if not named:
        raise InvalidArgument("no endpoint", hint="write HOST:PORT, for example localhost:7100")
    return named


async def is_listening(endpoint: str, seconds: float) -> bool:
    """Whether a connection can be made; also True when that cannot be tried, because the address is not HOST:PORT."""
    found = _NAMED.fullmatch(endpoint)
    if found is None or found["port"] is None:
        return True
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(found["host"].strip("[]"), int(found["port"]))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _whole(name: str) -> str:
    if _OF_GRPC.fullmatch(name):
        return name
    if _BARE_IPV6.fullmatch(name):
        return f"[{name}]:{PORT}"
    found = _NAMED.fullmatch(name)
    if found is None or int(found["port"] or PORT) not in range(1, 65_536):
        raise InvalidArgument("not an address", hint="write HOST:PORT, for example localhost:7100", got=repr(name))
    return name if found["port"] else f"{name}:{PORT}"
