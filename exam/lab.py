"""A laboratory for one trial of one lock: its servers, its observer, its workers.

What does harm also keeps the evidence that the harm reached the lock, in `evidence`.
"""

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
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import redis

from . import clock
from .adapter import Adapter, Place
from .clock import Clock
from .observer import Event, Observer, Seat
from .proxy import Path as Way
from .servers import HOST, Server

ROOT = Path(__file__).resolve().parents[1]
#: Seconds that a command of a worker may take, beyond what it is told to wait.
COMMAND_SECONDS = 40
#: Commands of a connection and of the exam. A lock uses others.
NOT_A_LOCKS = {
    "auth", "client", "command", "config", "dbsize", "flushall", "hello", "info", "ping", "psync",
    "quit", "replconf", "replicaof", "script", "select", "time",
}  # fmt: skip


class Unable(Exception):
    """A fault can't be put to this lock, or not here; the message says why."""


class Hand:
    """A worker, seen from the exam: `do` a command, or `start` it and ask for its `end` later."""

    def __init__(self, lab: Lab, who: str, place: Place, workers: str) -> None:
        self.who = who
        #: The proxies between it and its servers, if it has its own.
        self.ways = [lab.ways[url] for url in place.urls if url in lab.ways]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(COMMAND_SECONDS)
        self._socket.connect(workers)
        self._unread = b""
        self._send({"place": asdict(place), "who": who, "observer": lab.observer.path})
        self.pid = json.loads(self._line())
        if not isinstance(self.pid, int):
            raise RuntimeError(self.pid)

    def _send(self, what: Any) -> None:
        self._socket.sendall(json.dumps(what).encode() + b"\n")

    def _line(self) -> bytes:
        while b"\n" not in self._unread:
            data = self._socket.recv(65536)
            if not data:
                return b'"ended"'
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def start(self, what: str, *words: Any) -> None:
        self._send([what, *words])

    def end(self, seconds: float = COMMAND_SECONDS) -> str:
        """Return the answer to the oldest command, or "waits" if it has none after `seconds`."""
        self._socket.settimeout(max(0.05, seconds))
        try:
            return str(json.loads(self._line()))
        except TimeoutError:
            return "waits"
        except OSError:
            return "ended"

    def do(self, what: str, *words: Any) -> str:
        self.start(what, *words)
        return self.end()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._socket.close()


class Team(list[Hand]):
    """Workers that do the same at once: as many as the limit, so that together they fill it."""

    def start(self, what: str, *words: Any) -> None:
        for hand in self:
            hand.start(what, *words)

    def end(self, seconds: float = COMMAND_SECONDS) -> list[str]:
        end = time.monotonic() + seconds
        return [hand.end(end - time.monotonic()) for hand in self]

    def do(self, what: str, *words: Any) -> list[str]:
        self.start(what, *words)
        return self.end()

    def kill(self) -> None:
        for hand in self:
            hand.kill()

    def stop(self) -> None:
        for hand in self:
            hand.stop()

    def resume(self) -> None:
        for hand in self:
            hand.resume()


