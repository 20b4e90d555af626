"""The laboratory of a trial: servers, observer, and workers.

The methods that do harm also record in `evidence` whether it reached the lock.
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
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import redis

from . import clock
from .adapter import Adapter, Place
from .clock import Clock
from .observer import Event, Observer, Seat, is_stopped
from .proxy import Path as Way
from .servers import HOST, Server

#: Max seconds that a command of a worker may take, in addition to its wait.
COMMAND_SECONDS = 40
#: Commands of connections and of the exam, which don't count as those of a lock.
NOT_A_LOCKS = {
    "auth", "client", "command", "config", "dbsize", "flushall", "hello", "info", "ping", "psync",
    "quit", "replconf", "replicaof", "script", "select", "time",
}  # fmt: skip


class Unable(Exception):
    """A fault can't be put to this lock, or not on this machine. The message has the reason."""


class Crew:
    """The base of a worker and of a team. `start` sends a command, and `end` returns the answer.
    Signals reach the workers and the processes that they started."""

    def do(self, what: str, *words: Any) -> Any:
        self.start(what, *words)
        return self.end()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)


class Hand(Crew):
    """A worker, controlled by the exam."""

    def __init__(self, lab: Lab, who: str, place: Place, workers: str) -> None:
        self.who = who
        #: The proxies between the worker and its servers, if it has own ones.
        self.ways = [lab.ways[url] for url in place.urls if url in lab.ways]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(COMMAND_SECONDS)
        self._socket.connect(workers)
        self._answers = b""
        self._unanswered = 0
        self.start({"place": asdict(place), "who": who, "observer": lab.observer.path})
        self.pid = self.end()
        if not isinstance(self.pid, int):
            raise RuntimeError(self.pid)

    def start(self, what: Any, *words: Any) -> None:
        self._unanswered += 1
        with contextlib.suppress(OSError):  # the worker died
            self._socket.sendall(json.dumps([what, *words]).encode() + b"\n")

    def end(self, seconds: float = COMMAND_SECONDS) -> Any:
        end, said = time.monotonic() + seconds, b'"nothing"'
        while self._unanswered:
            try:
                self._socket.settimeout(max(0.05, end - time.monotonic()))
                data = self._socket.recv(65536)
            except TimeoutError:
                return "waits"
            except OSError:
                data = b""
            if not data:
                return "ended"
            *lines, self._answers = (self._answers + data).split(b"\n")
            self._unanswered -= len(lines)
            said = lines[-1] if lines else said
        return json.loads(said)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill_alone(self) -> None:
        """Kill the worker, but not the processes that it started."""
        os.kill(self.pid, signal.SIGKILL)
        self._socket.close()

    def close(self) -> None:
        self.kill()
        self._socket.close()


class Team(list[Hand], Crew):
    """Workers that run the same commands: as many as the limit."""

    def start(self, what: str, *words: Any) -> None:
        for hand in self:
            hand.start(what, *words)

    def end(self, seconds: float = COMMAND_SECONDS) -> list[str]:
        end = time.monotonic() + seconds
        return [hand.end(end - time.monotonic()) for hand in self]

    def signal(self, number: signal.Signals) -> None:
        for hand in self:
            hand.signal(number)


