"""What a transaction depends on as a message, and back: keys as bytes, names as fingerprints.

A server compares names of what was committed with names that clients looked at, and never needs the latter themselves:
two different names with one fingerprint would only make a client run its transaction again. Source:
catalog-semantics.md sections 1.2.6 and 1.3.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from google.protobuf.message import DecodeError

from persist.core.catalog.conflicts import Footprint
from persist.core.catalog.kinds import AnyKind, Name
from persist.core.catalog.snapshot import Change
from persist.core.catalog.values import Id
from persist.errors import CorruptData, InvalidArgument
from persist.typed import AnyKey
from persist.v1 import catalog_pb2 as pb
from persist.wire.catalog.rows import SIDES
from persist.wire.catalog.rpc import kind_in

FINGERPRINT_BYTES: Final = 16


@dataclass(slots=True)
class ToldFootprint(Footprint):
    """A footprint that a client sent: names by their fingerprints."""

    fingerprints: set[tuple[AnyKind, bytes]] = field(default_factory=set)

    def meets(self, change: Change) -> bool:
        """See Footprint."""
        if Footprint.meets(self, change):
            return True
        kind, sides = change.kind, [side for side in (change.before, change.after) if side is not None]
        return bool(self.fingerprints) and any(
            (kind, fingerprint(name)) in self.fingerprints for side in sides for name in kind.names(side)
        )


class Touched:
    """What the changes of one time touched: objects, and names as fingerprints, each with its object."""

    def __init__(self) -> None:
        self.changes = 0
        self._objects: dict[AnyKind, set[AnyKey]] = {}
        self._names: dict[tuple[AnyKind, bytes], AnyKey] = {}

    @property
    def objects(self) -> Mapping[AnyKind, Set[object]]:
        """The keys of objects, by kind."""
        return self._objects

    @property
    def names(self) -> Iterable[tuple[AnyKind, bytes]]:
        """Kinds and fingerprints."""
        return self._names.keys()

    @property
    def kinds(self) -> list[str]:
        """The tags of kinds."""
        return [kind.tag for kind in self._objects]

    def add(self, change: Change) -> None:
        """One more change."""
        kind, key, before, after, _ = change
        self.changes += 1
        self._objects.setdefault(kind, set()).add(key)
        for side in (before, after):
            for name in kind.names(side) if side is not None else ():
                self._names[kind, fingerprint(name)] = key

    def met_by(self, footprint: Footprint) -> dict[tuple[str, object], None]:
        """The objects on which a transaction depends that has this footprint. Costs what the smaller of both takes."""
        found = [(kind.tag, key) for kind in footprint.kinds for key in self._objects.get(kind, ())]
        if len(footprint.keys) < self.changes:
            found += [(kind.tag, key) for kind, key in footprint.keys if key in self._objects.get(kind, ())]
        else:
            found += [
                (kind.tag, key) for kind, keys in self._objects.items() for key in keys if (kind, key) in footprint.keys
            ]
        names = {(kind, fingerprint(name)) for kind, name in footprint.names}
        if isinstance(footprint, ToldFootprint):
            names = names | footprint.fingerprints if names else footprint.fingerprints
        found += [(kind.tag, self._names[kind, name]) for kind, name in names & self._names.keys()]
        return dict.fromkeys(found)


def footprint_message(footprint: Footprint) -> pb.CatalogFootprint:
    """The message of a footprint. Raises InvalidArgument for keys that no object can have."""
    keys = [(kind.tag, key_bytes(kind, key)) for kind, key in footprint.keys]
    names = [(kind.tag, fingerprint(name)) for kind, name in footprint.names]
    return pb.CatalogFootprint(
        key_kinds=[tag for tag, _ in keys],
        keys=[key for _, key in keys],
        kinds=[kind.tag for kind in footprint.kinds],
        name_kinds=[tag for tag, _ in names],
        names=[name for _, name in names],
    )


def footprint_in(message: pb.CatalogFootprint) -> ToldFootprint:
    """The footprint of a request. Raises InvalidArgument."""
    if len(message.key_kinds) != len(message.keys) or len(message.name_kinds) != len(message.names):
        raise InvalidArgument("columns of different lengths", hint="one kind for each key and each name")
    if any(len(name) != FINGERPRINT_BYTES for name in message.names):
        raise InvalidArgument("no fingerprint of a name", hint="16 bytes")
    kinds = {tag: kind_in(tag) for tag in {*message.key_kinds, *message.kinds, *message.name_kinds}}
    return ToldFootprint(
        keys={(kinds[tag], key_in(kinds[tag], key)) for tag, key in zip(message.key_kinds, message.keys, strict=True)},
        kinds={kinds[tag] for tag in message.kinds},
        fingerprints={(kinds[tag], name) for tag, name in zip(message.name_kinds, message.names, strict=True)},
    )


def key_bytes(kind: AnyKind, key: object) -> bytes:
    """The bytes of a key. Raises InvalidArgument."""
    try:
        return SIDES[kind.tag][0].encode(key)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgument("no object has this key", kind=kind, key=key, problem=error) from error


def key_in(kind: AnyKind, data: bytes) -> AnyKey:
    """The key of bytes in a request. Raises InvalidArgument."""
    try:
        return SIDES[kind.tag][0].decode(data)
    except (CorruptData, DecodeError) as error:
        raise InvalidArgument("no object has this key", kind=kind, key=data.hex()[:80]) from error


def fingerprint(name: Name) -> bytes:
    """16 bytes that stand for a name, the same in all releases."""
    return sha256(b"".join(_canonical(name))).digest()[:FINGERPRINT_BYTES]


def _canonical(name: Name) -> Iterator[bytes]:
    for part in name:
        if part is None:
            yield b"n"
        elif isinstance(part, str):
            data = part.encode()
            yield b"s%d:" % len(data) + data
        elif isinstance(part, Id):
            yield b"i%s:%d;" % (part.space.value.encode(), part.number)
        else:
            raise InvalidArgument("a name has parts of other types", part=type(part).__name__)
