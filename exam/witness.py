"""The outside witness: a process that hears who is inside, and trusts nobody's clock but its own.

Workers say on a Unix socket what they are about to do and what they did. The witness writes every
message down with its own monotonic time, and answers; a worker waits for that answer. So whatever
interval the witness sees lies *inside* the true one: `enter` is heard after the lock said yes, and
`leave` is written down before the lock is given back. A busy machine can hide an overlap from it;
it can't make one up.

It also sees, without being told, that a worker died (its socket closes, its process ends), that it
was stopped and goes on (its state in /proc; Linux), and that the machine was too busy to look.

In a test:

    with Witness() as witness:
        ...  # start workers; each thread or task of theirs opens Seat(witness.path)
        found = judge(witness.history(), Claims(limit=2, lease=2, told=True))
    assert [] == found

In a worker:

    with Seat(path, "worker 7") as seat:
        seat.ask("reports", wait=5)              # before acquire
        lease = lock.acquire(blocking_timeout=5)
        seat.enter(lease.fence)                  # after it said yes; or gave_up(), error(exc)
        while working:
            if not seat.still(lambda: lease.held):
                break                            # it said that it lost it: the visit is over
        else:
            seat.leave()                         # before release
            lock.release()
            seat.back()                          # after it

The socket speaks JSON, a line each way, so that a worker can be written in any language: see
`Seat`. The witness needs neither Redis nor Django.
"""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Seconds between two looks at the states of processes; it was busy when they lie far apart.
LOOK, BUSY = 0.02, 0.1
#: A history ends here: whoever says more is cut off.
MOST_EVENTS = 2_000_000
#: Seconds that a worker waits for the answer of the witness.
ANSWER_SECONDS = 60


@dataclass(frozen=True)
class Event:
    """One line of the history. `at`: seconds by the witness' monotonic clock, from its start.

    what       by     meaning; `number` and `text`
    ask        worker it is about to ask for `name`: its permits; the seconds it will wait ("" for
                      ever)
    enter      worker the lock said yes: its fence, or None
    probe      worker it is about to ask whether it still holds
    still      worker it was told so, after the probe
    lost       worker the lock told it that it holds no longer
    leave      worker it is about to give back
    back       worker giving back returned
    refused    worker giving back was refused, as no longer its own
    gave_up    worker the lock said no
    error      worker the lock raised: the error
    trouble    exam   from here on harm is done on purpose: which; to whom, in `name`
    peace      exam   from here on it is not
    closed     -      the worker's connection ended
    died       -      the worker's process ended
    stopped    -      its process was stopped: `number` is when it was last seen going
    resumed    -      its process goes on: `number` is when it was last seen stopped
    busy       -      the witness could not look for `number` seconds
    """

    at: float
    seat: int
    pid: int
    who: str
    what: str
    name: str = ""
    number: float | None = None
    text: str = ""


# The worker's side


class Silent(Exception):
    """The witness does not answer, or refuses a message."""


class Seat:
    """One worker's connection: for one thread or task, and for one visit at a time.

    A message is one JSON array in a line, `["enter", name, number, text]`; the answer is a line
    with the witness' time. The first message is `["hello", who, pid]`.
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
        """Without a word of leaving: as if the worker had ended."""
        self._file.close()
        self._socket.close()

    def say(self, what: str, *words: Any) -> float:
        """Send any message; the witness' time of it."""
        if os.getpid() != self._pid:
            raise Silent("a forked process needs a seat of its own")
        self._socket.sendall(json.dumps([what, *words]).encode() + b"\n")
        answer = json.loads(self._file.readline() or b"null")
        if not isinstance(answer, (int, float)):
            raise Silent(f"{what}: {answer or 'the witness has gone'}")
        return answer

    def ask(self, name: str, permits: int = 1, wait: float | None = None) -> float:
        """Before acquire; `wait`: the seconds it will wait at the most, None for ever."""
        self.name = name
        return self.say("ask", name, permits, "" if wait is None else repr(wait))

    def enter(self, fence: float | None = None) -> float:
        """After acquire said yes."""
        return self.say("enter", self.name, fence)

    def still(self, held: Callable[[], bool] = lambda: True) -> bool:
        """While inside, as often as possible: asks `held`, and passes on what it said.

        The witness is spoken to before and after, and so knows of a moment at which it was so.
        """
        self.say("probe", self.name)
        is_held = held()
        self.say("still" if is_held else "lost", self.name)
        return is_held

    def lost(self) -> float:
        """The lock told that it is no longer held, in whatever way."""
        return self.say("lost", self.name)

    def leave(self) -> float:
        """Before release."""
        return self.say("leave", self.name)

    def back(self) -> float:
        """After release returned."""
        return self.say("back", self.name)

    def refused(self) -> float:
        """Release said that it was no longer held."""
        return self.say("refused", self.name)

    def gave_up(self) -> float:
        """Acquire said no."""
        return self.say("gave_up", self.name)

    def error(self, error: BaseException | str) -> float:
        """Acquire or release raised something else."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return self.say("error", self.name, None, text[:300])

    @contextlib.contextmanager
    def trouble(self, what: str, who: str = "") -> Iterator[None]:
        """Said by whoever does harm: errors and waits are due in this block. `who`: to one only,
        whose errors are due; the others' waits are not."""
        self.say("trouble", who, None, what)
        try:
            yield
        finally:
            self.say("peace", who, None, what)


# The side of the test


