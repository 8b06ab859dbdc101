"""The commands a shard understands and the outcomes they have. Values only; the effects are in ``transitions``.

A command's outcome type is its type argument: ``Shards.apply(shard, Command[R]) -> R``. Mistakes of the caller are
raised as UsageError; expected outcomes are values. Every command may be repeated: appends and what could undo another's
work are numbered, the others are idempotent. Source: persist-semantics.md section 2.3.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, SessionId, Token, WriterId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.ranges import RangeStep
from persist.core.shard.transaction import OWNER_BODY as OWNER_BODY
from persist.core.shard.transaction import LogCopy as LogCopy
from persist.core.shard.transaction import Transaction as Transaction

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[R]):
    """Something to apply to a shard; ``R`` is the union of its outcomes."""


AnyCommand: TypeAlias = Command[Any]
"""A command, whatever its outcome."""


# ---- calls that happen at most once ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Which call of which session a command is; every attempt of it carries the same ``number``.

    ``first``: the smallest number without a final answer at the session: what became of those below may be forgotten,
    and nothing more comes of them. ``known_seqno``: the newest seqno the session had seen before it first sent
    anything. ``incarnation``: the location's, as returned to the session. ``lease_ms``: how long the shard remembers a
    session that is silent, unless there are too many.
    """

    session: SessionId
    number: int
    first: int
    known_seqno: int
    incarnation: int = 0
    lease_ms: int = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotTell:
    """Nothing happened now, and nothing will; whether it had happened is forgotten.

    It had not if the caller knew the seqno ``forgotten`` or a later one before it first sent the call, or if the call
    would have moved the upper beyond ``upper``. ``upper`` and ``seqno`` are the shard's. ``token``, ``transaction``: it
    is the append's token, its application that may be forgotten, and not its session: other calls of that go on. Of an
    application ``forgotten`` is no seqno but what a new one has to name: see ``Transaction.new_since``.
    """

    forgotten: int
    upper: Antichain
    seqno: int = 0
    token: bool = False
    transaction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Nothing came of this call, and nothing ever will."""

    seqno: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The call took effect."""

    seqno: int = 0


