"""The observer: the events that workers report, and those that it sees itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exam.checker import NOT_GIVEN, TWO_INSIDE, Claims, against, check
from exam.observer import Event, Observer, Seat, Silent

from .behaviour.both import eventually

pytestmark = pytest.mark.tools

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


@pytest.fixture
def observer() -> Iterator[Observer]:
    with Observer() as one:
        yield one


def kinds(observer: Observer) -> list[str]:
    """Return the kinds of events, without those of a busy machine."""
    return [one.what for one in observer.history() if one.what != "busy"]


def forked(path: str, body: Callable[[Seat], None], who: str = "") -> int:
    """Fork a process that runs `body` with a seat of its own. Return its process id."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), Seat(path, who) as seat:
            body(seat)
        os._exit(0)
    return pid


def test_history_has_a_visit_as_it_was_reported(observer: Observer) -> None:
    with observer.seat("me") as seat:
        times = [seat.ask("x", 2, 1.5), seat.enter(7)]
        assert seat.still()
        times += [seat.leave(), seat.released()]
    eventually(lambda: "closed" in kinds(observer))
    history = observer.history()
    words = ["ask", "enter", "probe", "held", "leave", "released", "closed"]
    assert words == kinds(observer)
    assert sorted(times) == times
    assert Event(times[0], 1, os.getpid(), "me", "ask", "x", 2, "1.5") == history[0]
    assert (7, "x") == (history[1].number, history[1].name)


def test_unknown_message_is_rejected(observer: Observer) -> None:
    with observer.seat("me") as seat, pytest.raises(Silent, match="unknown"):
        seat.say("dance")
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(observer.path)
        raw.sendall(b"nonsense\n")
        assert "not understood" in json.loads(raw.recv(1000))


@linux
def test_death_is_seen_while_a_fork_keeps_the_socket_open(observer: Observer) -> None:
    ready, go = os.pipe(), os.pipe()

    def hold(seat: Seat) -> None:
        seat.ask("x")
        seat.enter()
        if os.fork() == 0:
            os.close(go[1])
            os.read(go[0], 1)  # this process outlives its parent, and has its sockets
            os._exit(0)
        os.write(ready[1], b"!")
        time.sleep(60)

    pid = forked(observer.path, hold)
    os.read(ready[0], 1)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "died" in kinds(observer))
    assert ["ask", "enter", "died"] == kinds(observer)
    os.waitpid(pid, 0)
    for end in (*ready, *go):
        os.close(end)


@linux
def test_stop_is_seen_with_its_beginning_and_its_end(observer: Observer) -> None:
    pid = forked(observer.path, lambda seat: (seat.ask("x"), time.sleep(60)))  # type: ignore[arg-type]
    eventually(lambda: kinds(observer))
    time.sleep(0.1)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: "stopped" in kinds(observer))
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: "resumed" in kinds(observer))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    stop, go = (one for one in observer.history() if one.what in ("stopped", "resumed"))
    assert stop.number is not None and stop.number <= stop.at
    assert go.at - stop.at >= 0.5 - 0.2


def test_fork_may_not_report_for_its_parent(observer: Observer) -> None:
    with observer.seat("me") as seat:
        pid = os.fork()
        if pid == 0:
            try:
                seat.ask("x")
            except Silent:
                os._exit(7)
            os._exit(0)
        assert 7 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def process_of(observer: Observer) -> int:
    """Return the process id of an observer."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(observer.path)
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


@linux
def test_observer_ends_with_its_block_and_leaves_nothing() -> None:
    with Observer() as one:
        process, folder = Path("/proc", str(process_of(one))), Path(one.path).parent
        assert process.exists()
    assert not process.exists() and not folder.exists()


@linux
def test_observer_ends_with_its_parent() -> None:
    script = """if True:
        import os
        from exam.observer import Observer
        from tests.test_exam_observer import process_of

        one = Observer().__enter__()
        print(process_of(one), one.path, flush=True)
        os.kill(os.getpid(), 9)
    """
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True
    )
    pid, path = done.stdout.split()
    eventually(lambda: not Path("/proc", pid).exists() or _is_zombie(int(pid)), 10)
    Path(path).parent.rmdir()


def _is_zombie(pid: int) -> bool:
    return b") Z" in Path("/proc", str(pid), "stat").read_bytes()


# With the checker


def storm(path: str, file: Path, lock: Callable[[int], None], seconds: float = 1.0) -> list[int]:
    def work(seat: Seat) -> None:
        chance, end = random.Random(os.getpid()), time.monotonic() + seconds
        while time.monotonic() < end:
            seat.ask("x")
            with open(file, "w") as mine:
                lock(mine.fileno())
                seat.enter()
                time.sleep(chance.random() / 100)
                seat.still()
                seat.leave()
            seat.released()

    return [forked(path, work, f"worker {number}") for number in range(4)]


@linux
def test_correct_lock_has_no_finding_when_a_worker_is_killed(
    observer: Observer, tmp_path: Path
) -> None:
    pids = storm(observer.path, tmp_path / "lock", lambda file: fcntl.flock(file, fcntl.LOCK_EX))
    time.sleep(0.4)
    os.kill(pids[0], signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    assert 20 < kinds(observer).count("enter")
    assert [] == check(observer.history(), Claims(lease=0))


@linux
def test_missing_lock_is_found(observer: Observer, tmp_path: Path) -> None:
    for pid in storm(observer.path, tmp_path / "lock", lambda file: None):
        os.waitpid(pid, 0)
    assert {TWO_INSIDE} == {one.kind for one in check(observer.history(), Claims(lease=0))}


@linux
def test_place_that_stays_taken_after_its_holder_died_is_found(
    observer: Observer, tmp_path: Path
) -> None:
    """The lock is a file that exists, and the process that created it dies."""

    def take(seat: Seat) -> None:
        seat.ask("x", wait=3)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(tmp_path / "lock", os.O_CREAT | os.O_EXCL))
                seat.enter()
                time.sleep(60)
            time.sleep(0.05)
        seat.gave_up()

    first = forked(observer.path, take, "first")
    eventually(lambda: "enter" in kinds(observer))
    second = forked(observer.path, take, "second")
    eventually(lambda: kinds(observer).count("ask") == 2)
    os.kill(first, signal.SIGKILL)
    for pid in (first, second):
        os.waitpid(pid, 0)
    found = against(check(observer.history(), Claims(lease=0, within=1)))
    assert [NOT_GIVEN] == [one.kind for one in found]
