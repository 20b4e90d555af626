"""Which node of a Cluster is asked, and what its answers lead to, with no server."""

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
from django_redis_sync.engine.cluster import topology as routing
from django_redis_sync.engine.cluster import topology as topologies
from django_redis_sync.engine.cluster.server import AsyncClusterServer, ClusterServer, Node
from django_redis_sync.engine.cluster.topology import LAST_CHANCE, SUSPECT, Address, Topology
from django_redis_sync.engine.wire import clock
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Answer, Failure, Run, Wait

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
    """CLUSTER SLOTS: all slots shared out in equal ranges."""
    size = 16384 // len(owners) + 1
    return [
        [n * size, min(16383, (n + 1) * size - 1), [one.host, one.port, "id"]]
        for n, one in enumerate(owners)
    ]


REAL_NODE = AsyncClusterServer.node


class StandIn:
    """A node: answers as the test says, and keeps what it was asked."""

    def __init__(self, address: Address, nodes: Nodes) -> None:
        self.address, self.nodes = address, nodes
        self.batcher = self

    def _answer(self, how: str, step: Any) -> Any:
        self.nodes.asked.append((how, self.address))
        said = self.nodes.says(how, self.address)
        if isinstance(said, Exception):
            raise said
        return said

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
        said = self._answer("commands", several)
        return [said.get(args[1], (self.address, args[1])) for args in several]

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
    def __init__(self) -> None:
        self.asked: list[tuple[str, Address]] = []
        self.timeouts: dict[Address, list[float]] = {}
        self.commands: list[tuple[Any, float]] = []
        self.answers: dict[tuple[str, Address], Any] = {}
        self.topologies: list[Topology] = []

    def says(self, how: str, address: Address) -> Any:
        if how == "slots" and ("slots", address) not in self.answers:
            return slots(A, B, C)
        if how == "commands" and (how, address) not in self.answers:
            return {}
        return self.answers.get((how, address), ["ok", address.port])

    def verbs(self) -> list[tuple[str, Address]]:
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
    """Of a cluster, in sync or in async code."""
    if request.param == "sync":
        return sync_reply
    return lambda step: async_reply(step, monkeypatch)


