"""Routing in a Cluster: which node gets a command, and what follows its reply. Without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions as errors
from redis.crc import key_slot

from django_redis_sync.engine import loops
from django_redis_sync.engine.cluster import server as servers
from django_redis_sync.engine.cluster import topology as topologies
from django_redis_sync.engine.cluster.server import (
    EARS,
    AsyncClusterServer,
    ClusterHub,
    ClusterServer,
    Node,
)
from django_redis_sync.engine.cluster.topology import LAST_CHANCE, SUSPECT, Address, Topology
from django_redis_sync.engine.wire import clock
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Answer, Failure, Run, Wait
from tests.test_engine_batching import Radio, on_loop, receive, run_callbacks

A, B, C = (Address("127.0.0.1", port) for port in (7001, 7002, 7003))
SEEDS = [f"redis://127.0.0.1:{one.port}/0" for one in (A, B, C)]
KEY = "sync:{exports}:leases"
SLOT = key_slot(KEY.encode())


def step(timeout: float = 5.0) -> Run:
    keys = (KEY, "queue", "parked", "waiters", "info", "wake:t", "stats", "never")
    return Run("release", keys, ("t", "0", "undo", 0, 0, 360), timeout)


def ask(to: Address) -> Failure:
    return Failure(errors.AskError(f"{SLOT} {to.host}:{to.port}"), clock(), "final")


def moved(to: Address) -> Failure:
    return Failure(errors.MovedError(f"{SLOT} {to.host}:{to.port}"), clock(), "final")


def silence() -> Failure:
    return Failure(errors.TimeoutError("no reply in time"), clock(), "unanswered")


def slots(*owners: Address) -> list[Any]:
    """Return a reply to CLUSTER SLOTS that gives each owner a range of the same size."""
    size = 16384 // len(owners) + 1
    return [
        [n * size, min(16383, (n + 1) * size - 1), [one.host, one.port, "id"]]
        for n, one in enumerate(owners)
    ]


REAL_NODE = AsyncClusterServer.node


class StandIn:
    """Stand-in for a node. It records requests, and replies what `Nodes.answers` has."""

    def __init__(self, address: Address, nodes: Nodes) -> None:
        self.address, self.nodes = address, nodes
        self.batcher = self

    def _answer(self, how: str, step: Any) -> Any:
        self.nodes.asked.append((how, self.address))
        reply = self.nodes.reply(how, self.address)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def run(self, step: Run) -> Answer:
        return Answer(self._answer("run", step), clock(), clock())

    def many(self, steps: list[Run]) -> list[Answer | Failure]:
        self.nodes.timeouts[self.address] = [step.timeout for step in steps]
        try:
            return [self.run(step) for step in steps]
        except Failure as failure:
            return [failure for _ in steps]

    def command(self, *args: Any, timeout: float = 0.0) -> Any:
        self.nodes.commands.append((args, timeout))
        return self._answer("slots", args)

    def commands(self, several: Any, timeout: float) -> list[Any]:
        self.nodes.commands.append((tuple(several), timeout))
        replies = self._answer("commands", several)
        return [replies.get(args[1], (self.address, args[1])) for args in several]

    def wait(self, step: Wait) -> Answer:
        return Answer(self._answer("wait", step), clock(), clock())

    def pool(self) -> Any:
        return self.address

    def submit(self, step: Run) -> asyncio.Future[Answer]:
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(self.run(step))
        except Failure as failure:
            done.set_exception(failure)
        return done


class SyncStandIn(StandIn):
    def asking(self, words: Any, timeout: float) -> Any:
        return self._answer("asking", words)


class AsyncStandIn(StandIn):
    async def asking(self, step: Run) -> Answer:
        return Answer(self._answer("asking", step), clock(), clock())


class Nodes:
    """The requests to all stand-ins, and their replies by kind of request and address."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Address]] = []
        self.timeouts: dict[Address, list[float]] = {}
        self.commands: list[tuple[Any, float]] = []
        self.answers: dict[tuple[str, Address], Any] = {}
        self.topologies: list[Topology] = []

    def reply(self, how: str, address: Address) -> Any:
        if how == "slots" and ("slots", address) not in self.answers:
            return slots(A, B, C)
        if how == "commands" and (how, address) not in self.answers:
            return {}
        return self.answers.get((how, address), ["ok", address.port])

    def asked_without_slots(self) -> list[tuple[str, Address]]:
        return [one for one in self.asked if one[0] != "slots"]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    mine = Nodes()

    class Client:
        connection_factory, _server = None, SEEDS

    class Remembered(Topology):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            mine.topologies.append(self)

    monkeypatch.setattr(servers, "Topology", Remembered)
    monkeypatch.setattr(servers, "backend_of", lambda alias: Client)
    monkeypatch.setattr(servers, "urls_of", lambda alias: SEEDS)
    monkeypatch.setattr(ClusterServer, "node", lambda self, one: SyncStandIn(one, mine))
    monkeypatch.setattr(AsyncClusterServer, "node", lambda self, one: AsyncStandIn(one, mine))
    monkeypatch.setattr(servers, "async_options", lambda alias: {})
    return mine


