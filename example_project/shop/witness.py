"""A witness who counts how many are inside at once, across all threads and processes.

It must not believe what it is there to check, so it uses no Redis: every visit holds an `flock`
on a file of its own. The kernel gives that up when the process ends, however it ends, so that a
killed worker is not counted for ever.
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
    """One request that got in: who, when, and how many were inside with it."""

    who: str  # the page's path
    pid: int  # the worker
    parent: int  # its server
    arrived: float  # monotonic seconds, the same clock in every process of a machine
    entered: float
    inside: int  # this one counted

    @property
    def waited(self) -> float:
        """Seconds between arriving and getting in."""
        return self.entered - self.arrived


class Witness:
    """Watches one name. Every short step is taken behind one gate, so that each count is exact."""

    def __init__(self, name: str) -> None:
        self.folder = Path(settings.DEMO_DIR) / "witness" / name

    @contextmanager
    def watch(self, who: str, arrived: float) -> Iterator[Visit]:
        """Be counted as inside for the length of the `with` block."""
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
        """Who is inside now."""
        with self._gate():
            return self._present()

    def visits(self) -> list[Visit]:
        """Everyone who got in since the last `forget`, in the order of getting in."""
        with self._gate():
            lines = self._log.read_text().splitlines() if self._log.exists() else []
            return [Visit(**json.loads(line)) for line in lines]

    def forget(self) -> None:
        """Start a new log; who is inside stays inside."""
        with self._gate():
            self._log.unlink(missing_ok=True)

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """One at a time, in any thread of any process; held for well under a millisecond."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "gate").open("a") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield

    def _present(self) -> list[Visit]:
        """The visits whose files are still locked; files of the dead are swept away."""
        found = []
        for path in self.folder.glob("*.visit"):
            with path.open("r") as file:
                if _is_locked(file):
                    found.append(Visit(**json.load(file)))
                else:
                    path.unlink()
        return found


def _is_locked(file: TextIO) -> bool:
    """Whether some living process holds this file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
