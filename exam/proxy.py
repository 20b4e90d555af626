"""A TCP proxy between a worker and a server, which harms messages on request.

It does not parse the protocol: the data of one read from a client counts as one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
        self._harm: tuple[str, int, float] | None = None
        self._silent = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = self._run(self._open())

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    # Harm

    def harm(self, what: str, after: int = 0, seconds: float = 0.0) -> None:
        """Harm a request, as described above."""
        self._harm = (what, self.requests + after + 1, seconds)

    def silence(self) -> None:
        """From now on, discard the data of both sides."""
        self._silent = True
        self.done["silence"] += len(self._tasks)

    def speak(self) -> None:
        """End the silence, and close all connections. Discarded data is lost."""
        self._silent = False
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        self._run(self._end_all())

    def lead_to(self, host: str, port: int) -> None:
        """Close all connections, and lead new ones to another server."""
        self._to = (host, port)
        self.cut()

    def close(self) -> None:
        async def end() -> None:
            self._door.close()
            await self._end_all()

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Inside

    def _run(self, body: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(body, self._loop).result(10)

    async def _open(self) -> int:
        self._door = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=2048)
        return int(self._door.sockets[0].getsockname()[1])

    async def _end_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, body: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self._start(self._serve(client, back))

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        harm: list[Any] = []
        try:
            replies, server = await asyncio.open_connection(*self._to)
            pumps = [
                asyncio.create_task(self._pump(replies, back, self._answer, harm)),
                asyncio.create_task(self._pump(client, server, self._request, harm)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
                server.close()
        except OSError:
            pass  # the server is down
        finally:
            back.close()

    async def _pump(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, on: Any, harm: list[Any]
    ) -> None:
        """Forward data until `on()` returns False or the source ends."""
        while (data := await source.read(65536)) and await on(data, harm):
            if not self._silent:
                to.write(data)

    async def _request(self, data: bytes, harm: list[Any]) -> bool:
        self.requests += 1
        if self._harm and self._harm[1] == self.requests:
            what, _, seconds = self._harm
            self._harm = None
            if what == "drop":
                self.done[what] += 1
                return False
            if what == "hold":
                await asyncio.sleep(seconds)
                self.done[what] += 1
            elif what == "double" and seconds:
                self._start(self._again(data, seconds))
            elif what == "double":
                await self._again(data)
            else:
                harm[:] = [what, seconds]
        return True

    async def _answer(self, data: bytes, harm: list[Any]) -> bool:
        if harm:
            what, seconds = harm
            self.done[what] += 1
            if what == "lose":
                return False
            await asyncio.sleep(seconds)
            harm.clear()
        return True

    async def _again(self, data: bytes, seconds: float = 0.0) -> None:
        """Send a copy of a request on another connection."""
        await asyncio.sleep(seconds)
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            replies, server = await asyncio.open_connection(*self._to)
            server.write(data)
            self.done["double"] += 1
            await asyncio.wait_for(replies.read(65536), 1)
            server.close()