def sync_reply(step: Run) -> Any:
    return ClusterServer("cluster").run(step).reply


def async_reply(step: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(servers, "server_of", lambda alias: ClusterServer(alias))

    async def main() -> Any:
        return (await AsyncClusterServer("default").perform(step)).reply

    return asyncio.run(main())


@pytest.fixture(params=["sync", "async"])
def reply(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], Any]:
    """Return the function that runs a step on a cluster, in sync or async code."""
    if request.param == "sync":
        return sync_reply
    return lambda step: async_reply(step, monkeypatch)


#: The node that has KEY by `slots(A, B, C)`, and another node.
OWNER = (A, B, C)[SLOT // (16384 // 3 + 1)]
OTHER = next(one for one in (A, B, C) if one != OWNER)


@pytest.mark.parametrize(
    "to",
    [OTHER, Address("127.0.0.2", OWNER.port), Address("", OTHER.port)],
    ids=["another port", "another host", "no host"],
)
@pytest.mark.parametrize(
    ("redirect", "how"), [(ask, "asking"), (moved, "run")], ids=["ask", "moved"]
)
def test_ask_redirect_sends_asking_and_moved_redirect_does_not(
    nodes: Nodes, reply: Any, redirect: Callable[[Address], Failure], how: str, to: Address
) -> None:
    """Without ASKING, the other node redirects the step back until the slot has moved. A redirect
    without a host means another port of the same host."""
    there = to._replace(host=to.host or OWNER.host)
    nodes.answers["run", OWNER] = redirect(to)
    assert ["ok", there.port] == reply(step())
    assert [("run", OWNER), (how, there)] == nodes.asked_without_slots()


def test_topology_stores_moved_redirects_and_no_ask_redirects(nodes: Nodes) -> None:
    server = ClusterServer("cluster")
    nodes.answers["run", OWNER] = ask(OTHER)
    server.run(step())
    assert OWNER == server.topology.of(KEY)
    nodes.answers["run", OWNER] = moved(OTHER)
    server.run(step())
    assert OTHER == server.topology.of(KEY)


def test_circular_redirects_fail_as_busy(nodes: Nodes, reply: Any) -> None:
    nodes.answers["run", OWNER] = moved(OTHER)
    nodes.answers["run", OTHER] = moved(OWNER)
    with pytest.raises(Failure) as caught:
        reply(step())
    assert len(nodes.asked_without_slots()) <= 6
    assert "busy" == caught.value.why  # the caller retries: the nodes will agree


def test_many_follows_ask_redirects(nodes: Nodes) -> None:
    nodes.answers["run", OWNER] = ask(OTHER)
    answers = ClusterServer("cluster").many([step(), step()])
    assert [["ok", OTHER.port]] * 2 == [answer.reply for answer in answers]
    assert ("run", OTHER) not in nodes.asked_without_slots()


class Wire:
    """Stand-in for a connection. It records what is written."""

    socket_timeout = 5.0

    def __init__(self, *replies: Any) -> None:
        self.written: list[bytes] = []
        self._replies = list(replies)

    def send_packed_command(self, packed: Any) -> None:
        self.written += packed

    def read_response(self, **_: Any) -> Any:
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def disconnect(self) -> None: ...


class Lender:
    patience = 5.0

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def check_out(self, within: float) -> tuple[Wire, float]:
        return self.wire, within

    def release(self, connection: Any) -> None: ...


def test_node_sends_asking_before_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire("OK", errors.NoScriptError("none"), "OK", ["ok"])
    monkeypatch.setattr(Node, "own", lambda self: Lender(wire))
    reply = Node("cluster", None).asking([("EVALSHA", "sha"), ("EVAL", "source")], 5.0)
    words = [packed.split(b"\r\n")[2] for packed in wire.written]
    assert (["ok"], [b"ASKING", b"EVALSHA", b"ASKING", b"EVAL"]) == (reply, words)


def test_ask_redirect_sends_the_source_of_an_unknown_script(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, sent = [100.0], list[Any]()

    def asking(self: SyncStandIn, words: Any, timeout: float) -> Any:
        sent.extend(one[0] for one in words)
        now[0] += 1
        return ["ok"]

    monkeypatch.setattr(SyncStandIn, "asking", asking)
    monkeypatch.setattr(servers, "clock", lambda: now[0])
    nodes.answers["run", OWNER] = ask(OTHER)
    assert Answer(["ok"], 100.0, 101.0) == ClusterServer("cluster").run(step())
    assert ["EVALSHA", "EVAL"] == sent


# Silent nodes


def test_silent_node_becomes_a_suspect(nodes: Nodes, reply: Any) -> None:
    nodes.answers["run", OWNER] = silence()
    with pytest.raises(Failure) as caught:
        reply(step())
    assert ("unanswered", [("run", OWNER)]) == (caught.value.why, nodes.asked_without_slots())
    assert [True, False] == [nodes.topologies[0].suspect(one) for one in (OWNER, OTHER)]


def test_topology_asks_suspects_last_until_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(topologies, "clock", lambda: now[0])
    asked: list[Address] = []

    def slots_from(address: Address) -> Any:
        asked.append(address)
        if address == A:
            raise silence()
        return slots(A, B, C)

    topology = Topology(SEEDS, slots_from)
    assert OWNER == topology.of(KEY)
    assert ([A, B], True) == (asked, topology.suspect(A))
    assert [B, C, A] == topology.addresses
    asked.clear()
    now[0] += 1
    topology.lost(B)  # now A and B are suspects, so C is asked first
    assert [C] == asked
    now[0] += SUSPECT
    assert not topology.suspect(A) and not topology.suspect(B)


def test_topology_ignores_an_empty_slot_map() -> None:
    replies = {A: [], B: slots(A, B, C), C: []}
    topology = Topology(SEEDS, lambda address: replies[address])
    assert OWNER == topology.of(KEY)
    replies[B] = []
    with pytest.raises(Failure) as caught:
        topology.look()
    assert "busy" == caught.value.why
    assert OWNER == topology.of(KEY)


@pytest.mark.parametrize("up", [True, False], ids=["answering", "down"])
def test_lost_node_makes_the_topology_read_the_map_once_per_interval(
    monkeypatch: pytest.MonkeyPatch, up: bool
) -> None:
    now = [1000.0]
    monkeypatch.setattr(topologies, "clock", lambda: now[0])
    asked: list[Address] = []

    def slots_from(address: Address) -> Any:
        asked.append(address)
        if len(asked) > 1 and not up:
            raise silence()
        return slots(B, C) if len(asked) > 1 else slots(A, B, C)

    topology = Topology(SEEDS, slots_from)
    topology.of(KEY)
    now[0] += 10
    for _ in range(100):
        topology.lost(A)
    assert ([A, B] if up else [A, B, C, A]) == asked
    assert up == (A not in topology.primaries)


@pytest.mark.parametrize("silent", [A, B, C])
def test_many_asks_a_suspect_last_and_with_a_short_timeout(nodes: Nodes, silent: Address) -> None:
    server = ClusterServer("cluster")
    server.topology.look()
    of: dict[Address, Run] = {}
    for n in range(100):
        keys = (f"sync:{{other{n}}}:leases", *step().keys[1:])
        of.setdefault(server.topology.of(keys[0]), step()._replace(keys=keys))
    nodes.answers["run", silent] = silence()
    server.many([of[silent]])
    assert server.topology.suspect(silent)
    nodes.asked.clear()
    asked = sorted(of)
    answers = dict(zip(asked, server.many([of[one] for one in asked]), strict=True))
    kinds = {one: type(answer) for one, answer in answers.items()}
    assert {one: Failure if one == silent else Answer for one in (A, B, C)} == kinds
    assert silent == nodes.asked_without_slots()[-1][1]
    assert {one: [5.0] for one in of} | {silent: [LAST_CHANCE]} == nodes.timeouts


class Pipeline:
    """Stand-in for a client and its pipeline. It records the commands."""

    def __init__(self, *replies: Any) -> None:
        self.executed: list[list[str]] = []
        self._replies = list(replies)

    def pipeline(self, transaction: bool) -> Pipeline:
        assert not transaction, "ASKING applies to the next command only, which would be MULTI"
        self.executed.append([])
        return self

    def execute_command(self, *words: Any) -> None:
        self.executed[-1].append(words[0])

    async def execute(self, raise_on_error: bool) -> Any:
        return ["OK", self._replies.pop(0)]


def test_async_node_sends_asking_before_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Pipeline):
        async def execute(self, raise_on_error: bool) -> Any:
            now[0] += 1
            return await super().execute(raise_on_error)

    now = [100.0]
    monkeypatch.setattr(servers, "clock", lambda: now[0])
    monkeypatch.setattr(servers, "Batcher", lambda client: None)
    client = Slow(errors.NoScriptError("none"), [b"ok"])
    answer = asyncio.run(servers.AsyncNode(client).asking(step()))
    assert Answer(["ok"], 101.0, 102.0) == answer
    assert [["ASKING", "EVALSHA"], ["ASKING", "EVAL"]] == client.executed


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        ([errors.AskError(f"{SLOT} 127.0.0.1:7003")], "busy"),
        ([errors.NoScriptError("none")] * 2, "busy"),
        ([errors.ResponseError("TRYAGAIN Multiple keys")], "busy"),
        ([errors.ResponseError("OOM command not allowed")], "final"),
    ],
    ids=["redirect", "source unknown", "half-moved slot", "out of memory"],
)
@on_loop
async def test_async_asking_raises_the_error_of_the_node(
    replies: list[Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "Batcher", lambda client: None)
    with pytest.raises(Failure) as caught:
        await servers.AsyncNode(Pipeline(*replies)).asking(step())
    assert (replies[-1], why) == (caught.value.cause, caught.value.why)


# Addresses


def test_slot_map_ranges_include_both_ends() -> None:
    found = topologies.read_map([[0, 99, ["", 7001, "id"]], [200, 299, ["b", 7002]]], asked=C)
    nameless, named = Address(C.host, 7001), Address("b", 7002)
    owners = [found.of(slot) for slot in (0, 99, 100, 199, 200, 299, 300)]
    assert [nameless, nameless, None, None, named, named, None] == owners


@pytest.mark.parametrize(
    ("seed", "host", "url"),
    [
        ("redis://a:1/0", "b", "redis://b:7002/0"),
        ("rediss://me:word@a:1/0?x=1", "b", "rediss://me:word@b:7002/0?x=1"),
        ("redis://a:1/0", "::1", "redis://[::1]:7002/0"),
    ],
)
def test_node_url_has_the_scheme_login_and_options_of_the_seed(
    seed: str, host: str, url: str
) -> None:
    assert url == topologies.url_at(seed, Address(host, 7002))


NON_LOCAL = errors.ResponseError("Script attempted to access a non local key")


def test_step_in_a_half_moved_slot_counts_as_unanswered(nodes: Nodes, reply: Any) -> None:
    nodes.answers["run", OWNER] = Failure(NON_LOCAL, 1.0, "final")
    with pytest.raises(Failure) as caught:
        reply(step())
    assert "unanswered" == caught.value.why


def test_steps_sent_by_many_to_a_half_moved_slot_count_as_unanswered(nodes: Nodes) -> None:
    nodes.answers["run", OWNER] = Failure(NON_LOCAL, 1.0, "final")
    answers = ClusterServer("cluster").many([step(), step()])
    assert ["unanswered"] * 2 == [one.why for one in answers if isinstance(one, Failure)]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("PING",), None),
        (("TIME",), None),
        (("time",), None),
        (("CONFIG", "GET", "save"), None),
        (("config", "get", "save"), None),
        (("CLUSTER", "SLOTS"), None),
        (("RANDOMKEY",), None),
        (("DISCARD",), None),
        (("ZADD", "names", 1, "a"), "names"),
        (("zadd", "names", 1, "a"), "names"),
        (("EVALSHA", "sha", 2, "first", "second", "x"), "first"),
        (("EVAL", "source", "1", "first"), "first"),
        (("EVAL", "source", 0), None),
    ],
    ids=str,
)
def test_key_of_finds_the_key_that_routes_a_command(words: Any, key: str | None) -> None:
    assert key == topologies.key_of(words)


