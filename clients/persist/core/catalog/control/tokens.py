"""The token in a shard's handle: who may move it. Bytes that are ordered as fences are.

A fence is an incarnation, a deploy generation and an epoch; one of a later incarnation is later whatever the rest says.
Source: collections: the controller; catalog-semantics.md section 1.2.1.
"""

import struct
from enum import Enum
from typing import Final

from persist.core.catalog.objects import FenceToken

_FORM: Final = struct.Struct(">QQQ")


class Standing(Enum):
    """Whose handle it is, as seen by a leader."""

    OURS = "ours"
    EARLIER = "earlier"
    LATER = "later"


def token_of(fence: FenceToken, incarnation: int = 0) -> bytes:
    """The token of a leader."""
    return _FORM.pack(incarnation, fence.deploy_generation, fence.epoch)


def standing(found: bytes, own: bytes) -> Standing:
    """Whose token was found. What is no token of a leader was no leader's."""
    if found == own:
        return Standing.OURS
    return Standing.LATER if len(found) == _FORM.size and found > own else Standing.EARLIER


def described(found: bytes) -> dict[str, object]:
    """Generation and epoch of a token, for errors."""
    if len(found) != _FORM.size:
        return {}
    _, generation, epoch = _FORM.unpack(found)
    return {"generation": generation, "epoch": epoch}
