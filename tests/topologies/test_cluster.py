"""A Cluster whose slots move, whose shards stop, and whose replicas take over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.cache import caches
from redis.crc import key_slot

from devtools.servers import HOST
from devtools.topologies import Cluster, client, wait_for
from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.engine import hub
from django_redis_sync.engine.cluster import topology
from django_redis_sync.engine.names import names_key
from django_redis_sync.engine.server import server_of
from django_redis_sync.operators import actions
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import status_of, statuses
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import Async, both, eventually, until
from tests.settings import PREFIX
from tests.support.packed import packed_of
from tests.support.workload import call

from .crowd import Crowd
from .everywhere import Everywhere

pytestmark = pytest.mark.promise(17)

ATTEMPT = 1.0
PATIENT = {"SOCKET_TIMEOUT": 1.0, "SOCKET_CONNECT_TIMEOUT": 1.0}


class Impatient(Lock):
    _attempt = ATTEMPT


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """Three shards, which the tests of this module don't break."""
    from .conftest import _need_servers

    _need_servers()
    with Cluster() as started:
        yield started


@pytest.fixture
def name(shared: Cluster, alias: Any) -> str:
    with Everywhere(shared) as everywhere:
        everywhere.flushdb()
    return alias(shared, **PATIENT)


def slot_of(name: str) -> int:
    return key_slot(keys_of(PREFIX, name).leases.encode())


def spread(topology: Cluster, each: int = 1) -> list[list[str]]:
    """Return `each` names for each of the shards."""
    found: list[list[str]] = [[] for _ in topology.primaries]
    for number in range(1000):
        name = f"name-{number}"
        mine = found[topology.primaries.index(topology.owner(slot_of(name)))]
        if len(mine) < each:
            mine.append(name)
        if all(len(some) == each for some in found):
            return found
    raise AssertionError("no names for all shards")


# Where things are


def test_names_spread_over_the_shards_and_each_stays_on_one(shared, name) -> None:
    leases = [Lock(f"spread-{n}", using=name).acquire() for n in range(60)]
    waiting = threading.Thread(target=Lock("spread-0", using=name).acquire, args=(True, 2))
    waiting.start()
    counts = []
    for server in shared.primaries:
        with client(server) as mine:
            counts.append(mine.dbsize())
    assert all(counts), counts
    # All keys of a name, including its statistics, are in the same slot.
    keys = keys_of(PREFIX, "spread-0")
    for kind in ("leases", "queue", "waiters", "info", "stats"):
        assert key_slot(getattr(keys, kind).encode()) == slot_of("spread-0")
    for lease in leases:
        lease.release()
    waiting.join()


@both
async def test_status_and_operators_see_all_shards(io, shared, name, settings) -> None:
    names = [one for some in spread(shared, 2) for one in some]
    leases = [await io.do(Lock(one, using=name), "acquire") for one in names]
    await until(io, lambda: {one for one, _ in names_in_use(using=name)} == set(names))
    found = statuses([(one, None) for one in names], using=name)
    assert [status.holding for status in found] == [1] * len(names)
    assert (await io.do(Lock(names[0], using=name), "status")).holding == 1
    assert len(histories([(one, None) for one in names], using=name)) >= len(names)
    for one in names:
        actions.pause(one, using=name)
    assert await io.do(Lock(names[3], using=name), "acquire", False) is None
    assert {one for one, _ in names_in_use(using=name)} == set(names)
    for one in names:
        actions.resume(one, using=name)
    for lease in leases:
        await io.do(lease, "release")


def test_locks_status_lists_names_on_all_shards(shared, name, settings, capsys) -> None:
    from django.core.management import call_command

    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "CACHE": name}
    names = [one for some in spread(shared) for one in some]
    leases = [Lock(one).acquire() for one in names]
    eventually(lambda: len(names_in_use()) == len(names))
    call_command("locks", "status", "--format", "json")
    output = capsys.readouterr().out
    assert all(one in output for one in names)
    for lease in leases:
        lease.release()


