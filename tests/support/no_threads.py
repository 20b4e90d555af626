"""A process that can't start a thread of the library, for example at its process limit."""

from __future__ import annotations

import threading

import pytest


class NoThreads:
    """In the `with` block, no thread of the library can start. `tried`: number of failed starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.tried = monkeypatch, 0

    def __enter__(self) -> NoThreads:
        start = threading.Thread.start

        def fail(thread: threading.Thread) -> None:
            if not thread.name.startswith("redis-sync"):
                return start(thread)
            self.tried += 1
            raise RuntimeError("can't start new thread")

        self._context = self.patch.context()
        self._context.__enter__().setattr(threading.Thread, "start", fail)
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)
