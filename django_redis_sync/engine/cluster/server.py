"""The servers of a Cluster: ClusterServer in sync code, AsyncClusterServer on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis import exceptions as errors

from ... import conf
from ...protocol.steps import Answer, Failure, Run, Step, Wait
from ..batching import Batcher
from ..clients import async_options, async_redis, backend_of, urls_of
from ..hub import Hub
from ..loops import BackgroundTasks, LoopTimeout, end_tasks, start_task
from ..pools import CheckedOut
from ..server import AsyncServer, Server, server_of
from ..wire import ATTEMPT, REDIS_ERRORS, answered, clock, pack, text, why, words_of
from .topology import (
    LAST_CHANCE,
    LOOK,
    MAX_REDIRECTS,
    Address,
    Topology,
    is_silence,
    key_of,
    partly,
    points_elsewhere,
    url_at,
)

Done = TypeVar("Done")


class Node(Server):
    """A node, used like a single server. `made`: its pool."""

    def __init__(self, alias: str, made: Any) -> None:
        super().__init__(alias)
        self._pool = made

    def pool(self) -> Any:
        return self._pool

    def asking(self, words: Sequence[Sequence[Any]], timeout: float) -> Any:
        """Send each of the commands after ASKING, until one does not fail with NOSCRIPT. Return its
        reply."""
        with CheckedOut(self.own(), timeout) as borrowed:
            for nth, args in enumerate(words, 1):
                borrowed.send_several(map(pack, (("ASKING",), args)))
                borrowed.read()
                try:
                    return text(borrowed.read())
                except errors.NoScriptError:
                    if nth == len(words):
                        raise
        raise AssertionError("not reached")


class ClusterServer(Server):
    """The server of a cache alias that is a Cluster, in sync code."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        urls = urls_of(alias)
        self._factory, self.seed = backend_of(alias).connection_factory, urls[0]
        self._nodes: dict[Address, Node] = {}
        self.topology = Topology(urls, self._ask)

    def _ask(self, address: Address) -> Any:
        return self.node(address).command("CLUSTER", "SLOTS", timeout=LOOK)

    def node(self, address: Address) -> Node:
        """Return the server of a node."""
        found = self._nodes.get(address)
        if found is None:
            made = self._factory.pool(url_at(self.seed, address))
            found = self._nodes.setdefault(address, Node(self.alias, made))
        return found

    def pool(self) -> Any:
        """Return the pool of a node that is not suspect, if possible."""
        return self.node(self.topology.addresses[0]).pool()

    def close_idle(self) -> None:
        """Close the idle connections to all nodes."""
        for node in list(self._nodes.values()):
            node.close_idle()

    def run(self, step: Run) -> Answer:
        """Run a script on the node that has the name. Raise Failure if there was no usable
        answer."""

        def asking(node: Node) -> Answer:
            sent = clock()
            reply = node.asking([words_of(step), words_of(step, whole=True)], step.timeout)
            return Answer(answered(reply), sent, clock())

        return self._routed(step.keys[0], lambda node: node.run(step), asking)

    def node_of(self, step: Run) -> Address | None:
        """Return the node that has the name of `step`, or None if that is not known yet."""
        return self.topology.known(step.keys[0])

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """Send steps, in one round trip per node. Return an Answer or a Failure for each."""
        by_node: dict[Address, list[int]] = {}
        try:
            for i, step in enumerate(steps):
                by_node.setdefault(self.topology.of(step.keys[0]), []).append(i)
        except Failure as failure:
            return [failure for _ in steps]
        answers: dict[int, Answer | Failure] = {}
        # Suspect nodes come last, so that they don't delay the renewals on other nodes.
        for address in sorted(by_node, key=self.topology.suspect):
            here = by_node[address]
            answers.update(zip(here, self._many_at(address, [steps[i] for i in here]), strict=True))
        return [answers[i] for i in range(len(steps))]

    def _many_at(self, address: Address, steps: list[Run]) -> list[Answer | Failure]:
        if self.topology.suspect(address):
            steps = [step._replace(timeout=min(step.timeout, LAST_CHANCE)) for step in steps]
        answers = self.node(address).many(steps)
        if any(is_silence(answer) for answer in answers):
            self.topology.lost(address)
        return [
            self._again(step, answer) if points_elsewhere(answer) else partly(answer)
            for step, answer in zip(steps, answers, strict=True)
        ]

    def _again(self, step: Run, reply: Any) -> Answer | Failure:
        try:
            return self.run(step)
        except Failure as failure:
            return failure

    def command(self, *args: Any, timeout: float = ATTEMPT) -> Any:
        """Send a command, which may be sent twice, to the node that has its key, or to any node if
        it has none. Return the reply. Raise Failure if there was no usable answer within `timeout`
        seconds."""
        key = key_of(args)
        if key is None:
            return self._anywhere(lambda node: node.command(*args, timeout=timeout))
        return self._routed(
            key,
            lambda node: node.command(*args, timeout=timeout),
            lambda node: node.asking([args], timeout),
        )

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = ATTEMPT) -> list[Any]:
        """Send several commands as `command` does, in one round trip per node. Return their
        replies; a reply may be a ResponseError."""
        by_node: dict[Address, list[int]] = {}
        for i, args in enumerate(several):
            key = key_of(args)
            address = self.topology.addresses[0] if key is None else self.topology.of(key)
            by_node.setdefault(address, []).append(i)
        found: dict[int, Any] = {}
        for address, here in by_node.items():
            replies = self._commands_at(address, [several[i] for i in here], timeout)
            found.update(zip(here, replies, strict=True))
        return [found[i] for i in range(len(several))]

    def _commands_at(
        self, address: Address, several: list[Sequence[Any]], timeout: float
    ) -> list[Any]:
        try:
            replies = self.node(address).commands(several, timeout)
        except Failure as failure:
            if is_silence(failure):
                self.topology.lost(address)
            raise
        # MovedError is a subclass of AskError, and AskError one of ResponseError.
        return [
            self.command(*args, timeout=timeout) if isinstance(reply, errors.AskError) else reply
            for args, reply in zip(several, replies, strict=True)
        ]

    def _anywhere(self, do: Callable[[Node], Done]) -> Done:
        address = self.topology.addresses[0]
        try:
            return do(self.node(address))
        except Failure as failure:
            if not is_silence(failure):
                raise
            self.topology.lost(address)
            return do(self.node(self.topology.addresses[0]))

    def wait(self, step: Wait) -> Answer:
        """Wait on the node that has the name. Raise a "busy" Failure while its slot moves."""

        def busy(node: Node) -> Answer:
            raise Failure(errors.TryAgainError("the slot is moving"), clock(), "busy")

        return self._routed(step.keys.leases, lambda node: node.wait(step), busy)

    def _routed(self, key: str, do: Callable[[Node], Done], asking: Callable[[Node], Done]) -> Done:
        """Return `do(node)` for the node that has `key`. Follow redirections; for one of the ASK
        type, return `asking(node)`."""
        address, then = self.topology.of(key), do
        for _ in range(MAX_REDIRECTS):
            try:
                return then(self.node(address))
            except Failure as failure:
                cause = failure.cause
                if isinstance(cause, errors.MovedError):
                    address, then = self.topology.moved(cause), do
                elif isinstance(cause, errors.AskError):
                    address, then = Address(cause.host or address.host, cause.port), asking
                else:
                    if is_silence(failure):
                        self.topology.lost(address)
                    raise partly(failure) from cause
                last = failure
        raise Failure(last.cause, clock(), "busy")


