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
from django_redis_sync.engine.cluster import async_server as async_servers
from django_redis_sync.engine.cluster import factory as factories
from django_redis_sync.engine.cluster import routing
from django_redis_sync.engine.cluster import server as servers
from django_redis_sync.engine.cluster import topology as topologies
from django_redis_sync.engine.cluster.async_server import AsyncClusterServer
from django_redis_sync.engine.cluster.factory import ClusterConnectionFactory
from django_redis_sync.engine.cluster.server import ClusterServer, Node
from django_redis_sync.engine.cluster.topology import LAST_CHANCE, SUSPECT, Address, Topology
from django_redis_sync.engine.wire import clock
from django_redis_sync.operators.doctor import servers as doctor_looks
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Answer, Failure, Run, Wait
from tests.support.caches import under_prefixes

A, B, C = (Address("127.0.0.1", port) for port in (7001, 7002, 7003))
SEEDS = [f"redis://127.0.0.1:{one.port}/0" for one in (A, B, C)]
KEY = "sync:{exports}:leases"
SLOT = key_slot(KEY.encode())


def step(timeout: float = 5.0) -> Run:
    keys = (KEY, "queue", "waiters", "info", "wake:t", "stats", "never")
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
    monkeypatch.setattr(ClusterServer, "node", lambda self, one: SyncStandIn(one, mine))
    monkeypatch.setattr(AsyncClusterServer, "node", lambda self, one: AsyncStandIn(one, mine))
    monkeypatch.setattr(async_servers, "async_options", lambda alias: {})
    return mine


def sync_reply(step: Run) -> Any:
    return ClusterServer("cluster").run(step).reply


def async_reply(step: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(async_servers, "server_of", lambda alias: ClusterServer(alias))

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


def test_the_node_that_has_the_slot_is_asked(nodes: Nodes, reply: Any) -> None:
    assert ["ok", OWNER.port] == reply(step())
    assert [("run", OWNER)] == nodes.verbs()


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

    def lend(self, within: float) -> tuple[Wire, float]:
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


@pytest.mark.parametrize("said, meant", [(3, 3), (None, None), (b"two words", "two words")])
def test_asking_takes_replies_as_they_are(
    monkeypatch: pytest.MonkeyPatch, said: Any, meant: Any
) -> None:
    monkeypatch.setattr(Node, "own", lambda self: Lender(Wire("OK", said)), raising=False)
    assert meant == Node("cluster", None).asking([("ZCARD", "k")], 5.0)


def test_an_error_among_several_replies_stands_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = errors.ResponseError("WRONGTYPE")
    wire = Wire(b"1", wrong, [b"2"])
    monkeypatch.setattr(Node, "own", lambda self: Lender(wire), raising=False)
    assert ["1", wrong, ["2"]] == Node("cluster", None).commands([("GET", key) for key in "abc"])


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


def test_a_node_that_says_where_the_slots_are_is_no_suspect_any_more() -> None:
    silent = {A}

    def says(address: Address) -> Any:
        if address in silent:
            raise silence()
        return slots(A, B, C)

    topology = Topology(SEEDS, says)
    topology.look()
    assert [True, False, False] == [topology.suspect(one) for one in (A, B, C)]
    silent = {B, C}
    topology.look()
    assert [False, True, True] == [topology.suspect(one) for one in (A, B, C)]


def test_whoever_waited_for_another_to_ask_does_not_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked = [1000.0], list[Address]()
    monkeypatch.setattr(topologies, "clock", lambda: now[0])

    def says(address: Address) -> Any:
        asked.append(address)
        return slots(A, B, C)

    class Asked:
        """In the place of the lock: another thread had it, and asked."""

        def __enter__(self) -> None:
            now[0] += 1
            topology._looked = now[0]
            now[0] += 1

        def __exit__(self, *_: Any) -> None: ...

    topology = Topology(SEEDS, says)
    topology.look()
    topology._looking = Asked()  # type: ignore[assignment]
    topology.look()
    assert [A] == asked


def test_before_any_node_was_asked_each_of_the_seeds_may_have_slots() -> None:
    assert [A, B, C] == Topology(SEEDS, lambda address: []).primaries


def test_a_node_that_knows_of_no_slots_is_not_believed() -> None:
    said = {A: [], B: slots(A, B, C), C: []}
    topology = Topology(SEEDS, lambda address: said[address])
    assert OWNER == topology.of(KEY)
    said[B] = []
    with pytest.raises(Failure) as caught:
        topology.look()
    assert "busy" == caught.value.why
    assert OWNER == topology.of(KEY)


def test_what_moved_counts_until_the_nodes_are_asked_anew() -> None:
    topology = Topology(SEEDS, lambda address: slots(A, B, C))
    topology.look()
    redirection = moved(OTHER).cause
    assert isinstance(redirection, errors.MovedError)
    assert OTHER == topology.moved(redirection) == topology.of(KEY)
    topology.look()
    assert OWNER == topology.of(KEY)


def test_of_a_slot_that_nobody_has_any_node_is_asked() -> None:
    row = [0, 0, [B.host, B.port, "id"]]
    topology = Topology(SEEDS, lambda address: [row])
    assert B == topology.of(KEY)


def test_an_address_is_of_redis_where_it_does_not_say() -> None:
    topology = Topology(["redis://", "redis://h", "rediss://u:p@h:1/0"], lambda address: [])
    assert [("localhost", 6379), ("h", 6379), ("h", 1)] == topology.addresses


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
    monkeypatch.setattr(async_servers, "clock", lambda: now[0])
    monkeypatch.setattr(async_servers, "Batcher", lambda client: None)
    client = Slow(errors.NoScriptError("none"), [b"ok"])
    answer = asyncio.run(async_servers.AsyncNode(client).asking(step()))
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
    monkeypatch.setattr(async_servers, "Batcher", lambda client: None)

    async def main() -> None:
        with pytest.raises(Failure) as caught:
            await async_servers.AsyncNode(Pipeline(*replies)).asking(step())
        assert (replies[-1], why) == (caught.value.cause, caught.value.why)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "said"),
    [(errors.ConnectionError("refused"), "refused"), (errors.TimeoutError(), "no reply in time")],
)
def test_what_came_in_place_of_the_answer_is_the_failures_cause(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Pipeline):
        async def execute(self, raise_on_error: bool) -> Any:
            raise error

    monkeypatch.setattr(async_servers, "Batcher", lambda client: None)

    async def main() -> Failure:
        with pytest.raises(Failure) as caught:
            await async_servers.AsyncNode(Broken()).asking(step())
        return caught.value

    failure = asyncio.run(main())
    assert ("unanswered", said) == (failure.why, str(failure.cause))
    assert isinstance(failure.cause, type(error))


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


