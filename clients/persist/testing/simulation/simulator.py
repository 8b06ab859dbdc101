"""A world in one thread: a loop whose time is virtual, hosts that crash and pause, and a runtime for each.

Nothing waits: when no work is ready the clock jumps to the next timer. All randomness comes from one seed, so the same
seed gives the same history. A crashed host takes no further step, not even to clean up; a paused one takes its steps
late. Source: reliability.md section 3; style.md, simulation.
"""

import asyncio
import contextlib
import contextvars
import gc
import hashlib
import heapq
import math
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from persist.testing.simulation.memory import remembering
from persist.typed import Record, Work

T = TypeVar("T")

STEPS_MAX = 5_000_000
"""So many steps are a livelock."""
LAST_STEPS_MAX = 500_000
LAST_ROUNDS_MAX = 50
"""What is left of a world must end in so many steps, and when it is cancelled so often."""
COLLECTIONS_MAX = 8
EPOCH_MS = 1_800_000_000_000

_HERE: "contextvars.ContextVar[Host | None]" = contextvars.ContextVar("host", default=None)


def here() -> "Host | None":
    """The machine whose step this is; None between machines."""
    return _HERE.get()


class Deadlock(Exception):
    """All tasks wait and no timer is set: nothing will ever happen again."""


class Livelock(Exception):
    """Steps go on and on."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set depends on when it was made, not on where in memory: histories repeat."""

    def __init__(
        self, work: Coroutine[object, object, object], *, loop: "VirtualLoop", context: contextvars.Context | None
    ) -> None:
        self._made = loop.made()
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._made

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(asyncio.Future[Any]):
    """A future likewise."""

    def __init__(self, *, loop: "VirtualLoop") -> None:
        self._made = loop.made()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._made

    def __eq__(self, other: object) -> bool:
        return self is other


def _task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[object, object, object],
    context: contextvars.Context | None = None,
) -> _Task:
    assert isinstance(loop, VirtualLoop)
    return _Task(work, loop=loop, context=context)


