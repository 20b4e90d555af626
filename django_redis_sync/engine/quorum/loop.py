"""The event loop on which sync code's steps are carried out, on a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import threading
from collections.abc import Coroutine
from typing import Any

from ...protocol.plans import Failure
from ..wire import clock


class _Loop:
    """RuntimeError when its thread can't be started; nothing is left then."""

    def __init__(self) -> None:
        self.pid, self.loop = os.getpid(), asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="redis-sync-quorum", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:
            self.loop.close()
            raise
        atexit.register(self.stop)

    @property
    def runs(self) -> bool:
        return self.pid == os.getpid() and self._thread.is_alive()

    def stop(self) -> None:
        if self.runs:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(1.0)

    def do(self, body: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of `body`. Interrupted: it is cancelled."""
        # Not a concurrent future: a waiter that a signal's exception interrupts could leave its
        # lock taken, and the loop would wait for that for ever.
        done: queue.SimpleQueue[asyncio.Task[Any]] = queue.SimpleQueue()
        begun: list[asyncio.Task[Any]] = []

        def begin() -> None:
            begun.append(self.loop.create_task(body))
            begun[0].add_done_callback(done.put)

        self.loop.call_soon_threadsafe(begin)
        try:
            task = done.get()
        except BaseException:
            # Queued behind `begin`, so the task is there by then.
            self.loop.call_soon_threadsafe(lambda: begun[0].cancel())
            raise
        return task.result()


_loop: _Loop | None = None
#: Against a herd only: a caller interrupted while it has it costs the others a moment.
_making = threading.Lock()


def on_our_loop(body: Coroutine[Any, Any, Any]) -> Any:
    """The outcome of `body`. Failure when there is no thread for it."""
    try:
        loop = _running()
    except RuntimeError as error:
        body.close()
        raise Failure(error, clock(), "unreachable") from error
    return loop.do(body)


def _running() -> _Loop:
    global _loop
    if _loop is None or not _loop.runs:
        first = _making.acquire(timeout=1)
        try:
            if _loop is None or not _loop.runs:
                _loop = _Loop()
        finally:
            if first:
                _making.release()
    return _loop
