"""Count how many requests are inside a view at once, across all threads and processes.

The witness checks the Redis locks, so it must not use Redis. Each request locks a file of its own
with `flock`. If a worker is killed, the kernel unlocks its files, so its requests no longer count.
"""

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from django.conf import settings


@dataclass(frozen=True)
class Visit:
    """A request that entered a view: its page, its times, and the number of requests inside."""

    who: str  # the page's path, or the name of a customer
    pid: int  # pid of the worker
    parent: int  # pid of the server that started the worker
    arrived: float  # monotonic seconds, the same clock in every process of a machine
    entered: float
    inside: int  # number of requests inside when this request entered, itself included

    @property
    def waited(self) -> float:
        """Seconds between arrival and entry."""
        return self.entered - self.arrived


class Witness:
    """Counts the requests inside the views of one name. A file lock makes each count exact."""

    def __init__(self, name: str) -> None:
        self.folder = Path(settings.DEMO_DIR) / "witness" / name

    @contextmanager
    def watch(self, who: str, arrived: float) -> Iterator[Visit]:
        """Count a request as inside during the `with` block. `who`: the page or customer."""
        with self._gate():
            visit = Visit(
                who, os.getpid(), os.getppid(), arrived, time.monotonic(), len(self._present()) + 1
            )
            path = self.folder / f"{uuid.uuid4().hex}.visit"
            record = json.dumps(asdict(visit))
            file = path.open("x")
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(record)
            file.flush()
            with self._log.open("a") as log:
                log.write(record + "\n")
        try:
            yield visit
        finally:
            with self._gate():
                path.unlink()
                file.close()

    def present(self) -> list[Visit]:
        """Return the requests that are inside now."""
        with self._gate():
            return self._present()

    def visits(self) -> list[Visit]:
        """Return all requests that entered since the last `forget()`, in the order of entry."""
        with self._gate():
            lines = self._log.read_text().splitlines() if self._log.exists() else []
            return [Visit(**json.loads(line)) for line in lines]

    def forget(self) -> None:
        """Delete the log of entries. Requests that are inside are still counted as inside."""
        with self._gate():
            self._log.unlink(missing_ok=True)

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """Let only one thread of all processes run the `with` block at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "gate").open("a") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield

    def _present(self) -> list[Visit]:
        """Return the requests with a locked file. Delete the other files, because their processes
        have ended."""
        found = []
        for path in self.folder.glob("*.visit"):
            with path.open("r") as file:
                if _is_locked(file):
                    found.append(Visit(**json.load(file)))
                else:
                    path.unlink()
        return found


def _is_locked(file: TextIO) -> bool:
    """Return True if a process holds the lock on this file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