# ---- writing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The batch is in the shard for ever. ``upper`` is where this append moved the shard's upper to, at ``seqno``.

    ``already_committed``: an earlier attempt of the call (or one with the same token or transaction) had done it;
    ``upper`` and ``seqno`` are the original ones and this attempt's batch was not used.
    """

    upper: Antichain
    seqno: int = 0
    already_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpperMismatch:
    """Nothing was appended: the shard's upper is ``upper``, not what was expected.

    An ``upper`` beyond the batch's lower is final. One short of it is not while an attempt may be under way: the upper
    may reach the lower before that arrives. CloseCall makes it final.
    """

    upper: Antichain
    seqno: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineBackpressure:
    """Nothing was appended: the state holds too many inline bytes. Write the parts to Blob and retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAndAppend(Command["Appended | UpperMismatch | InlineBackpressure | Closed | CannotTell"]):
    """Append ``batch`` iff the shard's upper equals ``batch.desc.lower``.

    ``rebase``: when the upper is another one, move the batch there instead: it covers ``[upper, max(batch.desc.upper,
    upper + 1))`` and times before the upper are read as the upper. Not for truncated batches or empty intervals.

    ``call`` makes attempts one; ``token`` makes calls one, of whichever session and process, while the shard remembers
    it. At least one is given. ``known_seqno``: the newest seqno seen before the first attempt under the token;
    a token the shard may have forgotten since is answered CannotTell. ``body``: 32 bytes that identify the
    updates (``append.same_body``), or empty: another body under a token that is remembered is refused.

    Raises InvalidBounds, EmptyInterval, ShardClosed (upper is [], and no earlier attempt closed it), InvalidId
    (foreign or malformed part key), InvalidArgument (unknown schema id, a part that contradicts itself, another body
    or owner), RequestTooLarge, LeaseExpired (the writer was fenced off, the location restored).
    """

    writer_id: WriterId
    batch: HollowBatch
    call: Call | None = None
    token: Token | None = None
    body: bytes = b""
    known_seqno: int = 0
    lease_ms: int = 3_600_000
    transaction: Transaction | None = None
    rebase: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseCall(Command["Appended | Closed | Done | CannotTell"]):
    """Make sure that nothing more comes of a call, and return what had. Raises as ``CompareAndAppend`` does."""

    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The handle is gone; ``existed``: whether it was there."""

    existed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireWriter(Command[Expired]):
    """Forget a writer: what it left in Blob and nothing names may be swept."""

    writer_id: WriterId


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRegistered:
    """The reader may read at times at or beyond ``since`` ([]: the shard is closed for reading)."""

    since: Antichain
    upper: Antichain
    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterLeasedReader(Command[ReaderRegistered]):
    """Hold the shard's since (or the critical since, if asked and any) under a lease. Idempotent by ``reader_id``."""

    reader_id: ReaderId
    lease_ms: int = 900_000
    purpose: str = ""
    hostname: str = ""
    use_critical_since: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceDowngraded:
    """The reader's since is now ``since``, and it keeps what ``held_seqno`` names; ``seqno`` is the state's."""

    since: Antichain
    seqno: int = 0
    held_seqno: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DowngradeSince(Command[SinceDowngraded]):
    """Give up reading below ``since``; also a heartbeat. Lower or equal is a no-op. Raises LeaseExpired.

    ``outstanding_seqno``: the smallest seqno whose parts this reader still fetches; None when none.
    """

    reader_id: ReaderId
    since: Antichain
    outstanding_seqno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeaten:
    """The lease runs anew from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReader(Command[Heartbeaten]):
    """Extend a reader's lease. Raises LeaseExpired."""

    reader_id: ReaderId


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireReader(Command[Expired]):
    """Release everything a leased reader holds. Its id is dead."""

    reader_id: ReaderId


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalRegistered:
    """The critical reader's state: what it holds and the token its next compare needs.

    ``registered`` distinguishes this hold from earlier and later ones of its id: its calls carry it.
    """

    since: Antichain
    opaque: bytes
    registered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterCriticalReader(Command[CriticalRegistered]):
    """Hold the shard's since without a lease, guarded by an opaque token. An existing id keeps since and opaque.

    With a ``call`` no late attempt brings back what was expired since: LeaseExpired.
    """

    critical_id: str
    opaque: bytes = b""
    purpose: str = ""
    call: Call | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalDowngraded:
    """The token matched: since and opaque are now these."""

    since: Antichain
    opaque: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueMismatch:
    """Another process took over: nothing changed; these are the current values."""

    since: Antichain
    opaque: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAndDowngradeSince(Command["CriticalDowngraded | OpaqueMismatch | CannotTell"]):
    """Move a critical since and its token iff the token is ``expected``, or this same call was applied before.

    With a ``call`` both outcomes are final: no late attempt does anything more. ``registered``: which hold of
    this id is meant, as its registration returned; None: whichever is there. Raises InvalidArgument for an unknown id,
    which is final only after CloseCall; LeaseExpired when the hold was removed and registered anew, or
    the location restored, since.
    """

    critical_id: str
    expected: bytes
    opaque: bytes
    since: Antichain
    call: Call | None = None
    registered: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireCriticalReader(Command[Expired]):
    """Remove a critical hold. With a ``call`` no late attempt removes one that was registered since.

    ``registered``: as in ``CompareAndDowngradeSince``; another one that has the id now is left alone. ``expected``: so
    is one whose token is another one by now.
    """

    critical_id: str
    call: Call | None = None
    registered: int | None = None
    expected: bytes | None = None


# ---- schemas -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaEntry:
    """A registered schema. ``schema`` is the Arrow IPC schema of key, val fields with their roles; see data.schema."""

    schema_id: int
    schema: bytes
    codec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistered:
    """The schema's id and the newest entry of the shard."""

    entry: SchemaEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSchema(Command[SchemaRegistered]):
    """Register the first schema, or find an equal one. Raises SchemaMismatch (the shard has another), CodecMismatch."""

    schema: bytes
    codec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolveSchema(Command[SchemaRegistered]):
    """Register a schema that only adds nullable val columns to the newest, whose id must be ``expected_id``.

    Raises SchemaMismatch (incompatible, or another process evolved it), CodecMismatch.
    """

    expected_id: int
    schema: bytes
    codec: str


