"""Connections between simulated hosts: ordered both ways as TCP is, and broken, muted or held as TCP is.

What has arrived at a host that stands still stays in its socket and is read when it wakes, however late that is.
Source: reliability.md section 3; style.md, simulation.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from persist.testing.simulation.simulator import Host, VirtualLoop, here
from persist.typed import AnyMessage

RESET_SECONDS = 40.0
"""After so long keepalive finds out that a host is gone which said nothing."""


class Listener(Protocol):
    """A server that answers at an address. ``host`` runs it."""

    host: Host


class Wires:
    """Every connection there is. ``enabled`` False: nothing goes wrong any more.

    Chances are per message: ``slow`` that it takes long, ``cut`` that its connection breaks, ``twice`` that a proxy
    delivers a request once more, somewhere, some time.
    """

    def __init__(self, loop: VirtualLoop, *, slow: float = 0.005, cut: float = 0.001, twice: float = 0.01) -> None:
        self.loop = loop
        self.slow = slow
        self.cut = cut
        self.twice = twice
        self.enabled = True
        self.listeners: dict[str, Listener] = {}
        self.connections: list[Connection] = []
        self.counts: Counter[str] = Counter()
        self.rolls = loop.stream("wires")

    def delay(self) -> float:
        """Seconds for one way."""
        if self.enabled and self.rolls.random() < self.slow:
            self.counts["slow message"] += 1
            return self.rolls.uniform(0.05, 3.0)
        return self.rolls.uniform(0.0002, 0.002)

    def later(self, seconds: float, what: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Something happens in the network, whichever hosts are alive."""
        self.loop.call_later(seconds, partial(what, *args, **more), context=self.loop.elsewhere)

    def connect(self, address: str, client: "NearEnd") -> "Connection":
        """A connection that is being made. ``client`` is notified when it stands, or that it broke."""
        connection = Connection(self, address, client)
        self.connections = [known for known in self.connections if not known.broken]
        self.connections.append(connection)
        return connection

    def some(self) -> "list[Connection]":
        """The connections to one server, those of one client, just one, or all."""
        live = [connection for connection in self.connections if not connection.broken]
        if not live:
            return []
        chosen = self.rolls.choice(live)
        kind = self.rolls.randrange(4)
        if kind == 3:
            return live
        if kind == 0:
            return [chosen]
        if kind == 1:
            return [connection for connection in live if connection.address == chosen.address]
        return [connection for connection in live if connection.here is chosen.here]

    def gone(self, host: Host, *, quietly: bool) -> None:
        """A host is no more. Its kernel resets its connections, unless that is gone, too."""
        for connection in self.connections:
            if host in (connection.here, connection.there) and not connection.broken:
                self.later(RESET_SECONDS if quietly else self.delay(), connection.reset)

    def heal(self) -> None:
        """Nothing goes wrong any more; what was muted breaks, so that both ends find out."""
        self.enabled = False
        for connection in self.connections:
            if connection.muted:
                connection.reset()


class NearEnd(Protocol):
    """The near end of a connection."""

    def connected(self) -> None:
        """The server's kernel has answered."""
        ...

    def broke(self, why: str) -> None:
        """Nothing more will come."""
        ...


