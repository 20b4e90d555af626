"""A program that runs a command for `locks run`, and ends its process group when `locks run` dies.

    python -IS watchdog.py LIFELINE COMMAND ...

LIFELINE is a file descriptor to read. It is closed when `locks run` ends, even by SIGKILL. Then the
permit is no longer renewed, and this program kills its process group, to which the command belongs.
If a number of seconds arrives on it, the group gets SIGTERM, and SIGKILL after the command has
ended or after these seconds. Otherwise this program exits when the command does, with the shell's
exit code. A process that left the group, such as a daemon, is not ended.
"""

# No imports from the package, so that it starts fast and needs little memory.
from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import NoReturn

#: Signals to the group. The command gets them itself; this program ignores them and stays.
PASSED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTSTP")
POLL_INTERVAL = 0.02


def end(command: int, patience: float) -> NoReturn:
    """End the process group, including this program. `patience`: seconds from SIGTERM to SIGKILL;
    0: SIGKILL at once."""
    give_up_at = time.monotonic() + patience
    if patience:
        os.killpg(0, signal.SIGTERM)
        os.killpg(0, signal.SIGCONT)
    while time.monotonic() < give_up_at and exit_code(command) is None:
        time.sleep(POLL_INTERVAL)
    os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


def exit_code(command: int) -> int | None:
    """Return the shell's exit code of the command, or None while it runs."""
    pid, status = os.waitpid(command, os.WNOHANG)
    if not pid:
        return None
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def execute(words: list[str]) -> NoReturn:
    """Replace this process by the command."""
    for name in PASSED:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def start(words: list[str]) -> int:
    """Start the command and return its pid. Pass on signals that arrived before."""
    numbers = [getattr(signal, name) for name in PASSED]
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in (*numbers, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    pid = os.fork()
    if not pid:
        execute(words)
    early = {number for number in signal.sigpending() if number in numbers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    for number in early:
        os.kill(pid, number)
    return pid


def main(lifeline: int, words: list[str]) -> NoReturn:
    awake, wake = os.pipe()
    for end_of in (awake, wake):
        os.set_blocking(end_of, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    os.set_inheritable(lifeline, False)
    command = start(words)
    while True:
        code = exit_code(command)
        if code is not None:
            os._exit(code)
        ready, _, _ = select.select([lifeline, awake], [], [])
        if lifeline in ready:
            end(command, float(os.read(lifeline, 64) or 0))
        with contextlib.suppress(BlockingIOError):
            os.read(awake, 4096)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