#: Number of nodes to which an event loop is subscribed, because any node may hang.
EARS = 2


class AsyncNode:
    """The client and the batcher of a node on an event loop."""

    def __init__(self, client: Any) -> None:
        self.client, self.batcher = client, Batcher(client)

    async def asking(self, step: Run) -> Answer:
        """Run a script after ASKING. Raise Failure if there was no usable answer."""
        for whole in (False, True):
            sent = clock()
            pipeline = self.client.pipeline(transaction=False)
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*words_of(step, whole))
            patience = LoopTimeout(step.timeout)
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
    """The server of a cache alias that is a Cluster, on an event loop."""

    def __init__(self, alias: str) -> None:
        server = server_of(alias)
        assert isinstance(server, ClusterServer)
        self.alias, self.topology, self._seed = alias, server.topology, server.seed
        self._nodes: dict[Address, AsyncNode] = {}
        self._background = BackgroundTasks()
        async_options(alias)  # raises if the alias can't be used in async code
        self.hub = ClusterHub(self, conf.current().prefix(alias))

    async def aclose(self) -> None:
        """Close the connections to all nodes; a later step opens them again."""
        await self.hub.aclose()
        await self._background.aclose()
        for node in self._nodes.values():
            await node.batcher.aclose()
            await node.client.aclose()

    def node(self, address: Address) -> AsyncNode:
        """Return the client of a node."""
        found = self._nodes.get(address)
        if found is None:
            client = async_redis(self.alias, url_at(self._seed, address))
            found = self._nodes[address] = AsyncNode(client)
        return found

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """Carry out a step on the node that has the name. Return a future of its Answer, or of a
        Failure if there was no usable answer."""
        if type(step) is not Run:
            return super().perform(step)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        address = self.topology.known(step.keys[0])
        if address is None:
            self._background.start(self._first(step), done)
        else:
            self._send(step, address, done, MAX_REDIRECTS)
        return done

    async def looked(self) -> None:
        """Ask the nodes for their slots, unless they are known. Raise Failure if none answers."""
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
            if done.done():  # the caller was cancelled
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
                self._background.start(self.node(there).asking(step), done)
            elif is_silence(error):
                self._background.start(self._lost(address, error), done)
            else:
                done.set_exception(partly(error))

        self.node(address).batcher.submit(step).add_done_callback(answered)

    async def _lost(self, address: Address, failure: Failure) -> None:
        await asyncio.to_thread(self.topology.lost, address)
        raise failure


