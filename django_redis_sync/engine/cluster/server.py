"""Server objects for a Redis Cluster: ClusterServer for sync code, AsyncClusterServer for event
loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from redis import exceptions as errors

from ... import conf
from ...protocol.steps import Answer, Failure, Run, Step, Wait
from ..backends import backend_of
from ..clients import async_options, async_redis
from ..hub import Hub
from ..loops import BackgroundTasks
from ..server import AsyncServer, Server, server_of
from ..wire import ATTEMPT, clock
from .topology import LOOK, Address, Topology, is_silence, key_of, partly, points_elsewhere, url_at

#: Max times that a request is sent, including the first time, if nodes redirect it.
MAX_REDIRECTS = 4

T = TypeVar("T")
Done = TypeVar("Done")


class ClusterServer(Server):
    """Carries out steps on the Redis Cluster of a cache alias, in sync code."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        backend = backend_of(alias)
        self._factory, self.seed = backend.topology, backend.urls[0]
        self._nodes: dict[Address, Server] = {}
        self.topology = Topology(backend.urls, self._ask)

    def _ask(self, address: Address) -> Any:
        return self.node(address).command("CLUSTER", "SLOTS", timeout=LOOK)

    def node(self, address: Address) -> Server:
        """Return the server object of the node at `address`."""
        found = self._nodes.get(address)
        if found is None:
            made = self._factory.pool(url_at(self.seed, address))
            found = self._nodes.setdefault(address, Server(self.alias, made))
        return found

    def pool(self) -> Any:
        """Return the connection pool of a node, if possible of a node that didn't fail lately."""
        return self.node(self.topology.addresses[0]).pool()

    def close_idle(self) -> None:
        """Close the idle connections to all nodes."""
        for node in list(self._nodes.values()):
            node.close_idle()

    def run(self, step: Run, asking: bool = False) -> Answer:
        """Run a script on the node that stores the name of `step`. Raise Failure if there was no
        usable answer."""
        answer: Answer = self._routed(step.keys[0], lambda node, asking: node.run(step, asking))
        return answer

    def node_of(self, step: Run) -> Address | None:
        """Return the node that stores the name of `step`, or None if no node has yet reported
        which node stores which slots."""
        return self.topology.known(step.keys[0])

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """Send steps, in one round trip per node. Return an Answer or a Failure for each step."""
        try:
            return self._on_each_node(steps, [step.keys[0] for step in steps], self._many_at)
        except Failure as failure:
            return [failure for _ in steps]

    def _on_each_node(
        self,
        what: Sequence[T],
        keys: Sequence[str | None],
        do: Callable[[Address, list[T]], Sequence[Done]],
    ) -> list[Done]:
        """Group the items of `what` by node, and call `do(address, items)` once per node. Return
        the results in the order of `what`. `keys`: for each item, the Redis key that determines the
        node, or None if any node will do."""
        by_node: dict[Address, list[int]] = {}
        for i, key in enumerate(keys):
            address = self.topology.addresses[0] if key is None else self.topology.of(key)
            by_node.setdefault(address, []).append(i)
        found: dict[int, Done] = {}
        # Call `do` last for nodes that failed lately. A hanging node then delays no other node.
        for address in sorted(by_node, key=self.topology.suspect):
            here = by_node[address]
            found.update(zip(here, do(address, [what[i] for i in here]), strict=True))
        return [found[i] for i in range(len(what))]

    def _many_at(self, address: Address, steps: list[Run]) -> list[Answer | Failure]:
        answers = self.node(address).many(steps)
        if any(is_silence(answer) for answer in answers):
            self.topology.lost(address)
        return [
            self._tried(step) if points_elsewhere(answer) else partly(answer)
            for step, answer in zip(steps, answers, strict=True)
        ]

    def command(self, *args: Any, timeout: float = ATTEMPT, asking: bool = False) -> Any:
        """Send a command to the node that stores its key, or to any node if it has no key. Return
        the reply. Raise Failure if there was no usable answer within `timeout` seconds. The command
        may be sent twice."""

        def do(node: Server, asking: bool = False) -> Any:
            return node.command(*args, timeout=timeout, asking=asking)

        key = key_of(args)
        if key is not None:
            return self._routed(key, do)
        try:
            return self._at(self.topology.addresses[0], do)
        except Failure as failure:
            if not is_silence(failure):
                raise
        return self._at(self.topology.addresses[0], do)

    def _at(self, address: Address, do: Callable[[Server], Done]) -> Done:
        try:
            return do(self.node(address))
        except Failure as failure:
            if is_silence(failure):
                self.topology.lost(address)
            raise

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = ATTEMPT) -> list[Any]:
        """Send several commands, in one round trip per node. Return their replies. An error reply
        is returned as a ResponseError. A command may be sent twice."""

        def at(address: Address, some: list[Sequence[Any]]) -> list[Any]:
            replies = self._at(address, lambda node: node.commands(some, timeout))
            # Send a redirected command again. MovedError, too, is a subclass of AskError.
            return [
                self.command(*args, timeout=timeout)
                if isinstance(reply, errors.AskError)
                else reply
                for args, reply in zip(some, replies, strict=True)
            ]

        return self._on_each_node(several, [key_of(args) for args in several], at)

    def wait(self, step: Wait) -> Answer:
        """Wait for a wake-up message on the node that stores the name. While the slot of the name
        moves to another node, raise a Failure with `why="busy"`."""

        def do(node: Server, asking: bool) -> Answer:
            if asking:
                raise Failure(errors.TryAgainError("the slot is moving"), clock(), "busy")
            return node.wait(step)

        return self._routed(step.keys.leases, do)

    def _routed(self, key: str, do: Callable[..., Done]) -> Done:
        """Call `do(node, asking=...)` with the node that stores `key`, and return the result. If
        that node redirects to another node, repeat the call with the other node. `asking`: True
        after a redirection of the type ASK."""
        address, asking = self.topology.of(key), False
        for _ in range(MAX_REDIRECTS):
            try:
                return self._at(address, partial(do, asking=asking))
            except Failure as failure:
                cause = failure.cause
                if isinstance(cause, errors.MovedError):
                    address, asking = self.topology.moved(cause), False
                elif isinstance(cause, errors.AskError):
                    address, asking = Address(cause.host or address.host, cause.port), True
                else:
                    raise partly(failure) from cause
                last = failure
        raise Failure(last.cause, clock(), "busy")