def test_a_script_that_met_a_half_moved_slot_may_have_run() -> None:
    broken = Failure(
        errors.ResponseError("Script attempted to access a non local key"), 1.0, "final"
    )
    assert "unanswered" == routing.partly(broken).why
    other = Failure(errors.ResponseError("WRONGTYPE"), 1.0, "final")
    assert other is routing.partly(other)


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
        hub = async_servers.ClusterHub(None, "p")  # type: ignore[arg-type]
        first = hub.wait("t", 60, "x")
        for _ in range(2):
            hub._deliver(b"t 1 2 3")
        assert "1 2 3" == first.result().reply
        return [hub.wait("t", 60, "x").done(), async_servers.EARS]

    assert [False, 2] == asyncio.run(main())


def test_a_message_that_was_heard_by_both_ears_is_heard_when_it_comes_again(nodes: Nodes) -> None:
    async def main() -> list[Any]:
        hub = async_servers.ClusterHub(None, "p")  # type: ignore[arg-type]
        woken = []
        for _ in range(2):
            waiter = hub.wait("t", 60, "x")
            for _ in range(2):
                hub._deliver(b"t 1 2 3")
            await asyncio.sleep(0)
            woken.append(waiter.done())
        return woken

    assert [True, True] == asyncio.run(main())


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


@pytest.mark.parametrize("words", [("ZCARD", KEY), ("PING",)], ids=str)
def test_a_node_has_as_long_for_a_command_as_the_caller_says(words: Any, nodes: Nodes) -> None:
    server = ClusterServer("cluster")
    server.topology.look()
    nodes.commands.clear()
    server.command(*words, timeout=0.7)
    assert [(words, 0.7)] == nodes.commands


def test_a_command_goes_to_the_node_that_has_its_key(nodes: Nodes) -> None:
    server = looked()
    for n in range(12):
        server.command("ZCARD", key := f"sync:{{name{n}}}:leases")
        assert ("slots", server.topology.of(key)) == nodes.asked[-1]


def looked() -> ClusterServer:
    """A server that knows where the slots are."""
    server = ClusterServer("cluster")
    server.topology.look()
    return server