class Lab:
    """Everything that a trial starts ends with its block."""

    def __init__(self, lock: type[Adapter], key: str, config: Any = (), moves_clock: bool = False):
        self.lock, self.key, self.limit = lock, key, lock.limit
        self.config = dict(config)
        self._moves_clock = moves_clock
        self.environment: dict[str, str] = {}  # of the servers
        self.clocks: list[Clock] = []  # of the servers, in order, if they can be moved
        self.ways: dict[str, Way] = {}  # by their URL
        self.servers: list[Server] = []
        #: What shows that the harm was done to this lock: how often, by its description.
        self.evidence: Counter[str] = Counter()
        self._workers: dict[float, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Lab:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="exam-"))
            self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.observer = self._stack.enter_context(Observer())
            self.seat: Seat = self._stack.enter_context(self.observer.seat("exam"))
            self.service = self._stack.enter_context(self.lock.service(str(self.folder)))
            for _ in range({"redis": 1, "quorum": 3}.get(self.lock.needs, 0)):
                if self._moves_clock:
                    self.clocks.append(self._clock())
                    self.environment = self.clocks[-1].environment
                self.servers.append(self.server(**self.config))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # Servers

    def server(self, **config: Any) -> Server:
        """Start one more Redis server, in the environment of this laboratory."""
        server = Server(self.environment, **{"maxclients": 5000, "hz": 100, **config})
        self._stack.callback(server.close)
        server.start()
        return server

    @property
    def redis(self) -> Server:
        """The first server, to which harm is done."""
        return self.servers[0]

    def ask(self, *words: Any, server: Server | None = None) -> Any:
        """Send a command to a server."""
        with redis.Redis.from_url((server or self.redis).url, socket_timeout=5) as client:
            return client.execute_command(*words)

    def calls(self, *names: str, server: Server | None = None) -> int:
        """Return how many commands of a lock a server has executed; only `names` if given."""
        stats = self.ask("INFO", "commandstats", server=server)
        counts = {key.partition("_")[2].partition("|")[0]: one for key, one in stats.items()}
        used = names or counts.keys() - NOT_A_LOCKS
        return sum(counts[name]["calls"] for name in used if name in counts)

    def prove(self, what: str, count: int) -> None:
        """Keep evidence: `count` is 0 if the harm missed the lock."""
        self.evidence[what] += count

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        """Kill the server for a block, then start it again on its data."""
        calls, before = self.calls(), self.ask("INFO", "server")["run_id"]
        keys = self.ask("DBSIZE")
        self.redis.kill()
        yield
        self.redis.start()
        if self.ask("INFO", "server")["run_id"] != before:
            self.prove("a server that it used was killed", calls)
            self.prove("keys were lost", max(0, keys - self.ask("DBSIZE")))

    def stop_server(self, seconds: float) -> None:
        calls, server = self.calls(), self.redis
        server.signal(signal.SIGSTOP)
        time.sleep(seconds)
        stopped = server.is_stopped()
        server.signal(signal.SIGCONT)
        self.prove("a server that it used was stopped", calls if stopped else 0)

    def shift_clock(self, seconds: float) -> None:
        """Move the clock of the first server, and check what the server says."""
        calls = self.calls()
        self.clocks[0].shift(seconds)
        moved = abs(self.ask("TIME")[0] - time.time() - seconds) < 2
        self.prove("the clock of a server that it used moved", calls if moved else 0)

    @contextlib.contextmanager
    def full_memory(self) -> Iterator[None]:
        """Let the server reject what needs memory; the evidence is what it rejected."""
        before = self._rejected()
        self.ask("CONFIG", "SET", "maxmemory", "1")
        yield
        self.prove("its commands were rejected", self._rejected() - before)
        self.ask("CONFIG", "SET", "maxmemory", "0")

    def _rejected(self) -> int:
        stats = self.ask("INFO", "commandstats").values()
        return sum(one.get("rejected_calls", 0) + one.get("failed_calls", 0) for one in stats)

    def flush_all(self) -> None:
        keys = self.ask("DBSIZE")
        self.ask("FLUSHALL")
        self.prove("keys were lost", keys)

    def flush_scripts(self, seconds: float) -> None:
        """Flush the servers' scripts again and again; the evidence is who calls them."""
        before, end = self._scripts(), time.monotonic() + seconds
        while time.monotonic() < end:
            for server in self.servers:
                self.ask("SCRIPT", "FLUSH", server=server)
            time.sleep(0.3)
        self.prove("scripts that it calls by their digest were flushed", self._scripts() - before)

    def _scripts(self) -> int:
        return sum(self.calls("evalsha", "evalsha_ro", server=one) for one in self.servers)

    # Workers

    def way(self, server: Server) -> Way:
        """Open a path to a server."""
        way = self._stack.enter_context(contextlib.closing(Way(HOST, server.port)))
        self.ways[way.url] = way
        return way

    def hand(self, who: str, *, own_way: bool = False, warm: bool = True, off: float = 0) -> Hand:
        """Start a worker. `own_way`: proxies lead it to the servers; `off`: by how many seconds its
        wall clock is wrong; `warm`: it takes a turn on another name first."""
        urls = tuple(self.way(one).url if own_way else one.url for one in self.servers)
        place = Place(
            url=urls[0] if urls else "",
            urls=urls,
            service=self.service,
            folder=str(self.folder),
            limit=self.limit,
        )
        hand = Hand(self, who, place, self._forker(off))
        self._stack.callback(hand.close)
        if warm:
            said = hand.do("warm")
            if said != "warm":
                raise RuntimeError(f"the first turn: {said}")
        return hand

    def team(self, who: str, **options: Any) -> Team:
        """Start as many workers as the limit."""
        return Team(self.hand(f"{who}{n + 1}", **options) for n in range(self.limit))

    def _clock(self, seconds: float = 0.0) -> Clock:
        if why := clock.reason():
            raise Unable(why)
        made = Clock(Path(tempfile.mkdtemp(dir=self.folder)))
        made.shift(seconds)
        return made

    def _forker(self, off: float) -> str:
        """Return the socket of the process that forks workers with such a clock."""
        if off in self._workers:
            return self._workers[off]
        environment = self._clock(off).environment if off else {}
        path = str(self.folder / f"workers-{len(self._workers)}")
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", self.key, path],
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("workers can't be started")
        self._workers[off] = path
        return path

    # What happened

    def history(self) -> list[Event]:
        return self.observer.history()

    def until(self, *what: str, who: str, seconds: float) -> bool:
        """Wait until a worker whose name begins with `who` has such an event."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(one.what in what and one.who.startswith(who) for one in self.history()):
                return True
            time.sleep(0.03)
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)
    if process.poll() is None:
        process.kill()
        process.communicate()
