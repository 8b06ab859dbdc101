"""How the registered schema of a shard may change. Source: persist-semantics.md feature row 53; docs/formats.md."""

from persist.core.data.schema import Schema
from persist.core.shard.commands import SchemaEntry
from persist.errors import CodecMismatch


def check_evolution(newest: SchemaEntry, schema: bytes, codec: str) -> None:
    """Raise SchemaMismatch or CodecMismatch unless ``schema`` only adds nullable val columns at the end."""
    if newest.codec != codec:
        raise CodecMismatch(
            "the shard was written with another codec", hint="open it with that codec", shard=newest.codec, given=codec
        )
    Schema.from_bytes(newest.schema).check_evolution(Schema.from_bytes(schema))


def check_schema(schema: bytes, codec: str) -> None:
    """Raise InvalidArgument, TypeNotSupported or CodecMismatch unless the bytes are a schema of that codec."""
    found = Schema.from_bytes(schema).codec_name
    if found != codec:
        raise CodecMismatch("the schema names another codec", hint=f"give {found}", given=codec, schema_codec=found)


def same_schema(registered: bytes, given: bytes) -> bool:
    """Both are one schema, written by whatever release of Arrow. Raises InvalidArgument for bytes that are none."""
    return registered == given or Schema.from_bytes(registered) == Schema.from_bytes(given)


def differences(registered: bytes, given: bytes) -> dict[str, str]:
    """What differs between two schemas, for an error's details."""
    ours, theirs = Schema.from_bytes(registered), Schema.from_bytes(given)
    found: dict[str, str] = {}
    for role, before, after in (("key", ours.key, theirs.key), ("val", ours.val, theirs.val)):
        if before != after:
            found[f"registered_{role}"] = _listed(before)
            found[f"given_{role}"] = _listed(after)
    return found


def _listed(fields: object) -> str:
    return "; ".join(str(field) for field in fields)  # type: ignore[attr-defined]  # an Arrow schema
