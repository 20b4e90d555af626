"""Places to wait in: so many requests of a process may wait, over all policies together.

A request that waits keeps its thread, and a process has few of them: when all wait, none is left
to answer the requests that no limit concerns. Waiting tasks keep a loop's memory alone.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass

from .. import conf
from .steps import Step


class _Seat:
    """Taken for as long as it lives: however the wait ends, its frame lets go of the seat."""

    __slots__ = ("__weakref__",)


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

    def leave(self, seat: _Seat) -> None:
        self._taken.discard(seat)


threads, tasks = Seats("max_waiting_threads"), Seats("max_waiting_tasks")


@dataclass(frozen=True, slots=True)
class Seated:
    """A step that waits, on a seat. None when there was none, and the step was not begun."""

    step: Step

    def do(self) -> object:
        seat = threads.take()
        if seat is None:
            return None
        try:
            return self.step.do()
        finally:
            threads.leave(seat)

    async def ado(self) -> object:
        seat = tasks.take()
        if seat is None:
            return None
        try:
            return await self.step.ado()
        finally:
            tasks.leave(seat)
