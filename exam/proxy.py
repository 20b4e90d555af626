"""A TCP proxy between a worker and a server, which harms messages on request.

It does not parse the protocol: the data of one read from a client counts as one request.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

Harm = tuple[str, float]  # the kind of harm, and its duration in seconds


@dataclass(eq=False)
class _Pair:
    """A client's connection, and the connection to the server. `harm`: the harm to the next
    answer."""

    client: socket.socket
    server: socket.socket
    harm: Harm | None = None

    def end(self) -> None:
        for one in (self.client, self.server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # the threads that read it end, and close it


class Path:
    """A proxy that clients use by its `url`. `done` counts the harm that reached a message or a
    connection.

    harm(what, after, seconds) skips `after` requests and harms the next one:
    drop      the request does not arrive, and the connection is closed
    lose      the request arrives, but its reply does not, and the connection is closed
    late      the reply arrives after `seconds`
    hold      the request arrives after `seconds`
    double    the request arrives twice, on two connections: at once, or `seconds` later
    """

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self.requests = 0
        self.done: Counter[str] = Counter()
        self._next: tuple[int, Harm] | None = None
        self._silent = False
        self._guard, self._pairs = threading.Lock(), set[_Pair]()
        self._door = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port: int = self._door.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        threading.Thread(target=self._serve, daemon=True).start()

    # Harm

    def harm(self, what: str, after: int = 0, seconds: float = 0.0) -> None:
        """Harm a request, as described above."""
        with self._guard:
            self._next = self.requests + after + 1, (what, seconds)

    def silence(self) -> None:
        """From now on, discard the data of both sides."""
        self._silent = True
        self.done["silence"] += len(self._pairs)

    def speak(self) -> None:
        """End the silence, and close all connections. Discarded data is lost."""
        self._silent = False
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        for pair in [*self._pairs]:
            pair.end()

    def lead_to(self, host: str, port: int) -> None:
        """Close all connections, and lead new ones to another server."""
        self._to = (host, port)
        self.cut()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self.cut()

    # One thread accepts connections, and two threads serve each connection

    def _serve(self) -> None:
        with self._door, contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                try:
                    pair = _Pair(client, socket.create_connection(self._to))
                except OSError:  # the server is down
                    client.close()
                    continue
                self._pairs.add(pair)
                for pump in (self._requests, self._answers):
                    threading.Thread(target=self._pump, args=(pump, pair), daemon=True).start()

    def _pump(self, pump: Callable[[_Pair], None], pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            pump(pair)
        pair.end()
        self._pairs.discard(pair)

    def _requests(self, pair: _Pair) -> None:
        while data := pair.client.recv(65536):
            with self._guard:
                self.requests += 1
                harm = None
                if self._next and self._next[0] == self.requests:
                    harm, self._next = self._next[1], None
            what, seconds = harm or ("", 0)
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
                pair.harm = harm
            if not self._silent:
                pair.server.sendall(data)

    def _answers(self, pair: _Pair) -> None:
        while data := pair.server.recv(65536):
            if pair.harm:
                what, seconds = pair.harm
                self.done[what] += 1
                if what == "lose":
                    return
                time.sleep(seconds)
                pair.harm = None
            if not self._silent:
                pair.client.sendall(data)

    def _again(self, data: bytes, seconds: float = 0) -> None:
        """Send a copy of a request on another connection."""
        time.sleep(seconds)
        with contextlib.suppress(OSError), socket.create_connection(self._to, 1) as server:
            server.sendall(data)
            self.done["double"] += 1
            server.recv(65536)
