"""Failovers by Sentinel under load: who continues, which leases are lost, who is notified."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from typing import Any

import pytest

from devtools.topologies import Sentinels, client, wait_for
from django_redis_sync import LeaseLost, Lock, Unavailable
from django_redis_sync.engine.server import async_server_of
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import both, eventually, until
from tests.faults.conftest import retried
from tests.settings import PREFIX
from tests.support.journal import journalling
from tests.support.packed import leases_of

from .crowd import Crowd

pytestmark = pytest.mark.promise(17)

#: Seconds that clients may take to find the new primary and get a grant on a busy machine. The
#: time of the election doesn't count, because a split vote is repeated seconds later.
FINDING = 8.0
#: Duration in seconds of leases that must outlive an election and its repetition.
LONG = 120
#: The socket timeouts that docs/redis-setup.md advises: how long a call waits for a hung primary.
PATIENT = {"SOCKET_TIMEOUT": 1.0, "SOCKET_CONNECT_TIMEOUT": 1.0}


@pytest.fixture
def sentinels(start: Any) -> Sentinels:
    return start(Sentinels)


@pytest.mark.parametrize(("how", "shares"), [("pause", ""), ("kill", ""), ("kill", "xyz")])
def test_all_names_are_granted_again_after_a_failover_under_load(
    sentinels, alias, figure, how, shares
) -> None:
    old = sentinels.primary
    name = alias(sentinels, **PATIENT)
    with journalling(old.url) as journal:
        with Crowd(name, ["a", "b", "c"], 2, shares=shares) as crowd:
            eventually(lambda: sum(map(len, crowd.grants.values())) > 60)
            broken = time.monotonic()
            getattr(old, how)()
            wait_for(lambda: sentinels.current() is not old, "a new primary")
            promoted = time.monotonic() - broken
            eventually(lambda: len(crowd.since(broken + promoted)) == 3)
            settled = time.monotonic()
            eventually(lambda: all(len(g) > 20 for g in _after(crowd, settled).values()))
        back = max(crowd.since(broken + promoted).values()) + promoted
        figure(
            recover=back,
            said=f"{how}: {promoted:.1f} s of this until the sentinels agreed, "
            f"{crowd.errors['LeaseLost']} leases reported as lost",
        )
        assert back - promoted < FINDING
        # The holder of a lost lease gets LeaseLost. Nothing else goes wrong.
        assert set(crowd.errors) <= {"LeaseLost", "Unavailable"}, crowd.messages
        with client(sentinels.current()) as new:
            own, journal.client = journal.client, new
            history = journal.check()
            journal.client = own
        assert history.epochs == 2
        if how == "pause":
            old.resume()


def _after(crowd: Crowd, moment: float) -> dict[str, list[float]]:
    return {name: [at for at in crowd.grants[name] if at > moment] for name in crowd.names}


@both
async def test_waiter_keeps_its_place_through_a_failover(io, sentinels, alias) -> None:
    name = alias(sentinels, **PATIENT)
    first = await io.do(Lock("place", using=name, timeout=LONG), "acquire")
    waiting = io.start(io.do(Lock("place", using=name), "acquire"))
    keys = keys_of(PREFIX, "place")
    with client(sentinels.replicas[0]) as replica:
        await until(io, lambda: replica.zcard(keys.queue) == 1)
        (before,) = replica.zrange(keys.queue, 0, -1, withscores=True)
        sentinels.primary.kill()
        await until(io, lambda: sentinels.current() is not sentinels.primary, 60)
        assert [before] == replica.zrange(keys.queue, 0, -1, withscores=True)
        assert first.held and await _soon(io, lambda: io.do(first, "owned"))
        await _soon(io, lambda: io.do(first, "renew"))
        await io.do(first, "release")
        lease = await io.result(waiting)
    assert lease.held and lease.fence > first.fence
    await io.do(lease, "release")


async def _soon(io: Any, ask: Any) -> Any:
    """Await `ask()` again while the new primary is unknown, and return its result."""
    end = time.monotonic() + 30
    while True:
        try:
            return await ask()
        except Unavailable:
            assert time.monotonic() < end
            await io.sleep(0.1)


def test_failover_loses_uncopied_grants_and_calls_on_lost(sentinels, alias, figure) -> None:
    """Replication is asynchronous, so the new primary may lack grants of the old one."""
    old, replica = sentinels.primary, sentinels.replicas[0]
    name = alias(sentinels, **PATIENT)
    lost: list[Any] = []
    options = {"using": name, "timeout": 30, "renew": True, "on_lost": lost.append}
    safe = [Lock(f"copied-{n}", **options).acquire() for n in range(3)]
    with client(replica) as mine, client(old) as primary:
        wait_for(lambda: leases_of(mine, keys_of(PREFIX, "copied-2").leases), "the copy")
        mine.config_set("masteruser", "nobody")
        mine.config_set("masterauth", "wrong")
        primary.execute_command("CLIENT", "KILL", "TYPE", "replica")
        unsafe = [Lock(f"lost-{n}", **options).acquire() for n in range(4)]
        old.kill()
        killed = time.monotonic()
        wait_for(lambda: sentinels.current() is replica, "a new primary")
        eventually(lambda: len(lost) == len(unsafe), 40)
        notified = time.monotonic() - killed
    figure(recover=notified, lost=len(lost), said="all holders notified; lease of 30 s")
    assert {lease.token for lease in lost} == {lease.token for lease in unsafe}
    assert not any(lease.held for lease in unsafe)
    # Replicated leases are kept. Lost names can be acquired again, with a larger fence.
    assert all(lease.held and lease.owned() for lease in safe)
    for lease in unsafe:
        with pytest.raises(LeaseLost):
            lease.release()
        again = Lock(lease.name, using=name).acquire(blocking_timeout=20)
        assert again and again.fence > lease.fence
        again.release()


@both
async def test_client_leaves_a_demoted_primary_at_once(io, sentinels, alias) -> None:
    """READONLY makes the client disconnect, ask Sentinel, and send its request again."""
    name = alias(sentinels, **PATIENT)
    async with io.entered(Lock("warm", using=name)):
        pass
    first = await io.do(Lock("role", using=name, timeout=LONG), "acquire")
    waiting = io.start(io.do(Lock("role", using=name), "acquire"))
    with client(sentinels.primary) as old:
        await until(io, lambda: old.zcard(keys_of(PREFIX, "role").queue) == 1)
    with client(sentinels.sentinels[0]) as sentinel:
        # The sentinel answers NOGOODSLAVE until it has checked the replica again.
        failover = ("SENTINEL", "FAILOVER", sentinels.service)
        wait_for(lambda: sentinel.execute_command(*failover), "the failover")
    await until(io, lambda: sentinels.current() is not sentinels.primary)
    # Before its demotion, the old primary still makes grants, which are lost.
    with client(sentinels.primary) as old:
        await until(io, lambda: old.info("replication")["role"] == "slave")
    await _soon(io, lambda: io.do(first, "renew"))
    await io.do(first, "release")
    second = await io.result(waiting)
    assert second.held and second.fence > first.fence
    with client(sentinels.current()) as new:
        assert 1 == len(leases_of(new, keys_of(PREFIX, "role").leases))
    await io.do(second, "release")


def test_client_ignores_an_old_primary_that_returns(sentinels, alias, figure) -> None:
    """The old primary returns with an outdated holder, and soon becomes a replica."""
    old, name = sentinels.primary, alias(sentinels, **PATIENT)
    first = Lock("back", using=name, timeout=LONG).acquire()
    wait_for(lambda: _leases(sentinels.replicas[0], "back") == 1, "the copy")
    old.pause()
    wait_for(lambda: sentinels.current() is not old, "a new primary")
    retried(first.release)
    second = retried(Lock("back", using=name, blocking=False).acquire)
    assert second and second.fence > first.fence
    old.resume()
    woken = time.monotonic()
    with client(old) as mine:
        wait_for(lambda: mine.info("replication")["role"] == "slave", "the demotion")
        demoted = time.monotonic() - woken
        wait_for(lambda: mine.info("replication")["master_link_status"] == "up", "the copy")
    for _ in range(20):
        assert retried(Lock("back", using=name, blocking=False).acquire) is None
        assert retried(second.owned)
        time.sleep(0.05)
    figure(recover=demoted, lost=0)
    second.release()


def _leases(server: Any, name: str) -> int:
    with client(server) as mine:
        return len(leases_of(mine, keys_of(PREFIX, name).leases))


def test_client_sends_no_command_to_a_replica(sentinels, alias) -> None:
    """Status pages also read the primary, because a replica may lag."""
    name = alias(sentinels, **PATIENT)
    with Lock("asked", using=name) as lease:
        assert lease.owned() and Lock("asked", using=name).status().holding == 1
        asyncio.run(Lock("asked", using=name).alocked())
    with client(sentinels.replicas[0]) as replica:
        stats = replica.info("commandstats")
    assert not {"cmdstat_evalsha", "cmdstat_blpop"} & set(stats)


def test_event_loop_that_ends_closes_its_connections_to_all_sentinels(sentinels, alias) -> None:
    name = alias(sentinels, **PATIENT)

    async def main() -> None:
        async with Lock("a", using=name):
            pass
        known = async_server_of(name).client.connection_pool.sentinel_manager.sentinels
        for sentinel in known:
            await sentinel.ping()
        known[1] = known[0]  # as redis-py does when two tasks look up the primary at once

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [] == [str(w.message) for w in caught if w.category is ResourceWarning]
