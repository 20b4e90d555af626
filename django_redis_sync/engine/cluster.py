"""Redis Cluster: which node has a name, and what to do when that changes.

Every key of a name lies in one slot, so a step goes to one node, and each node is served by what
serves a single server. This module only picks the node, and follows where the cluster points.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from redis import exceptions as errors
from redis.cluster import RedisCluster
from redis.crc import key_slot

from .. import conf
from ..protocol.plans import Answer, Failure, Run, Step, Wait
from . import connections
from .batching import Batcher
from .hub import Hub
from .pools import Borrowed, read
from .wire import REDIS_ERRORS, clock, command, pack, text, why

Done = TypeVar("Done")

#: Redirections that one request follows.
MOST_HOPS = 4
#: Seconds that a node may take to say where the slots are, and between two such questions.
LOOK, LOOK_AGAIN = 0.5, 0.5
#: Seconds for which a node that did not answer is asked last, and given LAST_CHANCE to answer when
#: others wait for the same thread.
SUSPECT, LAST_CHANCE = 5.0, 0.3
#: Nodes on which the wake-ups of an event loop are listened for: one of them may hang.
EARS = 2

#: Commands that any node can answer: all others name a key first.
_KEYLESS = {"ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "INFO", "LATENCY", "MEMORY"}
_KEYLESS |= {"PING", "PUBLISH", "RANDOMKEY", "ROLE", "SCRIPT", "SELECT", "SLOWLOG", "TIME"}


class Address(NamedTuple):
    host: str
    port: int


class ClusterConnectionFactory(connections.ConnectionFactory):  # type: ignore[misc]
    """For OPTIONS["CONNECTION_FACTORY"] of a cache whose LOCATION names nodes of a Cluster.

    django-redis's cache gets a redis.cluster.RedisCluster, one per URL and process. What this
    library sends goes over pools of its own, one per node, made as django-redis makes its pools:
    OPTIONS mean the same as for one server. REDIS_SYNC["ASYNC_CLIENT"] is not asked.
    """

    _clusters: dict[str, RedisCluster] = {}
    _making = threading.Lock()

    def connect(self, url: str) -> Any:
        """The client of the cache. redis.exceptions.RedisClusterException: no node answers."""
        with self._making:
            if url not in self._clusters:
                given = {**self.make_connection_params(url), **self.pool_cls_kwargs}
                del given["parser_class"]
                self._clusters[url] = RedisCluster.from_url(**given, **self.redis_client_cls_kwargs)
            return self._clusters[url]

    def disconnect(self, connection: Any) -> None:
        connection.disconnect_connection_pools()

    def pool(self, url: str) -> Any:
        """The pool of one node."""
        return self.get_or_create_connection_pool(self.make_connection_params(url))

    def sync_server(self, alias: str) -> connections.Server:
        """For `connections.server`."""
        return ClusterServer(alias)

    def async_server(self, alias: str) -> connections.AsyncServer:
        """For `connections.async_server`."""
        return AsyncClusterServer(alias)


class _Map(NamedTuple):
    """Slots in ranges: those from starts[i] to ends[i] are at owners[i]."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    owners: tuple[Address, ...]

    def of(self, slot: int) -> Address | None:
        i = bisect_right(self.starts, slot) - 1
        return self.owners[i] if i >= 0 and slot <= self.ends[i] else None


def _read_map(reply: Iterable[Any], asked: Address) -> _Map:
    """Of CLUSTER SLOTS. A node that does not know its own address says none."""
    rows = sorted(
        (int(start), int(end), Address(primary[0] or asked.host, int(primary[1])))
        for start, end, primary, *_ in reply
    )
    starts, ends, owners = zip(*rows, strict=True) if rows else ((), (), ())
    return _Map(starts, ends, owners)


