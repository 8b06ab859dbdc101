"""HOST:PORT as people write it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from persist.digits import whole_number
from persist.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT`` (all interfaces). Raises InvalidArgument."""
        host, colon, digits = text.rpartition(":")
        port = whole_number(digits)
        if not colon or port is None or port > 65535 or (":" in host and not host.startswith("[")):
            raise InvalidArgument("not an address", hint="write HOST:PORT, for example 127.0.0.1:7100", got=repr(text))
        return cls(host.strip("[]") or "0.0.0.0", port)  # ":7100" asks for all interfaces

    def at(self, port: int) -> "Address":
        """The same host with another port."""
        return Address(self.host, port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Socket:
    """A Unix socket to listen on, made there."""

    path: Path

    def at(self, port: int) -> "Socket":
        """Itself: sockets have no ports."""
        return self

    def __str__(self) -> str:
        return f"unix:{quote(str(self.path.absolute()))}"