# ---- maintenance -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollup:
    """A full state in Blob: its key, bytes and CRC32C."""

    key: str
    encoded_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupAdded:
    """``applied``: the state names this very blob. When False and never True before, the caller may delete it."""

    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRollup(Command[RollupAdded]):
    """Link a rollup that was written for ``seqno``, in this incarnation of the location. Raises LeaseExpired."""

    seqno: int
    rollup: Rollup
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupsRemoved:
    """The state no longer names these rollups: their blobs may go once no reader holds states from before ``seqno``."""

    rollups: tuple[Rollup, ...]
    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRollups(Command[RollupsRemoved]):
    """Forget the rollups before ``below``, the newest of all excepted, and release the claim on collecting garbage.

    Only after every diff before ``below`` was truncated. Those that are gone already are passed over. Raises
    LeaseExpired for another incarnation of the location.
    """

    below: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionClaimed:
    """``batches`` are to become one, their times advanced to ``since``. The claim is on spine ids ``[lo, hi)``.

    ``step``: only this is to be done of a batch that is merged by ranges. Then ``batches`` is that one, with nothing
    but the pieces of the step: a run each, without those that are empty.

    ``schemas`` are all of the shard's, oldest first: the result is written with the newest that its inputs have.
    ``incarnation``: the location's, which the result is offered with.
    """

    lo: int
    hi: int
    batches: tuple[HollowBatch, ...]
    since: Antichain
    schemas: tuple["SchemaEntry", ...]
    incarnation: int = 0
    step: RangeStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToCompact:
    """Nothing is worth compacting now. ``claimed``: claims that others hold."""

    claimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCompaction(Command["CompactionClaimed | NothingToCompact"]):
    """Claim the compaction with the most benefit, or return the one this owner has claimed already.

    ``owner`` is the writer under whose id the result will be written. A claim older than ``takeover_ms`` counts as
    abandoned. ``whole``: compact everything that is not claimed into one run, worth it or not. ``steps``: the claimant
    carries out steps, too; what is too large to be merged at once is left alone otherwise. ``before``: of batches that
    begin before it only, so that a request ends at a shard always written to. ``aside``: fingerprints of claims,
    or of batches in them, that failed: they are claimed when nothing else is left.

    Raises InvalidArgument (the takeover time, or what is left aside), LeaseExpired (the owner was fenced off).
    """

    owner: WriterId
    takeover_ms: int
    whole: bool = False
    steps: bool = False
    before: Antichain | None = None
    aside: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReleased:
    """``existed``: the owner had a claim."""

    existed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCompaction(Command[ClaimReleased]):
    """Give up what the owner has claimed."""

    owner: WriterId


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeApplied:
    """The state names the output in place of the inputs. ``already``: an earlier attempt had done it."""

    already: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRefused:
    """The inputs are not there any more, or not all: the output will never be used. ``reason`` is for people."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyMerge(Command["MergeApplied | MergeRefused"]):
    """Replace adjacent batches, named by their fingerprints, by ``output``, which holds the same updates.

    ``step``: replace its pieces in the batch of the output's bounds instead, and there are no ``inputs``. The output
    has a run for each piece, which may be empty: the first is what was merged, others what is left of their piece.

    Raises InvalidArgument when the output cannot be theirs (other bounds, a since the shard has not reached, more
    rows, another sum of diffs), InvalidId (foreign part keys), LeaseExpired (the owner was swept away, or the location
    restored since it was claimed: ``incarnation`` is that of the claim).
    """

    owner: WriterId
    inputs: tuple[bytes, ...]
    output: HollowBatch
    incarnation: int = 0
    step: RangeStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersFenced:
    """Writers born before ``born_before_ms`` that the shard does not know cannot publish any more."""

    born_before_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceWriters(Command[WritersFenced]):
    """Refuse, from now on, writers born before ``born_before_ms`` that are not known now. It never moves back."""

    born_before_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalized:
    """``done``: the tombstone alone is left. Otherwise repeat."""

    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalize(Command[Finalized]):
    """Take away what a closed shard still holds, one small step per call, until only its tombstone is left.

    ``force``: close it first, even if it is still read or written. ``hold``: of the environment that gives it up, see
    ``hold_of``; empty: none does. Raises InvalidArgument when it is open and not forced, or an item of another
    environment.
    """

    force: bool = False
    hold: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostParts:
    """Parts of one batch: its fingerprint, and (run, place in the run) of each, from 0."""

    batch: bytes
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsTakenOut:
    """The state no longer names the parts. Their rows are lost."""

    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTakenOut:
    """Nothing changed: a batch is not there any more. Compaction or another repair was faster; look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOutParts(Command[PartsTakenOut | NotTakenOut]):
    """Take parts out of their batches, all or none: their rows are lost. Raises InvalidArgument for unknown places."""

    lost: tuple[LostParts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationsForgotten:
    """What the shard still knew of the applications that were named. ``new_since``: see Transaction."""

    applications: int
    new_since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetApplications(Command[ApplicationsForgotten]):
    """Forget which version applications committed last. Those that are not known are passed over.

    What such an application repeats is not taken for new: like every application that is not known it is asked for
    ``new_since`` from then on. Raises InvalidArgument for more than APPLICATIONS_MAX at once.
    """

    app_ids: tuple[str, ...]
