"""The event loop on which sync code's steps are carried out, on a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any


class _Loop:
    def __init__(self) -> None:
        self.pid, self.loop = os.getpid(), asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="redis-sync-quorum", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self.pid == os.getpid() and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(1.0)


_loop: _Loop | None = None
_making = threading.Lock()


def on_our_loop(body: Coroutine[Any, Any, Any]) -> Any:
    """What `body` returns or raises. Interrupted: it is cancelled."""
    global _loop
    with _making:
        if _loop is None or _loop.pid != os.getpid():
            _loop = _Loop()
            atexit.register(_loop.stop)
    future = asyncio.run_coroutine_threadsafe(body, _loop.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
