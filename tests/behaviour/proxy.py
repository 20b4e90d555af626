"""A proxy in front of a server. The proxy loses, delays, and rejects messages."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.relays import CUT, SILENCE, Command, Relay

#: The faults that a proxy can cause, by name. Each is a function of the proxy and of `forward`.
#: `forward()` sends the request to the server, and returns the reply.
FAULTS: dict[str, Callable[[Proxy, Any], Any]] = {
    # "drop" and "cut" forward the request, but lose the reply. "drop" sends nothing to the client,
    # and "cut" closes the connection.
    "drop": lambda proxy, forward: forward() and SILENCE,
    "cut": lambda proxy, forward: forward() and CUT,
    # Forward the request only after `let_go()`, even if the client has disconnected by then.
    "hold": lambda proxy, forward: proxy.go.wait() and forward(),
    # Forward the request at once, but send the reply only after `let_go()`.
    "late": lambda proxy, forward: [forward(), proxy.go.wait()][0],
    "refuse": lambda proxy, forward: CUT,
    "swallow": lambda proxy, forward: SILENCE,
}


class Proxy(Relay):
    """A proxy on its own loopback port, in front of the server at `port`.

    `done`: the faults that the proxy has caused so far. `deaf`: True to stop all wake-ups. The
    proxy then renames the keys and channels on which clients wait."""

    def __init__(self, host: str, port: int) -> None:
        self.planned, self.taking = deque[tuple[str, str]](), threading.Lock()
        self.done: list[str] = []
        self.deaf, self.go = False, threading.Event()
        super().__init__(port)

    def cause(self, fault: str, verb: str = "acquire", times: int = 1) -> None:
        """Apply `FAULTS[fault]` to the next `times` requests that run the script `verb`, or to
        requests of any kind if `verb` is ""."""
        self.planned.extend([(fault, verb)] * times)

    def hold(self, seconds: float, verb: str, times: int) -> None:
        """Hold back the next `times` requests that run the script `verb`. Forward them `seconds`
        from now."""
        self.go.clear()
        self.cause("hold", verb, times)
        timer = threading.Timer(seconds, self.go.set)
        timer.daemon = True
        timer.start()

    def calm(self) -> None:
        """Cancel the faults that have not happened yet."""
        self.planned.clear()

    def let_go(self) -> None:
        """Send the requests and the replies that were held back."""
        self.go.set()

    def close(self) -> None:
        self.let_go()
        self.down()
        self.raw.close()

    def reply(self, verb: str) -> Any:
        with self.taking:
            if self.deaf and verb in ("blpop", "subscribe"):
                self.done.append("deaf")
                return _renamed
            if not self.planned or self.planned[0][1] not in ("", verb):
                return None
            what, _ = self.planned.popleft()
            self.done.append(what)
        return lambda command, forward: FAULTS[what](self, forward)


def _renamed(command: Command, forward: Any) -> Any:
    return forward.func(forward.args[0].replace(b":wake:", b":nope:"))


@contextlib.contextmanager
def proxied(host: str, port: int | None) -> Iterator[Proxy]:
    with contextlib.closing(Proxy(host, port or 0)) as proxy:
        yield proxy
