"""The sync side of a quorum: carried out on an event loop of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from ...protocol.plans import Answer, Failure, Run, Wait
from ..server import Server, async_server_of, server_of
from ..wire import ATTEMPT, clock
from .async_server import AsyncQuorumServer
from .loop import on_our_loop
from .members import Members, check


class QuorumServer(Server):
    """The sync side: carried out on an event loop of this process, on a thread of its own."""

    def __init__(self, quorum: Members) -> None:
        super().__init__(quorum)
        self.quorum = quorum
        check(quorum)

    def pool(self) -> Any:
        """That of the first server."""
        return server_of(self.quorum.aliases[0]).pool()

    def run(self, step: Run) -> Answer:
        """As on a single server."""

        async def body() -> Answer:
            return await async_server_of(self.quorum).perform(step)

        answer: Answer = on_our_loop(body())
        return answer

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """All at once; a Failure stands in its step's place."""

        async def body() -> list[Any]:
            server = async_server_of(self.quorum)
            performed = map(server.perform, steps)
            return list(await asyncio.gather(*performed, return_exceptions=True))

        answers: list[Any] = on_our_loop(body()) if steps else []
        for answer in answers:
            if not isinstance(answer, (Answer, Failure)):
                raise answer
        return list(answers)

    def command(self, *args: Any, timeout: float = ATTEMPT) -> Any:
        """As AsyncQuorumServer's."""

        async def body() -> Any:
            server = async_server_of(self.quorum)
            assert isinstance(server, AsyncQuorumServer)
            return await server.command(*args, timeout=timeout)

        return on_our_loop(body())

    def wait(self, step: Wait) -> Answer:
        sent = clock()
        threading.Event().wait(step.seconds)
        return Answer(None, sent, clock())