class Host:
    """A machine in the world: what was started in its ``context`` stops with it, all at once."""

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.skew_ms = 0
        self.alive = True
        self.paused = False
        self.context = contextvars.Context()
        self.context.run(_HERE.set, self)
        self._loop = loop
        self._late: list[asyncio.Handle] = []

    @property
    def silent(self) -> bool:
        """Dead, or as good as that."""
        return self.paused or not self.alive

    @property
    def lasts(self) -> bool:
        """The world goes on."""
        return not self._loop.ending

    def crash(self) -> None:
        """No step more."""
        self.alive = False
        self._loop.buried += self._late
        self._late = []

    def pause(self) -> None:
        """No step until ``resume``; time goes on, as when a process is stopped."""
        self.paused = True

    def resume(self) -> None:
        """Take every step that is due."""
        self.paused = False
        self._loop.ready.extend(self._late)
        self._late = []

    def takes(self, handle: asyncio.Handle) -> bool:
        """Whether the step is to be taken now; otherwise it is kept, for later or for the end of the world."""
        if self._loop.ending:
            return True
        if not self.alive:
            self._loop.buried.append(handle)
            return False
        if self.paused:
            self._late.append(handle)
            return False
        return True

    def start(self, work: Work[T]) -> "asyncio.Task[T]":
        """Run ``work`` on this host."""
        return self._loop.create_task(work, context=self.context)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that does not wait. ``log`` is what happened; ``digest`` names it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.seed = seed
        self.ready: deque[asyncio.Handle] = deque()
        self.buried: list[asyncio.Handle] = []
        self.ending = False
        self.steps = 0
        self.steps_max = STEPS_MAX
        self.recent: deque[str] = deque(maxlen=400)
        self.elsewhere = contextvars.Context()
        self.failures: list[BaseException] = []
        self._now = 1_000.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._hosts: list[Host] = []
        self._made = 0
        self.set_task_factory(_task)  # type: ignore[arg-type]  # the stubs know of no context

    def made(self) -> int:
        """The number of a task or future."""
        self._made += 1
        return self._made

    def create_future(self) -> _Future:
        """A future in order."""
        return _Future(loop=self)

    def log(self, event: str) -> None:
        """Write one line of history."""
        here = _HERE.get()
        line = f"{self._now:.6f} {here.name if here else '-'} {event}"
        self._hash.update(line.encode())
        self.recent.append(line)

    @property
    def digest(self) -> str:
        """The name of the history so far: equal histories have equal names."""
        return self._hash.hexdigest()

    def stream(self, name: str) -> random.Random:
        """A source of randomness of its own."""
        return random.Random(f"{self.seed}/{name}")

    def host(self, name: str) -> Host:
        """A new machine."""
        host = Host(self, name)
        self._hosts.append(host)
        return host

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # the stubs tie callback and arguments together
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """At the end of the queue: first come, first served, as in production."""
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Once the clock has jumped there."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def call_later(  # type: ignore[override]  # as above
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """``delay`` virtual seconds from now."""
        # SUBTLE: who waits for the last fraction of a second until some time must get there: a sum of floats may not.
        when = max(self._now + delay, math.nextafter(self._now, math.inf)) if delay > 0 else self._now
        return self.call_at(when, callback, *args, context=context)

    def call_exception_handler(self, context: Record) -> None:
        """Keep what was not caught."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            self.failures.append(error)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when they are due."""

    def _process_events(self, event_list: Any) -> None:
        """There are no files and sockets here."""

    def _write_to_self(self) -> None:
        """There is nothing to wake."""

    def _run_once(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not self.ready and not self._stopping:  # type: ignore[attr-defined]  # set by ``stop``
            if not timers:
                raise Deadlock
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle: asyncio.Handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                self.ready.append(handle)
        for _ in range(len(self.ready)):
            self._step(self.ready.popleft())

    def _step(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        here: Host | None = handle._context.get(_HERE)  # type: ignore[attr-defined]  # private to asyncio
        if here is not None and not here.takes(handle):
            return
        self.steps += 1
        if self.steps > self.steps_max:
            raise Livelock
        handle._run()

    def end(self) -> bool:
        """Cancel every task, those of crashed and paused hosts too, until none is left. Whether that is so."""
        self.ending, self.steps_max = True, self.steps + LAST_STEPS_MAX
        for host in self._hosts:
            host.resume()
        self.ready.extend(self.buried)
        self.buried.clear()
        with contextlib.suppress(Deadlock, Livelock):
            for _ in range(LAST_ROUNDS_MAX):
                if left := asyncio.all_tasks(self):
                    for task in left:
                        task.cancel()
                    self.run_until_complete(asyncio.wait(left, timeout=1.0))
                elif self._asyncgens:  # type: ignore[attr-defined]  # the loop's own; closing them may start tasks
                    self.run_until_complete(self.shutdown_asyncgens())
                else:
                    return True
        return False


class SimulatedRuntime:
    """The Runtime of a host: virtual time, seeded entropy, work done on the spot."""

    def __init__(self, loop: VirtualLoop, host: Host) -> None:
        self._loop = loop
        self._host = host
        self._random = loop.stream(host.name)

    @property
    def hostname(self) -> str:
        return self._host.name

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self._host.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def random(self) -> float:
        return self._random.random()

    async def offload(self, function: Callable[..., T], *args: object) -> T:
        await asyncio.sleep(0)
        return function(*args)


@contextlib.contextmanager
def simulation(seed: int) -> Iterator[VirtualLoop]:
    """A loop for one world. Afterwards whatever is left of it is gone, too."""
    loop = VirtualLoop(seed)
    collecting = gc.isenabled()
    # Finalizers run when references go, never at a moment that depends on how much was allocated.
    gc.disable()
    # Only what the world made is looked through when it ends.
    gc.freeze()
    try:
        with remembering():
            try:
                yield loop
            finally:
                ended = loop.end()
        _forget(loop) if ended else _abandon(loop)
    finally:
        loop.close()
        gc.unfreeze()
        if collecting:
            gc.enable()


def _forget(loop: VirtualLoop) -> None:
    """Drop timers and hosts and what they refer to, and collect it."""
    loop._hosts.clear()
    loop.failures.clear()
    loop.elsewhere = contextvars.Context()
    # SUBTLE: a round ends where finalizers have run, which may ask for another step; what they had hold of goes with
    # the next one.
    for _ in range(COLLECTIONS_MAX):
        loop.ready.clear()
        loop._timers.clear()
        if not gc.collect():
            break


def _abandon(loop: VirtualLoop) -> None:
    """Drop tasks that go on and on, without letting them take another step."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # the only way to be quiet about it
        del task
    before = sys.unraisablehook
    # What is dropped in the middle of a step tries to clean up, which it cannot any more.
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            _forget(loop)
    finally:
        sys.unraisablehook = before
