"""Batches by description: parts, runs and hollow batches. The rows themselves live in Blob or inline.

Source: architecture.md section 4; docs/formats.md, batches.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from persist.core.cached import cached_property
from persist.core.frontier import Description

PART_FORMAT = 1
"""Version of the part file format this release writes."""

ORDER_VERSION = 1
"""Version of the canonical order of keys and vals."""

DIFF_STATS = "diff"
"""The name under which statistics bound diffs. No key or val column can have it."""

BOUND_BYTES_MIN = 64
"""No bound of a part's keys is cut to fewer bytes."""

ZERO_DIFF = b"\2\x80" + bytes(7)
"""The canonical bytes of a diff of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A range of adjacent row groups in a part file: what one ranged read fetches and one checksum covers.

    ``first_key`` is canonical, truncated downwards (a fence). ``offset``/``length`` are bytes in the blob;
    ``row_groups`` counts the Parquet row groups inside, ``rows`` their rows; ``checksum`` is CRC32C of the bytes.
    """

    first_key: bytes
    rows: int
    row_groups: int
    offset: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStats:
    """Bounds of one top-level leaf column in canonical bytes: every non-null, non-NaN value lies in [lower, upper].

    The column ``DIFF_STATS`` is in them where all diffs of a part are above 0, with the smallest as its lower bound.
    Bounds are truncated outwards; None means unknown or no such value. Never narrower than the truth.
    """

    name: str
    null_count: int
    has_nan: bool = False
    lower: bytes | None = None
    upper: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One write-once sorted, consolidated file of updates, in Blob (``key``) or inside the state (``inline``).

    Exactly one of ``key`` and ``inline`` is set. ``encoded_bytes`` is the blob's length, ``decoded_bytes`` what it
    takes as Arrow. ``key_lower``/``key_upper`` are canonical key bounds, both inclusive, truncated outwards
    (``key_upper`` None: unbounded). ``ts_rewrite``: every time t is read as max(t, ts_rewrite).
    ``blocks`` is empty for inline parts; the footer (Parquet metadata) is the last ``footer_bytes`` bytes of the blob,
    covered by ``footer_checksum``. ``checksum`` (CRC32C) covers the whole blob or the inline bytes.
    """

    key: str | None
    inline: bytes | None
    encoded_bytes: int
    decoded_bytes: int
    rows: int
    checksum: int
    key_lower: bytes
    key_upper: bytes | None
    min_ts: int
    max_ts: int
    diffs_sum: int
    schema_id: int
    stats: tuple[ColumnStats, ...] = ()
    blocks: tuple[Block, ...] = ()
    footer_bytes: int = 0
    footer_checksum: int = 0
    ts_rewrite: int | None = None
    consolidated_since: int = 0
    format: int = PART_FORMAT
    order_version: int = ORDER_VERSION

    @property
    def inline_bytes(self) -> int:
        """Bytes this part takes inside the state."""
        return len(self.inline) if self.inline is not None else 0

    @property
    def only_adds(self) -> bool:
        """Every diff is known to be above 0. False: it is not known (``diffs_sum`` proves nothing), or not so."""
        return any(each.name == DIFF_STATS and (each.lower or b"") > ZERO_DIFF for each in self.stats)

    @property
    def first_ts(self) -> int:
        """The smallest time a reader sees."""
        return max(self.min_ts, self.ts_rewrite or 0)

    @property
    def last_ts(self) -> int:
        """The largest time a reader sees."""
        return max(self.max_ts, self.ts_rewrite or 0)


def overlap(before: Part, after: Part) -> bool:
    """Whether the bounds of two parts prove that the last key of ``before`` lies beyond the first of ``after``.

    Bounds are cut outwards, so those of neighbours in a run may overlap where their keys do not. A lower bound is how
    the first key begins. An upper bound is the last key, or how that begins with its last byte raised by one, and then
    what was cut off began with nothing but ``ff``: at the least, the last key is that.
    """
    upper = before.key_upper
    if upper is None:
        return False
    if upper and upper[-1]:
        upper = (upper[:-1] + bytes([upper[-1] - 1])).ljust(BOUND_BYTES_MIN, b"\xff")
    return upper[:BOUND_BYTES_MIN] > after.key_lower[:BOUND_BYTES_MIN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Parts in one sorted sequence: no part's keys lie before the keys of the part before it."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class HollowBatch:
    """A batch without its rows: what it covers and where the rows are.

    ``truncated``: the parts may hold times outside ``[lower, upper)``, which readers must drop (an append retried
    under tighter bounds than its data was written with).
    """

    desc: Description
    runs: tuple[Run, ...] = ()
    truncated: bool = False

    def __getstate__(self) -> dict[str, object]:
        # Sums and encodings kept with the batch are cheap to make again: they do not travel between processes.
        return {"desc": self.desc, "runs": self.runs, "truncated": self.truncated}

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts of all runs."""
        return tuple(part for run in self.runs for part in run.parts)

    @cached_property
    def rows(self) -> int:
        """Updates in all parts; 0 for a batch that only moves the upper."""
        return sum(part.rows for run in self.runs for part in run.parts)

    @cached_property
    def part_count(self) -> int:
        """Parts of all runs."""
        return sum(len(run.parts) for run in self.runs)

    @cached_property
    def encoded_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.encoded_bytes for run in self.runs for part in run.parts)

    @cached_property
    def inline_bytes(self) -> int:
        """Bytes of all inline parts."""
        return sum(part.inline_bytes for run in self.runs for part in run.parts)

    @cached_property
    def retractions(self) -> int:
        """Rows that take one back, if each adds or takes one; 0 where rows add more."""
        return max(0, self.rows - sum([part.diffs_sum for run in self.runs for part in run.parts])) // 2

    @cached_property
    def described_bytes(self) -> int:
        """What its description takes in a message, at most."""
        return 64 + sum(4 + sum(map(described_bytes, run.parts)) for run in self.runs)

    @cached_property
    def fingerprint(self) -> bytes:
        """Sixteen bytes that name what it covers and the parts it is made of."""
        digest = hashlib.sha256(f"{self.desc.lower}{self.desc.upper}{self.desc.since}{self.truncated}".encode())
        for run in self.runs:
            digest.update(b"/")
            digest.update(_named(run.parts))
        return digest.digest()[:16]

    @property
    def is_empty(self) -> bool:
        """Holds no updates."""
        return not self.runs


def _named(parts: Iterable[Part]) -> bytes:
    return "".join([f"|{part.key}{part.checksum}:{part.encoded_bytes}:{part.ts_rewrite}" for part in parts]).encode()


def parts_fingerprint(parts: Iterable[Part]) -> bytes:
    """Sixteen bytes that name some parts in their order."""
    return hashlib.sha256(_named(parts)).digest()[:16]


def described_bytes(part: Part) -> int:
    """What the description of a part takes in a message, at most: its numbers by their largest encodings."""
    size = 128 + len(part.key or "") + part.inline_bytes + len(part.key_lower) + len(part.key_upper or b"")
    size += sum([20 + len(each.name) + len(each.lower or b"") + len(each.upper or b"") for each in part.stats])
    return size + sum([30 + len(block.first_key) for block in part.blocks])


def fingerprint(batch: HollowBatch) -> bytes:
    """Sixteen bytes that name what a batch covers and the parts it is made of."""
    return batch.fingerprint
