"""Who is connected, and who has to leave where there are too many: strangers have a part of the places, and no more.

A stranger is a sender of which no request was found to be right yet. Each that connects is let in; the stranger that
did least recently anything leaves for that. So those that only connect hold up none that send.
Source: reliability.md section 5, overload.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator


class Guest:
    """One connection: its task, and what is known of its sender."""

    def __init__(self, guests: "Guests", task: "asyncio.Task[None]") -> None:
        self.task = task
        self.is_known = False
        """A request over this connection was right."""
        self.is_answering = False
        """A request of it has been read, and waits for its answer: it is not sent away."""
        self._guests = guests

    def active(self) -> None:
        """It did something."""
        self._guests.moved(self)

    def know(self) -> None:
        """A request of it is right."""
        if not self.is_known:
            self.is_known = True
            self._guests.moved(self)


class Guests:
    """All connections of a server. One event loop."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._for_strangers = max(1, places // 2)
        self._strangers: OrderedDict[Guest, None] = OrderedDict()
        self._known: OrderedDict[Guest, None] = OrderedDict()
        self.sent_away = 0

    def __iter__(self) -> Iterator[Guest]:
        yield from self._strangers
        yield from self._known

    @property
    def strangers(self) -> int:
        """How many of those that are connected are strangers."""
        return len(self._strangers)

    @property
    def known(self) -> int:
        """How many are not."""
        return len(self._known)

    def enter(self, task: "asyncio.Task[None]") -> Guest | None:
        """A new connection's; another may have been sent away for it. None: all are amid an answer."""
        is_full = len(self._strangers) + len(self._known) >= self._places
        if (is_full or len(self._strangers) >= self._for_strangers) and not self.send_one_away() and is_full:
            return None
        guest = Guest(self, task)
        self._strangers[guest] = None
        return guest

    def send_one_away(self) -> bool:
        """End a connection; False: all are amid an answer."""
        leaving = next((each for each in self if not each.is_answering), None)
        if leaving is None:
            return False
        self.sent_away += 1
        self.leave(leaving)
        leaving.task.cancel()
        return True

    def leave(self, guest: Guest) -> None:
        """It is not connected any more."""
        self._strangers.pop(guest, None)
        self._known.pop(guest, None)

    def moved(self, guest: Guest) -> None:
        """It did something, or is known now: the last to be sent away."""
        if guest in self._strangers or guest in self._known:
            self.leave(guest)
            (self._known if guest.is_known else self._strangers)[guest] = None