def test_cluster_factory_serves_the_django_cache(shared, name) -> None:
    cache = caches[name]
    cache.set_many({f"key-{n}": n for n in range(20)})
    assert [cache.get(f"key-{n}") for n in range(20)] == list(range(20))
    assert cache.incr("key-1") == 2
    cache.clear()
    assert cache.get("key-5") is None


def test_leases_on_all_shards_are_renewed(shared, name) -> None:
    leases = [
        Lock(one, using=name, timeout=4, renew=True).acquire()
        for some in spread(shared, 3)
        for one in some
    ]
    time.sleep(5)
    assert all(lease.held and lease.owned() for lease in leases)
    for lease in leases:
        lease.release()


@both
async def test_scripts_flushed_on_each_node_are_loaded_again(io, shared, name) -> None:
    names = [one for some in spread(shared) for one in some]
    for _ in range(5):
        with Everywhere(shared) as everywhere:
            for one in everywhere._all:
                one.script_flush()
        for one in names:
            async with io.entered(Lock(one, using=name)) as lease:
                assert lease.held

    async def waits() -> Any:
        return await io.do(Lock(names[0], using=name), "acquire")

    first = await io.do(Lock(names[0], using=name), "acquire")
    waiting = io.start(waits())
    await io.sleep(0.2)
    await io.do(first, "release")
    await io.do(await io.result(waiting), "release")


def test_wake_up_reaches_a_waiter_that_listens_on_another_node(shared, name, monkeypatch) -> None:
    """Without a wake-up, a waiter is granted after a second, so the test counts the wake-ups."""
    names = [one for some in spread(shared, 3) for one in some]
    heard: set[Any] = set()  # each is heard from two nodes
    deliver = hub.Hub._deliver
    monkeypatch.setattr(
        hub.Hub, "_deliver", lambda self, data: heard.add(data) or deliver(self, data)
    )

    async def main() -> None:
        for one in names:
            first = await Lock(one, using=name).aacquire()
            waiting = asyncio.create_task(Lock(one, using=name).aacquire())
            with Everywhere(shared) as everywhere:
                await until(Async(), lambda one=one: everywhere.zcard(keys_of(PREFIX, one).queue))
            await first.arelease()
            second = await waiting
            await until(Async(), lambda: len(heard) > len(given))
            given.append(second)
            await second.arelease()

    given: list[Any] = []
    asyncio.run(main())
    assert len(names) == len(given) == len(heard)


@pytest.mark.timeout(60)
def test_event_loop_ends_when_a_listener_ignores_its_first_cancellation(
    shared, name, monkeypatch
) -> None:
    """redis-py may lose a cancellation while it connects, so a single one is not enough."""
    connecting: list[Any] = []

    async def listen(self: Any) -> None:
        self._end_try()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if connecting:
                raise
        connecting.append(asyncio.current_task())
        for _ in range(5):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        await asyncio.sleep(3600)

    monkeypatch.setattr(hub.Hub, "_read", listen)

    async def main() -> None:
        async with Lock("ears", using=name) as lease:
            assert lease.held
            await asyncio.sleep(0.1)

    asyncio.run(main())
    assert [True] == [task.cancelled() for task in connecting]


# Slots that move


@pytest.mark.parametrize("shares", ["", "xyz"])
def test_slots_migrate_under_load_without_an_error(shared, name, figure, shares) -> None:
    names = [one for some in spread(shared, 2) for one in some]
    moves = 0
    with Crowd(name, names, 2, lease=6, shares=shares) as crowd:
        eventually(lambda: all(len(crowd.grants[one]) > 5 for one in names))
        for turn in range(6):  # only one move in a hundred interrupts a script
            for one in names:
                here = shared.owner(slot_of(one))
                there = shared.primaries[(shared.primaries.index(here) + 1) % 3]
                shared.migrate(slot_of(one), there, pause=0.1 * (turn % 2))
                moves += 1
        moved = time.monotonic()
        eventually(lambda: len(crowd.since(moved)) == len(names))
    grants = sum(map(len, crowd.grants.values()))
    figure(lost=0, said=f"{moves} slots moved under {grants} grants, {crowd.errors.total()} errors")
    assert crowd.errors == {}, crowd.messages
    assert crowd.over == 0
    for one in names:
        assert status_of(one, using=name).holding == 0


