"""One worker's path to a server: a TCP proxy on loopback that does harm when it is told to.

It knows nothing of what it carries: a request is what a client sent in one go.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds for which a doubled request may run on a connection of its own.
DOUBLE_SECONDS = 2.0


class Way:
    """Clients use `port`.

    silent: accepts, and swallows what comes from either side. harm(what, after): to the next
    request but `after`: "lose" its reply by a cut; "late": its reply by `seconds`; "double":
    the server gets it twice, the second time on a connection of its own.
    """

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self.requests = 0
        self.done: list[str] = []
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
        self._silent = True

    def speak(self) -> None:
        """After silence: what was swallowed stays so, and its connections are cut."""
        self._silent = False
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        self._run(self._end_all())

    def lead_to(self, host: str, port: int) -> None:
        """From now on to another server, on new connections."""
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

    def _accept(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(client, back))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        writers = [back]
        try:
            replies, server = await asyncio.open_connection(*self._to)
            writers.append(server)
            harm: list[Any] = []
            pumps = [
                asyncio.create_task(self._answers(replies, back, harm)),
                asyncio.create_task(self._requests(client, server, harm)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # it is down: so is the way to it
        finally:
            for writer in writers:
                writer.close()

    async def _requests(
        self, client: asyncio.StreamReader, server: asyncio.StreamWriter, harm: list[Any]
    ) -> None:
        while data := await client.read(65536):
            self.requests += 1
            if self._harm and self._harm[1] == self.requests:
                what, _, seconds = self._harm
                self._harm = None
                self.done.append(what)
                if what == "double":
                    await self._twice(data)
                else:
                    harm[:] = [what, seconds]
            if not self._silent:
                server.write(data)

    async def _twice(self, data: bytes) -> None:
        """Elsewhere, and first: what comes after is the repetition."""
        replies, server = await asyncio.open_connection(*self._to)
        server.write(data)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(replies.read(65536), DOUBLE_SECONDS)
        server.close()

    async def _answers(
        self, replies: asyncio.StreamReader, back: asyncio.StreamWriter, harm: list[Any]
    ) -> None:
        while data := await replies.read(65536):
            if harm and harm[0] == "lose":
                return
            if harm:
                await asyncio.sleep(harm[1])
                harm.clear()
            if not self._silent:
                back.write(data)