#: Who has KEY by `slots(A, B, C)`, and another one.
OWNER = (A, B, C)[SLOT // (16384 // 3 + 1)]
OTHER = next(one for one in (A, B, C) if one != OWNER)


def test_ask_is_followed_with_asking_and_only_this_once(nodes: Nodes, reply: Any) -> None:
    """Without ASKING the other node would send it back, until the slot has moved."""
    nodes.answers["run", OWNER] = ask(OTHER)
    assert ["ok", OTHER.port] == reply(step())
    assert [("run", OWNER), ("asking", OTHER)] == nodes.verbs()


def test_moved_is_followed_without_asking(nodes: Nodes, reply: Any) -> None:
    nodes.answers["run", OWNER] = moved(OTHER)
    assert ["ok", OTHER.port] == reply(step())
    assert [("run", OWNER), ("run", OTHER)] == nodes.verbs()


@pytest.mark.parametrize(
    ("kind", "how"), [(errors.AskError, "asking"), (errors.MovedError, "run")], ids=["ask", "moved"]
)
def test_a_node_that_names_no_host_means_its_own(
    nodes: Nodes, reply: Any, kind: Any, how: str
) -> None:
    nodes.answers["run", OWNER] = Failure(kind(f"{SLOT} :{OTHER.port}"), clock(), "final")
    assert ["ok", OTHER.port] == reply(step())
    assert [("run", OWNER), (how, OTHER)] == nodes.verbs()


@pytest.mark.parametrize(("to", "how"), [(ask, "asking"), (moved, "run")])
def test_a_node_of_another_host_is_found_there(
    nodes: Nodes, reply: Any, to: Callable[[Address], Failure], how: str
) -> None:
    elsewhere = Address("127.0.0.2", OWNER.port)
    nodes.answers["run", OWNER] = to(elsewhere)
    assert ["ok", elsewhere.port] == reply(step())
    assert [("run", OWNER), (how, elsewhere)] == nodes.verbs()


def test_what_moved_is_remembered_and_what_was_asked_is_not(nodes: Nodes) -> None:
    server = ClusterServer("cluster")
    nodes.answers["run", OWNER] = ask(OTHER)
    server.run(step())
    assert OWNER == server.topology.of(KEY)
    nodes.answers["run", OWNER] = moved(OTHER)
    server.run(step())
    assert OTHER == server.topology.of(KEY)


def test_nodes_that_point_at_each_other_are_given_up(nodes: Nodes, reply: Any) -> None:
    nodes.answers["run", OWNER] = moved(OTHER)
    nodes.answers["run", OTHER] = moved(OWNER)
    with pytest.raises(Failure) as caught:
        reply(step())
    assert len(nodes.verbs()) <= 6
    assert "busy" == caught.value.why  # they will agree: it is asked again


def test_several_steps_follow_ask_as_one_does(nodes: Nodes) -> None:
    nodes.answers["run", OWNER] = ask(OTHER)
    answers = ClusterServer("cluster").many([step(), step()])
    assert [["ok", OTHER.port]] * 2 == [answer.reply for answer in answers]
    assert ("run", OTHER) not in nodes.verbs()


class Wire:
    """A connection that keeps what was written."""

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


def test_asking_stands_before_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire("OK", errors.NoScriptError("none"), "OK", ["ok"])
    monkeypatch.setattr(Node, "own", lambda self: Lender(wire), raising=False)
    reply = Node("cluster", None).asking([("EVALSHA", "sha"), ("EVAL", "source")], 5.0)
    words = [packed.split(b"\r\n")[2] for packed in wire.written]
    assert (["ok"], [b"ASKING", b"EVALSHA", b"ASKING", b"EVAL"]) == (reply, words)


def test_a_node_that_is_asking_is_sent_a_script_that_it_does_not_know(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, said = [100.0], list[Any]()

    def asking(self: SyncStandIn, words: Any, timeout: float) -> Any:
        said.extend(one[0] for one in words)
        now[0] += 1
        return ["ok"]

    monkeypatch.setattr(SyncStandIn, "asking", asking)
    monkeypatch.setattr(servers, "clock", lambda: now[0])
    nodes.answers["run", OWNER] = ask(OTHER)
    assert Answer(["ok"], 100.0, 101.0) == ClusterServer("cluster").run(step())
    assert ["EVALSHA", "EVAL"] == said


# Silent nodes


def test_a_silent_node_is_suspected(nodes: Nodes, reply: Any) -> None:
    nodes.answers["run", OWNER] = silence()
    with pytest.raises(Failure) as caught:
        reply(step())
    assert ("unanswered", [("run", OWNER)]) == (caught.value.why, nodes.verbs())
    assert [True, False] == [nodes.topologies[0].suspect(one) for one in (OWNER, OTHER)]


def test_a_suspect_is_asked_last_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(topologies, "clock", lambda: now[0])
    asked: list[Address] = []

    def says(address: Address) -> Any:
        asked.append(address)
        if address == A:
            raise silence()
        return slots(A, B, C)

    topology = Topology(SEEDS, says)
    assert OWNER == topology.of(KEY)
    assert ([A, B], True) == (asked, topology.suspect(A))
    assert [B, C, A] == topology.addresses
    asked.clear()
    now[0] += 1
    topology.lost(B)  # silent too: asked later than the one that is not
    assert [C] == asked
    now[0] += SUSPECT
    assert not topology.suspect(A) and not topology.suspect(B)


def test_a_node_that_knows_of_no_slots_is_not_believed() -> None:
    said = {A: [], B: slots(A, B, C), C: []}
    topology = Topology(SEEDS, lambda address: said[address])
    assert OWNER == topology.of(KEY)
    said[B] = []
    with pytest.raises(Failure) as caught:
        topology.look()
    assert "busy" == caught.value.why
    assert OWNER == topology.of(KEY)


@pytest.mark.parametrize("up", [True, False], ids=["answering", "down"])
def test_a_lost_node_has_the_others_asked_but_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch, up: bool
) -> None:
    now = [1000.0]
    monkeypatch.setattr(topologies, "clock", lambda: now[0])
    asked: list[Address] = []

    def says(address: Address) -> Any:
        asked.append(address)
        if len(asked) > 1 and not up:
            raise silence()
        return slots(B, C) if len(asked) > 1 else slots(A, B, C)

    topology = Topology(SEEDS, says)
    topology.of(KEY)
    now[0] += 10
    for _ in range(100):
        topology.lost(A)
    assert ([A, B] if up else [A, B, C, A]) == asked
    assert up == (A not in topology.primaries)


@pytest.mark.parametrize("silent", [A, B, C])
def test_a_suspect_holds_up_the_renewals_of_the_others_for_a_moment_only(
    nodes: Nodes, silent: Address
) -> None:
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
    assert silent == nodes.verbs()[-1][1]  # last
    assert {one: [5.0] for one in of} | {silent: [LAST_CHANCE]} == nodes.timeouts


class Pipeline:
    """In the place of a client and its pipeline: keeps what was executed."""

    def __init__(self, *replies: Any) -> None:
        self.executed: list[list[str]] = []
        self._replies = list(replies)

    def pipeline(self, transaction: bool) -> Pipeline:
        assert not transaction, "ASKING is of the next command only, and that would be MULTI"
        self.executed.append([])
        return self

    def execute_command(self, *words: Any) -> None:
        self.executed[-1].append(words[0])

    async def execute(self, raise_on_error: bool) -> Any:
        return ["OK", self._replies.pop(0)]


def test_asking_stands_before_each_command_in_async_code(monkeypatch: pytest.MonkeyPatch) -> None:
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
    ids=["pointed on", "unknown as a whole", "half moved", "refused"],
)
def test_an_error_of_the_node_that_is_asking_is_its_answer(
    replies: list[Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "Batcher", lambda client: None)

    async def main() -> None:
        with pytest.raises(Failure) as caught:
            await servers.AsyncNode(Pipeline(*replies)).asking(step())
        assert (replies[-1], why) == (caught.value.cause, caught.value.why)

    asyncio.run(main())


# Addresses


def test_a_map_knows_the_first_and_the_last_slot_of_each_range() -> None:
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
def test_a_node_is_reached_as_the_seed_is(seed: str, host: str, url: str) -> None:
    assert url == topologies.url_at(seed, Address(host, 7002))


NON_LOCAL = errors.ResponseError("Script attempted to access a non local key")


def test_one_that_met_a_half_moved_slot_is_asked_again(nodes: Nodes, reply: Any) -> None:
    nodes.answers["run", OWNER] = Failure(NON_LOCAL, 1.0, "final")
    with pytest.raises(Failure) as caught:
        reply(step())
    assert "unanswered" == caught.value.why


def test_each_of_several_that_met_a_half_moved_slot_may_have_run(nodes: Nodes) -> None:
    nodes.answers["run", OWNER] = Failure(NON_LOCAL, 1.0, "final")
    answers = ClusterServer("cluster").many([step(), step()])
    assert ["unanswered"] * 2 == [one.why for one in answers if isinstance(one, Failure)]


def test_a_message_that_both_ears_heard_counts_once(nodes: Nodes) -> None:
    async def main() -> list[Any]:
        hub = servers.ClusterHub(None, "p")  # type: ignore[arg-type]
        first = hub.wait("t", 60, "x")
        for _ in range(2):
            hub._deliver(b"t 1 2 3")
        assert "1 2 3" == first.result().reply
        return [hub.wait("t", 60, "x").done(), servers.EARS]

    assert [False, 2] == asyncio.run(main())


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
def test_the_key_of_a_command_routes_it(words: Any, key: str | None) -> None:
    assert key == routing.key_of(words)


def looked() -> ClusterServer:
    """A server that knows where the slots are."""
    server = ClusterServer("cluster")
    server.topology.look()
    return server


def test_several_commands_go_to_each_node_at_once_and_come_back_in_their_order(
    nodes: Nodes,
) -> None:
    server, keys = looked(), [f"sync:{{name{n}}}:leases" for n in range(12)]
    nodes.commands.clear()
    replies = server.commands([("HGETALL", key) for key in keys], 0.7)
    assert [(server.topology.of(key), key) for key in keys] == replies
    assert [0.7] * 3 == [timeout for _, timeout in nodes.commands]


@pytest.mark.parametrize(("elsewhere", "how"), [(moved, "slots"), (ask, "asking")])
def test_a_command_of_several_whose_slot_moves_is_asked_where_it_is(
    nodes: Nodes, elsewhere: Callable[[Address], Failure], how: str
) -> None:
    server = looked()
    nodes.answers["commands", OWNER] = {KEY: elsewhere(OTHER).cause}
    nodes.answers["slots", OWNER] = elsewhere(OTHER)
    nodes.answers[how, OTHER] = "there"
    assert ["there"] == server.commands([("HGETALL", KEY)], 0.7)
    assert (("HGETALL", KEY), 0.7) == nodes.commands[-1]


def test_several_commands_fail_when_a_node_is_silent_and_it_is_suspected(nodes: Nodes) -> None:
    server = looked()
    nodes.answers["commands", OWNER] = silence()
    with pytest.raises(Failure):
        server.commands([("HGETALL", KEY)])
    assert server.topology.suspect(OWNER) and not server.topology.suspect(OTHER)
    assert OWNER != server.pool()  # that of a node that answers


def test_any_node_answers_what_names_no_key_but_what_it_refuses_is_refused(nodes: Nodes) -> None:
    server = looked()
    first, second, *_ = server.topology.addresses
    nodes.answers["slots", second] = "PONG"
    nodes.answers["slots", first] = Failure(errors.ResponseError("NOPERM"), clock(), "final")
    with pytest.raises(Failure, match="NOPERM"):
        server.command("PING")
    nodes.answers["slots", first] = silence()
    assert "PONG" == server.command("PING")
    assert server.topology.suspect(first)


def test_a_wait_follows_its_name_and_is_over_while_the_slot_moves(nodes: Nodes) -> None:
    wait = Wait(keys_of("sync", "exports"), "t", 0.1)
    server = looked()
    nodes.answers["wait", OWNER] = ask(OTHER)
    with pytest.raises(Failure) as caught:
        server.wait(wait)
    assert ("busy", [("wait", OWNER)]) == (caught.value.why, nodes.verbs())
    nodes.answers["wait", OWNER] = moved(OTHER)
    nodes.answers["wait", OTHER] = "woken"
    assert "woken" == server.wait(wait).reply


def test_when_no_node_says_where_the_slots_are_each_of_several_fails(nodes: Nodes) -> None:
    nodes.answers |= {("slots", one): silence() for one in (A, B, C)}
    answers = ClusterServer("cluster").many([step(), step()])
    assert ["unanswered"] * 2 == [answer.why for answer in answers]  # type: ignore[union-attr]


def test_a_node_is_made_once_by_the_projects_factory(monkeypatch: pytest.MonkeyPatch) -> None:
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


class OfLoop:
    """In the place of an AsyncNode: keeps what it was sent, and how it was ended."""

    def __init__(self, address: Address) -> None:
        self.address, self.sent, self.ended = address, list[asyncio.Future[Answer]](), list[str]()
        self.batcher = self.client = self

    def submit(self, step: Run) -> asyncio.Future[Answer]:
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]

    def pubsub(self, **options: Any) -> Address:
        return self.address

    async def aclose(self) -> None:
        self.ended.append("closed")

    def drop(self) -> None:
        self.ended.append("dropped")


