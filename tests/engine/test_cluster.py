"""A Cluster whose nodes redirect, hang, and fail over. Each node is a relay: a proxy of Redis. A
test can choose the replies of a relay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management import CommandError
from redis.crc import key_slot

from devtools.servers import HOST
from django_redis_sync import Lease, Lock, Unavailable
from django_redis_sync.engine.cluster.topology import Address, key_of, read_slots, url_at
from tests.behaviour.both import MAX_WAIT, Async, both, eventually, until
from tests.support.commands import locks
from tests.support.relays import CUT, SILENCE, Impatient, Relay

pytestmark = pytest.mark.promise(17)
SCRIPTS = ("acquire", "renew", "release", "inspect")


class Nodes(list[Relay]):
    """Three relays that act as the nodes of a Cluster. `alias`: the cache alias of the Cluster."""

    alias = "cluster-of-relays"

    def share(self, *owners: Relay) -> None:
        """Make all nodes report that `owners` have equal parts of the slots."""
        size = 16384 // len(owners) + 1
        rows = "".join(
            f"*3\r\n:{n * size}\r\n:{min(16383, (n + 1) * size - 1)}\r\n"
            f"*3\r\n$9\r\n{HOST}\r\n:{one.port}\r\n$2\r\nid\r\n"
            for n, one in enumerate(owners)
        )
        for node in self:
            node.calm()
            node.answer("asking", "+OK")
            node.answer("cluster", f"*{len(owners)}\r\n{rows}".encode())

    def name(self, owner: int, nth: int = 0) -> str:
        """Return a name whose slot belongs to node number `owner`, if all nodes have equal parts of
        the slots. A different `nth` gives a different name."""
        size = 16384 // len(self) + 1
        names = (f"x{n}" for n in range(1000))
        mine = [one for one in names if self.slot(one) // size == owner]
        return mine[nth]

    def slot(self, name: str) -> int:
        return key_slot(self[0].view(name).keys.leases.encode())

    def redirect(self, kind: str, name: str, host: str = HOST, to: int = 1) -> str:
        return f"-{kind} {self.slot(name)} {host}:{self[to].port}"


@pytest.fixture
def nodes(relays: Callable[..., list[Relay]], settings: Any) -> Nodes:
    made = Nodes(relays(3))
    made.share(*made)
    Nodes.alias = f"cluster-{made[0].alias}"
    cache = {
        **settings.CACHES[made[0].alias],
        "LOCATION": [f"redis://{HOST}:{one.port}/0" for one in made],
        "OPTIONS": {
            "CONNECTION_FACTORY": "django_redis_sync.engine.cluster.ClusterConnectionFactory"
        },
    }
    settings.CACHES = {**settings.CACHES, Nodes.alias: cache}
    return made


# Redirections


@pytest.mark.parametrize("host", [HOST, ""], ids=["host", "no host"])
@pytest.mark.parametrize("kind", ["MOVED", "ASK"])
@both
async def test_calls_follow_redirections(io, nodes: Nodes, kind: str, host: str) -> None:
    """If the old node replies ASK, the client sends ASKING and the command to the new node. The
    next call begins at the old node. A redirection without a host changes only the port."""
    name, (old, new, _) = nodes.name(0), nodes
    for verb in SCRIPTS:
        old.answer(verb, nodes.redirect(kind, name, host))
    for _ in range(2):
        async with io.entered(Lock(name, using=nodes.alias)) as lease:
            await io.do(lease, "renew")
            assert 1 == (await io.do(Lock(name, using=nodes.alias), "status")).holding
    sent, asking = new.verbs(*SCRIPTS), new.verbs("asking", *SCRIPTS)
    assert {*SCRIPTS} == {*sent}
    if kind == "ASK":
        assert [word for verb in sent for word in ("asking", verb)] == asking
        assert 8 <= len(old.verbs(*SCRIPTS)) <= 16
    else:
        assert asking == sent
        # If a node of a busy machine is silent, the client reads the nodes again. They still name
        # the old node, which redirects one more call.
        looks = sum(len(node.verbs("cluster")) for node in nodes)
        assert 1 <= len(old.verbs(*SCRIPTS)) <= looks


@both
async def test_redirected_client_sends_the_asking_command_before_evalsha_and_eval(
    io, nodes: Nodes
) -> None:
    name, (old, new, _) = nodes.name(0), nodes
    old.answer("acquire", nodes.redirect("ASK", name))
    new.answer("acquire", "-NOSCRIPT none", times=1)
    assert await io.do(Lock(name, using=nodes.alias), "acquire", False)
    assert ["asking", "acquire"] * 2 == new.verbs("asking", "acquire")
    assert ["EVALSHA", "EVAL"] == [one[0] for one in new.received if one.verb == "acquire"]


@both
async def test_acquire_raises_unavailable_when_nodes_redirect_to_each_other(
    io, nodes: Nodes
) -> None:
    name, (old, new, _) = nodes.name(0), nodes
    old.answer("acquire", nodes.redirect("MOVED", name, to=1))
    new.answer("acquire", nodes.redirect("MOVED", name, to=0))
    with pytest.raises(Unavailable):
        await io.do(Impatient(name, using=nodes.alias), "acquire", False)


@pytest.mark.parametrize(
    "reply",
    [
        "-ERR Script attempted to access a non local key in a cluster node",
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        CUT,
    ],
    ids=["half moved", "try again", "cut"],
)
@both
async def test_call_is_repeated_while_its_slot_moves(io, nodes: Nodes, reply: Any) -> None:
    name, (old, new, _) = nodes.name(0), nodes
    old.answer("acquire", reply, times=2)
    assert await io.do(Lock(name, using=nodes.alias), "acquire", False)
    old.answer("renew", nodes.redirect("ASK", name))
    new.answer("renew", reply, times=1)
    async with io.entered(Lock(nodes.name(0, 1), using=nodes.alias)) as lease:
        await io.do(lease, "renew")
    assert 2 <= len(new.verbs("renew"))


@both
async def test_redirected_call_is_not_repeated_after_a_permanent_error(io, nodes: Nodes) -> None:
    name, (old, new, _) = nodes.name(0), nodes
    old.answer("acquire", nodes.redirect("ASK", name))
    new.answer("acquire", "-OOM command not allowed")
    with pytest.raises(Unavailable, match=r"OOM|not allowed"):
        await io.do(Lock(name, using=nodes.alias), "acquire", False)
    assert 1 == len(new.verbs("acquire"))


@pytest.mark.parametrize("kind", ["MOVED", "ASK"])
def test_waiter_is_granted_while_its_slot_moves(nodes: Nodes, kind: str) -> None:
    name, (old, new, _) = nodes.name(0), nodes
    lease = Lock(name, using=nodes.alias).acquire()
    old.answer("blpop", nodes.redirect(kind, name))
    with ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(Lock(name, using=nodes.alias).acquire, True, MAX_WAIT)
        eventually(lambda: (new if kind == "MOVED" else old).verbs("blpop"))
        lease.release()
        waiter.result(MAX_WAIT).release()


@pytest.mark.parametrize("kind", ["MOVED", "ASK"])
def test_locks_history_command_and_name_registration_follow_redirections(
    nodes: Nodes, kind: str
) -> None:
    names = [nodes.name(n) for n in range(3)]
    for node in nodes:
        node.answer("zadd", nodes.redirect(kind, names[0], to=2), times=1)
    for name in names:
        Lock(name, using=nodes.alias).acquire().release()
    nodes[0].answer("hgetall", nodes.redirect(kind, names[0]))
    nodes[0].answer("zrange", nodes.redirect(kind, names[0]))
    for name in names:
        assert "granted 1," in locks("history", name, using=nodes.alias)
    registry = f"{nodes[0].view().keys.prefix}:names"
    eventually(lambda: {*map(str.encode, names)} == {*nodes[0].raw.zrange(registry, 0, -1)})
    assert "zadd" in nodes[2].verbs("zadd")


# Nodes that hang or stop


@both
async def test_call_is_served_by_the_new_owner_when_a_node_is_down(io, nodes: Nodes) -> None:
    name = nodes.name(0)
    async with io.entered(Lock(nodes.name(1), using=nodes.alias)):
        await io.sleep(0.6)  # after this time, the client may read the slots again
    nodes[0].down()
    nodes.share(*nodes[1:])
    async with io.entered(Lock(name, using=nodes.alias)) as lease:
        assert await io.do(lease, "owned")
    assert nodes[1].verbs("acquire")


@both
async def test_hung_node_does_not_delay_calls_to_other_nodes(io, nodes: Nodes) -> None:
    stuck, free = nodes.name(0), nodes.name(2)
    nodes[0].answer("cluster", SILENCE)
    nodes[0].answer("acquire", SILENCE)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await io.do(Impatient(stuck, using=nodes.alias), "acquire", False)
        async with io.entered(Impatient(free, using=nodes.alias)) as lease:
            assert lease.held
    assert 1 >= len(nodes[0].verbs("cluster")), "the node that hangs was asked for the slots again"


@both
async def test_acquire_raises_unavailable_when_no_node_knows_the_slots(io, nodes: Nodes) -> None:
    for node, reply in zip(nodes, (SILENCE, CUT, "*0"), strict=True):
        node.calm()
        node.answer("cluster", reply)
    with pytest.raises(Unavailable):
        await io.do(Impatient("x", using=nodes.alias), "acquire", False)
    nodes.share(*nodes)
    assert await io.do(Lock("x", using=nodes.alias), "acquire", False)


def test_names_are_registered_while_a_node_hangs(nodes: Nodes) -> None:
    """A command without a key is sent to another node if the first node does not answer."""
    nodes[0].answer("time", SILENCE)
    Lock("x", using=nodes.alias).acquire().release()
    registry = f"{nodes[0].view().keys.prefix}:names"
    eventually(lambda: nodes[0].raw.zscore(registry, "x"))
    nodes[0].answer("hgetall", SILENCE)
    nodes[0].answer("zmscore", SILENCE)
    with pytest.raises(CommandError, match=r"Timeout|no reply"):
        locks("history", nodes.name(0), using=nodes.alias)


def test_renewals_are_sent_while_a_renewal_on_another_node_hangs(nodes: Nodes) -> None:
    hung, renewed = list[float](), list[float]()

    def hang(command: Any, forward: Any) -> Any:
        hung.append(time.monotonic())
        return SILENCE

    def renew(command: Any, forward: Any) -> Any:
        renewed.append(time.monotonic())
        return forward()

    def overlap() -> bool:
        return any(0 < at - began < 0.9 for at in renewed for began in hung)

    nodes[0].answer("renew", hang)
    nodes[2].answer("renew", renew)

    def hold(owner: int, nth: int, timeout: float) -> Lease:
        lock = Lock(nodes.name(owner, nth), using=nodes.alias, timeout=timeout, renew=True)
        return lock.acquire()

    stuck = [hold(0, nth, 6) for nth in range(3)]
    kept = [hold(2, nth, timeout) for nth, timeout in enumerate((9, 5, 4, 3))]
    eventually(overlap, 20)
    eventually(lambda: not any(lease.held for lease in stuck))
    assert kept[0].held
    for lease in kept:
        if lease.held:
            lease.release()


@pytest.mark.parametrize("silent", [0, 1, 2, None])
def test_async_waiter_is_woken_while_one_node_is_silent(
    nodes: Nodes, silent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis_sync.engine.hub.HEARTBEAT_INTERVAL", 1e6)
    name = nodes.name(0)
    if silent is not None:
        nodes[silent].answer("subscribe", SILENCE)

    def subscriptions() -> int:
        server = nodes[0].raw
        return sum(n for _, n in server.pubsub_numsub(*server.pubsub_channels("*:wake:*")))

    async def requests_after_release() -> int:
        lease = await Lock(name, using=nodes.alias).aacquire()
        task = asyncio.create_task(Lock(name, using=nodes.alias).aacquire())
        await until(Async(), lambda: nodes[0].view(name).waiting == 1)
        # Wait for all subscriptions: the waiter repeats its request after each new subscription.
        await until(Async(), lambda: subscriptions() == (1 if silent in (1, 2) else 2))
        before = len(nodes[0].verbs("acquire"))
        await lease.arelease()
        second = await asyncio.wait_for(task, MAX_WAIT)
        assert second and second.held
        await second.arelease()
        return len(nodes[0].verbs("acquire")) - before

    async def main() -> None:
        await requests_after_release()
        assert 0 == await requests_after_release(), "the waiter asked again, without a message"

    asyncio.run(main())


# Addresses and keys


def test_ranges_of_slots_include_both_ends() -> None:
    asked = Address("a", 7003)
    found = read_slots([[0, 99, ["", 7001, "id"]], [200, 299, ["b", 7002]]], asked)
    nameless, named = Address("a", 7001), Address("b", 7002)
    owners = [found[slot] for slot in (0, 99, 100, 199, 200, 299, 300)]
    assert [nameless, nameless, None, None, named, named, None] == owners


@pytest.mark.parametrize(
    ("seed", "host", "url"),
    [
        ("redis://a:1/0", "b", "redis://b:7002/0"),
        ("rediss://me:word@a:1/0?x=1", "b", "rediss://me:word@b:7002/0?x=1"),
        ("redis://a:1/0", "::1", "redis://[::1]:7002/0"),
    ],
)
def test_node_url_has_the_scheme_login_and_options_of_the_configured_url(
    seed: str, host: str, url: str
) -> None:
    assert url == url_at(seed, Address(host, 7002))


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("PING", None),
        ("time", None),
        ("CONFIG GET save", None),
        ("CLUSTER SLOTS", None),
        ("RANDOMKEY", None),
        ("DISCARD", None),
        ("zadd names 1 a", "names"),
        ("EVALSHA sha 2 first second x", "first"),
        ("EVAL source 1 first", "first"),
        ("EVAL source 0", None),
    ],
)
def test_cluster_client_finds_the_key_that_decides_the_node_of_a_command(
    words: str, key: str | None
) -> None:
    assert key == key_of(words.split())
