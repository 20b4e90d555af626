"""How threads of a worker talk to the thread of its consumer, and a thread that sends tasks."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...engine.mutex import Mutex, start_thread
from ...logs import logger

Event = Callable[[], None]


class Inbox:
    """Calls events of other threads in the thread of Celery's event loop. If Celery has no event
    loop, as with gevent, calls them in a thread of its own, where Celery's own timers also run.
    `lock`: held during each call."""

    def __init__(self, lock: Mutex) -> None:
        self._lock = lock
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._hub: Any = None
        self._listener: threading.Thread | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def join(self, hub: Any) -> None:
        """Use an event loop of Celery."""
        self._hub = hub
        hub.add_reader(self._read, self._drain)

    def put(self, event: Event) -> None:
        self._events.put(event)
        if self._hub is not None:
            with suppress(BlockingIOError):  # the pipe is full, so the thread wakes up in any case
                os.write(self._write, b"x")
        elif self._listener is None:
            self._listener = start_thread(self._listen, "redis-sync-listen")

    def _drain(self, *_: Any) -> None:
        with suppress(BlockingIOError):
            os.read(self._read, 65536)
        while not self._events.empty():
            self._handle(self._events.get())

    def _listen(self) -> None:
        while True:
            self._handle(self._events.get())

    def _handle(self, event: Event) -> None:
        try:
            self._lock.run(event)
        except Exception:  # the other tasks still have to be served
            logger.exception("could not continue with a held task")


class Sender:
    """Sends letters, one after the other, in a thread."""

    def __init__(self) -> None:
        self._letters: queue.SimpleQueue[tuple[Event, Event, Callable[[Exception], None]]]
        self._letters = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, send: Event, sent: Event, failed: Callable[[Exception], None]) -> None:
        """Call `send`, and then `sent`, or `failed` with the exception of `send`."""
        self._letters.put((send, sent, failed))
        if self._thread is None:
            self._thread = start_thread(self._run, "redis-sync-send-again")

    def _run(self) -> None:
        while True:
            send, sent, failed = self._letters.get()
            try:
                send()
            except Exception as error:
                failed(error)
            else:
                sent()