class Topology:
    """Which node has which slot, as far as this process knows. For threads and loops alike."""

    # Invariant: _map and _moved are replaced, never changed in place but for single items.
    def __init__(self, seeds: Sequence[str], ask: Callable[[Address], Any]) -> None:
        self._seeds = [_address(url) for url in seeds]
        self._ask = ask
        self._map: _Map | None = None
        self._moved: dict[int, Address] = {}
        self._suspects: dict[Address, float] = {}
        self._looking, self._looked = threading.Lock(), -LOOK_AGAIN

    @property
    def addresses(self) -> list[Address]:
        """The nodes that have slots, those first that answered."""
        owners = self._map.owners if self._map is not None else ()
        found = dict.fromkeys([*owners, *self._moved.values(), *self._seeds])
        return sorted(found, key=self.suspect)

    @property
    def primaries(self) -> list[Address]:
        """The nodes that have slots; the seeds when none is known."""
        owners = dict.fromkeys(self._map.owners) if self._map is not None else {}
        return sorted(owners, key=self.suspect) or self._seeds

    def known(self, key: str) -> Address | None:
        """Who has a key; None when nobody was asked yet."""
        if self._map is None:
            return None
        slot = key_slot(key.encode())
        return self._moved.get(slot) or self._map.of(slot) or self.primaries[0]

    def of(self, key: str) -> Address:
        """Who has a key. Asks the nodes when nobody was asked yet; Failure when none answers."""
        found = self.known(key)
        if found is None:
            self.look()
            found = self.known(key)
            assert found is not None
        return found

    def suspect(self, address: Address) -> bool:
        return clock() < self._suspects.get(address, 0.0)

    def moved(self, error: errors.MovedError) -> Address:
        """What a MOVED says."""
        address = Address(error.host or self.primaries[0].host, error.port)
        self._moved[error.slot_id] = address
        return address

    def lost(self, address: Address) -> None:
        """A node did not answer: somebody else may have its slots by now. Asks the others."""
        self._suspects[address] = clock() + SUSPECT
        if clock() - self._looked >= LOOK_AGAIN:
            with contextlib.suppress(Failure):  # all of it is down: what was known must do
                self.look()

    def look(self) -> None:
        """Ask one node after the other where the slots are. Failure when none answers."""
        began = clock()
        with self._looking:
            if self._map is not None and self._looked > began:
                return  # another thread did, while this one waited
            failure = None
            for address in self.addresses:
                try:
                    found = _read_map(self._ask(address), address)
                except Failure as error:
                    self._suspects[address] = clock() + SUSPECT
                    failure = error
                    continue
                self._suspects.pop(address, None)
                if found.owners:
                    self._map, self._moved = found, {}
                    self._looked = clock()
                    return
            self._looked = clock()
            raise failure or Failure(errors.ClusterDownError("no slots"), clock(), "busy")


def _address(url: str) -> Address:
    parts = urlsplit(url)
    return Address(parts.hostname or "localhost", parts.port or 6379)


def _url(seed: str, address: Address) -> str:
    """The address of a node, with the seed's scheme, login and options."""
    parts = urlsplit(seed)
    login, at, _ = parts.netloc.rpartition("@")
    host = f"[{address.host}]" if ":" in address.host else address.host
    return parts._replace(netloc=f"{login}{at}{host}:{address.port}").geturl()


def _key_of(args: Sequence[Any]) -> str | None:
    """The key that routes a command; None when any node will do."""
    word = str(args[0]).upper()
    if word in _KEYLESS or len(args) < 2:
        return None
    if word in ("EVAL", "EVALSHA"):
        return str(args[3]) if int(args[2]) else None
    return str(args[1])


class _Node(connections.Server):
    """One node, as if it were the only server."""

    def __init__(self, alias: str, made: Any) -> None:
        super().__init__(alias)
        self._pool = made

    def pool(self) -> Any:
        return self._pool

    def asking(self, words: Sequence[Sequence[Any]], timeout: float) -> Any:
        """The first useful reply to one of the commands, each behind ASKING."""
        with Borrowed(self._pool) as borrowed:
            for nth, args in enumerate(words, 1):
                borrowed.send(pack(("ASKING",)), pack(args))
                read(borrowed.connection, timeout)
                try:
                    return text(read(borrowed.connection, timeout))
                except errors.NoScriptError:
                    if nth == len(words):
                        raise
        raise AssertionError("not reached")


