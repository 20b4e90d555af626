"""`locks run`: run a command while holding a permit. If the permit is lost, end the command."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from django.utils.translation import gettext as _

from .. import conf
from ..exceptions import SyncError
from ..locks.lease import Lease
from ..locks.semaphore import Semaphore
from ..operators.formats import duration, without_secrets
from .terminal import printable

#: Exit codes in addition to those of the command. 69 and 75 are EX_UNAVAILABLE and EX_TEMPFAIL of
#: sysexits.h. Shells use 126 and 127.
UNAVAILABLE, NOT_ACQUIRED, LOST, CANNOT_RUN, NOT_FOUND = 69, 75, 76, 126, 127
#: Seconds between SIGTERM and SIGKILL for a command whose permit is lost.
PATIENCE = 10.0
#: Seconds between two checks that the permit is held. The checks send no command to Redis.
_POLL_INTERVAL = 0.2

_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")

# If `locks run` is killed, the command must end too. So a watcher process runs in the process group
# of the command. The watcher reads from a pipe to which only `locks run` can write. If the pipe is
# closed before `locks run` has written a line, the watcher kills the group. $0 is the number of the
# pipe's file descriptor.
_START = """
(
  (
    trap '' TERM INT HUP QUIT USR1 USR2
    read -r line < "/dev/fd/$0" || kill -KILL 0
  ) > /dev/null 2>&1 &
)
exec "$@"
"""


def run(command: Sequence[str], stderr: Any, given: Namespace) -> int:
    """Acquire a permit, run the command, and release the permit. Return the exit code of the
    command, or one of the exit codes of this module. With --skip, return 0 if no permit is
    available. `given`: the arguments of `locks run`. Raise Unavailable if Redis can't be reached
    before the command starts."""
    job = _Job(command, stderr)
    # Check before the acquire that the command exists. With --min-hold, a permit that was acquired
    # for a missing command would stay in use.
    if shutil.which(command[0]) is None:
        exists = os.sep in command[0] and os.path.exists(command[0])
        return job.not_run(errno.EACCES if exists else errno.ENOENT)
    wait = given.wait
    if wait is None:
        wait = 0.0 if given.skip else math.inf
    semaphore = Semaphore(
        given.name,
        given.limit or (None if {"limit", "rate"} & conf.current().named(given.name).keys() else 1),
        blocking_timeout=wait,
        renew=True,
        min_hold=given.min_hold or None,
        using=given.using,
        # The label leaves out the command's arguments, which may contain secrets.
        label=f"locks run: {PurePath(command[0]).name}",
    )
    with job.signals():
        lease = semaphore._take()
        if isinstance(lease, Lease):
            return job.run_with(lease)
        if given.skip and lease.why.skippable:
            return 0
        why = _(lease.why.sentence).format(detail=lease.detail)
        words = {"name": printable(given.name), "why": why}
        text = _("%(name)s was not acquired: %(why)s.") % words
        if lease.retry_after is not None:
            text += " " + _("The next permit comes in %s.") % duration(lease.retry_after)
        stderr.write(text)
        return NOT_ACQUIRED


class _Job:
    """The command, in a session and process group of its own. Signals go to the whole group."""

    def __init__(self, command: Sequence[str], stderr: Any) -> None:
        self._command, self._stderr = list(command), stderr
        self._child: subprocess.Popen[bytes] | None = None
        #: The signals that arrived while the command was starting. None before the start begins.
        self._early: list[int] | None = None

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """During the block, pass signals on to the command. Before the command starts, a signal
        that ends a process, such as SIGTERM, ends `locks run`."""
        numbers = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
        before = {number: signal.signal(number, self._received) for number in numbers}
        # Ctrl-Z does nothing, because a suspended process could not renew the lease.
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run_with(self, lease: Lease) -> int:
        """Run the command, and release the lease when the command has ended. If the lease is lost
        while the command runs, end the command and return LOST. Otherwise, return the exit code of
        the command."""
        is_lost = False
        try:
            with self._started(lease) as child:
                while not _has_ended(child, _POLL_INTERVAL):
                    if not lease.held:
                        is_lost = True
                        self._stderr.write(_("The permit is lost: ending the command."))
                        self._end(child)
        except OSError as error:
            return self.not_run(error.errno)
        finally:
            self._release(lease, quietly=is_lost)
        code = child.returncode
        return LOST if is_lost else 128 - code if code < 0 else code

    def not_run(self, number: int | None) -> int:
        """Write why the command can't be started, and return the exit code. `number`: errno."""
        self._stderr.write(f"{printable(self._command[0])}: {os.strerror(number or 0)}")
        return NOT_FOUND if number == errno.ENOENT else CANNOT_RUN

    @contextlib.contextmanager
    def _started(self, lease: Lease) -> Iterator[subprocess.Popen[bytes]]:
        known = {"REDIS_SYNC_NAME": lease.name, "REDIS_SYNC_FENCE": str(lease.fence)}
        read, write = os.pipe()
        with open(read, "rb") as ours, open(write, "wb", buffering=0) as lifeline:
            self._early = []
            child = self._child = subprocess.Popen(
                ["/bin/sh", "-c", _START, str(read), *self._command],
                env={**os.environ, **known},
                start_new_session=True,
                pass_fds=[read],
            )
            ours.close()
            for number in self._early:
                self._send(number)
            yield child
            with contextlib.suppress(BrokenPipeError):
                lifeline.write(b"\n")

    def _received(self, number: int, frame: object) -> None:
        if self._child is not None:
            self._send(number)
        elif self._early is not None:
            self._early.append(number)
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            sys.exit(128 + number)

    def _send(self, number: int) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """Send SIGTERM to the command's process group. When the command has ended, or after ten
        seconds, send SIGKILL to the group."""
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)
        _has_ended(child, PATIENCE)
        self._send(signal.SIGKILL)
        child.wait()

    def _release(self, lease: Lease, quietly: bool) -> None:
        try:
            lease.release()
        except SyncError as error:
            if not quietly:
                text = _("The permit could not be released: %s")
                self._stderr.write(text % without_secrets(str(error)))


def _has_ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait at most `seconds` for the command. Return True if it has ended."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
