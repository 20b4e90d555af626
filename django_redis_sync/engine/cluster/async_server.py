"""The async side of a Cluster, per event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import exceptions as errors

from ... import conf
from ...protocol.plans import Answer, Failure, Run, Step
from ..batching import Batcher
from ..clients import async_options, async_redis, cut
from ..hub import Hub
from ..loops import Errands, Patience, apart, dropped, ended
from ..server import AsyncServer, server_of
from ..wire import REDIS_ERRORS, answered, clock, command, why
from .routing import MOST_HOPS, is_silence, partly, points_elsewhere
from .server import ClusterServer
from .topology import Address, url_at

#: Nodes on which the wake-ups of an event loop are listened for: any of them may hang.
EARS = 2


class AsyncNode:
    """The client and the batches of a node on an event loop."""

    def __init__(self, client: Any) -> None:
        self.client, self.batcher = client, Batcher(client)

    async def asking(self, step: Run) -> Answer:
        for whole in (False, True):
            sent = clock()
            pipeline = self.client.pipeline(transaction=False)
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*command(step, whole))
            patience = Patience(step.timeout)
            try:
                with patience:
                    replies = await pipeline.execute(raise_on_error=False)
            except (*REDIS_ERRORS, asyncio.TimeoutError) as error:
                cause = error if str(error) else errors.TimeoutError("no reply in time")
                raise Failure(cause, clock(), why(cause, True)) from error
            finally:
                patience.stop()
            reply = replies[1]
            if isinstance(reply, errors.NoScriptError):
                continue
            if isinstance(reply, errors.AskError):
                raise Failure(reply, clock(), "busy")
            if isinstance(reply, Exception):
                raise Failure(reply, clock(), why(reply, True))
            return Answer(answered(reply), sent, clock())
        raise Failure(reply, clock(), "busy")


class AsyncClusterServer(AsyncServer):
    """The async side of a cache alias that is a Cluster, per event loop."""

    def __init__(self, alias: str) -> None:
        server = server_of(alias)
        assert isinstance(server, ClusterServer)
        self.alias, self.topology, self._seed = alias, server.topology, server.seed
        self._nodes: dict[Address, AsyncNode] = {}
        self._errands = Errands()
        async_options(alias)  # raises now if it can't be used in async code
        self.hub = ClusterHub(self, conf.current().prefix(alias))

    async def aclose(self) -> None:
        """As of one server."""
        await self.hub.aclose()
        await self._errands.aclose()
        for node in self._nodes.values():
            await node.batcher.aclose()
            await node.client.aclose()

    def drop(self) -> None:
        """As of one server."""
        self.hub.drop()
        self._errands.drop()
        for node in self._nodes.values():
            node.batcher.drop()
            cut(node.client)

    def node(self, address: Address) -> AsyncNode:
        """The server object of a node."""
        found = self._nodes.get(address)
        if found is None:
            client = async_redis(self.alias, url_at(self._seed, address))
            found = self._nodes[address] = AsyncNode(client)
        return found

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """As on a single server, on the node that has the name."""
        if type(step) is not Run:
            return super().perform(step)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        address = self.topology.known(step.keys[0])
        if address is None:
            self._errands.start(self._first(step), done)
        else:
            self._send(step, address, done, MOST_HOPS)
        return done

    async def looked(self) -> None:
        """The nodes were asked for their slots, if that was not done yet. Failure as there."""
        if not self.topology.is_known:
            await asyncio.to_thread(self.topology.look)

    async def _first(self, step: Run) -> Answer:
        await self.looked()
        return await self.perform(step)

    def _send(self, step: Run, address: Address, done: asyncio.Future[Answer], hops: int) -> None:
        def answered(inner: asyncio.Future[Answer]) -> None:
            if inner.cancelled():
                done.cancel()
                return
            error = inner.exception()
            if done.done():  # no task waits for it any more
                return
            if error is None:
                done.set_result(inner.result())
            elif not isinstance(error, Failure):
                done.set_exception(error)
            elif points_elsewhere(error) and not hops:
                done.set_exception(Failure(error.cause, clock(), "busy"))
            elif isinstance(error.cause, errors.MovedError):
                self._send(step, self.topology.moved(error.cause), done, hops - 1)
            elif isinstance(error.cause, errors.AskError):
                there = Address(error.cause.host or address.host, error.cause.port)
                self._errands.start(self.node(there).asking(step), done)
            elif is_silence(error):
                self._errands.start(self._lost(address, error), done)
            else:
                done.set_exception(partly(error))

        self.node(address).batcher.submit(step).add_done_callback(answered)

    async def _lost(self, address: Address, failure: Failure) -> None:
        await asyncio.to_thread(self.topology.lost, address)
        raise failure


class ClusterHub(Hub):
    """Listens on EARS nodes at once: a message published on any node reaches all of them."""

    def __init__(self, server: AsyncClusterServer, prefix: str) -> None:
        super().__init__(self, prefix)
        self._server, self._nth = server, 0
        self._heard: dict[str, None] = {}
        self._ears: list[asyncio.Task[None]] = []

    def pubsub(self, **options: Any) -> Any:
        """As a client's: of another node each time, those first that answer."""
        addresses = self._server.topology.primaries
        self._nth += 1
        return self._server.node(addresses[self._nth % len(addresses)]).client.pubsub(**options)

    async def _read(self, tried: asyncio.Event) -> None:
        try:
            await self._server.looked()
        except Failure:
            tried.set()
        listen = super()._read
        self._ears = [apart(listen(_FirstOf(tried))) for _ in range(EARS)]
        await asyncio.wait(self._ears)

    async def aclose(self) -> None:
        """As Hub's."""
        await super().aclose()
        await ended(*self._ears)

    def drop(self) -> None:
        """As Hub's."""
        super().drop()
        dropped(*self._ears)

    def _deliver(self, data: Any) -> None:
        message = data.decode() if isinstance(data, bytes) else data
        if self._heard.pop(message, 0) is None:
            return  # the other ear had it
        self._heard[message] = None
        if len(self._heard) > 10_000:
            del self._heard[next(iter(self._heard))]
        super()._deliver(message)


class _FirstOf(asyncio.Event):
    """Sets `told` with the first ear that tried; an ear that tries again is not waited for."""

    def __init__(self, told: asyncio.Event) -> None:
        super().__init__()
        self._told = told

    def set(self) -> None:
        self._told.set()

    def clear(self) -> None:
        """It stays set."""
