"""The observer records when each worker is inside: when the worker holds the lock.

Workers report what they will do and what they have done. A report is a line in a file. The line has
the time of the monotonic clock, which all processes of a machine share. A worker reports `enter`
after the grant, and `leave` before the release. So the observer sees a worker inside only while
this worker really holds the lock. A busy machine can hide an overlap of holders, but not cause one.

A thread of the observer records when a worker dies, is stopped by SIGSTOP, or runs again. It also
records when a worker, a watched server, or the thread itself can't run. This needs Linux.

A line is a JSON array: [time, reporter, pid, who, what, name, number, text], see `Event`.
`reporter` is a text that is unique to the thread or task that reports. In its first line, `what` is
"hello". A worker can be written in any language.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

#: Seconds between two checks of all processes (LOOK) and of all threads (LOOK_AT_THREADS).
LOOK, LOOK_AT_THREADS = 0.02, 0.2
#: The observer records that it could not run, if this lasted more than BUSY seconds. For other
#: processes, it records times of more than half of BUSY.
BUSY = 0.1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Event:
    """An event of the history. `at`: seconds since the observer's start.

    what       by        meaning
    ask        worker    it will acquire `name`; `number`: max seconds to wait, or None
    enter      worker    it has a grant; `number`: the fence, or None
    probe      worker    it will check whether the lock is still held
    held       worker    the lock was held after the probe
    lost       worker    the lock reported that it is no longer held
    leave      worker    it will release
    released   worker    release returned
    refused    worker    release reported that the lock was no longer held
    gave_up    worker    acquire returned without a grant
    error      worker    the lock raised an error; `text`: the error
    closed     worker    it will report no more
    fault      exam      a fault begins; `text`: which; `name`: the affected worker, or "" for all
    fault_end  exam      the fault ended
    died       observer  the worker's process ended
    stopped    observer  the worker's process was stopped by SIGSTOP; `number`: when it ran last
    resumed    observer  the worker's process runs again
    busy       observer  the process `name`, or the observer, could not run for `number` seconds
    """

    at: float
    reporter: str
    pid: int
    who: str
    what: str
    name: str = ""
    number: float | None = None
    text: str = ""


class Reporter(contextlib.AbstractContextManager["Reporter"]):
    """Reports the events of one thread or task, which may hold only one lock at a time."""

    _numbers = itertools.count(1)

    def __init__(self, path: str, who: str = "") -> None:
        self.name, self._pid = "", os.getpid()
        self._who = [f"{self._pid}.{next(self._numbers)}", self._pid, who or f"pid {self._pid}"]
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.say("hello")

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.say("closed")
        os.close(self._file)

    def say(
        self, what: str, name: str | None = None, number: float | None = None, text: str = ""
    ) -> float:
        """Report an event, and return its time. `name`: by default, the name of the last `ask`."""
        if os.getpid() != self._pid:
            raise RuntimeError("a forked process needs a Reporter of its own")
        at, name = time.monotonic(), self.name if name is None else name
        line = json.dumps([at, *self._who, what, name, number, text]) + "\n"
        os.write(self._file, line.encode())
        return at

    def ask(self, name: str, wait: float | None = None) -> float:
        """Report the beginning of an acquire. `wait`: max seconds to wait, or None."""
        self.name = name
        return self.say("ask", name, wait)

    def enter(self, fence: float | None = None) -> float:
        """Report a grant. `fence`: its fencing token, if any."""
        return self.say("enter", None, fence)

    def still(self, held: Callable[[], bool] = lambda: True) -> bool:
        """Report a probe, call `held`, report its result, and return it. At some time between the
        two reports, the result was right. A holder should call this method as often as possible."""
        self.say("probe")
        is_held = held()
        self.say("held" if is_held else "lost")
        return is_held

    leave = partialmethod(say, "leave")
    released = partialmethod(say, "released")
    refused = partialmethod(say, "refused")
    gave_up = partialmethod(say, "gave_up")

    def error(self, error: BaseException) -> float:
        """Report an error of acquire or release."""
        return self.say("error", text=f"{type(error).__name__}: {error}"[:300])

    @contextlib.contextmanager
    def fault(self, what: str, *whom: str) -> Iterator[None]:
        """Report a fault for the time of the `with` block, so that the checker excuses errors.
        `what`: the fault. `whom`: the names of the affected workers; by default, all workers."""
        for who in whom or [""]:
            self.say("fault", who, text=what)
        try:
            yield
        finally:
            for who in whom or [""]:
                self.say("fault_end", who, text=what)


class _Process:
    """A process that the observer watches, and the state of the process at the last check."""

    def __init__(self, pid: int) -> None:
        self.pid, self.times = pid, times(pid)
        self.reporters: list[tuple[str, int, str]] = []
        self.running, self.stopped = time.monotonic(), False


class Observer(contextlib.AbstractContextManager["Observer"]):
    """A file for the reports of workers, and a thread that watches processes. The end of the `with`
    block removes the file and ends the thread."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._file = tempfile.NamedTemporaryFile(prefix="observer-", buffering=0)  # noqa: SIM115
        #: Path of the file to which workers write reports. It is the first argument of `Reporter`.
        self.path = self._file.name
        self._unread = b""
        self._events: list[Event] = []
        self._processes: dict[int, _Process] = {}
        self._guard, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._file.close()

    def reporter(self, who: str) -> Reporter:
        """Return a Reporter, with which this process can report events under the name `who`."""
        return Reporter(self.path, who)

    def watch(self, pid: int) -> None:
        """Watch a process, such as a server: record the times when this process can't run."""
        self._processes.setdefault(pid, _Process(pid))

    def history(self) -> list[Event]:
        """Return all events until now, in the order of their times."""
        with self._guard:
            self._read()
            return sorted(self._events, key=lambda event: event.at)

    def _read(self) -> None:
        """Read the new lines of the file of reports, and add an event for each."""
        *lines, self._unread = (self._unread + self._file.read()).split(b"\n")
        for line in lines:
            at, reporter, pid, who, what, *words = json.loads(line)
            if what == "hello":
                process = self._processes.setdefault(pid, _Process(pid))
                process.reporters.append((reporter, pid, who))
            else:
                self._add(at, (reporter, pid, who), what, *words)

    def _add(self, at: float, reporter: tuple[str, int, str], what: str, *words: Any) -> None:
        self._events.append(Event(round(at - self._start, 6), *reporter, what, *words))

    def _watch(self) -> None:
        last = looked_at_threads = time.monotonic()
        while not self._ended.wait(LOOK):
            now = time.monotonic()
            with self._guard:
                self._read()
                if now - last > LOOK + BUSY:
                    self._add(now, ("", 0, "observer"), "busy", "", now - last - LOOK)
                if look_at_threads := now - looked_at_threads > LOOK_AT_THREADS:
                    looked_at_threads = now
                for process in [*self._processes.values()]:
                    self._look(process, look_at_threads)
            last = now

    def _look(self, process: _Process, threads: bool) -> None:
        """Record if a process has died, was stopped, or runs again. If `threads` is true, also
        record for how long a thread of the process had to wait for a processor."""
        now, letter = time.monotonic(), state(process.pid)
        if letter in ("", "Z", "X"):
            del self._processes[process.pid]
            for reporter in process.reporters:
                self._add(now, reporter, "died")
            return
        if (letter == "T") != process.stopped:
            process.stopped = letter == "T"
            what = "stopped" if process.stopped else "resumed"
            for reporter in process.reporters:
                self._add(now, reporter, what, "", process.running - self._start)
        if not process.stopped:
            process.running = now
        if threads:
            spent, before = times(process.pid), process.times
            longest = max((spent[it][1] - before.get(it, (0, 0.0))[1] for it in spent), default=0.0)
            if longest > BUSY / 2:
                self._add(now, ("", 0, "observer"), "busy", str(process.pid), longest)
                process.times = spent


def die_with_parent() -> None:
    """Ask the kernel to kill this process if its parent dies."""
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def state(pid: int) -> str:
    """Return the kernel's letter for the state of a process, or "" if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].upper()
    return ""


def times(pid: int) -> dict[str, tuple[float, float]]:
    """For each thread of a process, return two times in seconds: how long the thread ran, and how
    long it waited for a processor."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError):
                ran, waited, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                found[thread] = int(ran) / 1e9, int(waited) / 1e9
    return found
