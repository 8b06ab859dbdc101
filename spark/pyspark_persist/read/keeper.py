"""The driver's own Python process as the keeper of planned reads, however long their tasks take.

Spark plans in a helper process and ends it when it planned nothing for a minute. So ``register(spark)`` starts a keeper
in the process that lives as long as the session: a loopback listener whose address and secret travel with the data
source to the planners. A planner asks it for a hold before it plans. A plan is held while Spark jobs run in the session
and until none was seen for ``holdTtlSeconds``; for ``holdMaxSeconds`` at most, as nothing shows when a DataFrame dies.
All holds are given back when the session stops or the process ends; when it is killed, its leases run out.

Where there is no such process (Spark Connect, a session that found the data source by itself) planners keep their own
holds. Source: architecture.md section 7; spark.md section 0 fact 7, section 2.3.
"""

import contextlib
import dataclasses
import hmac
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from persist import InvalidArgument, LeaseExpired, PersistError
from persist.runtime import system
from persist.typed import Json
from persist_ingest.location import Location, Target
from pyspark_persist.creating import saves_table
from pyspark_persist.options.names import VIEW
from pyspark_persist.read.holds import Held, held_by, kept_seconds, open_reader

_LOG: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.5
_REQUEST_BYTES_MAX: Final = 1 << 16
_CLOSE_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 10.0
_SAVES_TABLE: Final = "saves_table"

Address = tuple[str, int, str]
"""Host and port of a keeper's listener, and its secret."""


@dataclass(slots=True, eq=False, kw_only=True)
class _HeldPlan:
    """One plan: whose reader holds it, and when it was made and last seen in possible use."""

    reader: "_Reader | None"
    ttl_seconds: int
    max_seconds: int
    begun: float
    used: float
    pin: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class _Reader:
    """A reader of this process, for plans of one kind."""

    key: tuple[object, ...]
    handle: Any
    opened: float


