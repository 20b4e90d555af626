"""`locks run`: run a command while holding a permit. If the permit is lost, end the command."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext as translate

from .. import conf
from ..exceptions import SyncError
from ..locks.lease import Lease
from ..locks.semaphore import Semaphore
from ..operators.formats import without_secrets
from .terminal import printable

#: Exit codes besides the command's own: EX_TEMPFAIL and EX_UNAVAILABLE of sysexits.h.
UNAVAILABLE, NOT_ACQUIRED, LOST, CANNOT_RUN, NOT_FOUND = 69, 75, 76, 126, 127
#: Seconds between SIGTERM and SIGKILL for a command whose permit is lost.
PATIENCE = 10.0
#: Seconds between two checks that the permit is held. The checks are local: no round trip.
_POLL_INTERVAL = 0.2

_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")

_WATCHDOG = Path(__file__).with_name("watchdog.py")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `locks run`. `wait`: max seconds to wait, or None for no limit."""

    name: str
    limit: int | None
    wait: float | None
    skip: bool
    min_hold: float | None
    using: str | None


def _numbers() -> list[int]:
    return [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]


def run(options: RunOptions, command: Sequence[str], stderr: Any) -> int:
    """Run the command and return its exit code. Raise Unavailable if Redis can't be reached before
    the command was started."""
    job = _Job(command, stderr)
    missing = _missing(command[0])
    if missing is not None:
        return job.not_run(missing)
    with job.signals():
        lease = _semaphore(options, command)._take()
        if not isinstance(lease, Lease):
            if options.skip and lease.why.skippable:
                return 0
            why = translate(lease.why.sentence).format(detail=lease.detail)
            words = {"name": printable(options.name), "why": why}
            stderr.write(_("%(name)s was not acquired: %(why)s.") % words)
            return NOT_ACQUIRED
        return job.run_with(lease)


def _missing(program: str) -> OSError | None:
    """Return the error if the program can't be run, else None. This is called before the permit is
    acquired, because `min_hold` would keep the permit taken."""
    if shutil.which(program) is not None:
        return None
    there = os.sep in program and os.path.exists(program)
    number = errno.EACCES if there else errno.ENOENT
    return OSError(number, os.strerror(number))  # Python returns the subclass for the number


def _semaphore(options: RunOptions, command: Sequence[str]) -> Semaphore:
    named = conf.current().named(options.name)
    limit = options.limit or (None if "limit" in named else 1)
    wait = 0.0 if options.skip and options.wait is None else options.wait
    return Semaphore(
        options.name,
        limit,
        blocking_timeout=float("inf") if wait is None else wait,
        renew=True,
        min_hold=options.min_hold,
        using=options.using,
        # Without the arguments, which may contain secrets.
        label=f"locks run: {PurePath(command[0]).name}",
    )


class _Job:
    """The command and its watchdog, in a session of their own. Signals go to the whole group."""

    def __init__(self, command: Sequence[str], stderr: Any) -> None:
        self._command, self._stderr = list(command), stderr
        self._child: subprocess.Popen[bytes] | None = None
        self._starting, self._early, self._lifeline = False, list[int](), -1
        self._done = threading.Event()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Pass signals on to the command, or exit if it has not started yet."""
        before = {number: signal.signal(number, self._received) for number in _numbers()}
        # Ctrl-Z does nothing, because a suspended process could not renew the lease.
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run_with(self, lease: Lease) -> int:
        """Start the command, watch it and the lease, and release the lease."""
        ended = False
        try:
            self._start(lease)
            while not self._done.wait(_POLL_INTERVAL) and self._running():
                if not lease.held:
                    self._write(_("The permit is lost: ending the command."))
                    self._terminate()
                    ended = True
        except OSError as error:
            return self.not_run(error)
        finally:
            self._clean_up()
            self._release(lease, quietly=ended)
        assert self._child is not None
        code = self._child.returncode
        return LOST if ended else 128 - code if code < 0 else code

    def not_run(self, error: OSError) -> int:
        """Write that the command could not be started, and return the exit code."""
        self._write(f"{printable(self._command[0])}: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN

    def _clean_up(self) -> None:
        if self._child is not None and (self._child.returncode or 0) < 0:
            # The watchdog was killed, so only this process can end the group.
            self._send(signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.close(self._lifeline)

    def _start(self, lease: Lease) -> None:
        known = {"REDIS_SYNC_NAME": lease.name, "REDIS_SYNC_FENCE": str(lease.fence)}
        self._starting = True
        lifeline, self._lifeline = os.pipe()
        # The watchdog inherits the mask. It unblocks the signals when it can handle them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _numbers())
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-IS", _WATCHDOG, str(lifeline), *self._command],
                env={**os.environ, **known},
                start_new_session=True,
                pass_fds=[lifeline],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(lifeline)
        self._starting = False
        with contextlib.suppress(RuntimeError):  # without the thread, the child is polled
            threading.Thread(target=self._reap, args=(self._child,), daemon=True).start()
        for number in self._early:
            self._send(number)

    def _running(self) -> bool:
        assert self._child is not None
        return self._child.poll() is None

    def _reap(self, child: subprocess.Popen[bytes]) -> None:
        child.wait()
        self._done.set()

    def _received(self, number: int, frame: object) -> None:
        if self._child is not None:
            self._send(number)
        elif self._starting:
            self._early.append(number)
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            sys.exit(128 + number)

    def _send(self, number: int) -> bool:
        """Return True if a process of the group got the signal."""
        assert self._child is not None
        try:
            os.killpg(self._child.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _terminate(self) -> None:
        """Let the watchdog end the process group with SIGTERM, and then SIGKILL."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._lifeline, str(PATIENCE).encode())
        self._done.wait()

    def _release(self, lease: Lease, quietly: bool) -> None:
        try:
            lease.release()
        except SyncError as error:
            if not quietly:
                text = _("The permit could not be released: %s")
                self._write(text % without_secrets(str(error)))

    def _write(self, text: str) -> None:
        self._stderr.write(text)
