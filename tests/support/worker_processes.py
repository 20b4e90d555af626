"""Python processes for tests. A fork server starts them in a tenth of the usual time.

The fork server has imported Django and the package, but has read no settings, opened no connection,
and started no thread. Each of its forks runs like `python -m module words` or `python -c code
words`, with its own environment, working directory, and session.

`python -m tests.support.worker_processes FD` runs the fork server. It exits when its parent process
exits.
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
#: Modules that the fork server imports: they take long to import, and need no settings.
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


# The parent process


class Process:
    """A Python process with the arguments `words`. It is used like a `subprocess.Popen`.

    `log`: a file for stdout and stderr. With `log`, stdin is empty. Without `log`, stdin and stdout
    are pipes, and stderr is that of this process. `errors`: True to make stderr a pipe.
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
            its_life, self.life = _pipe(given, "r")
            order = _Order(self.args, str(cwd), dict(os.environ if env is None else env))
            _worker_processes().send(order, [its_input, its_output, its_errors, its_life])
        self.pid = int(self.life.readline())

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        for file in filter(None, (self.stdin, self.stdout, self.stderr)):
            with contextlib.suppress(BrokenPipeError):
                file.close()
        self.wait()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self.life], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self.life.readline())
            self.life.close()
        return self.returncode

    def line(self) -> str:
        """Return the next line of the output. Raise AssertionError if the process has ended."""
        text = self.stdout.readline()
        assert text, "the process ended"
        return text

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close stdin, wait until the process ends, and return the texts of stdout and stderr.

        If `timeout` (in seconds) passes first, raise TimeoutExpired."""
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
    """Run a `Process` to its end, like `subprocess.run`, and return its exit code and output."""
    with Process(*words, errors=True, **options) as process:
        try:
            out, err = process.communicate(timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def _pipe(given: contextlib.ExitStack, mode: str) -> tuple[int, IO[str]]:
    """Open a pipe between a child and this process. `mode`: "r" if this process reads, or "w" if it
    writes.

    Return two objects: the file descriptor for the child, and the open file for this process. When
    the block of `given` ends, the file descriptor is closed in this process."""
    read, write = os.pipe()
    theirs, kept = (write, read) if mode == "r" else (read, write)
    given.callback(os.close, theirs)
    return theirs, open(kept, mode)


class _Order(NamedTuple):
    words: list[str]
    cwd: str
    env: dict[str, str]


_LENGTH = struct.Struct("!I")


class _WorkerProcesses:
    """Starts the fork server, and sends it orders to start processes."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self.lock = threading.Lock()
        with theirs:
            number = theirs.fileno()
            words = [sys.executable, "-m", __name__, str(number)]
            # A new session, so that Ctrl-C interrupts only the parent.
            self.process = subprocess.Popen(
                words, cwd=ROOT, pass_fds=[number], stdin=subprocess.DEVNULL, start_new_session=True
            )
        atexit.register(self.end)

    def send(self, order: _Order, files: list[int]) -> None:
        text = json.dumps(order).encode()
        with self.lock:
            socket.send_fds(self._socket, [_LENGTH.pack(len(text))], files)
            self._socket.sendall(text)

    def end(self) -> None:
        self._socket.close()
        self.process.wait()


@functools.cache
def _worker_processes() -> _WorkerProcesses:
    return _WorkerProcesses()


# The fork server


def serve(number: int) -> _Order | None:
    """Fork a child for each order that arrives on a socket. `number`: the file descriptor of the
    socket.

    In a child, return its order. In the fork server, return None when the parent process has ended.
    """
    for name in READ:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that children share the memory of these objects
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
                _report_exits(lives)
                continue
            length, files, *_ = socket.recv_fds(asked, _LENGTH.size, 4)
            if not length:
                return None
            (size,), text = _LENGTH.unpack(length), b""
            while len(text) < size:  # read exactly one order
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


def _report_exits(lives: dict[int, int]) -> None:
    """Send the exit code of each ended child to the parent process.

    `lives`: the file descriptor for the exit code, by the id of the child."""
    for pid in [*lives]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            life = lives.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(life, b"%d\n" % os.waitstatus_to_exitcode(status))
            os.close(life)


def become(order: _Order) -> None:
    """In a child, act like `python` with the words of the order as arguments."""
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
                raise ValueError(f"expected -m or -c, not {word!r}")


def _path(first: str, env: Mapping[str, str], had: Mapping[str, str]) -> list[str]:
    """Return a new `sys.path`: `first`, the folders of PYTHONPATH in `env`, and the rest of the
    present path. The rest omits the first item and the folders of PYTHONPATH in `had`.

    `env`: the environment of the child. `had`: the environment of the fork server."""
    given, before = (one.get("PYTHONPATH", "").split(os.pathsep) for one in (env, had))
    return [first, *filter(None, given), *(one for one in sys.path[1:] if one not in before)]


if __name__ == "__main__":
    if (order := serve(int(sys.argv[1]))) is not None:
        become(order)
