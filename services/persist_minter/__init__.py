"""TimestampMinter: binds source times to times, and tells where sources go on."""

from persist import extras

with extras.extra("server"):
    from persist_host.shard_access import Reach
    from persist_minter.serve import open_minter, serve_minter, start_minter
    from persist_minter.service import MinterService

__all__ = ["MinterService", "Reach", "open_minter", "serve_minter", "start_minter"]
