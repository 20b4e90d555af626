"""Runs receivers of lost leases on a thread of their own: none holds up a renewal."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("django_redis_sync")


class Courier:
    """Runs receivers one after the other, on a thread that ends when there is nothing to do."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._todo: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, call: Callable[[], Any]) -> None:
        self._todo.put(call)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="redis-sync-courier", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        from django.db import connections as databases

        while True:
            try:
                call = self._todo.get(timeout=5)
            except queue.Empty:
                with self._lock:
                    if self._todo.empty():
                        self._thread = None
                        return
                continue
            try:
                call()
            except Exception:
                logger.exception("a receiver of a lost lease failed")
            finally:
                databases.close_all()


_courier: Courier | None = None


def tell(call: Callable[[], Any]) -> None:
    """Run a receiver off the keeper's thread."""
    global _courier
    if _courier is None or _courier.pid != os.getpid():
        _courier = Courier()
    _courier.send(call)