@pytest.fixture
def of_loop(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> dict[Address, OfLoop]:
    """The nodes by address; `AsyncClusterServer("default")` has them."""
    made: dict[Address, OfLoop] = {}
    monkeypatch.setattr(AsyncClusterServer, "node", REAL_NODE)
    monkeypatch.setattr(servers, "server_of", lambda alias: ClusterServer(alias))
    monkeypatch.setattr(servers, "async_redis", lambda alias, url: url)
    monkeypatch.setattr(servers, "AsyncNode", lambda url: made.setdefault(*at(url)))
    return made


def at(url: str) -> tuple[Address, OfLoop]:
    address = next(one for one in (A, B, C) if f":{one.port}/" in url)
    return address, OfLoop(address)


def on_a_loop(body: Callable[[AsyncClusterServer], Any]) -> Any:
    async def main() -> Any:
        server = AsyncClusterServer("default")
        await server.looked()
        return await body(server)

    return asyncio.run(main())


async def a_little() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_cancelled_step_is_not_sent_after_its_name(of_loop: dict[Address, OfLoop]) -> None:
    async def body(server: AsyncClusterServer) -> None:
        first, second = server.perform(step()), server.perform(step())
        sent = of_loop[OWNER].sent
        sent[0].cancel()
        second.cancel()
        sent[1].set_exception(moved(OTHER))
        await a_little()
        assert (True, 2, {OWNER}) == (first.cancelled(), len(sent), {*of_loop})

    on_a_loop(body)


def test_the_end_of_a_loop_ends_all_nodes(of_loop: dict[Address, OfLoop]) -> None:
    async def body(server: AsyncClusterServer) -> None:
        assert server.node(A) is server.node(A) is not server.node(B)
        await server.aclose()

    on_a_loop(body)
    assert [["closed", "closed"]] * 2 == [one.ended for one in of_loop.values()]


def test_the_end_of_a_loop_waits_for_steps_whose_node_is_looked_for(
    of_loop: dict[Address, OfLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "END", 20.0)

    async def main() -> None:
        server, go = AsyncClusterServer("default"), threading.Event()
        look = server.topology.look
        monkeypatch.setattr(server.topology, "look", lambda: (go.wait(20), look()))
        done = server.perform(step())
        closing = asyncio.ensure_future(server.aclose())
        await a_little()
        go.set()
        while OWNER not in of_loop or not of_loop[OWNER].sent:
            await asyncio.sleep(0.001)
        of_loop[OWNER].sent[0].set_result(Answer(["ok"], 0.0, 0.0))
        await closing
        assert done.done() and ["ok"] == done.result().reply

    asyncio.run(asyncio.wait_for(main(), 30))


def test_two_nodes_are_listened_to_until_the_end(
    of_loop: dict[Address, OfLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, ended = list[Any](), list[Any]()

    async def listen(self: Any, tried: asyncio.Event) -> None:
        heard.append(self.pubsub())
        tried.set()
        tried.clear()  # an ear that tries again
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(self)

    monkeypatch.setattr(servers.Hub, "_read", listen)

    async def body(server: AsyncClusterServer) -> None:
        for close in (server.hub.aclose, server.aclose):
            heard.clear()
            ended.clear()
            await asyncio.wait_for(server.hub.ready(30.0), 20.0)
            await a_little()
            assert 2 == len({*heard}) == servers.EARS
            await close()
            await a_little()
            assert 2 == len(ended)

    on_a_loop(body)
