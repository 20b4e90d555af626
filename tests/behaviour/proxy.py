"""A TCP proxy in front of a server, which can lose, delay, and reject messages."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from django_redis_sync.protocol import scripts


class Harm(NamedTuple):
    """A fault for the next request that contains `match`.

    drop: forward the request, and discard the reply.
    cut: forward the request, then close the connection instead of sending the reply.
    hold: forward the request after `let_go()`, even if its client has disconnected.
    late: forward the request, and send the reply after `let_go()`.
    refuse: close the connection.
    swallow: discard the request, and keep the connection open.
    """

    what: str
    match: bytes


class Proxy:
    """A proxy on its own loopback port. `url`: the address for clients. `done`: the faults so far.

    `deaf`: if True, clients wait for wake-ups under wrong names, so they get none."""

    def __init__(self, host: str, port: int) -> None:
        self._server, self._harms = (host, port), deque[Harm]()
        self.done: list[str] = []
        self.deaf = False
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._go = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = f"redis://127.0.0.1:{self._call(self._listen())}/0"

    def harm(self, what: str, verb: str = "acquire", times: int = 1) -> None:
        """Do `what` to the next `times` requests that run script `verb`; "" means any request."""
        match = scripts.script(verb).sha.encode() if verb else b""
        self._harms.extend([Harm(what, match)] * times)

    def hold(self, seconds: float, verb: str, times: int) -> None:
        """Hold back the next `times` requests that run script `verb`, until `seconds` from now."""
        self._loop.call_soon_threadsafe(self._go.clear)
        self.harm("hold", verb, times)
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._go.set)

    def calm(self) -> None:
        """Cancel the faults that have not happened yet."""
        self._harms.clear()

    def let_go(self) -> None:
        """Forward the messages that were held back."""
        self._loop.call_soon_threadsafe(self._go.set)

    def close(self) -> None:
        async def end() -> None:
            # A listener that is closed at once leaks a connection that it has just accepted.
            for listening in self._listener.sockets:
                self._loop.remove_reader(listening.fileno())
            for _ in range(5):  # after these turns of the loop, accepted connections are served
                await asyncio.sleep(0)
            self._listener.close()
            serving = dict(self._serving)
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            for writer in self._writers:  # also if its task was cancelled while closing it
                writer.transport.abort()
            for _ in range(3):  # the loop closes the sockets in these turns
                await asyncio.sleep(0)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, body: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(body, self._loop).result(10)

    async def _listen(self) -> int:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._listener.sockets[0].getsockname()[1])

    def _accept(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self._writers.append(back)
        task = self._loop.create_task(self._serve(client, back))
        self._serving[task] = back
        task.add_done_callback(self._serving.pop)

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            replies, server = await asyncio.open_connection(*self._server)
        except OSError:  # the server is down
            await _closed(back)
            return
        self._writers.append(server)
        faults: set[str] = set()  # of the next reply

        async def answers() -> None:
            while (data := await replies.read(65536)) and "cut" not in faults:
                if "late" in faults:
                    faults.discard("late")
                    await self._go.wait()
                if "drop" not in faults:
                    back.write(data)
            back.close()

        async def requests() -> None:
            while data := await client.read(65536):
                if self.deaf and (b"BLPOP" in data or b"SUBSCRIBE" in data):
                    data = data.replace(b":wake:", b":nope:")
                    self.done.append("deaf")
                if self._harms and self._harms[0].match in data:
                    what = self._harms.popleft().what
                    self.done.append(what)
                    if what == "refuse":
                        break
                    if what == "swallow":
                        continue
                    if what == "hold":
                        await self._go.wait()
                    else:
                        faults.add(what)
                server.write(data)
            if "hold" in self.done:  # the client gave up, but the server still gets the request
                await server.drain()
                await asyncio.sleep(0.2)
            server.close()
            back.close()

        pumps = [asyncio.create_task(answers()), asyncio.create_task(requests())]
        try:
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            for pump in pumps:
                pump.cancel()
            for writer in (server, back):
                await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.contextmanager
def proxied(host: str, port: int | None) -> Iterator[Proxy]:
    proxy = Proxy(host, port or 0)
    try:
        yield proxy
    finally:
        proxy.close()
