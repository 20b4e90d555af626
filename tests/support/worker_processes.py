"""Python processes for tests, which start in a tenth of the time.

Each is forked from one process that has imported Django and the package, but has read no settings,
made no connection and started no thread. It is what `python -m module words` or `python -c code
words` is, in an environment and a folder of its own, and in a session of its own.

`python -m tests.support.worker_processes FD` forks. It ends with the process that asks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: What takes the time of a start, and asks for no settings.
READ = (
    "django.contrib.admin",
    "django.contrib.auth.hashers",
    "django.core.management",
    "django.db.backends.sqlite3.base",
    "django.db.migrations.executor",
    "django.template.loader",
    "django.test",
    "django.views.debug",
    "django_redis.cache",
    "django_redis_sync.operators.doctor",
    "django_redis_sync.testing",
    "redis.asyncio",
)


# Who asks


class Process:
    """A Python of `words`, from -m or -c on: subprocess.Popen, in what tests use of it.

    With a `log` it says all to that file and reads nothing, else it reads from a pipe and writes to
    one, and with `errors` what it says on stderr to another.
    """

    def __init__(
        self,
        *words: object,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        log: IO[Any] | None = None,
        errors: bool = False,
    ) -> None:
        self.args = [*map(str, words)]
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        with contextlib.ExitStack() as given:
            if log:
                its_input = given.enter_context(open(os.devnull)).fileno()
                its_output = its_errors = log.fileno()
            else:
                its_input, self.stdin = _pipe(given, "w")
                its_output, self.stdout = _pipe(given, "r")
                its_errors = 2
            if errors:
                its_errors, self.stderr = _pipe(given, "r")
            its_life, self._life = _pipe(given, "r")
            order = _Order(self.args, str(cwd), dict(os.environ if env is None else env))
            _worker_processes().send(order, [its_input, its_output, its_errors, its_life])
        self.pid = int(self._life.readline())

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        for file in filter(None, (self.stdin, self.stdout, self.stderr)):
            with contextlib.suppress(BrokenPipeError):
                file.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit code; None while it lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._life], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._life.readline())
            self._life.close()
        return self.returncode

    def line(self) -> str:
        """The next line that it says; AssertionError when it ended."""
        text = self.stdout.readline()
        assert text, "it ended"
        return text

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it said until it closed its output, and what of errors; it has ended then."""
        if self.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        said = {file: "" for file in (self.stdout, self.stderr) if file and not file.closed}

        def read(file: IO[str]) -> None:
            with file:
                said[file] = file.read()

        readers = [threading.Thread(target=read, args=(file,), daemon=True) for file in said]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        return said.get(self.stdout, ""), said.get(self.stderr, "")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(*words: object, timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """As subprocess.run, of a Process: its end, and all that it said."""
    with Process(*words, errors=True, **options) as process:
        try:
            out, err = process.communicate(timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def _pipe(given: contextlib.ExitStack, ours: str) -> tuple[int, IO[str]]:
    """A pipe's end for the process, to be closed when it has it, and ours."""
    read, write = os.pipe()
    theirs, kept = (write, read) if ours == "r" else (read, write)
    given.callback(os.close, theirs)
    return theirs, open(kept, ours)


class _Order(NamedTuple):
    words: list[str]
    cwd: str
    env: dict[str, str]


_LENGTH = struct.Struct("!I")


class _WorkerProcesses:
    """The process that forks, seen from here."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._one = threading.Lock()
        with theirs:
            number = theirs.fileno()
            words = [sys.executable, "-m", __name__, str(number)]
            # A session of its own: Ctrl-C is for who asked.
            self._process = subprocess.Popen(
                words, cwd=ROOT, pass_fds=[number], stdin=subprocess.DEVNULL, start_new_session=True
            )
        atexit.register(self._end)

    def send(self, order: _Order, files: list[int]) -> None:
        text = json.dumps(order).encode()
        with self._one:
            socket.send_fds(self._ours, [_LENGTH.pack(len(text))], files)
            self._ours.sendall(text)

    def _end(self) -> None:
        self._ours.close()
        self._process.wait()


@functools.cache
def _worker_processes() -> _WorkerProcesses:
    return _WorkerProcesses()


# Who forks


def serve(number: int) -> _Order | None:
    """Forks for each order. Returns in every child, with its order; in itself at the end."""
    for name in READ:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is never looked at again stays shared
    lives: dict[int, int] = {}
    ears, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(fileno=number) as asked:
        asked.set_inheritable(False)
        while True:
            ready, _, _ = select.select([asked, ears], [], [])
            if ears in ready:
                os.read(ears, 4096)
                _bury(lives)
                continue
            length, files, *_ = socket.recv_fds(asked, _LENGTH.size, 4)
            if not length:
                return None
            (size,), text = _LENGTH.unpack(length), b""
            while len(text) < size:  # all of this order, and nothing of the next
                text += asked.recv(size - len(text))
            order = _Order(*json.loads(text))
            *standard, life = files
            pid = os.fork()
            if pid == 0:
                break
            lives[pid] = life
            for file in standard:
                os.close(file)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for file in (ears, mouth, *lives.values()):
        os.close(file)
    os.setsid()
    for place, file in enumerate(standard):
        os.dup2(file, place)
        os.close(file)
    os.write(life, b"%d\n" % os.getpid())
    os.close(life)
    return order


def _bury(lives: dict[int, int]) -> None:
    """Says of each that ended how it did."""
    for pid in [*lives]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            life = lives.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(life, b"%d\n" % os.waitstatus_to_exitcode(status))
            os.close(life)


def become(order: _Order) -> None:
    """Run what was ordered, as Python would have from its command line."""
    had = dict(os.environ)
    os.environ.clear()
    os.environ.update(order.env)
    os.chdir(order.cwd)
    words = iter(order.words)
    for word in words:
        match word:
            case "-W":
                warnings.simplefilter(next(words))
            case "-m":
                sys.path[:] = _path(order.cwd, order.env, had)
                name = next(words)
                sys.argv[1:] = words
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            case "-c":
                sys.path[:] = _path("", order.env, had)
                code = compile(next(words), "<string>", "exec")
                sys.argv[:] = ["-c", *words]
                main = sys.modules["__main__"] = types.ModuleType("__main__")
                exec(code, vars(main))
            case _:
                raise ValueError(f"{word!r} stands where -m or -c has to")


def _path(first: str, env: Mapping[str, str], had: Mapping[str, str]) -> list[str]:
    """sys.path under another PYTHONPATH than there was."""
    given, before = (one.get("PYTHONPATH", "").split(os.pathsep) for one in (env, had))
    return [first, *filter(None, given), *(one for one in sys.path[1:] if one not in before)]


if __name__ == "__main__":
    if (order := serve(int(sys.argv[1]))) is not None:
        become(order)