@both
async def test_waiter_is_granted_after_its_slot_has_moved(io, shared, name) -> None:
    first = await io.do(Lock("moving", using=name), "acquire")
    waiting = io.start(io.do(Lock("moving", using=name), "acquire"))
    with Everywhere(shared) as everywhere:
        await until(io, lambda: everywhere.zcard(keys_of(PREFIX, "moving").queue) == 1)
        here = shared.owner(slot_of("moving"))
        shared.migrate(slot_of("moving"), next(s for s in shared.primaries if s is not here))
    await io.do(first, "release")
    second = await io.result(waiting)
    assert second.held and second.fence > first.fence and await io.do(second, "owned")
    await io.do(second, "release")


@both
async def test_calls_wait_while_their_slot_is_half_moved(io, shared, name) -> None:
    """The node answers TRYAGAIN or ASK until the slot has moved."""
    lease = await io.do(Lock("half", using=name), "acquire")
    here = shared.owner(slot_of("half"))
    there = next(server for server in shared.primaries if server is not here)
    moving = threading.Thread(target=shared.migrate, args=(slot_of("half"), there, 0.7))
    moving.start()
    await io.sleep(0.2)
    await io.do(lease, "renew")
    await io.do(lease, "release")
    async with io.entered(Lock("half", using=name)) as again:
        assert again.fence > lease.fence
    moving.join()


#: While a slot is half moved, Redis 6.2 answers ASK at its old node; 7.0 answers TRYAGAIN as long
#: as any of the script's keys is there.
HALF_MOVED = (redis.exceptions.AskError, redis.exceptions.TryAgainError)


@pytest.mark.parametrize("moved", [False, True], ids=["not yet moved", "its key has moved"])
def test_half_moved_slot_rejects_an_expanding_acquire_as_a_whole(shared, moved) -> None:
    keys = keys_of(PREFIX, f"spilt {moved}")
    slot = slot_of(f"spilt {moved}")
    here = shared.owner(slot)
    there = next(server for server in shared.primaries if server is not here)
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


def test_name_registry_is_found_after_its_slot_has_moved(shared, name) -> None:
    slot = key_slot(names_key(PREFIX).encode())
    here = shared.owner(slot)
    shared.migrate(slot, next(server for server in shared.primaries if server is not here))
    with Lock("listed", using=name):
        eventually(lambda: ("listed", None) in names_in_use(using=name))


# Shards that stop


@both
async def test_stopped_shard_is_unavailable_and_the_others_work(io, start, alias, figure) -> None:
    own = start(Cluster, node_timeout=1.5)
    name = alias(own, **PATIENT)
    (gone, *_), *others = spread(own)
    for (one,) in others:
        async with io.entered(Impatient(one, using=name)):
            pass
    held = await io.do(Impatient(gone, using=name), "acquire")
    own.primaries[0].pause()
    took = []
    try:
        for _ in range(3):
            start_at = time.monotonic()
            with pytest.raises(Unavailable):
                await io.do(Impatient(gone, using=name), "acquire", False)
            took.append(time.monotonic() - start_at)
            for (one,) in others:
                start_at = time.monotonic()
                async with io.entered(Impatient(one, using=name)) as lease:
                    assert lease.held
                assert time.monotonic() - start_at < 2
        # Waiters on the other shards are woken up.
        first = await io.do(Impatient(others[0][0], using=name), "acquire")
        waiting = io.start(io.do(Impatient(others[0][0], using=name), "acquire"))
        await io.sleep(0.2)
        await io.do(first, "release")
        await io.do(await io.result(waiting), "release")
    finally:
        own.primaries[0].resume()
    figure(said=f"{io!r}: Unavailable after at most {max(took):.1f} s")
    assert max(took) < 6 * ATTEMPT + 2 * topology.LOOK
    await until(io, lambda: _is_back(gone, name), 20)
    await io.do(held, "release")


