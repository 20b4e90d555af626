"""Locks on a Cluster while its slots move, its shards stop, and its replicas take over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.cache import caches
from redis.crc import key_slot

from devtools.servers import HOST
from devtools.topologies import Cluster, client, wait_for
from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import Async, answered, both, eventually, queued, until, within
from tests.behaviour.conftest import ATTEMPT, Impatient
from tests.behaviour.watching import Losses, View, shown
from tests.settings import PREFIX
from tests.support.operators import locks
from tests.support.packed import packed_of
from tests.support.workload import call

from .conftest import start_servers
from .crowd import Crowd
from .everywhere import Everywhere

pytestmark = pytest.mark.promise(17)

PATIENT = {"SOCKET_TIMEOUT": 1.0, "SOCKET_CONNECT_TIMEOUT": 1.0}


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """A Cluster of three shards. Tests share this Cluster, so a test must not break it."""
    with start_servers(Cluster) as started:
        yield started


@pytest.fixture
def raw(shared: Cluster) -> Iterator[Everywhere]:
    with Everywhere(shared) as everywhere:
        everywhere.flushdb()
        yield everywhere


@pytest.fixture
def name(shared: Cluster, raw: Everywhere, alias: Any) -> str:
    """A cache alias of the shared Cluster."""
    return alias(shared, **PATIENT)


def slot_of(name: str) -> int:
    return key_slot(keys_of(PREFIX, name).leases.encode())


def spread(cluster: Cluster, each: int = 1) -> list[list[str]]:
    """Return a list for each shard: `each` names that have slots of this shard."""
    found: list[list[str]] = [[] for _ in cluster.primaries]
    for number in range(1000):
        name = f"name-{number}"
        mine = found[cluster.primaries.index(cluster.owner(slot_of(name)))]
        if len(mine) < each:
            mine.append(name)
        if all(len(some) == each for some in found):
            return found
    raise AssertionError("no names for all shards")


def of_all(cluster: Cluster, each: int = 1) -> list[str]:
    return [name for names in spread(cluster, each) for name in names]


@both
async def test_leases_on_all_cluster_shards_are_renewed(io, shared, name, raw) -> None:
    names = of_all(shared, 2)
    options = {"using": name, "timeout": 4, "renew": True}
    leases = [await io.do(Lock(one, **options), "acquire") for one in names]
    assert all(one.dbsize() for one in raw.each)
    waiting = await queued(io, Lock(names[0], **options), View(raw, names[0]))
    for kind in ("leases", "queue", "waiters", "info", "stats"):
        key = getattr(keys_of(PREFIX, names[0]), kind)
        assert slot_of(names[0]) == key_slot(key.encode())
    await until(io, lambda: {*shown(using=name)} == {*names})
    assert [1] * 6 == [row["holding"] for row in shown(using=name).values()]
    assert 1 == (await io.do(Lock(names[0], using=name), "status")).holding
    for one in names:
        locks("pause", one, using=name)
    assert await io.do(Lock(names[3], using=name), "acquire", False) is None
    for one in names:
        locks("resume", one, using=name)
    await io.sleep(4.5)  # longer than the lease duration
    for lease in leases:
        assert lease.held and await io.do(lease, "owned")
        await io.do(lease, "release")
    await io.do(await io.result(waiting), "release")


def test_cluster_factory_serves_the_django_cache(name) -> None:
    cache = caches[name]
    cache.set_many({f"key-{n}": n for n in range(20)})
    assert [cache.get(f"key-{n}") for n in range(20)] == list(range(20))
    assert cache.incr("key-1") == 2
    cache.clear()
    assert cache.get("key-5") is None


@both
async def test_cluster_with_a_password_is_used(io, start, alias) -> None:
    cluster = start(Cluster, config={"requirepass": "s@cret: x"})
    for one in of_all(cluster):
        async with io.entered(Semaphore(one, 5, using=alias(cluster))) as lease:
            assert lease.held


def test_wake_up_reaches_a_waiter_that_listens_on_another_node(shared, name, raw) -> None:
    """Without wake-ups, each waiter would wait for most of a second until its next request."""

    async def main() -> None:
        for names in spread(shared, 6):
            with within(2.5):
                for one in names:
                    first = await Lock(one, using=name).aacquire()
                    waiting = await queued(Async(), Lock(one, using=name), View(raw, one))
                    await first.arelease()
                    await (await waiting).arelease()

    asyncio.run(main())


@pytest.mark.timeout(60)
def test_event_loop_ends_when_a_listener_ignores_its_first_cancellation(name, monkeypatch) -> None:
    """redis-py may lose a cancellation while it connects, so the library has to repeat the
    cancellation."""
    connecting: list[Any] = []

    async def subscribe(self: Any, *channels: Any) -> None:
        connecting.append(asyncio.current_task())
        for seconds in (3600, *[0.01] * 5):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(seconds)
        await asyncio.sleep(3600)

    async def main() -> None:
        async with Impatient("ears", using=name) as lease:
            assert lease.held

    monkeypatch.setattr(redis.asyncio.client.PubSub, "subscribe", subscribe)
    asyncio.run(main())
    assert connecting and all(task.cancelled() for task in connecting)


# Slots that move


@pytest.mark.parametrize("shares", ["", "xyz"])
def test_slots_migrate_under_load_without_an_error(shared, name, raw, figure, shares) -> None:
    names, moves = of_all(shared, 2), 0
    with Crowd(name, names, 2, lease=6, shares=shares) as crowd:
        eventually(lambda: all(len(crowd.grants[one]) > 5 for one in names))
        for turn in range(6):  # repeat, because only one move in a hundred interrupts a script
            for one in names:
                here = shared.owner(slot_of(one))
                there = shared.primaries[(shared.primaries.index(here) + 1) % 3]
                shared.migrate(slot_of(one), there, pause=0.1 * (turn % 2))
                moves += 1
        moved = time.monotonic()
        eventually(lambda: len(crowd.since(moved)) == len(names))
    grants = sum(map(len, crowd.grants.values()))
    figure(lost=0, said=f"{moves} slots moved under {grants} grants, {crowd.errors.total()} errors")
    assert ({}, 0) == (crowd.errors, crowd.over), crowd.messages
    assert all(View(raw, one).holding == 0 for one in names)


def neighbor(cluster: Cluster, slot: int) -> Any:
    """Return a shard that doesn't own the slot."""
    here = cluster.owner(slot)
    return next(server for server in cluster.primaries if server is not here)


