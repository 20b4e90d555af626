"""Runs receivers of lost leases on threads of their own: none holds up a renewal or another."""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from .wire import RETRY

logger = logging.getLogger("django_redis_sync")

#: Receivers that run at the same time at the most, and seconds for which a thread waits for more.
MOST_AT_ONCE, LINGER = 8, 5.0


class Courier:
    """Runs the receivers it is sent, on as many threads as are busy; a batch runs in its order.

    A receiver is the project's own code: an exception, SystemExit too, ends that receiver only.
    """

    # Invariant: _idle has a mark of each thread that waits and that no call was sent for; whoever
    # sends one takes a mark, or starts a thread.
    def __init__(self) -> None:
        self.pid = os.getpid()
        self._todo: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._idle: list[object] = []
        self._threads: dict[object, None] = {}

    def send(self, *calls: Callable[[], Any]) -> None:
        """Run them in turn, each even when another fails."""
        self._todo.put(lambda: _run_all(calls))
        try:
            self._idle.pop()
        except IndexError:
            self._start()

    @property
    def stuck(self) -> bool:
        """Whether there is something to run, and no thread."""
        return not self._threads and not self._todo.empty()

    def look_after(self) -> bool:
        """Start a thread where none could be started. Whether there is still none."""
        if self.stuck:
            self._start()
        return self.stuck

    def _start(self) -> None:
        if len(self._threads) >= MOST_AT_ONCE:
            return
        mark = object()
        thread = threading.Thread(
            target=self._run, args=(mark,), name="redis-sync-courier", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            logger.error("receivers wait for a thread, which could not start: %s", error)

    def _run(self, mark: object) -> None:
        self._threads[mark] = None
        try:
            while self._serve(mark):
                pass
        finally:
            del self._threads[mark]
            self.look_after()

    def _serve(self, mark: object) -> bool:
        """Run the next batch; False when none came for long."""
        try:
            call = self._todo.get_nowait()
        except queue.Empty:
            self._idle.append(mark)
            try:
                call = self._todo.get(timeout=LINGER)
            except queue.Empty:
                return not _taken_back(mark, self._idle)
            _taken_back(mark, self._idle)
        call()
        return True


def _taken_back(mark: object, idle: list[object]) -> bool:
    try:
        idle.remove(mark)
    except ValueError:  # the next sender has it: a call comes
        return False
    return True


def _run_all(calls: tuple[Callable[[], Any], ...]) -> None:
    from django.db import connections as databases

    for call in calls:
        try:
            call()
        except BaseException:
            logger.exception("a receiver of a lost lease failed")
    databases.close_all()


_courier: Courier | None = None


def tell(*calls: Callable[[], Any]) -> None:
    """Run receivers off this thread, in turn."""
    global _courier
    if _courier is None or _courier.pid != os.getpid():
        _courier = Courier()
    _courier.send(*calls)


def look_after(now: float) -> float:
    """For a thread that is there: start one for receivers where none could be started; when to do
    that again."""
    stuck = _courier is not None and _courier.pid == os.getpid() and _courier.look_after()
    return now + RETRY if stuck else math.inf
