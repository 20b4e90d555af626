"""The observer: a process that records when each worker is inside, by its own monotonic clock.

Workers report on a Unix socket what they are about to do and what they did. The observer writes
each message down with its time, and answers; the worker waits for the answer. So an interval that
the observer sees lies *inside* the true one: `enter` is read after the lock said yes, and `leave`
is written down before the lock is released. A busy machine can hide an overlap, but can't make one.

Without being told, it also sees that a worker died, that it was stopped and runs again (Linux), and
that the observer or a worker was kept from running.

In a worker:

    with Seat(path, "worker 7") as seat:
        seat.ask("reports", wait=5)              # before acquire
        lease = lock.acquire(blocking_timeout=5)
        seat.enter(lease.fence)                  # after it said yes; or gave_up(), error(exc)
        while working:
            if not seat.still(lambda: lease.held):
                break                            # it said that it lost the lease: the visit ended
        else:
            seat.leave()                         # before release
            lock.release()
            seat.released()                      # after it

The socket speaks JSON, a line each way, so that a worker can be written in any language: see
`Seat`. The observer needs neither Redis nor Django.
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

#: Seconds between two looks at processes; a longer gap is written down from BUSY on.
LOOK, BUSY = 0.02, 0.1
#: A history ends here: further messages are rejected.
MAX_EVENTS = 2_000_000
#: Seconds that a worker waits for an answer.
ANSWER_SECONDS = 60


@dataclass(frozen=True)
class Event:
    """One line of the history. `at`: seconds by the observer's monotonic clock, from its start.

    what       by        meaning; `number` and `text`
    ask        worker    it is about to ask for `name`: its permits; the seconds it will wait
    enter      worker    the lock said yes: its fence, or None
    probe      worker    it is about to look whether it still holds
    held       worker    the lock said yes, after the probe
    lost       worker    the lock said that it no longer holds
    leave      worker    it is about to release
    released   worker    release returned
    refused    worker    release said that it was no longer held
    gave_up    worker    acquire said no
    error      worker    the lock raised: the error
    harm       exam      from here on harm is done on purpose: which; to whom, in `name`
    calm       exam      the harm ended
    closed     observer  the worker's connection ended
    died       observer  the worker's process ended
    stopped    observer  its process was stopped: `number` is when it was last seen running
    resumed    observer  its process runs again
    busy       observer  it, or the process in `name`, was kept from running: `number` seconds
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
    """The observer does not answer, or rejects a message."""


class Seat:
    """One worker's connection: for one thread or task, and for one visit at a time.

    A message is one JSON array in a line, `["enter", name, number, text]`; the answer is a line
    with the observer's time. The first message is `["hello", who, pid]`.
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
        """Send any message, and return the observer's time of it."""
        if os.getpid() != self._pid:
            raise Silent("a forked process needs a seat of its own")
        self._socket.sendall(json.dumps([what, *words]).encode() + b"\n")
        answer = json.loads(self._file.readline() or b"null")
        if not isinstance(answer, (int, float)):
            raise Silent(f"{what}: {answer or 'the observer ended'}")
        return answer

    def ask(self, name: str, permits: int = 1, wait: float | None = None) -> float:
        """Report the beginning of an acquire. `wait`: its longest wait, None: without end."""
        self.name = name
        return self.say("ask", name, permits, "" if wait is None else repr(wait))

    def enter(self, fence: float | None = None) -> float:
        """Report that acquire said yes."""
        return self.say("enter", self.name, fence)

    def still(self, held: Callable[[], bool] = lambda: True) -> bool:
        """Ask `held`, report its answer, and return it. Call it as often as possible while inside.

        The report comes before and after the call, so that a moment at which it was so is known.
        """
        self.say("probe", self.name)
        is_held = held()
        self.say("held" if is_held else "lost", self.name)
        return is_held

    def _report(self, what: str) -> float:
        return self.say(what, self.name)

    lost = partialmethod(_report, "lost")  # in whatever way the lock said it
    leave = partialmethod(_report, "leave")
    released = partialmethod(_report, "released")
    refused = partialmethod(_report, "refused")
    gave_up = partialmethod(_report, "gave_up")

    def error(self, error: BaseException | str) -> float:
        """Report that acquire or release raised something else."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return self.say("error", self.name, None, text[:300])

    @contextlib.contextmanager
    def harm(self, what: str, who: str = "") -> Iterator[None]:
        """Report harm that this block does: errors and waits are due. `who`: to one worker only."""
        self.say("harm", who, None, what)
        try:
            yield
        finally:
            self.say("calm", who, None, what)


# In the process of the test


class Observer:
    """The observer's process and its socket, until the block ends; it also ends with its parent."""

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
        self._process.terminate()  # a process forked from this one may keep its input open
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def seat(self, who: str) -> Seat:
        """Return a seat for this process."""
        return Seat(self.path, who)

    def history(self) -> list[Event]:
        """Return what it read and saw up to now."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(ANSWER_SECONDS)
            asking.connect(self.path)
            asking.sendall(b'["history"]\n')
            with asking.makefile("rb") as lines:
                return [Event(*json.loads(line)) for line in lines]


# The observer's process


@dataclass(eq=False)
class _Guest:
    """One connection, and its process as of the last look."""

    number: int
    pid: int = 0
    who: str = ""
    socket: socket.socket | None = None
    unread: bytes = b""
    running: float = 0.0
    stopped: bool = False


class _Loop:
    """Reads all connections on one thread, in the order in which they can be read."""

    def __init__(self, path: str) -> None:
        self._start = self._looked = time.monotonic()
        self._history: list[tuple[Any, ...]] = []
        self._observer = _Guest(0, who="observer")
        self._guests: dict[int, list[_Guest]] = {}  # of each process
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
    """Return the process at the other end, as the kernel knows it; 0 if it does not."""
    try:
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", told)[0])
    except (AttributeError, OSError):
        return 0


def is_stopped(pid: int) -> bool:
    """Return True if a process is stopped by a signal."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def _kept_waiting(pid: int) -> float:
    """Return the seconds for which a process could have run, and had no processor."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9
    return 0.0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    _loop = _Loop(sys.argv[1])
    print("ready", flush=True)
    try:
        _loop.run()
    finally:
        os.unlink(sys.argv[1])
