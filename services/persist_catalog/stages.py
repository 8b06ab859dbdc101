"""Stages: pieces of transactions that are too large for one message, until a commit names them.

What is staged is in memory, of the server that leads: with it, and after a while without the next piece, it is
forgotten, and sent again. Source: protos/persist/v1/catalog.proto, StageChanges; reliability.md section 5, sizes.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, TypeAlias

from persist.errors import InvalidArgument, LeaseExpired, Overloaded, RequestTooLarge
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.v1 import catalog_pb2 as pb
from persist.wire.catalog.rpc_stage import bytes_of, elements_of, stage_in

LEASE_SECONDS: Final = 60.0
"""A stage that gets no piece, and is not committed, for so long is forgotten."""
BYTES_MAX: Final = 64 << 20
"""Of one transaction, and of all stages of a session."""
ELEMENTS_MAX: Final = 500_000
"""Changes, and keys, kinds and names of the footprint, of one transaction."""
STAGES_MAX: Final = 4
"""Of one session."""
ALL_BYTES_MAX: Final = 128 << 20
"""Of all stages of a server."""
IDLE_SECONDS: Final = 10.0
"""A stage that gets nothing new for so long, or falls so far behind its pace, makes room for others."""
_RETRY_MS: Final = 1_000


Data: TypeAlias = bytes


@dataclass(slots=True)
class Stage:
    """What came of one transaction so far, by offsets; ``next`` is the offset of what is to come.

    ``used``: when it was last asked for; ``moved``: when it last got something new; ``waiting``: how many commits wait
    for their turn with it.

    Pieces are bytes, of which is kept what counts: parsed, many small elements take twenty times as much.
    """

    elements: int
    bytes: int
    used: float
    begun: float = 0.0
    moved: float = 0.0
    next: int = 0
    came: int = 0
    waiting: int = 0
    pieces: dict[int, Data] = field(default_factory=dict)


class Stages:
    """All stages of a server, by session and id, those used last at the end. What each declares is reserved for it."""

    def __init__(self, *, runtime: Runtime, tasks: Tasks, lease: float = LEASE_SECONDS) -> None:
        self.lease = lease
        self._runtime = runtime
        self._tasks = tasks
        self._open: OrderedDict[tuple[str, bytes], Stage] = OrderedDict()
        self._sweeping = False

    def __len__(self) -> int:
        self._sweep()
        return len(self._open)

    @property
    def reserved(self) -> int:
        """Bytes for all of them."""
        return sum(stage.bytes for stage in self._open.values())

    def add(self, session_id: str, piece: pb.StageChangesRequest) -> int:
        """Take a piece, which may have come before; the offset of the next one.

        Raises RequestTooLarge, Overloaded, InvalidArgument; LeaseExpired when pieces before it are not there.
        """
        self._sweep()
        stage_id, elements = stage_in(piece.stage)
        at = session_id, stage_id
        stage = self._open.get(at)
        if stage is None:
            if piece.offset:
                raise _forgotten(stage_id)
            stage = self._begin(session_id, elements, piece.bytes)
        if _take(stage, piece, elements):
            stage.moved = self._runtime.monotonic()
        # What is refused reserves nothing, and keeps nothing from being forgotten.
        self._open[at] = stage
        self._open.move_to_end(at)
        stage.used = self._runtime.monotonic()
        self._begin_sweeping()
        return stage.next

    def whole(self, session_id: str, stage: pb.CatalogStage) -> list[bytes]:
        """All pieces, each a StageChangesRequest. Raises LeaseExpired when not all are there, InvalidArgument."""
        stage_id, elements = stage_in(stage)
        at = session_id, stage_id
        found = self._open.get(at)
        if found is None or found.next != elements or found.elements != elements:
            raise _forgotten(stage_id)
        found.used = self._runtime.monotonic()
        self._open.move_to_end(at)
        return [found.pieces[offset] for offset in sorted(found.pieces)]

    @contextmanager
    def kept(self, session_id: str, stage_id: bytes) -> Iterator[None]:
        """Until the end of the block it makes room for no other, and is not forgotten but when it is dropped."""
        at = session_id, stage_id
        found = self._open.get(at)
        if found is None:
            yield
            return
        found.waiting += 1
        try:
            yield
        finally:
            found.waiting -= 1
            if self._open.get(at) is found:
                found.used = self._runtime.monotonic()
                self._open.move_to_end(at)

    def drop(self, session_id: str, stage_id: bytes | None = None) -> None:
        """Forget a stage of a session, or all."""
        for at in [each for each in self._open if each[0] == session_id and stage_id in (None, each[1])]:
            del self._open[at]

    def _begin(self, session_id: str, elements: int, size: int) -> Stage:
        """Raises what says that there is no room, before anything is kept."""
        if elements > ELEMENTS_MAX or size > BYTES_MAX:
            raise RequestTooLarge(
                "the transaction is too large",
                hint="commit it in several, or with the catalog in the process itself",
                elements=elements, elements_limit=ELEMENTS_MAX, bytes=size, limit=BYTES_MAX,
            )  # fmt: skip
        own = [stage.bytes for (of, _), stage in self._open.items() if of == session_id]
        fits = len(own) < STAGES_MAX and sum(own) + size <= BYTES_MAX
        if not fits or not self._make_room(session_id, sum(own) + size, size):
            raise Overloaded(
                "too much is staged", hint="commit what is, or ask later", retry_after_ms=_RETRY_MS, bytes=size
            )
        now = self._runtime.monotonic()
        return Stage(elements, size, now, begun=now, moved=now)

    def holds(self, session_id: str) -> bool:
        """Whether anything of a session is staged."""
        return any(of == session_id for of, _ in self._open)

    def _make_room(self, session_id: str, share: int, size: int) -> bool:
        """Whether so much can be reserved. Forgets for it what stands still, of sessions with no less than ``share``.

        Their clients send it again, as after a minute.
        """
        room = ALL_BYTES_MAX - self.reserved
        held: Counter[str] = Counter()
        for (of, _), stage in self._open.items():
            held[of] += stage.bytes
        gone = []
        for at, stage in self._open.items():
            if room >= size:
                break
            if at[0] != session_id and held[at[0]] >= share and self._stands_still(stage):
                room += stage.bytes
                held[at[0]] -= stage.bytes
                gone.append(at)
        if room < size:
            return False
        for at in gone:
            del self._open[at]
        return True

    def _stands_still(self, stage: Stage) -> bool:
        if stage.waiting:
            return False
        now = self._runtime.monotonic()
        due = stage.bytes * max(0.0, now - stage.begun - IDLE_SECONDS) / self.lease
        return now - stage.moved >= IDLE_SECONDS or stage.came < due

    def _sweep(self) -> None:
        until = self._runtime.monotonic() - self.lease
        old = takewhile(lambda at: self._open[at].used < until, self._open)
        for at in [at for at in old if not self._open[at].waiting]:
            del self._open[at]

    def _begin_sweeping(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._tasks.spawn(self._keep_sweeping(), "forgetting what was staged")

    async def _keep_sweeping(self) -> None:
        """As long as there are any: what is not asked for any more must not stay in memory."""
        try:
            while self._open:
                await self._runtime.sleep(self.lease / 4)
                self._sweep()
        finally:
            self._sweeping = False


def _take(stage: Stage, piece: pb.StageChangesRequest, elements: int) -> bool:
    """Whether the piece was new."""
    count, size = elements_of(piece), bytes_of(piece)
    if (elements, piece.bytes) != (stage.elements, stage.bytes) or not count:
        raise InvalidArgument("a piece of another stage", hint="all pieces say how much there is, and bring some of it")
    kept = pb.StageChangesRequest(changes=piece.changes, footprint=piece.footprint)
    data = kept.SerializeToString(deterministic=True)
    known = stage.pieces.get(piece.offset)
    if known is not None:
        if known != data:
            raise InvalidArgument(
                "another piece was here", hint="give each stage an id of its own", offset=piece.offset
            )
        return False
    if piece.offset != stage.next:
        raise InvalidArgument(
            "pieces come one after the other", hint="go on at the next offset", offset=piece.offset, next=stage.next
        )
    if stage.next + count > stage.elements or stage.came + size > stage.bytes:
        raise InvalidArgument("more comes than was said", hint="say how much there is", elements=stage.elements)
    stage.pieces[piece.offset] = data
    stage.next += count
    stage.came += size
    return True


def _forgotten(stage_id: bytes) -> LeaseExpired:
    return LeaseExpired("not all of this stage is here", hint="send it again, from its beginning", stage=stage_id.hex())