#: Errors with which the old node of a half-moved slot rejects a script. Redis 6.2 replies ASK.
#: Redis 7.0 replies TRYAGAIN while the node still has any key of the script.
HALF_MOVED = (redis.exceptions.AskError, redis.exceptions.TryAgainError)


@pytest.mark.parametrize("moved", [False, True], ids=["not yet moved", "its key has moved"])
def test_acquire_writes_nothing_while_the_slot_of_the_name_is_half_moved(
    shared, raw, moved
) -> None:
    keys, slot = keys_of(PREFIX, "spilt"), slot_of("spilt")
    here, there = shared.owner(slot), neighbor(shared, slot)
    asks = [call("acquire", keys, token, how="wait", lease=60_000) for token in "ab"]
    source = scripts.script("acquire").source
    with client(here) as old, client(there) as new:
        (held, spilling) = (one.asked for one in asks)
        assert old.eval(source, *held).startswith(b"ok ")
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", shared.id(here))
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", shared.id(there))
        if moved:
            old.execute_command("MIGRATE", HOST, there.port, "", 0, 5000, "KEYS", keys.leases)
        with pytest.raises(HALF_MOVED):
            old.eval(source, *spilling)
        new.execute_command("ASKING")
        with pytest.raises(redis.exceptions.TryAgainError):
            new.eval(source, *spilling)
        for mine in (new, old):
            mine.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
            owner = shared.id(there if moved else here)
            mine.execute_command("CLUSTER", "SETSLOT", slot, "NODE", owner)
        mine = new if moved else old
        assert "a" == packed_of(mine, keys.leases).holder
        assert mine.eval(source, *spilling).startswith(b"wait ")
        assert packed_of(mine, keys.leases) is None


