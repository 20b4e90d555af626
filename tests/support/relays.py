"""Relays: TCP servers between clients and a real Redis server.

A test chooses which commands a relay answers, and how. The relay forwards all other commands to the
real server. Each relay has its own database of the real server. So several relays can replace the
nodes of a Cluster or the servers of a quorum.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
import redis
from django_redis.pool import ConnectionFactory

from devtools.servers import HOST, RedisServer
from django_redis_sync import Lock
from django_redis_sync.protocol import scripts
from tests.behaviour.watching import View, load_scripts

from .backends import cache_of

#: Special replies of a relay. SILENCE: send no reply, but leave the connection open. CUT: close the
#: connection.
SILENCE, CUT = "(silence)", "(cut)"


#: The names of scripts, by SHA and by source text. A journal wraps scripts. A wrapped script has
#: another SHA and another source text, and so two entries of its own.
_scripts: dict[str, str] = {}


def _script(text: str) -> str:
    if text not in _scripts:
        for name in (*scripts.NAME_SCRIPTS, *scripts.OTHER_SCRIPTS):
            script = scripts.script(name)
            _scripts.update({script.sha: name, script.source: name})
    return _scripts.get(text, "unknown")


class Impatient(Lock):
    """A lock that waits at most 0.5 s for each answer of Redis."""

    _attempt = 0.5


class Command(list[str]):
    """The words of a Redis command that a relay received.

    `connection`: the number of the client's connection. `verb`: for EVAL and EVALSHA, the name of
    the script. For other commands, the first word in lower case."""

    connection = 0

    @property
    def verb(self) -> str:
        word = self[0].lower()
        return _script(self[1]) if word.startswith("eval") else word

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the script that this command runs, by name."""
        return scripts.arguments_of(self.verb, self[3 + int(self[2]) :])


