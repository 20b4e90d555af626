"""The witness sees what it is told, and what it is not."""

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

from exam.judge import NEVER_FREE, TWO_INSIDE, Claims, against, judge
from exam.witness import Event, Seat, Silent, Witness

from .behaviour.both import eventually

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


@pytest.fixture
def witness() -> Iterator[Witness]:
    with Witness() as one:
        yield one


def said(witness: Witness, *but: str) -> list[str]:
    return [one.what for one in witness.history() if one.what not in ("busy", *but)]


def forked(path: str, body: Callable[[Seat], None], who: str = "") -> int:
    """A process that does something on a seat of its own; its id."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), Seat(path, who) as seat:
            body(seat)
        os._exit(0)
    return pid


def test_a_visit_is_written_down_as_it_was_said(witness: Witness) -> None:
    with witness.seat("me") as seat:
        times = [seat.ask("x", 2, 1.5), seat.enter(7)]
        assert seat.still()
        times += [seat.leave(), seat.back()]
    eventually(lambda: "closed" in said(witness))
    history = witness.history()
    words = ["ask", "enter", "probe", "still", "leave", "back", "closed"]
    assert words == said(witness)
    assert sorted(times) == times
    assert Event(times[0], 1, os.getpid(), "me", "ask", "x", 2, "1.5") == history[0]
    assert (7, "x") == (history[1].number, history[1].name)


def test_what_is_not_understood_is_refused(witness: Witness) -> None:
    with witness.seat("me") as seat, pytest.raises(Silent, match="no word"):
        seat.say("dance")
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(witness.path)
        raw.sendall(b"nonsense\n")
        assert "not understood" in json.loads(raw.recv(1000))


@linux
def test_a_death_is_seen_though_a_fork_keeps_the_socket_open(witness: Witness) -> None:
    ready, go = os.pipe(), os.pipe()

    def hold(seat: Seat) -> None:
        seat.ask("x")
        seat.enter()
        if os.fork() == 0:
            os.close(go[1])
            os.read(go[0], 1)  # outlives its parent, and has its sockets
            os._exit(0)
        os.write(ready[1], b"!")
        time.sleep(60)

    pid = forked(witness.path, hold)
    os.read(ready[0], 1)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "died" in said(witness))
    assert ["ask", "enter", "died"] == said(witness)
    os.waitpid(pid, 0)
    for end in (*ready, *go):
        os.close(end)


@linux
def test_a_stop_is_seen_with_its_beginning_and_its_end(witness: Witness) -> None:
    pid = forked(witness.path, lambda seat: (seat.ask("x"), time.sleep(60)))  # type: ignore[arg-type]
    eventually(lambda: said(witness))
    time.sleep(0.1)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: "stopped" in said(witness))
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: "resumed" in said(witness))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    stop, go = (one for one in witness.history() if one.what in ("stopped", "resumed"))
    assert stop.number is not None and stop.number <= stop.at
    assert go.at - stop.at >= 0.5 - 0.2


def test_a_fork_may_not_speak_for_its_parent(witness: Witness) -> None:
    with witness.seat("me") as seat:
        pid = os.fork()
        if pid == 0:
            try:
                seat.ask("x")
            except Silent:
                os._exit(7)
            os._exit(0)
        assert 7 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_it_ends_with_its_block_and_leaves_nothing() -> None:
    with Witness() as one:
        folder = Path(one.path).parent
        process = one._process
    assert process is not None
    assert process.poll() is not None
    assert not folder.exists()


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    script = """if True:
        import os
        from exam.witness import Witness

        one = Witness().__enter__()
        print(one._process.pid, one.path, flush=True)
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


# Storms: how other tests use it


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
            seat.back()

    return [forked(path, work, f"worker {number}") for number in range(4)]


@linux
def test_a_storm_on_a_right_lock_is_right_though_workers_are_killed(
    witness: Witness, tmp_path: Path
) -> None:
    pids = storm(witness.path, tmp_path / "lock", lambda file: fcntl.flock(file, fcntl.LOCK_EX))
    time.sleep(0.4)
    os.kill(pids[0], signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    assert 20 < said(witness).count("enter")
    assert [] == judge(witness.history(), Claims(lease=0))


@linux
def test_a_storm_on_no_lock_is_caught(witness: Witness, tmp_path: Path) -> None:
    for pid in storm(witness.path, tmp_path / "lock", lambda file: None):
        os.waitpid(pid, 0)
    assert {TWO_INSIDE} == {one.kind for one in judge(witness.history(), Claims(lease=0))}


@linux
def test_a_lock_that_a_dead_holder_keeps_is_caught(witness: Witness, tmp_path: Path) -> None:
    """A file that is there is the lock; its maker dies."""

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

    first = forked(witness.path, take, "first")
    eventually(lambda: "enter" in said(witness))
    second = forked(witness.path, take, "second")
    os.kill(first, signal.SIGKILL)
    for pid in (first, second):
        os.waitpid(pid, 0)
    found = against(judge(witness.history(), Claims(lease=0)))
    assert [NEVER_FREE] == [one.kind for one in found]
