"""One worker's path to a server: a TCP proxy on loopback that harms messages on request.

It knows nothing of what it carries: a request is what a client sent in one go.
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
    """A path that clients use by its `url`. `done` counts the harm that reached a message or a
    connection.

    harm(what, after, seconds) harms one request, the next but `after`:
    drop      it does not arrive, and its connection is cut
    lose      it arrives; its reply does not, and its connection is cut
    late      its reply arrives after `seconds`
    hold      it arrives after `seconds`
    double    it arrives twice, once on another connection: before, or `seconds` later
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

    # What the exam does

    def harm(self, what: str, after: int = 0, seconds: float = 0.0) -> None:
        self._harm = (what, self.requests + after + 1, seconds)

    def silence(self) -> None:
        """From now on accept and swallow what either side sends."""
        self._silent = True
        self.done["silence"] += len(self._tasks)

    def speak(self) -> None:
        """End the silence: what was swallowed stays so, and the connections are cut."""
        self._silent = False
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        self._run(self._end_all())

    def lead_to(self, host: str, port: int) -> None:
        """Lead to another server from now on, on new connections."""
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

    # How

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
            pass  # the server is down, and so is the path
        finally:
            back.close()

    async def _pump(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, on: Any, harm: list[Any]
    ) -> None:
        """Carry what comes, as long as `on()` lets the connection live."""
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