def server_with_map() -> ClusterServer:
    """Return a server that has read the slot map."""
    server = ClusterServer("cluster")
    server.topology.look()
    return server


def test_commands_takes_one_batch_per_node_and_keeps_the_order(
    nodes: Nodes,
) -> None:
    server, keys = server_with_map(), [f"sync:{{name{n}}}:leases" for n in range(12)]
    nodes.commands.clear()
    replies = server.commands([("HGETALL", key) for key in keys], 0.7)
    assert [(server.topology.of(key), key) for key in keys] == replies
    assert [0.7] * 3 == [timeout for _, timeout in nodes.commands]


@pytest.mark.parametrize(("elsewhere", "how"), [(moved, "slots"), (ask, "asking")])
def test_commands_follows_redirects_of_single_commands(
    nodes: Nodes, elsewhere: Callable[[Address], Failure], how: str
) -> None:
    server = server_with_map()
    nodes.answers["commands", OWNER] = {KEY: elsewhere(OTHER).cause}
    nodes.answers["slots", OWNER] = elsewhere(OTHER)
    nodes.answers[how, OTHER] = "there"
    assert ["there"] == server.commands([("HGETALL", KEY)], 0.7)
    assert (("HGETALL", KEY), 0.7) == nodes.commands[-1]


def test_commands_raises_failure_and_suspects_a_silent_node(nodes: Nodes) -> None:
    server = server_with_map()
    nodes.answers["commands", OWNER] = silence()
    with pytest.raises(Failure):
        server.commands([("HGETALL", KEY)])
    assert server.topology.suspect(OWNER) and not server.topology.suspect(OTHER)
    assert OWNER != server.pool()  # the pool of a node that is not a suspect