def test_the_doctor_examines_the_primaries_that_there_are_now(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ClusterServer("cluster")
    monkeypatch.setattr(doctor_looks, "server_of", lambda alias: server)
    for primaries in ((A, B, C), (A, B)):
        for one in (A, B, C):
            nodes.answers["slots", one] = slots(*primaries)
        found = doctor_looks.nodes_of("cluster")
        assert [f"{one.host}:{one.port}" for one in primaries] == [one.name for one in found]
        assert server.topology.of(KEY) in primaries
        owns = [one.name for one in found if one.has(KEY)]
        assert ["{0.host}:{0.port}".format(server.topology.of(KEY))] == owns


def test_a_loop_listens_on_a_channel_of_its_caches_own_prefix(
    nodes: Nodes, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_servers, "server_of", lambda alias: ClusterServer(alias))
    under_prefixes(settings, default="default", other="other")

    async def main() -> str:
        return AsyncClusterServer("other").hub.channel

    assert asyncio.run(main()).startswith("other:sync:wake:")


def test_a_node_has_little_time_to_say_where_the_slots_are(nodes: Nodes) -> None:
    looked()
    assert [(("CLUSTER", "SLOTS"), topologies.LOOK)] == nodes.commands


def test_renewals_go_over_a_lane_for_each_node(nodes: Nodes) -> None:
    server = looked()
    assert OWNER == server.place(step())
    redirection = moved(OTHER).cause
    assert isinstance(redirection, errors.MovedError)
    server.topology.moved(redirection)
    assert OTHER == server.place(step())


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


def test_a_node_that_refuses_several_commands_is_no_suspect(nodes: Nodes) -> None:
    server = looked()
    nodes.answers["commands", OWNER] = Failure(errors.ResponseError("NOPERM"), clock(), "final")
    with pytest.raises(Failure):
        server.commands([("HGETALL", KEY)])
    assert not server.topology.suspect(OWNER)


def test_what_a_silent_node_owes_several_is_not_asked_for_again_one_by_one(nodes: Nodes) -> None:
    server = looked()
    nodes.answers["run", OWNER] = silence()
    assert ["unanswered"] * 2 == [answer.why for answer in server.many([step(), step()])]  # type: ignore[union-attr]
    assert [("run", OWNER)] == nodes.verbs()


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
    monkeypatch.setattr(async_servers, "server_of", lambda alias: ClusterServer(alias))
    monkeypatch.setattr(async_servers, "async_redis", lambda alias, url: url)
    monkeypatch.setattr(async_servers, "AsyncNode", lambda url: made.setdefault(*at(url)))
    monkeypatch.setattr(async_servers, "cut", lambda client: client.ended.append("cut"))
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


def test_an_answer_that_is_no_failure_is_passed_on_and_so_is_the_end_of_the_hops(
    of_loop: dict[Address, OfLoop],
) -> None:
    async def body(server: AsyncClusterServer) -> None:
        odd, told = server.perform(step()), RuntimeError("odd")
        of_loop[OWNER].sent.pop().set_exception(told)
        await a_little()
        assert odd.exception() is told
        lost = server.perform(step())
        hops = 0
        while not lost.done():
            address = (OWNER, OTHER)[hops % 2]
            of_loop[address].sent.pop().set_exception(moved((OTHER, OWNER)[hops % 2]))
            await a_little()
            hops += 1
        assert 5 == hops and isinstance(lost.exception(), Failure)

    on_a_loop(body)


def test_the_end_of_a_loop_ends_all_nodes(of_loop: dict[Address, OfLoop]) -> None:
    async def body(server: AsyncClusterServer) -> None:
        assert server.node(A) is server.node(A) is not server.node(B)
        await server.aclose()
        server.drop()

    on_a_loop(body)
    assert [["closed", "closed", "dropped", "cut"]] * 2 == [one.ended for one in of_loop.values()]


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


def test_on_a_loop_that_was_closed_no_step_is_left(
    of_loop: dict[Address, OfLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    async def looking_for_ever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(1)

    async def main() -> tuple[AsyncClusterServer, Any]:
        server = AsyncClusterServer("default")
        monkeypatch.setattr(server, "looked", looking_for_ever)
        done = server.perform(step())
        await a_little()
        return server, done

    loop = asyncio.new_event_loop()
    server, _done = loop.run_until_complete(main())
    loop.close()
    assert [] == ended
    server.drop()
    assert [1] == ended


def test_who_waits_to_hear_is_told_at_once_when_no_node_says_where_the_slots_are(
    of_loop: dict[Address, OfLoop], nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listen(self: Any, tried: asyncio.Event) -> None:
        await asyncio.Event().wait()  # a node that hangs

    monkeypatch.setattr(async_servers.Hub, "_read", listen)
    for address in (A, B, C):
        nodes.answers["slots", address] = silence()

    async def main() -> None:
        server = AsyncClusterServer("default")
        await asyncio.wait_for(server.hub.ready(10**6), 20.0)
        await server.hub.aclose()

    asyncio.run(main())


def test_two_nodes_are_listened_to_until_the_end(
    of_loop: dict[Address, OfLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []

    async def listen(self: Any, tried: asyncio.Event) -> None:
        heard.append(self.pubsub())
        tried.set()
        tried.clear()  # an ear that tries again
        await asyncio.Event().wait()

    monkeypatch.setattr(async_servers.Hub, "_read", listen)

    async def body(server: AsyncClusterServer) -> None:
        closes = [server.hub.aclose, lambda: asyncio.sleep(0, server.hub.drop())]
        closes += [server.aclose, lambda: asyncio.sleep(0, server.drop())]
        for close in closes:
            heard.clear()
            await asyncio.wait_for(server.hub.ready(30.0), 20.0)
            await a_little()
            assert 2 == len({*heard}) == async_servers.EARS
            await close()
            await a_little()
            assert all(ear.done() for ear in server.hub._ears)  # type: ignore[attr-defined]

    on_a_loop(body)


def test_what_listens_on_a_loop_that_was_closed_is_ended(
    of_loop: dict[Address, OfLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listen(self: Any, tried: asyncio.Event) -> None:
        tried.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(async_servers.Hub, "_read", listen)

    async def main() -> AsyncClusterServer:
        server = AsyncClusterServer("default")
        await asyncio.wait_for(server.hub.ready(30.0), 20.0)
        await a_little()
        return server

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(main())
    loop.close()
    tasks = [server.hub._reader, *server.hub._ears]  # type: ignore[attr-defined]
    server.drop()
    assert [None] * 3 == [task.get_coro().cr_frame for task in tasks]


def test_of_what_was_heard_once_only_so_much_is_kept(of_loop: dict[Address, OfLoop]) -> None:
    async def body(server: AsyncClusterServer) -> None:
        for n in range(10_010):
            server.hub._deliver(f"t{n} granted")
        heard = server.hub._heard  # type: ignore[attr-defined]
        assert (10_000, "t10009 granted") == (len(heard), [*heard][-1])

    on_a_loop(body)


# The client of the cache


class OfTheCache:
    """In the place of redis-py's RedisCluster."""

    def __init__(self, options: Any) -> None:
        self.options, self.closed = options, 0

    @classmethod
    def from_url(cls, url: str, **options: Any) -> OfTheCache:
        return cls({"url": url, **options})

    def disconnect_connection_pools(self) -> None:
        self.closed += 1


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(factories, "RedisCluster", OfTheCache)
    monkeypatch.setattr(ClusterConnectionFactory, "_clusters", {})
    options = {"CONNECTION_POOL_KWARGS": {"max_connections": 7}, "PASSWORD": "word"}
    return ClusterConnectionFactory(
        {**options, "REDIS_CLIENT_KWARGS": {"read_from_replicas": True}}
    )


def test_a_cache_has_one_client_per_cluster_made_of_its_options(factory: Any) -> None:
    made = factory.connect(SEEDS[0])
    assert made is factory.connect(SEEDS[0]) is not factory.connect(SEEDS[1])
    given = {"max_connections": 7, "password": "word", "read_from_replicas": True}
    assert {"url": SEEDS[0], **given} == {key: made.options.get(key) for key in ("url", *given)}
    assert "parser_class" not in made.options  # RedisCluster has its own


def test_this_library_sends_over_pools_that_django_redis_makes(factory: Any) -> None:
    pool = factory.pool("redis://127.0.0.1:7002/0")
    assert (7002, 7) == (pool.connection_kwargs["port"], pool.max_connections)
    assert pool is factory.pool("redis://127.0.0.1:7002/0")


def test_a_cache_that_is_closed_closes_the_pools_of_its_nodes(factory: Any) -> None:
    made = factory.connect(SEEDS[0])
    factory.disconnect(made)
    assert 1 == made.closed
