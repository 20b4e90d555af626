"""Requests inside of this process, by place, and the limit that it keeps alone while Redis is down.

A thread may be interrupted at any line of its own by an exception out of a signal handler. So those
inside and those that wait are held weakly: a request that is gone is in no place, however it went.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from functools import partial
from typing import Any
from weakref import ref

from ..engine.threads import Bell
from .policy import Place


class _Room:
    """`inside`: requests of this process, with whether Redis does not know of them; `queue`: their
    limits and turns, first come, first served."""

    __slots__ = ("inside", "queue")

    def __init__(self) -> None:
        self.inside: dict[ref[Any], bool] = {}
        self.queue: deque[tuple[int, ref[Turn]]] = deque()

    def sweep(self, leaver: Any = None) -> None:
        """Without those that are gone, and without the turn of `leaver`."""
        self.inside = {who: alone for who, alone in self.inside.items() if who() is not None}
        waiting = [(limit, turn()) for limit, turn in self.queue]
        self.queue = deque(
            (limit, ref(turn))
            for limit, turn in waiting
            if turn is not None and turn.who is not leaver
        )

    def let_in(self) -> list[Turn]:
        """The turns that have come, in order."""
        came = []
        while self.queue and len(self.inside) < self.queue[0][0]:
            turn = self.queue.popleft()[1]()
            if turn is not None:
                self.inside[ref(turn.who)] = True
                came.append(turn)
        return came


class Rooms:
    """Requests inside this process, by place: also those that Redis let in, so that together they
    are no more than the limit when it goes down, and when it comes back.

    `who` is any object that lives for as long as it is inside.
    """

    # A place has a room when somebody asked for it here, or may have to: while Redis lets all in,
    # to know of them is enough. Invariants: who came in with Redis's word is in _known before it
    # looks whether there is a room, and out of it before it looks once more; a new room stands
    # before it looks who is known.
    #
    # A plain lock: CPython hears no signal between taking it and the block, nor at its end.
    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._rooms: dict[Place, _Room] = {}
        self._known: dict[ref[Any], Place] = {}

    def has_room(self, place: Place) -> bool:
        """Whether those at a place are counted here: requests of it may be inside without Redis."""
        return place in self._rooms

    def came(self, place: Place, who: Any) -> None:
        """Redis let a request in that is at no other place."""
        self._known[ref(who, self._known.pop)] = place
        if place in self._rooms:
            self.enter(place, who)

    def went(self, place: Place, who: Any) -> None:
        """As leave, of a request however it came in."""
        self._known.pop(ref(who), None)
        if place in self._rooms:
            self.leave(place, who)

    def alone(self, place: Place) -> bool:
        """Whether a request is inside that Redis does not know of."""
        room = self._rooms.get(place)
        return room is not None and True in room.inside.copy().values()

    def enter(self, place: Place, who: Any, alone: bool = False) -> None:
        """Count a request in, over the limit too."""
        with self._lock:
            self._room(place).inside[ref(who)] = alone

    def ask(self, place: Place, who: Any, limit: int, most: int, wait: float) -> Turn | bool:
        """Get in below the limit (True), or a place in the queue of up to `most` for so many
        seconds, or neither (False)."""
        with self._lock:
            room = self._room(place)
            room.sweep()
            if len(room.inside) < limit and not room.queue:
                room.inside[ref(who)] = True
                return True
            if len(room.queue) >= most:
                return False
            turn = Turn(self, place, who, wait)
            room.queue.append((limit, ref(turn)))
            return turn

    def leave(self, place: Place, who: Any) -> None:
        """Count a request out again, or out of the queue; nothing where it is in neither."""
        came = []
        with self._lock:
            room = self._rooms.get(place)
            if room is not None:
                room.inside.pop(ref(who), None)
                if room.queue:
                    room.sweep(who)
                    came = room.let_in()
                if not room.inside and not room.queue:
                    del self._rooms[place]
        for turn in came:
            turn.ring()

    def settle(self, place: Place, who: Any) -> bool:
        """Whether a request that waited is inside; else it is out of the queue."""
        with self._lock:
            room = self._rooms.get(place)
            if room is not None and ref(who) in room.inside:
                return True
        self.leave(place, who)
        return False

    def inside(self, place: Place) -> int:
        with self._lock:
            room = self._rooms.get(place)
            inside = self._known_at(place) if room is None else room.inside
            return sum(who() is not None for who in inside)

    def waiting(self, place: Place) -> int:
        with self._lock:
            room = self._rooms.get(place)
            return 0 if room is None else sum(turn() is not None for _, turn in room.queue)

    def _room(self, place: Place) -> _Room:
        room = self._rooms.get(place)
        if room is None:
            room = self._rooms[place] = _Room()
            room.inside.update(dict.fromkeys(self._known_at(place), False))
        return room

    def _known_at(self, place: Place) -> list[ref[Any]]:
        return [who for who, at in self._known.copy().items() if at == place]


class Turn:
    """A step: wait for the turn. True when it came; else the place in the queue is given up."""

    # Whoever leaves decides, under the lock of the rooms; the bell says no more than "look".
    __slots__ = ("__weakref__", "_bell", "_place", "_rooms", "_seconds", "_wake", "who")

    def __init__(self, rooms: Rooms, place: Place, who: Any, seconds: float) -> None:
        self._rooms, self._place, self._seconds = rooms, place, seconds
        self._bell, self._wake, self.who = Bell(), _nothing, who

    def ring(self) -> None:
        self._bell.ring()
        self._wake()

    def do(self) -> bool:
        try:
            self._bell.wait(self._seconds)
            return self._rooms.settle(self._place, self.who)
        except BaseException:
            self._rooms.leave(self._place, self.who)
            raise

    async def ado(self) -> bool:
        loop = asyncio.get_running_loop()
        rung = loop.create_future()
        self._wake = partial(_wake, loop, rung)
        try:
            if not self._bell.wait(0):  # rung before there was anything to wake
                await asyncio.wait([rung], timeout=self._seconds)
            return self._rooms.settle(self._place, self.who)
        except GeneratorExit:
            raise  # the collector may have come inside of the rooms; and what is gone is out
        except BaseException:
            self._rooms.leave(self._place, self.who)
            raise


def _nothing() -> None:
    """A turn in sync code has the bell alone."""


def _wake(loop: asyncio.AbstractEventLoop, rung: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is over, and so is the request
        loop.call_soon_threadsafe(_resolve, rung)


def _resolve(rung: asyncio.Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)


_rooms = Rooms()


def rooms() -> Rooms:
    """This process's own: a fork starts with none."""
    global _rooms
    if _rooms.pid != os.getpid():
        _rooms = Rooms()
    return _rooms
