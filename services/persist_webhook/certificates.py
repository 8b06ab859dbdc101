"""TLS of a server: a certificate and its key from files, which are read again when they were renewed.

Source: RFC 8446; RFC 7301.
"""

import logging
import ssl
from pathlib import Path
from typing import Final, TypeAlias

from persist.errors import InvalidArgument
from persist.runtime import system

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class Certificates:
    """What new connections are encrypted by. One thread."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """``certificate``: with those that signed it, as PEM. Raises InvalidArgument: they cannot be used."""
        self._files = (certificate, key)
        self._looked_at = system().monotonic()
        try:
            self._stamp = self._stamped()
            self._context = self._read()
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error

    def context(self) -> ssl.SSLContext:
        """By what is in the files now; what cannot be used there is said in the log, and what was before goes on."""
        now = system().monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            try:
                if (stamp := self._stamped()) != self._stamp:
                    self._context, self._stamp = self._read(), stamp
            except (OSError, ValueError) as error:
                _log.error("%s", self._unusable(error))
        return self._context

    def _stamped(self) -> _Stamp:
        found = [path.stat() for path in self._files]
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)

    def _read(self) -> ssl.SSLContext:
        certificate, key = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        # A key that needs a password must fail, and not ask for it at a terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
        return context

    def _unusable(self, error: Exception) -> InvalidArgument:
        certificate, key = self._files
        return InvalidArgument(
            f"TLS cannot be spoken: {error}",
            hint="a certificate and its key as PEM, the key without a password",
            certificate=str(certificate),
            key=str(key),
        )
