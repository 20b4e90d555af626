"""Runs a command for `locks run`, and ends all of it when that process ends: a program of its own.

    python -IS watchdog.py LIFELINE COMMAND ...

LIFELINE is a file descriptor to read. It ends with the process that holds its other end, even by
SIGKILL, when the permit is renewed no more: then every descendant of the command is killed,
those with a session of their own too. A number of seconds that comes on it asks for the same with
that much patience. Else this exits as the command does, with a shell's code.
"""

# It imports nothing of the package, so that it is up at once and small.
from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

# They reach the command by themselves, for its process group is ours. We stay, to look after it.
PASSED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTSTP")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
#: Seconds between two looks at the processes still there.
LOOK = 0.02

received: list[int] = []


def prctl(option: int, value: int) -> None:
    """Of Linux only; elsewhere a descendant that left the process group is out of reach."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants() -> list[int] | None:
    """All that came from this process and live; None where there is no /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(stat.parent.name)] = int(parent)
    if not parents:
        return None
    found, fresh = set[int](), {os.getpid()}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return list(found)


def signal_all(number: int) -> bool:
    """Whether a process was there to get it."""
    found = descendants()
    if found is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(os.getpgrp(), number)
        return bool(reap(None))
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return bool(found)


def end(patience: float) -> NoReturn:
    """SIGTERM to all, and SIGKILL to those still there after `patience` seconds."""
    give_up_at = time.monotonic() + patience
    if patience:
        signal_all(signal.SIGTERM)
        signal_all(signal.SIGCONT)
    while time.monotonic() < give_up_at and signal_all(0):
        reap(None)
        time.sleep(LOOK)
    while signal_all(signal.SIGKILL):
        reap(None)
        time.sleep(LOOK)
    os._exit(128 + signal.SIGKILL)


def reap(command: int | None) -> int | None:
    """Take note of those that ended; the exit code of `command` if it is among them. For None:
    1 while there is a child."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return 1 if command is None else None
            if pid == command:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
    return None


def become(words: list[str], watchdog: int) -> NoReturn:
    """The command, in this process."""
    for name in PASSED:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watchdog:  # it died before we asked
        os._exit(128 + signal.SIGKILL)
    try:
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def start(words: list[str]) -> int:
    """The command's process. A signal that came before it was there is passed on to it."""
    numbers = [getattr(signal, name) for name in PASSED]
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in (*numbers, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: received.append(number))
    watchdog = os.getpid()
    pid = os.fork()
    if not pid:
        become(words, watchdog)
    early = {number for number in signal.sigpending() if number in numbers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    for number in early:
        os.kill(pid, number)
    return pid


def main(lifeline: int, words: list[str]) -> NoReturn:
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    awake, wake = os.pipe()
    for end_of in (awake, wake):
        os.set_blocking(end_of, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    os.set_inheritable(lifeline, False)
    command = start(words)
    while True:
        code = reap(command)
        if code is not None:
            os._exit(code)
        ready, _, _ = select.select([lifeline, awake], [], [])
        if lifeline in ready:
            end(float(os.read(lifeline, 64) or 0))
        with contextlib.suppress(BlockingIOError):
            os.read(awake, 4096)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
