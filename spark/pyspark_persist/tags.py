"""Tags: times of a shard that stay readable under a name until they are untagged, whichever readers come and go.

A tag is a critical hold called ``tag.NAME``; its token is the time, and empty until the hold has been moved there.
Source: persist-semantics.md, critical readers; spark.md section 1.
"""

from typing import Final

from persist import InvalidArgument, InvalidBounds, NotReadable
from persist.typed import Fields
from persist_ingest.location import Target
from pyspark_persist.finding import inspected

_PREFIX: Final = "tag."


def tag(target: Target, name: str, as_of: int | None) -> int:
    """Hold ``as_of`` (None: the newest complete time) under that name; the time. Repeating it changes nothing.

    Raises InvalidArgument (the name is another time's), InvalidBounds, NotReadable, InvalidId, ShardNotFound.
    """
    client, timeout = target.client(), target.timeout
    with client.open_reader(target.shard_id, purpose="spark tag", timeout=timeout) as reader:
        upper, since = reader.upper.time, reader.since.time
        if as_of is None:
            known = tags(target).get(name)
            as_of = known if known is not None else -1 if upper is None else upper - 1
        if as_of < 0 or (upper is not None and as_of >= upper):
            raise InvalidBounds("asOf is not complete yet", hint="tag a time before upper", as_of=as_of, upper=upper)
        if since is None or as_of < since:
            raise NotReadable("the shard's history no longer reaches back to asOf", as_of=as_of, since=since)
        held = client.open_since(_PREFIX + name, target.shard_id, purpose="tag", timeout=timeout)
        token = str(as_of).encode()
        if held.opaque == b"":
            held.compare_and_downgrade(b"", as_of, opaque=token, timeout=timeout)
    if held.opaque != token:
        raise InvalidArgument("the tag is another time's", hint="untag it first", tag=name, as_of=_time(held.opaque))
    return as_of


def untag(target: Target, name: str) -> bool:
    """Release a tag; whether it was there. Raises InvalidId, ShardNotFound."""
    if _PREFIX + name not in inspected(target)["critical_readers"]:
        return False
    held = target.client().open_since(_PREFIX + name, target.shard_id, purpose="tag", timeout=target.timeout)
    return bool(held.expire(timeout=target.timeout))


def tags(target: Target) -> dict[str, int]:
    """The times by their names, in the order of the names. Raises ShardNotFound."""
    holds: Fields = inspected(target)["critical_readers"]
    tokens = {
        name.removeprefix(_PREFIX): bytes.fromhex(hold["opaque"])
        for name, hold in holds.items()
        if name.startswith(_PREFIX)
    }
    return {name: _time(token) for name, token in sorted(tokens.items()) if token}


def _time(token: bytes) -> int:
    return int(token or b"0")