class Keeper:
    """Holds what planners ask for. ``running``: whether Spark jobs run now; None once the session has stopped."""

    def __init__(self, running: Callable[[], bool | None]) -> None:
        self._running = running
        self._secret = system().random_bytes(16).hex()
        self._lock = threading.Lock()
        self._kept: list[_HeldPlan] = []
        self._closed = threading.Event()
        self._server = _Server(self._answer)
        for work in (self._server.serve_forever, self._watch):
            threading.Thread(target=work, name="persist-keeper", daemon=True).start()

    @property
    def address(self) -> Address:
        """The address where planners on this machine reach it."""
        host, port = self._server.server_address[:2]
        return str(host), int(port), self._secret

    @property
    def closed(self) -> bool:
        """Whether it has released everything."""
        return self._closed.is_set()

    def hold(self, target: Target, *, ttl_seconds: int, max_seconds: int) -> Held:
        """Keep what is planned from now on. Raises ShardNotFound, LocationError, LeaseExpired."""
        key = (target.location, target.shard, ttl_seconds)
        at = system().monotonic()
        kept = _HeldPlan(reader=None, ttl_seconds=ttl_seconds, max_seconds=max_seconds, begun=at, used=at)
        for _ in range(2):
            # SUBTLE: the plan is there before its pin is, so that the reader is not dropped in between.
            with self._lock:
                kept.reader = self._newest(key, at)
                if kept.reader is not None and kept not in self._kept:
                    self._kept.append(kept)
            if kept.reader is None:
                kept.reader = _Reader(key=key, handle=open_reader(target, ttl_seconds=ttl_seconds), opened=at)
            try:
                kept.pin = kept.reader.handle.pin(timeout=target.timeout)
            except PersistError as error:
                self._drop(kept)
                if not isinstance(error, LeaseExpired):
                    raise
                self._forget(kept.reader)
                continue
            with self._lock:
                if kept not in self._kept:
                    self._kept.append(kept)
            return held_by(kept.reader.handle, kept.pin)
        raise LeaseExpired("the keeper's lease ran out while it was opened", hint="raise holdTtlSeconds")

    def close(self) -> None:
        """Give every hold back, and listen no longer. Doing so again does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            readers = {id(kept.reader): kept.reader for kept in self._kept if kept.reader is not None}
            self._kept.clear()
        for reader in readers.values():
            with contextlib.suppress(PersistError):
                reader.handle.expire(timeout=_CLOSE_SECONDS)

    def _newest(self, key: tuple[object, ...], at: float) -> _Reader | None:
        """A reader for plans of this kind that is not due for replacement; it also holds since."""
        readers = [kept.reader for kept in self._kept if kept.reader is not None and kept.reader.key == key]
        newest = max(readers, key=lambda reader: reader.opened, default=None)
        return newest if newest is not None and at - newest.opened < kept_seconds(int(str(key[-1]))) / 2 else None

    def _drop(self, kept: _HeldPlan) -> None:
        with self._lock:
            self._kept = [other for other in self._kept if other is not kept]

    def _forget(self, reader: _Reader) -> None:
        """Forget a lost reader and its plans."""
        with self._lock:
            self._kept = [kept for kept in self._kept if kept.reader is not reader]

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            running = self._running()
            if running is None:
                self.close()
                return
            self._let_go(system().monotonic(), running)

    def _let_go(self, at: float, running: bool) -> None:
        """Drop the plans that are over; a reader without plans expires by itself."""
        with self._lock:
            for kept in self._kept:
                kept.used = at if running else kept.used
            over = [kept for kept in self._kept if _is_over(kept, at)]
            self._kept = [kept for kept in self._kept if not _is_over(kept, at)]
        for kept in over:
            if kept.pin is not None:
                kept.pin.release()

    def _answer(self, line: bytes) -> dict[str, object]:
        request = json.loads(line)
        if not hmac.compare_digest(str(request.get("secret")), self._secret):
            return {"error": "the secret is wrong"}
        if request.get("asks") == _SAVES_TABLE:
            return {_SAVES_TABLE: saves_table()}
        location = Location(**request["location"])
        target = Target(location=location, shard=str(request["shard"]), timeout=float(request["timeout"]))
        held = self.hold(target, ttl_seconds=int(request["ttl"]), max_seconds=int(request["max"]))
        return dataclasses.asdict(held)


def _is_over(kept: _HeldPlan, at: float) -> bool:
    return at - kept.used >= kept.ttl_seconds or at - kept.begun >= kept.max_seconds


class _Server(socketserver.ThreadingTCPServer):
    """One line of JSON in, one out."""

    daemon_threads = True

    def __init__(self, answer: Callable[[bytes], dict[str, object]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer


class _Handler(socketserver.StreamRequestHandler):
    timeout = 30

    def handle(self) -> None:
        """Answer one request; a failure is an answer, too."""
        assert isinstance(self.server, _Server)
        line = self.rfile.readline(_REQUEST_BYTES_MAX)
        try:
            answered = self.server.answer(line)
        except (PersistError, ValueError, KeyError, TypeError) as error:
            answered = {"error": f"{type(error).__name__}: {error}"}
        self.wfile.write(json.dumps(answered).encode() + b"\n")


def ask(keeper: Address | None, target: Target, *, ttl_seconds: int, max_seconds: int) -> Held | None:
    """A hold by the driver's process on what is planned from now on. None: no process there keeps it."""
    if keeper is None:
        return None
    request = {
        "location": dataclasses.asdict(target.location),
        "shard": target.shard,
        "timeout": target.timeout,
        "ttl": ttl_seconds,
        "max": max_seconds,
    }
    try:
        answered = _asked(keeper, request, timeout=target.timeout)
        return Held(reader_id=str(answered["reader_id"]), seqno=int(answered["seqno"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.warning("the driver's process does not hold this read, holdTtlSeconds alone does: %s", error)
        return None


def check_no_table(keeper: Address | None) -> None:
    """Refuse a write that is to make a table of Spark's catalog, where the driver's process shows it.

    Raises InvalidArgument.
    """
    if keeper is None:
        return
    try:
        saves = _asked(keeper, {"asks": _SAVES_TABLE}, timeout=_ANSWER_SECONDS).get(_SAVES_TABLE)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        _LOG.warning("the driver's process does not show whether saveAsTable was called: %s", error)
        return
    if saves:
        raise InvalidArgument("saveAsTable makes a table that Spark could not read: save() writes the rows", hint=VIEW)


def _asked(keeper: Address, request: dict[str, object], *, timeout: float) -> Json:
    """The keeper's answer. Raises OSError, ValueError."""
    host, port, secret = keeper
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(json.dumps({"secret": secret, **request}).encode() + b"\n")
        with connection.makefile("rb") as answers:
            return json.loads(answers.readline(_REQUEST_BYTES_MAX))


_KEEPERS: Final[dict[str, Keeper]] = {}
_KEEPERS_LOCK: Final = threading.Lock()


def keeper_of(context: Any) -> Keeper:
    """The keeper for a SparkContext of this process."""
    with _KEEPERS_LOCK:
        for name in [name for name, keeper in _KEEPERS.items() if keeper.closed]:
            del _KEEPERS[name]
        name = str(context.applicationId)
        if name not in _KEEPERS:
            _KEEPERS[name] = Keeper(lambda: _runs(context))
        return _KEEPERS[name]


def _runs(context: Any) -> bool | None:
    """Whether a job runs; None when the context was stopped (which only this attribute shows)."""
    if context._jsc is None:
        return None
    try:
        return bool(context.statusTracker().getActiveJobsIds())
    except Exception:
        # Py4J raises what it likes while a context stops. Holding on is safe, and bounded.
        return True
