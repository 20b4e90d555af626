"""The laboratory of a trial: servers, observer, and workers."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partialmethod
from multiprocessing.connection import Client
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from typing import Any

import redis

from . import clock
from .adapter import Adapter, Place
from .observer import Observer
from .proxy import Path as Way
from .servers import HOST, Server

#: Max seconds that a command of a worker may take, in addition to its wait.
COMMAND_SECONDS = 40
#: Names of workers that are alone. Other names are names of teams, which have as many workers as
#: the limit.
ALONE = {"newcomer", "one", "crowd", "interrupted"}
#: The error of the wall clocks of workers, in seconds.
CLOCKS = {"ahead": 3600, "behind": -3600}
#: Commands of connections and of the exam, which don't count as those of a lock.
NOT_A_LOCKS = {
    "auth", "client", "command", "config", "dbsize", "flushall", "hello", "info", "ping", "psync",
    "quit", "replconf", "replicaof", "script", "select", "time",
}  # fmt: skip


class Unable(Exception):
    """A fault can't be tried on this lock, or not on this machine. The message has the reason."""


@dataclass(frozen=True)
class Fault:
    """A section of faults.ini, which explains its lines."""

    title: str
    script: str
    evidence: str
    flags: str = ""
    only: str = ""
    unless: str = ""
    config: str = ""
    own_way: str = ""
    cold: str = ""
    without: str = ""


class Hand:
    """A worker, controlled by the exam. `start` sends a command, and `end` returns the answer."""

    def __init__(self, who: str, path: str, place: Place, observer: str, ways: list[Way]) -> None:
        self.who, self.ways, self._unanswered = who, ways, 0
        self.line = Client(path, "AF_UNIX")
        self.start(place, who, observer)
        self.pid = self.end()
        if not isinstance(self.pid, int):
            raise RuntimeError(self.pid)

    def start(self, *words: Any) -> None:
        self._unanswered += 1
        with contextlib.suppress(OSError):  # the worker died
            self.line.send(words)

    def end(self, seconds: float = COMMAND_SECONDS) -> Any:
        end, said = time.monotonic() + seconds, "nothing"
        while self._unanswered:
            try:
                if not self.line.poll(max(0.05, end - time.monotonic())):
                    return "waits"
                said = self.line.recv()
            except (OSError, EOFError):
                return "ended"
            self._unanswered -= 1
        return said

    def do(self, *words: Any) -> Any:
        self.start(*words)
        return self.end()


class Team(list[Hand]):
    """Workers that run the same commands. Signals also reach the processes that they started."""

    def start(self, *words: Any) -> None:
        for hand in self:
            hand.start(*words)

    def end(self, seconds: float = COMMAND_SECONDS) -> list[Any]:
        end = time.monotonic() + seconds
        return [hand.end(end - time.monotonic()) for hand in self]

    def do(self, *words: Any) -> list[Any]:
        self.start(*words)
        return self.end()

    def hold(self, *seconds: float) -> None:
        """Acquire the lock, and hold it in the background. Raise RuntimeError if it is not free."""
        if set(self.do("take", 5)) != {"got"}:
            raise RuntimeError("it could not be taken when it was free")
        if seconds:
            self.start("keep", *seconds)

    def wait(self, wait: float = 16, stay: float = 1.2) -> None:
        """Wait in the background for up to `wait` seconds, and then hold the lock for `stay`."""
        self.start("turn", wait, stay)
        time.sleep(0.4)

    def signal(self, number: Signals) -> None:
        for hand in self:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(hand.pid, number)

    kill = partialmethod(signal, number=SIGKILL)
    stop = partialmethod(signal, number=SIGSTOP)
    resume = partialmethod(signal, number=SIGCONT)

    def kill_alone(self) -> None:
        """Kill the workers, but not the processes that they started."""
        for hand in self:
            os.kill(hand.pid, SIGKILL)
            hand.line.close()


class Lab:
    """The servers, observer, and workers of a trial, which end with the stack."""

    def __init__(
        self, stack: contextlib.ExitStack, lock: type[Adapter], key: str, fault: Fault
    ) -> None:
        self._stack, self.lock, self.key, self.fault = stack, lock, key, fault
        self.limit = lock.limit
        #: The evidence that harm reached this lock: a number above 0.
        self.evidence: Counter[str] = Counter()
        self._teams: dict[str, Team] = {}
        self._forkers: dict[float, str] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="exam-"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.observer = stack.enter_context(Observer())
        self.seat = stack.enter_context(self.observer.seat("exam"))
        self.history = self.observer.history
        self.service = stack.enter_context(lock.service(str(self.folder)))
        self.servers: list[Server] = []
        for number in range({"redis": 1, "quorum": 3}.get(lock.needs, 0)):
            environment = {}
            if "clock" in fault.flags and not number:
                self.clock = self._clock(0)
                environment = self.clock.environment
            self.servers.append(self.server(environment, *fault.config.split()))

    # Servers

    def server(self, environment: Mapping[str, str], *options: str) -> Server:
        """Start and return another Redis server."""
        server = Server(environment, *options)
        self._stack.callback(server.close)
        self.start(server)
        return server

    def start(self, server: Server) -> None:
        """Start a server, and let the observer watch it."""
        server.start()
        self.observer.watch(server.pid)

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

    # Workers

    def way(self, server: Server) -> Way:
        """Start and return a proxy to a server."""
        return self._stack.enter_context(contextlib.closing(Way(HOST, server.port)))

    def team(self, names: str) -> Team:
        """Return the workers with a name, or with several names, as in "a+b". The first call starts
        them."""
        if "+" in names:
            return Team(hand for name in names.split("+") for hand in self.team(name))
        if names not in self._teams:
            each = [names] if names in ALONE else [f"{names}{n + 1}" for n in range(self.limit)]
            self._teams[names] = Team(self.hand(who, names) for who in each)
        return self._teams[names]

    def hand(self, who: str, team: str) -> Hand:
        """Start and return a worker of a team."""
        own_way = team in self.fault.own_way.split()
        ways = [self.way(one) for one in self.servers] if own_way else []
        urls = tuple(one.url for one in ways or self.servers)
        place = Place("".join(urls[:1]), urls, self.service, str(self.folder), limit=self.limit)
        path = self._forker(CLOCKS.get(team, 0))
        hand = Hand(who, path, place, self.observer.path, ways)
        self._stack.callback(Team([hand]).kill)
        if team not in self.fault.cold.split() and (said := hand.do("warm")) != "warm":
            raise RuntimeError(f"the first turn: {said}")
        return hand

    def _clock(self, seconds: float) -> clock.Clock:
        if why := clock.reason():
            raise Unable(why)
        made = clock.Clock(Path(tempfile.mkdtemp(dir=self.folder)))
        made.shift(seconds)
        return made

    def _forker(self, off: float) -> str:
        """Return the socket of a process that forks workers with this error of their clocks."""
        if off not in self._forkers:
            environment = self._clock(off).environment if off else {}
            self._forkers[off] = str(self.folder / f"workers-{len(self._forkers)}")
            environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)}
            words = [sys.executable, "-m", f"{__package__}.worker", self.key, self._forkers[off]]
            process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
            self._stack.enter_context(process)
            self._stack.callback(process.kill)
            if not process.stdout.readline():
                raise RuntimeError("workers can't be started")
        return self._forkers[off]