# Shards that stop


@both
async def test_stopped_shard_does_not_affect_the_other_shards_of_a_cluster(
    io, start, alias, figure
) -> None:
    """A lease on the stopped shard is reported as lost before it expires. Others are renewed."""
    own, took = start(Cluster, node_timeout=1.5), []
    using = alias(own, SOCKET_TIMEOUT=5, SOCKET_CONNECT_TIMEOUT=5)
    (first, gone), (second, there), (third, _) = spread(own, 2)

    def lock(name: str, **options: Any) -> Lock:
        return Impatient(name, using=using, **options)

    with Losses() as losses:
        options = {"timeout": 6, "renew": True, "on_lost": losses}
        leases = [await io.do(lock(one, **options), "acquire") for one in (first, second, third)]
        held = await io.do(lock(gone), "acquire")
        own.primaries[0].pause()
        try:
            for _ in range(3):
                with within(8 * ATTEMPT) as watch, pytest.raises(Unavailable):
                    await io.do(lock(gone), "acquire", False)
                took.append(watch.seconds)
                with within(2):
                    holder = await io.do(lock(there), "acquire")
                    waiting = io.start(io.do(lock(there), "acquire"))
                    await io.sleep(0.2)
                    await io.do(holder, "release")
                    await io.do(await io.result(waiting), "release")
            await until(io, lambda: losses.of(leases[0]))
            await io.sleep(3)  # without renewals, the other leases would have expired by now
            assert {leases[0].token} == {*losses.calls}
            assert [True] * 2 == [await io.do(lease, "owned") for lease in leases[1:]]
        finally:
            own.primaries[0].resume()
        with client(own.primaries[0]) as mine:
            assert losses.preceded(View(mine, first).end, leases[0])
    figure(said=f"{io!r}: Unavailable after at most {max(took):.1f} s")
    await answered(io, held, "release")


@pytest.mark.parametrize(("how", "shares"), [("pause", ""), ("kill", ""), ("kill", "xyz")])
def test_replica_takes_over_under_load(start, alias, figure, how, shares) -> None:
    own = start(Cluster, replicas=1, node_timeout=1.0)
    names = of_all(own)
    victim, old = names[0], own.primaries[0]
    with Crowd(alias(own, **PATIENT), names, 2, shares=shares) as crowd:
        eventually(lambda: all(len(crowd.grants[one]) > 5 for one in names))
        broken = time.monotonic()
        getattr(old, how)()
        other, slot = own.primaries[1], slot_of(victim)
        wait_for(lambda: _owner_seen_by(other, slot) not in (None, old.port), "takeover")
        promoted = time.monotonic() - broken
        eventually(lambda: len(crowd.since(broken + promoted)) == len(names))
    back = crowd.since(broken + promoted)[victim] + promoted
    others = max(crowd.since(broken)[one] for one in names if one != victim)
    figure(
        recover=back,
        said=f"{how}, with a replica: {promoted:.1f} s of this until it was promoted; "
        f"the other shards after {others:.1f} s",
    )
    assert back < promoted + 8
    assert set(crowd.errors) <= {"Unavailable", "LeaseLost"}, crowd.messages
    if how == "pause":
        old.resume()


def _owner_seen_by(server: Any, slot: int) -> int | None:
    """Return the port of the slot's primary. Return None if the server knows no primary of it."""
    with client(server) as mine:
        rows = mine.execute_command("CLUSTER", "SLOTS")
    return next((primary[1] for start, end, primary, *_ in rows if start <= slot <= end), None)