def _is_back(name: str, alias: str) -> bool:
    try:
        return status_of(name, using=alias).holding == 1
    except Unavailable:
        return False


def test_leases_on_other_shards_are_kept_when_a_shard_stops(start, alias) -> None:
    own = start(Cluster, node_timeout=1.5)
    name = alias(own, **PATIENT)
    (gone, *_), *others = spread(own)
    options = {"using": name, "timeout": 6, "renew": True}
    lost = Lock(gone, **options).acquire()
    kept = [Lock(one, **options).acquire() for (one,) in others]
    own.primaries[0].pause()
    try:
        eventually(lambda: not lost.held)
        time.sleep(3)
        assert all(lease.held and lease.owned() for lease in kept)
    finally:
        own.primaries[0].resume()


@pytest.mark.parametrize(("how", "shares"), [("pause", ""), ("kill", ""), ("kill", "xyz")])
def test_replica_takes_over_under_load(start, alias, figure, how, shares) -> None:
    own = start(Cluster, replicas=1, node_timeout=1.0)
    name = alias(own, **PATIENT)
    names = [one for some in spread(own) for one in some]
    (victim, *_), *_ = spread(own)
    old = own.primaries[0]
    with Crowd(name, names, 2, shares=shares) as crowd:
        eventually(lambda: all(len(crowd.grants[one]) > 5 for one in names))
        broken = time.monotonic()
        getattr(old, how)()
        wait_for(lambda: _owner_seen_by(own.primaries[1], slot_of(victim)) != old.port, "takeover")
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


def _owner_seen_by(server: Any, slot: int) -> int:
    with client(server) as mine:
        rows = mine.execute_command("CLUSTER", "SLOTS")
    return next(primary[1] for start, end, primary, *_ in rows if start <= slot <= end)


# The map of slots


def test_acquire_raises_unavailable_when_no_node_answers(alias, shared) -> None:
    from devtools.servers import free_port

    class Nowhere:
        def cache(self, **options: Any) -> dict[str, Any]:
            url = f"redis://{HOST}:{free_port()}/0"
            return {**shared.cache(**options), "LOCATION": [url, url.replace("/0", "/0?x=1")]}

    name = alias(Nowhere())
    with pytest.raises(Unavailable):
        Lock("x", using=name).acquire()
    with pytest.raises(Unavailable):
        asyncio.run(Lock("x", using=name).aacquire())


def test_node_without_an_address_gets_the_address_that_was_asked() -> None:
    asked = topology.Address("example.org", 7000)
    rows = [[0, 99, ["", 7000, "id"], ["10.0.0.9", 7001, "x"]], [200, 300, [None, 7002, "id"]]]
    found = topology.read_map(rows, asked)
    assert asked == found.of(0) == found.of(99)
    assert found.of(150) is None and found.of(301) is None
    assert topology.Address("example.org", 7002) == found.of(200)


def test_node_url_keeps_the_login_and_the_options() -> None:
    there = topology.Address("::1", 7001)
    assert "rediss://:s%40cret@[::1]:7001/0?ssl_cert_reqs=none" == topology.url_at(
        "rediss://:s%40cret@seed:7000/0?ssl_cert_reqs=none", there
    )


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("TIME",), None),
        (("config", "GET", "x"), None),
        (("ZADD", "names", 1, "a"), "names"),
        (("EVAL", "return 1", 1, "k"), "k"),
        (("EVAL", "return 1", 0), None),
    ],
)
def test_commands_are_routed_by_their_key(words: Any, key: str | None) -> None:
    assert key == topology.key_of(words)


def test_semaphore_works_on_a_cluster(shared, name) -> None:
    with Semaphore("weigh", 5, using=name) as lease:
        assert server_of(name).pool() is not None and lease.permits == 1
