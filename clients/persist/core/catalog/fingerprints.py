"""Fingerprints of what transactions want: what distinguishes a repeated one from another one under the same token.

Nothing of what there was before goes into a fingerprint, so a transaction that is run again by another process, after
its first attempt was committed, has the one it had. Source: catalog-semantics.md section 1.3 (idempotency).
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from persist.core.catalog.objects import Commit
from persist.core.ids import Token
from persist.errors import InvalidArgument

BODY_BYTES: Final = 16


def fingerprint(wanted: Iterable[tuple[str, bytes, bytes | None]]) -> bytes:
    """16 bytes that stand for the values that keys are to have, in any order: kind, key and value, None for no value.

    The beginning of a SHA-256 over lengths and bytes. See docs/formats.md, catalog shards.
    """
    whole = sha256()
    for tag, key, value in sorted(wanted, key=lambda each: each[:2]):
        ends = b"gone" if value is None else b"%d" % len(value)
        whole.update(b"%s %d %s;" % (tag.encode(), len(key), ends) + key + (value or b""))
    return whole.digest()[:BODY_BYTES]


def first_outcome(token: Token, commit: Commit, body: bytes) -> int:
    """When the transaction with this token was committed. Raises InvalidArgument if that one had another body.

    A commit that kept no fingerprint is returned as it is.
    """
    if commit.body and commit.body != body:
        raise InvalidArgument(
            "another transaction was committed under this token",
            hint="look at what it did; what was to be done now was not: give it a token of its own",
            token=token,
            ts=commit.ts,
        )
    return commit.ts


def refused_body(body: bytes) -> bytes:
    """The fingerprint under a token whose request was refused: a fence, behind which no attempt of it does anything."""
    return sha256(b"refused" + body).digest()[:BODY_BYTES]