class Relay:
    """A relay with an address of its own.

    `received`: all commands that it has received. `opened`: number of connections that clients have
    opened. `raw`: a Redis client that reads the relay's database directly. `alias`: the cache alias
    of the relay, or "".
    """

    alias = ""

    def __init__(self, port: int, database: int = 0) -> None:
        self.raw = redis.Redis(HOST, port, db=database)
        self.received, self.opened = list[Command](), 0
        self.replies: dict[str, list[Any]] = {}
        self.address, self.to = (HOST, 0), (HOST, port)
        self.open = set[socket.socket]()
        self.up()
        self.port = self.address[1]
        self.url = f"redis://{HOST}:{self.port}/{database}"
        # The port may be that of an earlier relay, and django-redis keeps a pool for each URL.
        ConnectionFactory._pools.pop(self.url, None)

    def answer(self, verb: str, reply: Any, times: int = 10**9) -> None:
        """Answer the next `times` commands `verb` with `reply`, instead of forwarding them.

        `verb`: the name of a script or of a Redis command. `reply` is one of these:

        - a list of texts
        - a text such as "+OK" or "-ERR no"
        - bytes, which are sent unchanged
        - SILENCE or CUT
        - None: forward the command
        - a function of the command and of `forward`. The function returns one of the above.
          `forward()` sends the command to the real server, and returns the bytes of its reply.
        """
        self.replies.setdefault(verb, []).extend([reply, times])

    def calm(self) -> None:
        """Forward all commands from now on."""
        self.replies.clear()

    def verbs(self, *wanted: str) -> list[str]:
        """Return the verbs of the received commands, in order, but only those in `wanted`."""
        return [one.verb for one in self.received if one.verb in wanted]

    def connections_of(self, verb: str) -> int:
        """Return the number of connections on which the relay received commands `verb`."""
        return len({one.connection for one in self.received if one.verb == verb})

    def arguments(self, verb: str) -> list[dict[str, Any]]:
        """Return the arguments of each received call of the script `verb`."""
        return [one.arguments for one in self.received if one.verb == verb]

    @property
    def connections(self) -> int:
        """The number of open connections of clients."""
        return len(self.open)

    def view(self, name: str = "x") -> View:
        return View(self.raw, name)

    def up(self) -> None:
        """Accept connections."""
        self.listener = socket.create_server(self.address)
        self.address = self.listener.getsockname()
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def down(self) -> None:
        """Close all connections, and refuse new connections."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        for client in [*self.open]:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.opened += 1
                ours = client, self.opened
                threading.Thread(target=self.serve, args=ours, daemon=True).start()

    def serve(self, client: socket.socket, number: int) -> None:
        self.open.add(client)
        # If the real server is down, close the client's connection.
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(self.to) as server,
            client.makefile("rb") as asked,
            server.makefile("rb") as replies,
        ):
            with contextlib.suppress(OSError, ValueError):
                self.converse(client, server, asked, replies, number)
            for one in (client, server):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self.open.discard(client)

    def converse(
        self, client: socket.socket, server: socket.socket, asked: Any, replies: Any, number: int
    ) -> None:
        """Forward commands and replies. `asked`, `replies`: what the two sockets receive."""
        listeners = list[threading.Thread]()

        def forward(data: bytes) -> bytes:
            server.sendall(data)
            return b"" if listeners else _read(replies)

        def listen() -> None:
            with contextlib.suppress(OSError, ValueError):
                while data := replies.read1(65536):
                    client.sendall(data)
                client.shutdown(socket.SHUT_RDWR)

        while data := _read(asked):
            command = Command(_words(data))
            command.connection = number
            self.received.append(command)
            reply = self.reply(command.verb)
            while callable(reply):
                reply = reply(command, partial(forward, data))
            if reply == CUT:
                return
            if reply == SILENCE:
                while asked.read1(65536):
                    pass
                return
            found = forward(data) if reply is None else _packed(reply)
            if not found and not listeners:  # the server has closed the connection
                return
            client.sendall(found)
            if command.verb == "subscribe" and not listeners:
                listeners.append(threading.Thread(target=listen, daemon=True))
                listeners[0].start()

    def reply(self, verb: str) -> Any:
        rules = self.replies.get(verb)
        if not rules:
            return None
        reply, rules[1] = rules[0], rules[1] - 1
        if not rules[1]:
            del rules[:2]
        return reply


#: First bytes of the reply types that state their length in bytes: `$` for a string, and in RESP3
#: also `=` for a verbatim string and `!` for an error.
BULK = (b"$", b"=", b"!")


def _read(file: Any) -> bytes:
    """Return the bytes of the next command or reply, or b"" if the connection was closed."""
    line: bytes = file.readline()
    count = int(line[1:]) if line[:1] in (*BULK, b"*", b">", b"%", b"~") else 0
    if line[:1] in BULK:
        return line + (file.read(count + 2) if count >= 0 else b"")
    return line + b"".join(_read(file) for _ in range(count * (1 + (line[:1] == b"%"))))


def _words(data: bytes) -> Iterator[str]:
    rest = data.partition(b"\r\n")[2]
    while rest:
        length, _, rest = rest.partition(b"\r\n")
        size = int(length[1:])
        yield rest[:size].decode(errors="replace")
        rest = rest[size + 2 :]


def _packed(reply: Any) -> bytes:
    if isinstance(reply, bytes):
        return reply
    if isinstance(reply, list):
        texts = [f"${len(one)}\r\n{one}\r\n" for one in map(str, reply)]
        return f"*{len(texts)}\r\n{''.join(texts)}".encode()
    return f"{reply}\r\n".encode()


@cache
def _server() -> RedisServer:
    server = RedisServer().start()  # the server ends with this process
    # Without this, the first call of each script would send one command more, and tests that count
    # commands would depend on earlier tests.
    with redis.Redis(HOST, server.port or 0) as client:
        load_scripts(client)
    return server


_numbers = itertools.count(1)


@pytest.fixture
def relays(settings: Any, new_server: Any) -> Iterator[Callable[..., list[Relay]]]:
    """Return a function that makes relays, each with its own database and cache alias."""
    from django_redis_sync.engine import renewal

    made: list[Relay] = []
    with redis.Redis(HOST, _server().port or 0) as client:
        client.flushall()

    def make(count: int = 1, **options: Any) -> list[Relay]:
        mine = [Relay(_server().port or 0, len(made) + n) for n in range(count)]
        for relay in mine:
            relay.alias = f"relay-{next(_numbers)}"
            cache = {**settings.CACHES["default"], **cache_of(relay.url, **options)}
            settings.CACHES = {**settings.CACHES, relay.alias: cache}
        made.extend(mine)
        return mine

    yield make
    for relay in made:
        renewal.renewer(relay.alias).clear()
        relay.down()
        relay.raw.close()


@pytest.fixture
def relay(relays: Callable[..., list[Relay]]) -> Relay:
    """A relay with a cache alias."""
    return relays()[0]
