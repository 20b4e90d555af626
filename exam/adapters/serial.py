"""A server of leases that does one thing at a time, and so is right; unless a defect is planted."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

SOCKET = "serial"
TICK = 0.005


@dataclass
class Waiter:
    """A connection that wants one permit."""

    connection: Connection
    limit: int
    lease: float
    until: float
    dropped: bool = False


@dataclass
class Name:
    """One name. `holders`: token -> when its lease ends."""

    holders: dict[int, float] = field(default_factory=dict)
    queue: list[Waiter] = field(default_factory=list)
    fence: int = 0
    slow_until: float = 0.0
    turns: int = 0


@dataclass(eq=False)
class Connection:
    socket: socket.socket
    unread: bytes = b""

    def say(self, **words: Any) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(words).encode() + b"\n")


class Server:
    """`tokens` never repeat; a lease ends at its time and not before."""

    def __init__(self, door: socket.socket) -> None:
        self.names: dict[str, Name] = {}
        self.defects: dict[str, str] = {}
        self.tokens = itertools.count(1)
        self.selector = selectors.DefaultSelector()
        self.selector.register(door, selectors.EVENT_READ)
        self.door = door

    def run(self, parent: int) -> None:
        while os.getppid() == parent:
            for key, _ in self.selector.select(TICK):
                if key.fileobj is self.door:
                    connection = Connection(self.door.accept()[0])
                    self.selector.register(connection.socket, selectors.EVENT_READ, connection)
                else:
                    self.read(key.data)
            for name in list(self.names):
                self.turn(name)

    def read(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(connection.socket)
            connection.socket.close()
            for name in self.names.values():
                name.queue = [one for one in name.queue if one.connection is not connection]
            return
        *lines, connection.unread = (connection.unread + data).split(b"\n")
        for line in lines:
            words = json.loads(line)
            self.defects[words["name"]] = words["defect"]
            getattr(self, words["do"])(connection, words)

    def acquire(self, connection: Connection, words: dict[str, Any]) -> None:
        name = self.names.setdefault(words["name"], Name())
        defect = words["defect"]
        name.turns += 1
        if defect == "refuses" and name.turns % 3 == 0:
            connection.say(no=True)
            return
        wait = 60.0 if defect == "hangs" else words["wait"]
        waiter = Waiter(connection, words["limit"], words["lease"], time.monotonic() + wait)
        if defect == "newest first":
            name.queue.insert(0, waiter)
        else:
            name.queue.append(waiter)
        waiter.dropped = defect == "forgets one" and len(name.queue) == 2
        self.turn(words["name"])

    def release(self, connection: Connection, words: dict[str, Any]) -> None:
        name = self.names.setdefault(words["name"], Name())
        held = name.holders.pop(words["token"], 0.0)
        ok = held > time.monotonic()
        if words["defect"] == "anybody's release" and not ok and name.holders:
            name.holders.popitem()
            ok = True
        if words["defect"] == "slow hand-over" and name.queue:
            name.slow_until = time.monotonic() + 3.0
        if words["defect"] == "lost hand-over" and name.queue and name.turns % 2:
            name.slow_until = time.monotonic() + 3600
        connection.say(ok=ok)
        self.turn(words["name"])

    def turn(self, which: str) -> None:
        """Ends leases, gives free permits to the head of the queue, and tells who waited enough."""
        name, now, defect = self.names[which], time.monotonic(), self.defects[which]
        if defect != "keeps the dead":
            name.holders = {t: end for t, end in name.holders.items() if end > now}
        while name.queue and now >= name.slow_until:
            waiter = next((one for one in name.queue if not one.dropped), None)
            if waiter is None:
                break
            room = waiter.limit + (defect == "one too many")
            if len(name.holders) >= room and defect != "lets all in":
                break
            name.queue.remove(waiter)
            token, name.fence = next(self.tokens), name.fence + 1
            lease = waiter.lease / 2 if defect == "short lease" else waiter.lease
            name.holders[token] = now + lease
            fence = {"fence stands": 7, "fence goes back": 1000 - name.fence}
            number = fence.get(defect, name.fence)
            waiter.connection.say(token=token, fence=number, until=now + waiter.lease)
        late = [one for one in name.queue if one.until <= now]
        name.queue = [one for one in name.queue if one.until > now]
        for waiter in late:
            waiter.connection.say(no=True)


def serve() -> None:
    """In a process of its own, which ends with the one that starts the workers."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(os.path.join(os.environ["EXAM_FOLDER"], SOCKET))
    door.listen(256)
    parent = os.getpid()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            Server(door).run(parent)
        os._exit(0)
    door.close()
