"""Addresses of servers as people write them, and whether a server listens there.

Source: architecture.md section 8 (ports).
"""

import asyncio
import re
from typing import Final
from urllib.parse import unquote

from persist.errors import InvalidArgument
from persist.typed import Work

PORT: Final = 7100
"""The port of an address without one."""

_NAMED: Final = re.compile(r"(?P<host>[^\s:/\[\]]+|\[[0-9A-Fa-f:.%\w]+\])(:(?P<port>\d{1,5}))?")
_BARE_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_OF_GRPC: Final = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|passthrough):.+")
"""Other address forms that gRPC takes."""


def endpoints_of(text: str) -> tuple[str, ...]:
    """Each address once, with its port: ``HOST`` means port 7100. Commas separate. Raises InvalidArgument."""
    named = tuple(dict.fromkeys(_whole(name.strip()) for name in text.split(",") if name.strip()))
    if not named:
        raise InvalidArgument("no endpoint", hint="write HOST:PORT, for example localhost:7100")
    return named


async def is_listening(endpoint: str, seconds: float) -> bool:
    """Whether a connection can be made; True, too, when that cannot be tried: it is neither a socket nor HOST:PORT."""
    if endpoint.startswith("unix:/"):
        return await _opens(asyncio.open_unix_connection(unquote(endpoint.removeprefix("unix:"))), seconds)
    found = _NAMED.fullmatch(endpoint)
    if found is None or found["port"] is None:
        return True
    return await _opens(asyncio.open_connection(found["host"].strip("[]"), int(found["port"])), seconds)


async def _opens(connecting: Work[tuple[asyncio.StreamReader, asyncio.StreamWriter]], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            _, writer = await connecting
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
        hint = "write HOST:PORT, for example localhost:7100"
        if "/" in name or name.startswith("."):
            hint += "; a directory is opened by persist.embedded(DIRECTORY), or --location DIRECTORY"
        raise InvalidArgument("not an address", hint=hint, got=repr(name))
    return name if found["port"] else f"{name}:{PORT}"