class Connection:
    """One TCP connection. ``here`` is the client's host, ``there`` the server's, once it is connected."""

    def __init__(self, wires: Wires, address: str, client: NearEnd) -> None:
        self.wires = wires
        self.address = address
        self.here = here()
        self.there: Host | None = None
        self.listener: Listener | None = None
        self.broken = False
        self.muted = False
        self.client = client
        self._orphans: dict[object, Callable[[], None]] = {}
        # Nothing arrives before the connection stands.
        self._up_at = self._down_at = wires.loop.time() + wires.delay()
        self._lose_up = self._lose_down = False
        wires.loop.call_at(self._up_at, self._accept, context=wires.loop.elsewhere)

    def _accept(self) -> None:
        listener = self.wires.listeners.get(self.address)
        if self.broken:
            return
        if listener is None or not listener.host.alive:
            self._break("connection refused", told=False)
            return
        self.listener, self.there = listener, listener.host
        self._down(self.client.connected)

    def up(self, deliver: Callable[[], None]) -> None:
        """Let the server's host do something, after all it was asked to do before."""
        if self.broken:
            return
        self._up_at = max(self._up_at, self.wires.loop.time() + self.wires.delay())
        self.wires.loop.call_at(self._up_at, self._arrive_up, deliver, context=self.wires.loop.elsewhere)
        self._roll()

    def down(self, deliver: Callable[[], None]) -> None:
        """Let the client's host do something, after all it was asked to do before."""
        if self.broken:
            return
        if self.muted:
            self.wires.counts["answer swallowed"] += 1
            return
        self._down(deliver)
        self._roll()

    def on_end(self, call: object, orphaned: Callable[[], None] | None) -> None:
        """What the server's host does about a call when it sees that the connection is over; None: nothing more."""
        if orphaned is None:
            self._orphans.pop(call, None)
        else:
            self._orphans[call] = orphaned

    def hold(self, seconds: float) -> None:
        """The way up is stuck: what is sent arrives after so long."""
        self._up_at = max(self._up_at, self.wires.loop.time() + seconds)

    def reset(self) -> None:
        """Both ends see that it is over. What is on its way arrives first, or never."""
        if self.broken:
            return  # what became of what was on its way is decided once
        self._lose_up, self._lose_down = self.wires.rolls.random() < 0.5, self.wires.rolls.random() < 0.8
        self._break("socket closed", told=True)

    def leave(self) -> None:
        """The client closes it."""
        self._break("closed", told=True)

    def _break(self, why: str, *, told: bool) -> None:
        if self.broken:
            return
        self.broken = True
        heard = max(self._down_at, self.wires.loop.time() + self.wires.delay())
        loop = self.wires.loop
        loop.call_at(heard, self._run, self.here, self.client.broke, why, context=loop.elsewhere)
        if told and self.there is not None:
            at = max(self._up_at, loop.time() + self.wires.delay())
            loop.call_at(at, self._end_there, context=loop.elsewhere)

    def _end_there(self) -> None:
        orphans, self._orphans = self._orphans, {}
        for orphaned in orphans.values():
            self._run(self.there, orphaned)

    def _down(self, deliver: Callable[[], None]) -> None:
        self._down_at = max(self._down_at, self.wires.loop.time() + self.wires.delay())
        self.wires.loop.call_at(self._down_at, self._arrive_down, deliver, context=self.wires.loop.elsewhere)

    def _arrive_up(self, deliver: Callable[[], None]) -> None:
        if self._lose_up:
            self.wires.counts["request lost"] += 1
        elif self.there is not None:
            self._run(self.there, deliver)

    def _arrive_down(self, deliver: Callable[[], None]) -> None:
        if self._lose_down:
            self.wires.counts["answer lost"] += 1
        else:
            self._run(self.here, deliver)

    def _run(self, host: Host | None, what: Callable[..., None], *args: Any) -> None:
        loop = self.wires.loop
        loop.call_soon(what, *args, context=loop.elsewhere if host is None else host.context)

    def _roll(self) -> None:
        if self.wires.enabled and self.wires.rolls.random() < self.wires.cut and not self.broken:
            self.wires.counts["connection cut"] += 1
            self.wires.later(self.wires.delay(), self.reset)


class Inbox:
    """Messages as they came, and the end of them."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._stirred = asyncio.Event()

    def put(self, item: AnyMessage) -> None:
        """The next one."""
        self._items.append(item)
        self._stirred.set()

    async def get(self) -> AnyMessage:
        """The next one, waiting for it."""
        while not self._items:
            self._stirred.clear()
            await self._stirred.wait()
        return self._items.popleft()