def test_command_without_a_key_tries_the_next_node_only_after_silence(nodes: Nodes) -> None:
    server = server_with_map()
    first, second, *_ = server.topology.addresses
    nodes.answers["slots", second] = "PONG"
    nodes.answers["slots", first] = Failure(errors.ResponseError("NOPERM"), clock(), "final")
    with pytest.raises(Failure, match="NOPERM"):
        server.command("PING")
    nodes.answers["slots", first] = silence()
    assert "PONG" == server.command("PING")
    assert server.topology.suspect(first)


def test_wait_follows_moved_and_is_busy_while_the_slot_moves(nodes: Nodes) -> None:
    wait = Wait(keys_of("sync", "exports"), "t", 0.1)
    server = server_with_map()
    nodes.answers["wait", OWNER] = ask(OTHER)
    with pytest.raises(Failure) as caught:
        server.wait(wait)
    assert ("busy", [("wait", OWNER)]) == (caught.value.why, nodes.asked_without_slots())
    nodes.answers["wait", OWNER] = moved(OTHER)
    nodes.answers["wait", OTHER] = "woken"
    assert "woken" == server.wait(wait).reply


def test_many_returns_a_failure_per_step_when_no_node_has_a_slot_map(nodes: Nodes) -> None:
    nodes.answers |= {("slots", one): silence() for one in (A, B, C)}
    answers = ClusterServer("cluster").many([step(), step()])
    assert ["unanswered"] * 2 == [answer.why for answer in answers]  # type: ignore[union-attr]