class ClusterHub(Hub):
    """A hub that is subscribed to EARS nodes: a message published on any node reaches all nodes."""

    def __init__(self, server: AsyncClusterServer, prefix: str) -> None:
        super().__init__(self, prefix)
        self._server, self._nth = server, 0
        self._heard: dict[str, None] = {}

    def pubsub(self, **options: Any) -> Any:
        """Return the Pub/Sub object of a node: at each call, that of the next one."""
        addresses = self._server.topology.primaries
        self._nth += 1
        return self._server.node(addresses[self._nth % len(addresses)]).client.pubsub(**options)

    async def _read(self, tried: asyncio.Event) -> None:
        try:
            await self._server.looked()
        except Failure:
            tried.set()
        listen = super()._read
        ears = [start_task(listen(_FirstOf(tried))) for _ in range(EARS)]
        try:
            await asyncio.wait(ears)
        finally:
            await end_tasks(*ears)

    def _deliver(self, data: Any) -> None:
        message = data.decode() if isinstance(data, bytes) else data
        if self._heard.pop(message, 0) is None:
            return  # it arrived from another node
        self._heard[message] = None
        if len(self._heard) > 10_000:
            del self._heard[next(iter(self._heard))]
        super()._deliver(message)


class _FirstOf(asyncio.Event):
    """An event of one subscription. `set` sets the event `tried`, which the subscriptions share."""

    def __init__(self, tried: asyncio.Event) -> None:
        super().__init__()
        self._tried = tried

    def set(self) -> None:
        self._tried.set()

    def clear(self) -> None:
        """Do nothing: `ready` waits only for the first subscription."""
