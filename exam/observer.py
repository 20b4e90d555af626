"""The observer: a process that records when each worker is inside, by its own monotonic clock.

On a Unix socket, workers report what they will do and what they have done. The observer records
each message with its time and answers, and the worker waits for the answer. So each observed
interval is *inside* the true one: `enter` is recorded after the grant, and `leave` before the
release. A busy machine can hide an overlap, but can't cause one.

The observer also detects that a worker died, that it was stopped and continued (on Linux), and that
the observer or a worker could not run.

In a worker:

    with Seat(path, "worker 7") as seat:
        seat.ask("reports", wait=5)              # before acquire
        lease = lock.acquire(blocking_timeout=5)
        seat.enter(lease.fence)                  # after a grant; or gave_up(), error(exc)
        while working:
            if not seat.still(lambda: lease.held):
                break                            # the lease is lost, and the visit has ended
        else:
            seat.leave()                         # before release
            lock.release()
            seat.released()                      # after release

Messages and answers are lines of JSON, so a worker can be written in any language: see `Seat`. The
observer needs neither Redis nor Django.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

#: Seconds between two checks of the processes.
LOOK = 0.02
#: A gap of more than this many seconds between two checks is recorded.
BUSY = 0.1
#: Max events of a history. Further messages are rejected.
MAX_EVENTS = 2_000_000
#: Max seconds that a worker waits for an answer.
ANSWER_SECONDS = 60


@dataclass(frozen=True)
class Event:
    """An event of the history. `at`: seconds since the observer's start, by its monotonic clock.

    what       by        meaning
    ask        worker    it will acquire `name`; `number`: permits; `text`: max seconds to wait
    enter      worker    it has a grant; `number`: the fence, or None
    probe      worker    it will check whether the lock is still held
    held       worker    the lock was held after the probe
    lost       worker    the lock reported that it is no longer held
    leave      worker    it will release
    released   worker    release returned
    refused    worker    release reported that the lock was no longer held
    gave_up    worker    acquire returned without a grant
    error      worker    the lock raised an error; `text`: the error
    harm       exam      a harm begins; `text`: which; `name`: the harmed worker, or "" for all
    calm       exam      the harm ended
    closed     observer  the worker's connection ended
    died       observer  the worker's process ended
    stopped    observer  the worker's process was stopped; `number`: when it last ran
    resumed    observer  the worker's process runs again
    busy       observer  the process `name`, or the observer, could not run for `number` seconds
    """

    at: float
    seat: int
    pid: int
    who: str
    what: str
    name: str = ""
    number: float | None = None
    text: str = ""


WORDS = {
    "ask", "enter", "probe", "held", "lost", "leave", "released", "refused", "gave_up", "error",
    "harm", "calm",
}  # fmt: skip


# The worker's side


class Silent(Exception):
    """The observer did not answer, or rejected a message."""


class Seat:
    """A worker's connection, for one thread or task, and for one visit at a time.

    A message is a JSON array in a line, `["enter", name, number, text]`. The answer is a line with
    the observer's time. The first message is `["hello", who, pid]`.
    """

    def __init__(self, path: str | os.PathLike[str], who: str = "") -> None:
        self.name, self._pid = "", os.getpid()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_SECONDS)
        self._socket.connect(os.fspath(path))
        self._file = self._socket.makefile("rb")
        self.say("hello", who or f"pid {self._pid}", self._pid)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close without a message, as if the worker had ended."""
        self._file.close()
        self._socket.close()

    def say(self, what: str, *words: Any) -> float:
        """Send a message, and return the observer's time. Raise Silent if there is no answer."""
        if os.getpid() != self._pid:
            raise Silent("a forked process needs its own Seat")
        self._socket.sendall(json.dumps([what, *words]).encode() + b"\n")
        answer = json.loads(self._file.readline() or b"null")
        if not isinstance(answer, (int, float)):
            raise Silent(f"{what}: {answer or 'the observer ended'}")
        return answer

    def ask(self, name: str, permits: int = 1, wait: float | None = None) -> float:
        """Report the beginning of an acquire. `wait`: max seconds to wait, or None."""
        self.name = name
        return self.say("ask", name, permits, "" if wait is None else repr(wait))

    def enter(self, fence: float | None = None) -> float:
        """Report a grant."""
        return self.say("enter", self.name, fence)

    def still(self, held: Callable[[], bool] = lambda: True) -> bool:
        """Return `held()`, and report it. Call this as often as possible while inside.

        There is a report before and after the call, so the time of the answer is between them.
        """
        self.say("probe", self.name)
        is_held = held()
        self.say("held" if is_held else "lost", self.name)
        return is_held

    def _report(self, what: str) -> float:
        return self.say(what, self.name)

    lost = partialmethod(_report, "lost")
    leave = partialmethod(_report, "leave")
    released = partialmethod(_report, "released")
    refused = partialmethod(_report, "refused")
    gave_up = partialmethod(_report, "gave_up")

    def error(self, error: BaseException | str) -> float:
        """Report an error of acquire or release."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return self.say("error", self.name, None, text[:300])

    @contextlib.contextmanager
    def harm(self, what: str, who: str = "") -> Iterator[None]:
        """Report that this block does harm, so that errors and waits are expected. `who`: the only
        worker that is harmed."""
        self.say("harm", who, None, what)
        try:
            yield
        finally:
            self.say("calm", who, None, what)


# In the process of the test


class Observer:
    """The observer's process and its socket. They end with the block, or with this process."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="observer-"))
        #: The address for `Seat`.
        self.path = str(self._folder / "socket")

    def __enter__(self) -> Observer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.observer", self.path],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if not self._process.stdout.readline():
            self.__exit__()
            raise Silent("the observer did not start")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()  # a forked process may keep its input open
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def seat(self, who: str) -> Seat:
        """Return a seat for this process."""
        return Seat(self.path, who)

    def history(self) -> list[Event]:
        """Return the events until now."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(ANSWER_SECONDS)
            asking.connect(self.path)
            asking.sendall(b'["history"]\n')
            with asking.makefile("rb") as lines:
                return [Event(*json.loads(line)) for line in lines]


# The observer's process


@dataclass(eq=False)
class _Guest:
    """A connection, and the state of its process at the last check."""

    number: int
    pid: int = 0
    who: str = ""
    socket: socket.socket | None = None
    unread: bytes = b""
    running: float = 0.0
    stopped: bool = False


class _Loop:
    """The observer's loop, which reads all connections in one thread, in the order of arrival."""

    def __init__(self, path: str) -> None:
        self._start = self._looked = time.monotonic()
        self._history: list[tuple[Any, ...]] = []
        self._observer = _Guest(0, who="observer")
        self._guests: dict[int, list[_Guest]] = {}  # by process id
        self._kept_waiting: dict[int, float] = {}
        self._numbers = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(path)
        self._door.listen(4096)
        self._selector.register(self._door, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, lambda _: sys.exit())

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(LOOK):
                key.data(key.fileobj)
            self._look()

    def _now(self) -> float:
        return round(time.monotonic() - self._start, 6)

    def _write(self, guest: _Guest, what: str, *words: Any) -> float:
        at = self._now()
        self._history.append((at, guest.number, guest.pid, guest.who, what, *words))
        return at

    # Connections

    def _accept(self, door: socket.socket) -> None:
        connection, _ = door.accept()
        guest = _Guest(next(self._numbers), _peer(connection), socket=connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._read(guest))

    def _read(self, guest: _Guest) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = guest.socket.recv(65536)
        if not data:
            self._selector.unregister(guest.socket)
            guest.socket.close()
            if guest.who:
                self._write(guest, "closed")
            return
        *lines, guest.unread = (guest.unread + data).split(b"\n")
        for line in lines:
            try:
                what, *words = json.loads(line)
                answer = self._answer(guest, what, words)
            except (ValueError, TypeError) as error:
                answer = f"not understood: {error}"
            with contextlib.suppress(OSError):
                guest.socket.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, guest: _Guest, what: str, words: list[Any]) -> float | str:
        if what == "history":
            guest.socket.settimeout(ANSWER_SECONDS)
            with contextlib.suppress(OSError):
                for start in range(0, len(self._history), 1000):
                    some = self._history[start : start + 1000]
                    guest.socket.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in some))
                guest.socket.shutdown(socket.SHUT_RDWR)
            return 0.0
        if what == "hello":
            self._watch(guest, *words)
            return self._now()
        if what not in WORDS or not guest.who:
            return f"{what!r} is unknown, or hello is missing"
        if len(self._history) >= MAX_EVENTS:
            return "this history is full"
        return self._write(guest, what, *words)

    # Processes

    def _watch(self, guest: _Guest, who: str, pid: int) -> None:
        guest.who, guest.pid, guest.running = str(who), guest.pid or int(pid), self._now()
        if guest.pid not in self._guests:
            self._kept_waiting[guest.pid] = _kept_waiting(guest.pid)
            with contextlib.suppress(AttributeError, OSError):  # an old kernel, or not Linux
                ending = os.pidfd_open(guest.pid)
                died = partial(self._died, pid=guest.pid)
                self._selector.register(ending, selectors.EVENT_READ, died)
        self._guests.setdefault(guest.pid, []).append(guest)

    def _died(self, ending: int, pid: int) -> None:
        self._selector.unregister(ending)
        os.close(ending)
        for guest in self._guests.pop(pid):
            self._write(guest, "died")

    def _look(self) -> None:
        gap = time.monotonic() - self._looked
        if gap < LOOK:
            return
        self._looked += gap
        if gap > BUSY:
            self._write(self._observer, "busy", "", round(gap - LOOK, 3))
        for pid, guests in self._guests.items():
            now, stops, waited = self._now(), is_stopped(pid), _kept_waiting(pid)
            since = waited - self._kept_waiting[pid]
            if since > BUSY / 2:
                self._write(self._observer, "busy", str(pid), round(since, 3))
                self._kept_waiting[pid] = waited
            for guest in guests:
                if stops != guest.stopped:
                    self._write(guest, "stopped" if stops else "resumed", "", guest.running)
                guest.stopped, guest.running = stops, guest.running if stops else now


def _peer(connection: socket.socket) -> int:
    """Return the id of the process at the other end, or 0 if the kernel can't provide it."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", data)[0])
    except (AttributeError, OSError):
        return 0


def is_stopped(pid: int) -> bool:
    """Return True if a process was stopped by a signal."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def _kept_waiting(pid: int) -> float:
    """Return the seconds for which a process had to wait for a processor."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9
    return 0.0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    _loop = _Loop(sys.argv[1])
    print("ready", flush=True)
    try:
        _loop.run()
    finally:
        os.unlink(sys.argv[1])