class AsyncClusterServer(AsyncServer):
    """Carries out steps on the Redis Cluster of a cache alias, on an event loop.

    Each step is sent to the node that stores the name. If this node is not known yet, or if it
    redirects the step, the process's ClusterServer carries out the step in a thread.
    """

    def __init__(self, alias: str) -> None:
        server = server_of(alias)
        assert isinstance(server, ClusterServer)
        self.alias, self._server = alias, server
        self._nodes: dict[Address, AsyncServer] = {}
        self._background = BackgroundTasks()
        async_options(alias)  # raise an error now if async code can't use the alias
        # Subscribe on two nodes, in case one hangs. While both work, each message arrives twice.
        self.hub = Hub(self, conf.current().prefix(alias), subscriptions=2)

    async def aclose(self) -> None:
        """Close the connections to all nodes; a later step opens them again."""
        await self.hub.aclose()
        await self._background.aclose()
        for node in self._nodes.values():
            await node.aclose()

    def node(self, address: Address) -> AsyncServer:
        """Return the server object of the node at `address`."""
        found = self._nodes.get(address)
        if found is None:
            client = async_redis(self.alias, url_at(self._server.seed, address))
            found = self._nodes[address] = AsyncServer(self.alias, client)
        return found

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """Carry out a step on the node that stores the name. Return a future of its Answer, or of a
        Failure if there was no usable answer."""
        if type(step) is not Run:
            return super().perform(step)
        return self._background.start(self._run(step))

    async def _run(self, step: Run) -> Answer:
        topology = self._server.topology
        address = topology.known(step.keys[0])
        if address is not None:
            try:
                return await self.node(address).perform(step)
            except Failure as failure:
                if is_silence(failure):
                    await asyncio.to_thread(topology.lost, address)
                    raise
                if not points_elsewhere(failure):
                    raise partly(failure) from failure.cause
        return await asyncio.to_thread(self._server.run, step)

    def pubsub(self, **options: Any) -> Any:
        """Return a Pub/Sub object for one of the nodes. Each call takes the next node. Any node
        works, because a Cluster sends each published message to all of its nodes."""
        addresses = self._server.topology.primaries
        self._nth += 1
        return self.node(addresses[self._nth % len(addresses)]).client.pubsub(**options)

    _nth = 0
