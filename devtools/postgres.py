"""A PostgreSQL server for tests, in a temporary folder.

The server ends when the process that started it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from devtools.servers import free_port

START_SECONDS = 30


def binaries() -> Path | None:
    """Return the folder with PostgreSQL's programs, or None if PostgreSQL is not installed. If PATH
    has no `initdb`, look in Debian's folders, and return that of the newest version."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


def reason() -> str:
    """Return why no PostgreSQL server can be started, or "" if there is no obstacle."""
    return "" if binaries() else "PostgreSQL is not installed"


def version() -> str:
    """Return the version of PostgreSQL."""
    words = [str(binaries() / "postgres"), "--version"]  # type: ignore[operator]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[2]


class Postgres:
    """A PostgreSQL server on a Unix socket. `dsn`: the connection string for clients."""

    def __enter__(self) -> Postgres:
        # PostgreSQL refuses to run as root. If this process is root, use the user nobody.
        self._user = "nobody" if os.getuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="tests-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        found = binaries()
        assert found is not None
        if self._user:
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        data, port = self._folder / "data", free_port()
        words = ["-D", str(data), "-U", "tests", "-A", "trust", "--no-sync", "-E", "UTF8"]
        self._run(str(found / "initdb"), *words)
        options = ["-k", str(self._folder), "-p", str(port), "-F", "-c", "listen_addresses="]
        self._process = subprocess.Popen(
            [str(found / "postgres"), "-D", str(data), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            user=self._user,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self.dsn = f"host={self._folder} port={port} user=tests dbname=postgres"
        self._wait(self._process, found, port)

    def _run(self, *words: str) -> None:
        subprocess.run(words, cwd="/", user=self._user, capture_output=True, check=True, timeout=60)

    def _wait(self, process: subprocess.Popen[bytes], found: Path, port: int) -> None:
        end = time.monotonic() + START_SECONDS
        words = [str(found / "pg_isready"), "-q", "-h", str(self._folder), "-p", str(port)]
        while subprocess.run(words, timeout=10).returncode:
            if time.monotonic() > end or process.poll() is not None:
                raise RuntimeError("PostgreSQL did not start")
            time.sleep(0.1)

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # shut down without waiting for clients
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """Ask the kernel to kill the PostgreSQL server when its parent ends. This function runs in the
    child process that becomes the server."""
    _libc.prctl(1, signal.SIGKILL)
