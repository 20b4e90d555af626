"""Places to wait in: so many requests of a process may wait, over all policies together.

A request that waits keeps its thread, and a process has few of them: when all wait, none is left
to answer the requests that no limit concerns. Waiting tasks keep a loop's memory alone.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from .. import conf
from ..engine.wire import clock
from .steps import Step

#: Seconds for which a seat may belong to a request that is about to be let in rather than to wait,
#: and between two looks for one.
SETTLES, LOOK = 0.1, 0.005


class _Seat:
    """Taken for as long as it lives: however the wait ends, its frame lets go of the seat."""

    __slots__ = ("__weakref__", "since")

    def __init__(self) -> None:
        self.since = clock()


class Seats:
    """The places of a kind of waiting (threads, tasks), of this process."""

    def __init__(self, option: str) -> None:
        self._option = option
        self._pid, self._taken = os.getpid(), weakref.WeakSet[_Seat]()

    def take(self) -> _Seat | None:
        """A seat, or None when all are taken. Two that come at once for the last may get none."""
        if self._pid != os.getpid():  # the waiting threads are not in the fork
            self._pid, self._taken = os.getpid(), weakref.WeakSet()
        most, seat = conf.current().requests[self._option], _Seat()
        self._taken.add(seat)
        if most is None or len(self._taken) <= most:
            return seat
        self._taken.discard(seat)
        return None

    def looks(self, patient: bool) -> Iterator[float]:
        """The seconds between looks for a seat, for as long as another look may help: while a seat
        is taken by a request that asked just now, and may be let in at once."""
        end = clock() + SETTLES
        while patient and (now := clock()) < end:
            if all(now - seat.since >= SETTLES for seat in list(self._taken)):
                return
            yield LOOK

    def leave(self, seat: _Seat) -> None:
        self._taken.discard(seat)


threads, tasks = Seats("max_waiting_threads"), Seats("max_waiting_tasks")


@dataclass(frozen=True, slots=True)
class Seated:
    """A step that waits, on a seat. None when there was none, and the step was not begun.

    `patient`: look again for a moment, when the seats may be those of requests that don't wait.
    """

    step: Step
    patient: bool = False

    def do(self) -> object:
        seat = threads.take()
        for seconds in threads.looks(self.patient) if seat is None else ():
            time.sleep(seconds)
            if (seat := threads.take()) is not None:
                break
        if seat is None:
            return None
        try:
            return self.step.do()
        finally:
            threads.leave(seat)

    async def ado(self) -> object:
        seat = tasks.take()
        for seconds in tasks.looks(self.patient) if seat is None else ():
            await asyncio.sleep(seconds)
            if (seat := tasks.take()) is not None:
                break
        if seat is None:
            return None
        try:
            return await self.step.ado()
        finally:
            tasks.leave(seat)