class ClusterServer(connections.Server):
    """The sync side of a cache alias that is a Cluster."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        client = connections.backend_of(alias)
        self._factory, self.seed = client.connection_factory, client._server[0]
        self._nodes: dict[Address, _Node] = {}
        self.topology = Topology(client._server, self._ask)

    def _ask(self, address: Address) -> Any:
        return self.node(address).command("CLUSTER", "SLOTS", timeout=LOOK)

    def node(self, address: Address) -> _Node:
        """What serves one node."""
        found = self._nodes.get(address)
        if found is None:
            made = self._factory.pool(_url(self.seed, address))
            found = self._nodes.setdefault(address, _Node(self.alias, made))
        return found

    def pool(self) -> Any:
        """The pool of a node that answers, as far as known."""
        return self.node(self.topology.addresses[0]).pool()

    def run(self, step: Run) -> Answer:
        """As on one server, on the node that has the name."""

        def asking(node: _Node) -> Answer:
            sent = clock()
            reply = node.asking([command(step), command(step, whole=True)], step.timeout)
            return Answer(reply, sent, clock())

        return self._routed(step.keys[0], lambda node: node.run(step), asking)

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """A round trip per node; what failed stands in its place."""
        by_node: dict[Address, list[int]] = {}
        try:
            for i, step in enumerate(steps):
                by_node.setdefault(self.topology.of(step.keys[0]), []).append(i)
        except Failure as failure:
            return [failure for _ in steps]
        answers: dict[int, Answer | Failure] = {}
        # A node that hangs comes last, and must not hold up the renewals of the others for long.
        for address in sorted(by_node, key=self.topology.suspect):
            here = by_node[address]
            answers.update(zip(here, self._many_at(address, [steps[i] for i in here]), strict=True))
        return [answers[i] for i in range(len(steps))]

    def _many_at(self, address: Address, steps: list[Run]) -> list[Answer | Failure]:
        if self.topology.suspect(address):
            steps = [step._replace(timeout=min(step.timeout, LAST_CHANCE)) for step in steps]
        answers = self.node(address).many(steps)
        if any(_is_silence(answer) for answer in answers):
            self.topology.lost(address)
        return [
            self._again(step, answer) if _points_elsewhere(answer) else _partly(answer)
            for step, answer in zip(steps, answers, strict=True)
        ]

    def _again(self, step: Run, reply: Any) -> Answer | Failure:
        try:
            return self.run(step)
        except Failure as failure:
            return failure

    def command(self, *args: Any, timeout: float = connections.ATTEMPT) -> Any:
        """As on one server, on the node that has its key; any node when it has none."""
        key = _key_of(args)
        if key is None:
            return self._anywhere(lambda node: node.command(*args, timeout=timeout))
        return self._routed(
            key,
            lambda node: node.command(*args, timeout=timeout),
            lambda node: node.asking([args], timeout),
        )

    def _anywhere(self, do: Callable[[_Node], Done]) -> Done:
        address = self.topology.addresses[0]
        try:
            return do(self.node(address))
        except Failure as failure:
            if not _is_silence(failure):
                raise
            self.topology.lost(address)
            return do(self.node(self.topology.addresses[0]))

    def _wait(self, step: Wait) -> Answer:
        def busy(node: _Node) -> Answer:
            raise Failure(errors.TryAgainError("the slot is moving"), clock(), "busy")

        return self._routed(step.keys.leases, lambda node: node._wait(step), busy)

    def _routed(
        self, key: str, do: Callable[[_Node], Done], asking: Callable[[_Node], Done]
    ) -> Done:
        """`do` on the node that has `key`, wherever the cluster points."""
        address, then = self.topology.of(key), do
        for _ in range(MOST_HOPS):
            try:
                return then(self.node(address))
            except Failure as failure:
                cause = failure.cause
                if isinstance(cause, errors.MovedError):
                    address, then = self.topology.moved(cause), do
                elif isinstance(cause, errors.AskError):
                    address, then = Address(cause.host or address.host, cause.port), asking
                else:
                    if _is_silence(failure):
                        self.topology.lost(address)
                    raise _partly(failure) from cause
                last = failure
        raise Failure(last.cause, clock(), "busy")


def _is_silence(answer: Any) -> bool:
    return isinstance(answer, Failure) and answer.why in ("unreachable", "unanswered")


def _partly(answer: Any) -> Any:
    """A script that met another waiter's key, which its half moved slot has not: it broke off, and
    what it had done is done. So it counts as unanswered, and is sent again."""
    if isinstance(answer, Failure) and "non local key" in str(answer.cause):
        return Failure(answer.cause, answer.at, "unanswered")
    return answer


def _points_elsewhere(answer: Any) -> bool:
    return isinstance(answer, Failure) and isinstance(answer.cause, errors.AskError)


class _AsyncNode:
    """The client and the batches of one node on one event loop."""

    def __init__(self, client: Any) -> None:
        self.client, self.batcher = client, Batcher(client)

    async def asking(self, step: Run) -> Answer:
        for whole in (False, True):
            sent = clock()
            pipeline = self.client.pipeline(transaction=False)
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*command(step, whole))
            try:
                replies = await asyncio.wait_for(
                    pipeline.execute(raise_on_error=False), step.timeout
                )
            except (*REDIS_ERRORS, asyncio.TimeoutError) as error:
                cause = error if str(error) else errors.TimeoutError("no reply in time")
                raise Failure(cause, clock(), why(cause, True)) from error
            reply = replies[1]
            if isinstance(reply, errors.NoScriptError):
                continue
            if isinstance(reply, errors.AskError):
                raise Failure(reply, clock(), "busy")
            if isinstance(reply, Exception):
                raise Failure(reply, clock(), why(reply, True))
            return Answer(text(reply), sent, clock())
        raise Failure(reply, clock(), "busy")


class AsyncClusterServer(connections.AsyncServer):
    """The async side of a cache alias that is a Cluster, on one event loop."""

    def __init__(self, alias: str) -> None:
        server = connections.server(alias)
        assert isinstance(server, ClusterServer)
        self.alias, self.topology, self._seed = alias, server.topology, server.seed
        self._nodes: dict[Address, _AsyncNode] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        connections.async_options(alias)  # says now what can't be used in async code
        self.hub = ClusterHub(self, conf.current().prefix(alias))
        self._staying = asyncio.get_running_loop().create_task(self._stay())

    async def _close(self) -> None:
        for node in self._nodes.values():
            await node.batcher.idle()
            await node.client.aclose()

    def node(self, address: Address) -> _AsyncNode:
        """What serves one node."""
        found = self._nodes.get(address)
        if found is None:
            client = connections.async_redis(self.alias, _url(self._seed, address))
            found = self._nodes[address] = _AsyncNode(client)
        return found

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """As on one server, on the node that has the name."""
        if type(step) is not Run:
            return super().perform(step)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        address = self.topology.known(step.keys[0])
        if address is None:
            self._start(self._first(step, done), done)
        else:
            self._send(step, address, done, MOST_HOPS)
        return done

    async def looked(self) -> None:
        """The nodes were asked for their slots, if that was not done yet. Failure as there."""
        if self.topology._map is None:
            await asyncio.to_thread(self.topology.look)

    async def _first(self, step: Run, done: asyncio.Future[Answer]) -> None:
        await self.looked()
        self._send(step, self.topology.of(step.keys[0]), done, MOST_HOPS)

    def _send(self, step: Run, address: Address, done: asyncio.Future[Answer], hops: int) -> None:
        def answered(inner: asyncio.Future[Answer]) -> None:
            if inner.cancelled():
                done.cancel()
                return
            error = inner.exception()
            if done.done():  # nobody waits for it any more
                return
            if error is None:
                done.set_result(inner.result())
            elif not (isinstance(error, Failure) and hops):
                done.set_exception(error)
            elif isinstance(error.cause, errors.MovedError):
                self._send(step, self.topology.moved(error.cause), done, hops - 1)
            elif isinstance(error.cause, errors.AskError):
                there = Address(error.cause.host or address.host, error.cause.port)
                self._start(self._ask_there(step, there, done), done)
            elif _is_silence(error):
                self._start(self._lost(address, error), done)
            else:
                done.set_exception(_partly(error))

        self.node(address).batcher.submit(step).add_done_callback(answered)

    async def _ask_there(self, step: Run, address: Address, done: asyncio.Future[Answer]) -> None:
        answer = await self.node(address).asking(step)
        if not done.done():
            done.set_result(answer)

    async def _lost(self, address: Address, failure: Failure) -> None:
        await asyncio.to_thread(self.topology.lost, address)
        raise failure

    def _start(self, body: Any, done: asyncio.Future[Answer]) -> None:
        """Run `body` in a task; what it raises is what `done` raises."""
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                done.cancel()
            elif (error := task.exception()) is not None and not done.done():
                done.set_exception(error)

        task.add_done_callback(ended)


class ClusterHub(Hub):
    """Listens on EARS nodes at once: what is published on one node reaches all of them."""

    def __init__(self, server: AsyncClusterServer, prefix: str) -> None:
        super().__init__(self, prefix)
        self._server, self._nth = server, 0
        self._heard: dict[str, None] = {}

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
        ears = (super(ClusterHub, self)._read(_FirstOf(tried)) for _ in range(EARS))
        # Until the last has ended: one that swallows its cancellation has to be cancelled again.
        await asyncio.gather(*ears, return_exceptions=True)

    def _deliver(self, data: Any) -> None:
        message = data.decode() if isinstance(data, bytes) else data
        if self._heard.pop(message, 0) is None:
            return  # the other ear had it
        self._heard[message] = None
        if len(self._heard) > 10_000:
            del self._heard[next(iter(self._heard))]
        super()._deliver(message)


class _FirstOf(asyncio.Event):
    """Sets `told` with the first ear that tried; one that tries again is not waited for."""

    def __init__(self, told: asyncio.Event) -> None:
        super().__init__()
        self._told = told

    def set(self) -> None:
        self._told.set()

    def clear(self) -> None:
        """It stays set."""