class Lab:
    """The servers, observer, and workers of a trial, which end with the `with` block."""

    def __init__(self, lock: type[Adapter], key: str, config: Any = (), moves_clock: bool = False):
        self.lock, self.key, self.limit = lock, key, lock.limit
        self.config, self._moves_clock = dict(config), moves_clock
        self.ways: dict[str, Way] = {}  # by their URL
        self.servers: list[Server] = []
        #: The evidence that harm reached this lock: a number above 0.
        self.evidence: Counter[str] = Counter()
        self._workers: dict[float, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Lab:
        with self._stack as stack:  # if a step fails, the earlier ones are undone
            self.folder = Path(tempfile.mkdtemp(prefix="exam-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.observer = stack.enter_context(Observer())
            self.seat: Seat = stack.enter_context(self.observer.seat("exam"))
            self.service = stack.enter_context(self.lock.service(str(self.folder)))
            for number in range({"redis": 1, "quorum": 3}.get(self.lock.needs, 0)):
                if self._moves_clock and not number:
                    self.clock = self._clock()
                    self.servers.append(self.server(self.clock.environment, **self.config))
                else:
                    self.servers.append(self.server(**self.config))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # Servers

    def server(self, environment: Mapping[str, str] | None = None, **config: Any) -> Server:
        """Start and return another Redis server."""
        server = Server(environment or {}, **{"maxclients": 5000, "hz": 100, **config})
        self._stack.callback(server.close)
        server.start()
        return server

    @property
    def redis(self) -> Server:
        """The first server, to which harm is done."""
        return self.servers[0]

    def ask(self, *words: Any, server: Server | None = None) -> Any:
        """Send a command to a server (default: the first), and return the reply."""
        with redis.Redis.from_url((server or self.redis).url, socket_timeout=5) as client:
            return client.execute_command(*words)

    def calls(self, *names: str, server: Server | None = None) -> int:
        """Return the number of a lock's commands that a server has executed: `names`, or all."""
        stats = self.ask("INFO", "commandstats", server=server)
        counts = {key.partition("_")[2].partition("|")[0]: one for key, one in stats.items()}
        used = names or counts.keys() - NOT_A_LOCKS
        return sum(counts[name]["calls"] for name in used if name in counts)

    def kill_server(self, seconds: float = 0) -> None:
        """Kill the first server, and start it again with its data after `seconds`."""
        calls, before = self.calls(), self.ask("INFO", "server")["run_id"]
        keys = self.ask("DBSIZE")
        self.redis.kill()
        time.sleep(seconds)
        self.redis.start()
        if self.ask("INFO", "server")["run_id"] != before:
            self.evidence["a server that it used was killed"] += calls
            self.evidence["keys were lost"] += max(0, keys - self.ask("DBSIZE"))

    def stop_server(self, seconds: float) -> None:
        """Stop the first server for `seconds`."""
        calls = self.calls()
        self.redis.signal(signal.SIGSTOP)
        time.sleep(seconds)
        stopped = is_stopped(self.redis.pid)
        self.redis.signal(signal.SIGCONT)
        self.evidence["a server that it used was stopped"] += calls if stopped else 0

    def shift_clock(self, seconds: float) -> None:
        """Move the clock of the first server, and check the server's time."""
        calls = self.calls()
        self.clock.shift(seconds)
        moved = abs(self.ask("TIME")[0] - time.time() - seconds) < 2
        self.evidence["the clock of a server that it used moved"] += calls if moved else 0

    @contextlib.contextmanager
    def full_memory(self) -> Iterator[None]:
        """Let the first server reject commands that need memory within the block."""

        def rejected() -> int:
            stats = self.ask("INFO", "commandstats").values()
            return sum(one.get("rejected_calls", 0) + one.get("failed_calls", 0) for one in stats)

        before = rejected()
        self.ask("CONFIG", "SET", "maxmemory", "1")
        yield
        self.evidence["its commands were rejected"] += rejected() - before
        self.ask("CONFIG", "SET", "maxmemory", "0")

    def flush_all(self) -> None:
        self.evidence["keys were lost"] += self.ask("DBSIZE")
        self.ask("FLUSHALL")

    def flush_scripts(self, seconds: float) -> int:
        """Flush the scripts of all servers repeatedly for `seconds`. Return the number of scripts
        that the lock has called."""

        def scripts() -> int:
            return sum(self.calls("evalsha", "evalsha_ro", server=one) for one in self.servers)

        before, end = scripts(), time.monotonic() + seconds
        while time.monotonic() < end:
            for server in self.servers:
                self.ask("SCRIPT", "FLUSH", server=server)
            time.sleep(0.3)
        self.evidence["scripts that it calls were flushed"] += scripts() - before
        return scripts() - before

    # Workers

    def way(self, server: Server) -> Way:
        """Start and return a proxy to a server."""
        way = self._stack.enter_context(contextlib.closing(Way(HOST, server.port)))
        self.ways[way.url] = way
        return way

    def hand(self, who: str, *, own_way: bool = False, warm: bool = True, off: float = 0) -> Hand:
        """Start a worker. `own_way`: it reaches the servers through proxies. `warm`: it first uses
        another name once. `off`: error of its wall clock in seconds."""
        urls = tuple(self.way(one).url if own_way else one.url for one in self.servers)
        place = Place("".join(urls[:1]), urls, self.service, str(self.folder), limit=self.limit)
        hand = Hand(self, who, place, self._forker(off))
        self._stack.callback(hand.close)
        if warm and (said := hand.do("warm")) != "warm":
            raise RuntimeError(f"the first turn: {said}")
        return hand

    def team(self, who: str, **options: Any) -> Team:
        """Start a team of workers."""
        return Team(self.hand(f"{who}{n + 1}", **options) for n in range(self.limit))

    def _clock(self, seconds: float = 0.0) -> Clock:
        if why := clock.reason():
            raise Unable(why)
        made = Clock(Path(tempfile.mkdtemp(dir=self.folder)))
        made.shift(seconds)
        return made

    def _forker(self, off: float) -> str:
        """Return the socket of a process that forks workers with this error of their clocks."""
        if off not in self._workers:
            environment = self._clock(off).environment if off else {}
            self._workers[off] = str(self.folder / f"workers-{len(self._workers)}")
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker", self.key, self._workers[off]],
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._stack.enter_context(process)
            self._stack.callback(process.kill)
            if not process.stdout.readline():
                raise RuntimeError("workers can't be started")
        return self._workers[off]

    # History

    def history(self) -> list[Event]:
        return self.observer.history()

    def until_inside(self, who: str, seconds: float, name: str = "") -> None:
        """Wait for up to `seconds` until a worker with a name that begins with `who` gets in.

        `name`: of the lock (default: any).
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for one in self.history():
                if one.what == "enter" and one.who.startswith(who) and name in ("", one.name):
                    return
            time.sleep(0.03)
