"""A laboratory for one examination of one lock: its servers, its witness, its workers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from devtools import clock
from devtools.clock import Clock
from devtools.servers import HOST, ConfigValue, RedisServer

from .adapter import LEASE, Entry, Place
from .proxy import Way
from .witness import Event, Seat, Witness

ROOT = Path(__file__).resolve().parents[1]
#: Seconds for which a command of a worker may take, beyond what it is told to wait.
COMMAND_SECONDS = 40


class Unable(Exception):
    """A fault can't be put to this lock, or not here; says why."""


class Hand:
    """A worker, seen from the exam: `do` a command, or `start` it and ask for its `end` later."""

    def __init__(self, lab: Lab, who: str, place: Place, nursery: str) -> None:
        self.who = who
        #: The proxies between it and its servers, when it has its own.
        self.ways = [lab.ways[url] for url in place.urls if url in lab.ways]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(COMMAND_SECONDS)
        self._socket.connect(nursery)
        self._lines = self._socket.makefile("rw")
        setting = {"place": asdict(place), "who": who, "witness": lab.witness.path}
        self._send(setting)
        self.pid = self._answer()
        if not isinstance(self.pid, int):
            raise RuntimeError(self.pid)

    def _send(self, what: Any) -> None:
        self._lines.write(json.dumps(what) + "\n")
        self._lines.flush()

    def _answer(self) -> Any:
        line = self._lines.readline()
        return json.loads(line) if line else "ended"

    def start(self, what: str, *words: Any) -> Hand:
        self._send([what, *words])
        return self

    def end(self) -> str:
        return str(self._answer())

    def do(self, what: str, *words: Any) -> str:
        return self.start(what, *words).end()

    def signal(self, number: signal.Signals) -> None:
        """To it and to what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def way(self) -> Way | None:
        return self.ways[0] if self.ways else None

    def close(self) -> None:
        self.kill()
        with contextlib.suppress(OSError):
            self._lines.close()
        self._socket.close()


class Lab:
    """Everything that an examination starts ends with its block."""

    def __init__(
        self,
        entry: Entry,
        key: str,
        limit: int = 1,
        config: Mapping[str, ConfigValue] | None = None,
        moves_clock: bool = False,
    ) -> None:
        self.entry, self.key, self.limit = entry, key, limit
        self.config = dict(config or {})
        self._moves_clock = moves_clock
        self.environment: dict[str, str] = {}  # of the servers
        self.clocks: list[Clock] = []  # theirs, in order, when they can be moved
        self.ways: dict[str, Way] = {}  # by their URL
        self.servers: list[RedisServer] = []
        self.postgres = ""
        self._stack = contextlib.ExitStack()
        self._nurseries: dict[float, str] = {}

    def __enter__(self) -> Lab:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="exam-"))
            self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.witness = self._stack.enter_context(Witness())
            self.seat: Seat = self._stack.enter_context(self.witness.seat("exam"))
            self._start_servers()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    # Servers

    def _start_servers(self) -> None:
        if self.entry.needs == "postgres":
            from devtools.postgres import Postgres

            self.postgres = self._stack.enter_context(Postgres()).dsn
        for _ in range({"redis": 1, "quorum": 3}.get(self.entry.needs, 0)):
            if self._moves_clock:
                self.clocks.append(self.new_clock())
                self.environment = self.clocks[-1].environment
            self.servers.append(self.server(**self.config))

    def server(self, **config: ConfigValue) -> RedisServer:
        """One more Redis server, in the environment that this laboratory has."""
        all_of_it = {"maxclients": 5000, "hz": 100, **config}
        server = RedisServer(config=all_of_it, environment=self.environment)
        return self._stack.enter_context(server)

    @property
    def redis(self) -> RedisServer:
        if not self.servers:
            raise Unable("it uses no Redis")
        return self.servers[0]

    def ask(self, *words: Any, server: RedisServer | None = None) -> Any:
        """A command to a server."""
        import redis

        with redis.Redis.from_url((server or self.redis).url, socket_timeout=5) as client:
            return client.execute_command(*words)

    # Workers

    def place(self, own_way: bool = False, name: str = "exam") -> Place:
        urls = [server.url for server in self.servers]
        if own_way:
            urls = [self.way(server).url for server in self.servers]
        return Place(
            url=urls[0] if urls else "",
            urls=tuple(urls),
            postgres=self.postgres,
            folder=str(self.folder),
            name=name,
            limit=self.limit,
            lease=LEASE,
        )

    def way(self, server: RedisServer) -> Way:
        """A path of its own to a server."""
        way = self._stack.enter_context(contextlib.closing(Way(HOST, server.port or 0)))
        self.ways[way.url] = way
        return way

    def hand(
        self,
        who: str,
        *,
        own_way: bool = False,
        warm: bool = True,
        name: str = "exam",
        off: float = 0.0,
    ) -> Hand:
        """A worker. `own_way`: proxies lead it to the servers; `off`: by so many
        seconds its wall clock is."""
        place = self.place(own_way, name)
        hand = Hand(self, who, place, self._nursery(off))
        self._stack.callback(hand.close)
        if warm:
            said = hand.do("warm")
            if said != "warm":
                raise RuntimeError(f"the first turn: {said}")
        return hand

    def hands(self, *names: str, **options: Any) -> list[Hand]:
        return [self.hand(name, **options) for name in names]

    def new_clock(self, seconds: float = 0.0) -> Clock:
        if why := clock.reason():
            raise Unable(why)
        folder = self.folder / f"clock-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        made = Clock(folder)
        made.shift(seconds)
        return made

    def _nursery(self, seconds: float) -> str:
        """Where the workers are forked whose clocks are off by so much."""
        if seconds in self._nurseries:
            return self._nurseries[seconds]
        environment = self.new_clock(seconds).environment if seconds else {}
        path = str(self.folder / f"nursery-{len(self._nurseries)}")
        process = subprocess.Popen(
            [sys.executable, "-m", "exam.worker", self.key, path],
            cwd=ROOT,
            env={**os.environ, **environment, "EXAM_FOLDER": str(self.folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._stack.callback(_ended, process)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("workers can't be started")
        self._nurseries[seconds] = path
        return path

    # What happened

    def history(self) -> list[Event]:
        return self.witness.history()

    def until(self, *what: str, who: str = "", seconds: float = 20) -> bool:
        """Wait until the witness has such an event."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(one.what in what and who in ("", one.who) for one in self.history()):
                return True
            time.sleep(0.03)
        return False


def _ended(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)
    if process.poll() is None:
        process.kill()
        process.communicate()