class Witness:
    """The witness' process and its socket, until the block ends; it also ends with its parent."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="witness-"))
        #: The address for `Seat`.
        self.path = str(self._folder / "socket")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Witness:
        words = [sys.executable, "-m", "exam.witness", self.path]
        root = Path(__file__).resolve().parents[1]
        self._process = subprocess.Popen(
            words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.__exit__()
            raise Silent("the witness did not start")
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()  # a process forked from this one may keep its input open
            self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def seat(self, who: str) -> Seat:
        """A seat for this process."""
        return Seat(self.path, who)

    def history(self) -> list[Event]:
        """What it heard and saw up to now."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(ANSWER_SECONDS)
            asking.connect(self.path)
            asking.sendall(b'["history"]\n')
            with asking.makefile("rb") as lines:
                return [Event(*json.loads(line)) for line in lines]


# The witness itself

#: What a worker may say, hello apart.
WORDS = {
    "ask", "enter", "probe", "still", "lost", "leave", "back", "refused", "gave_up", "error",
    "trouble", "peace",
}  # fmt: skip


@dataclass
class _Guest:
    """One connection."""

    socket: socket.socket
    number: int
    pid: int = 0
    who: str = ""
    unread: bytes = b""


@dataclass
class _Seen:
    """A worker's process: how it was at the last look."""

    going: float
    stopped: float = 0.0
    seats: list[_Guest] = field(default_factory=list)


class _Room:
    """Hears all connections on one thread, in the order in which they can be read."""

    def __init__(self, path: str) -> None:
        self._start = self._looked = time.monotonic()
        self._history: list[tuple[Any, ...]] = []
        self._processes: dict[int, _Seen] = {}
        self._seats = 0
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(path)
        self._door.listen(4096)
        self._selector.register(self._door, selectors.EVENT_READ, self._let_in)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._end)

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

    def _end(self, stdin: Any) -> None:
        raise SystemExit(0)

    def _let_in(self, door: socket.socket) -> None:
        connection, _ = door.accept()
        self._seats += 1
        guest = _Guest(connection, self._seats, _peer(connection))
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._read(guest))

    def _read(self, guest: _Guest) -> None:
        try:
            data = guest.socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._gone(guest)
            return
        *lines, guest.unread = (guest.unread + data).split(b"\n")
        for line in lines:
            self._hear(guest, line)

    def _hear(self, guest: _Guest, line: bytes) -> None:
        try:
            what, *words = json.loads(line)
            answer = self._heard(guest, what, words)
        except (ValueError, TypeError) as error:
            answer = f"not understood: {error}"
        with contextlib.suppress(OSError):
            guest.socket.sendall(json.dumps(answer).encode() + b"\n")

    def _heard(self, guest: _Guest, what: str, words: list[Any]) -> float | str:
        if what == "history":
            self._tell(guest)
            return 0.0
        if what == "hello":
            self._watch(guest, *words)
            return self._now()
        if what not in WORDS or not guest.who:
            return f"{what!r} is no word, or hello was not said"
        if len(self._history) >= MOST_EVENTS:
            return "this history is full"
        return self._write(guest, what, *words)

    def _tell(self, guest: _Guest) -> None:
        guest.socket.settimeout(ANSWER_SECONDS)
        with contextlib.suppress(OSError):
            for start in range(0, len(self._history), 1000):
                some = self._history[start : start + 1000]
                guest.socket.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in some))
            guest.socket.shutdown(socket.SHUT_RDWR)

    def _gone(self, guest: _Guest) -> None:
        self._selector.unregister(guest.socket)
        guest.socket.close()
        if guest.who:
            self._write(guest, "closed")
        if seen := self._processes.get(guest.pid):
            seen.seats = [one for one in seen.seats if one is not guest]

    # Processes

    def _watch(self, guest: _Guest, who: str, pid: int) -> None:
        guest.who, guest.pid = str(who), guest.pid or int(pid)
        if guest.pid not in self._processes:
            self._processes[guest.pid] = _Seen(self._now())
            with contextlib.suppress(AttributeError, OSError):  # an old kernel, or no Linux
                ending = os.pidfd_open(guest.pid)
                self._selector.register(
                    ending, selectors.EVENT_READ, lambda fd, pid=guest.pid: self._died(fd, pid)
                )
        self._processes[guest.pid].seats.append(guest)

    def _died(self, ending: int, pid: int) -> None:
        self._selector.unregister(ending)
        os.close(ending)
        for guest in self._processes.pop(pid).seats:
            self._write(guest, "died")

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        gap, self._looked = now - self._looked, now
        if gap > BUSY:
            self._write(_NOBODY, "busy", "", round(gap - LOOK, 3))
        for pid, seen in self._processes.items():
            self._see(pid, seen)

    def _see(self, pid: int, seen: _Seen) -> None:
        now, stops = self._now(), _is_stopped(pid)
        if stops and not seen.stopped:
            self._say_of(seen, "stopped", seen.going)
        elif seen.stopped and not stops:
            self._say_of(seen, "resumed", seen.stopped)
        seen.stopped, seen.going = (now, seen.going) if stops else (0.0, now)

    def _say_of(self, seen: _Seen, what: str, number: float) -> None:
        for guest in seen.seats:
            self._write(guest, what, "", number)


_NOBODY = _Guest(None, 0, 0, "witness")  # type: ignore[arg-type]


def _peer(connection: socket.socket) -> int:
    """The process at the other end, as the kernel says; 0 where it does not."""
    try:
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", told)[0])
    except (AttributeError, OSError):
        return 0


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    room = _Room(sys.argv[1])
    print("ready", flush=True)
    with contextlib.suppress(SystemExit):
        room.run()
    os.unlink(sys.argv[1])


if __name__ == "__main__":
    main()