def test_each_node_has_one_pool_from_the_projects_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = SimpleNamespace(pool=lambda url: [url])
    client = SimpleNamespace(connection_factory=factory, _server=SEEDS)
    monkeypatch.setattr(servers, "backend_of", lambda alias: client)
    monkeypatch.setattr(servers, "urls_of", lambda alias: SEEDS)
    server = ClusterServer("cluster")
    assert server.node(B) is server.node(B) is not server.node(A)
    assert (["redis://127.0.0.1:7002/0"], "cluster") == (
        server.node(B).pool(),
        server.node(B).alias,
    )


# On an event loop


class StandInOfLoop:
    """Stand-in for an AsyncNode. It records the steps and the calls that close it."""

    def __init__(self, address: Address) -> None:
        self.address, self.sent, self.ended = address, list[asyncio.Future[Answer]](), list[str]()
        self.batcher = self.client = self
        self.radio = Radio()

    def submit(self, step: Run) -> asyncio.Future[Answer]:
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]

    def pubsub(self, **options: Any) -> Radio:
        return self.radio

    async def aclose(self) -> None:
        self.ended.append("closed")


@pytest.fixture
def nodes_of_loop(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> dict[Address, StandInOfLoop]:
    """The nodes of `AsyncClusterServer("default")` by address."""
    made: dict[Address, StandInOfLoop] = {}
    monkeypatch.setattr(AsyncClusterServer, "node", REAL_NODE)
    monkeypatch.setattr(servers, "server_of", lambda alias: ClusterServer(alias))
    monkeypatch.setattr(servers, "async_redis", lambda alias, url: url)
    monkeypatch.setattr(servers, "AsyncNode", lambda url: made.setdefault(*at(url)))
    return made


def at(url: str) -> tuple[Address, StandInOfLoop]:
    address = next(one for one in (A, B, C) if f":{one.port}/" in url)
    return address, StandInOfLoop(address)


async def async_server_with_map() -> AsyncClusterServer:
    server = AsyncClusterServer("default")
    await server.looked()
    return server


@on_loop
async def test_cancelled_step_follows_no_redirect(
    nodes_of_loop: dict[Address, StandInOfLoop],
) -> None:
    server = await async_server_with_map()
    first, second = server.perform(step()), server.perform(step())
    sent = nodes_of_loop[OWNER].sent
    sent[0].cancel()
    second.cancel()
    sent[1].set_exception(moved(OTHER))
    await run_callbacks()
    assert (True, 2, {OWNER}) == (first.cancelled(), len(sent), {*nodes_of_loop})


@on_loop
async def test_aclose_closes_all_nodes(nodes_of_loop: dict[Address, StandInOfLoop]) -> None:
    server = await async_server_with_map()
    assert server.node(A) is server.node(A) is not server.node(B)
    await server.aclose()
    assert [["closed", "closed"]] * 2 == [one.ended for one in nodes_of_loop.values()]


@on_loop
async def test_aclose_waits_for_steps_whose_node_is_not_known_yet(
    nodes_of_loop: dict[Address, StandInOfLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "END", 20.0)
    server, go = AsyncClusterServer("default"), threading.Event()
    look = server.topology.look
    monkeypatch.setattr(server.topology, "look", lambda: (go.wait(20), look()))
    done = server.perform(step())
    closing = asyncio.ensure_future(server.aclose())
    await run_callbacks()
    go.set()
    while OWNER not in nodes_of_loop or not nodes_of_loop[OWNER].sent:
        await asyncio.sleep(0.001)
    nodes_of_loop[OWNER].sent[0].set_result(Answer(["ok"], 0.0, 0.0))
    await closing
    assert done.done() and ["ok"] == done.result().reply


async def both_ears(nodes: dict[Address, StandInOfLoop], hub: ClusterHub) -> list[Radio]:
    """Wait until the hub listens on two nodes. Return their connections."""
    await asyncio.wait_for(hub.ready(1e6), 20.0)
    while len(ears := [one.radio for one in nodes.values() if one.radio.is_open]) < EARS:
        await asyncio.sleep(0)
    await run_callbacks()
    return ears


@on_loop
async def test_cluster_hub_listens_on_two_nodes_until_it_is_closed(
    nodes_of_loop: dict[Address, StandInOfLoop],
) -> None:
    server = await async_server_with_map()
    for close in (server.hub.aclose, server.aclose):
        assert 2 == len(await both_ears(nodes_of_loop, server.hub))
        await close()
        assert not any(one.radio.is_open for one in nodes_of_loop.values())


@on_loop
async def test_cluster_hub_delivers_a_message_from_two_nodes_once(
    nodes_of_loop: dict[Address, StandInOfLoop],
) -> None:
    server = await async_server_with_map()
    ears = await both_ears(nodes_of_loop, server.hub)
    first = server.hub.wait("t", 60, "x")
    for ear in ears:
        await receive(ear, "t 1 2 3")
    assert "1 2 3" == first.result().reply
    assert not server.hub.wait("t", 60, "x").done()
    await server.aclose()


@on_loop
async def test_cluster_hub_is_ready_while_one_node_is_subscribed_again(
    nodes_of_loop: dict[Address, StandInOfLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await async_server_with_map()
    ear, _ = await both_ears(nodes_of_loop, server.hub)
    again = asyncio.Event()

    async def subscribe(self: Radio, channel: str) -> None:
        again.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Radio, "subscribe", subscribe)
    ear.said.put_nowait(errors.ConnectionError("cut"))
    await asyncio.wait_for(again.wait(), 20)
    await asyncio.wait_for(server.hub.ready(1e6), 20)
    await server.aclose()
