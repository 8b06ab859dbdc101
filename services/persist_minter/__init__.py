"""TimestampMinter: binds source times to times, and finds where sources go on."""

from persist import extras

with extras.extra("server"):
    from persist_host.shard_access import ShardAccess
    from persist_minter.service import MinterService
    from persist_minter.spec import minter_spec, open_minter

__all__ = ["MinterService", "ShardAccess", "minter_spec", "open_minter"]
