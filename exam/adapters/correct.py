"""Three locks that are right, and must never be accused: they keep the judge honest."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import socket
import time
from typing import Any

from ..adapter import Adapter, Lost, Place
from . import serial

_SHARED: dict[int, Any] = {}


def share() -> None:
    """Before the workers are forked: what they share is made by their common parent."""
    for name in range(16):
        _SHARED[name] = multiprocessing.get_context("fork").BoundedSemaphore(1)


class MultiprocessingLock(Adapter):
    """A semaphore of the kernel. It has no lease: a holder that dies keeps it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._semaphore = _SHARED[sum(place.name.encode()) % 16]

    def acquire(self, wait: float) -> Any:
        return True if self._semaphore.acquire(timeout=wait) else None

    def release(self, grant: Any) -> None:
        self._semaphore.release()


class FileLock(Adapter):
    """flock(2), which the kernel frees when its holder dies; it is asked every few milliseconds."""

    def acquire(self, wait: float) -> Any:
        file = os.open(f"{self.place.folder}/{self.place.name}.lock", os.O_CREAT | os.O_RDWR)
        end = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if time.monotonic() >= end:
                    os.close(file)
                    return None
            time.sleep(0.005)

    def release(self, grant: Any) -> None:
        os.close(grant)


class SerialLock(Adapter):
    """Leases of a server that does one thing at a time: fair, fenced, and told by the own clock.

    `defect`: what exam/adapters/planted.py breaks.
    """

    def __init__(self, place: Place, defect: str = "") -> None:
        super().__init__(place)
        self.defect = defect
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.path.join(os.environ["EXAM_FOLDER"], serial.SOCKET))
        self._lines = self._socket.makefile("rw")

    def _do(self, what: str, **words: Any) -> dict[str, Any]:
        words |= {"do": what, "name": self.place.name, "defect": self.defect}
        self._lines.write(json.dumps(words) + "\n")
        self._lines.flush()
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer

    def acquire(self, wait: float) -> Any:
        end = time.monotonic() + wait
        while True:
            words = {"limit": self.place.limit, "lease": self.place.lease}
            got = self._do("acquire", **words, wait=max(0.0, end - time.monotonic()))
            if "token" not in got:
                return None
            if self.held(got):  # it may have been stopped on the way
                return got

    def release(self, grant: Any) -> None:
        if not self._do("release", token=grant["token"])["ok"]:
            raise Lost("it had ended")

    def held(self, grant: Any) -> bool:
        return bool(time.monotonic() < grant["until"])  # the server's clock is this machine's

    def fence(self, grant: Any) -> float | None:
        return float(grant["fence"])
