"""Failovers by Sentinel: leases and waiters continue, and lost leases are reported."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from typing import Any

import pytest
import redis.asyncio.sentinel

from devtools.topologies import Sentinels, client, wait_for
from django_redis_sync import LeaseLost, Lock
from tests.behaviour.both import Sync, answered, both, eventually, queued, until, within
from tests.behaviour.watching import Losses, View, living
from tests.support.journal import journalling

from .crowd import Crowd

pytestmark = pytest.mark.promise(17)

#: Max seconds from the end of an election until clients of the new primary get grants, even on a
#: busy machine. The election is not included: after a split vote, it takes several seconds more.
FINDING = 8.0
#: Duration in seconds of leases that must not expire during an election, even if it is repeated.
LONG = 120
#: The socket timeouts that docs/redis-setup.md advises: how long a call waits for a hung primary.
PATIENT = {"SOCKET_TIMEOUT": 1.0, "SOCKET_CONNECT_TIMEOUT": 1.0}


@pytest.fixture
def sentinels(start: Any) -> Sentinels:
    return start(Sentinels)


@pytest.fixture
def using(sentinels: Sentinels, alias: Any) -> str:
    return alias(sentinels, **PATIENT)


@pytest.mark.parametrize(("how", "shares"), [("pause", ""), ("kill", ""), ("kill", "xyz")])
def test_every_lock_can_be_acquired_soon_after_a_failover_under_load(
    sentinels, using, figure, how, shares
) -> None:
    old = sentinels.primary
    with journalling(old.url) as journal:
        with Crowd(using, ["a", "b", "c"], 2, shares=shares) as crowd:
            eventually(lambda: sum(map(len, crowd.grants.values())) > 60)
            broken = time.monotonic()
            getattr(old, how)()
            wait_for(lambda: sentinels.current() is not old, "a new primary")
            promoted = time.monotonic() - broken
            eventually(lambda: len(crowd.since(broken + promoted)) == 3)
            settled = {name: len(grants) for name, grants in crowd.grants.items()}
            eventually(lambda: all(len(crowd.grants[n]) > settled[n] + 20 for n in crowd.names))
        back = max(crowd.since(broken + promoted).values()) + promoted
        figure(
            recover=back,
            said=f"{how}: {promoted:.1f} s of this until the sentinels agreed, "
            f"{crowd.errors['LeaseLost']} leases reported as lost",
        )
        assert back - promoted < FINDING
        # A lost lease raises LeaseLost, and a call during the failover may raise Unavailable.
        assert set(crowd.errors) <= {"LeaseLost", "Unavailable"}, crowd.messages
        with client(sentinels.current()) as new:
            own, journal.client = journal.client, new
            history = journal.check()
            journal.client = own
        assert history.epochs == 2
        if how == "pause":
            old.resume()


@pytest.mark.parametrize("how", ["kill", "demote"])
@both
async def test_waiter_keeps_its_position_through_a_failover(io, sentinels, using, how: str) -> None:
    """A demoted primary answers READONLY. The client then asks Sentinel for the new primary, and
    sends its request again."""
    first = await io.do(Lock("place", using=using, timeout=LONG), "acquire")
    with client(sentinels.primary) as old, client(sentinels.replicas[0]) as new:
        waiting = await queued(io, Lock("place", using=using), View(old, "place"))
        await until(io, lambda: View(new, "place").waiting == 1)
        queue = View(new, "place").keys.queue
        places = new.zrange(queue, 0, -1, withscores=True)
        if how == "kill":
            sentinels.primary.kill()
        else:
            # Repeat the command, because the sentinel answers NOGOODSLAVE until it has checked the
            # replica again.
            with client(sentinels.sentinels[0]) as sentinel:
                words = ("SENTINEL", "FAILOVER", sentinels.service)
                wait_for(lambda: sentinel.execute_command(*words), "the failover")
        await until(io, lambda: sentinels.current() is not sentinels.primary, 60)
        if how == "demote":
            # Wait until the old primary is a replica. Its grants before this are lost.
            await until(io, lambda: old.info("replication")["role"] == "slave")
        assert places == new.zrange(queue, 0, -1, withscores=True)
        assert first.held and await answered(io, first, "owned")
        await answered(io, first, "renew")
        await io.do(first, "release")
        second = await io.result(waiting)
        assert second.held and second.fence > first.fence
        assert 1 == View(new, "place").holding
    await io.do(second, "release")


def test_on_lost_is_called_for_each_grant_that_a_failover_lost(sentinels, using, figure) -> None:
    """Replication is asynchronous, so the new primary may lack grants of the old one."""
    old, replica = sentinels.primary, sentinels.replicas[0]
    with Losses() as losses, client(replica) as mine, client(old) as primary:
        options = {"using": using, "timeout": 30, "renew": True, "on_lost": losses}
        safe = [Lock(f"copied-{n}", **options).acquire() for n in range(3)]
        wait_for(lambda: View(mine, "copied-2").holding, "the copy")
        mine.config_set("masteruser", "nobody")
        mine.config_set("masterauth", "wrong")
        primary.execute_command("CLIENT", "KILL", "TYPE", "replica")
        unsafe = [Lock(f"lost-{n}", **options).acquire() for n in range(4)]
        old.kill()
        watch = within()
        wait_for(lambda: sentinels.current() is replica, "a new primary")
        eventually(lambda: all(map(losses.of, unsafe)), 40)
    figure(recover=watch.seconds, lost=4, said="all holders notified; lease of 30 s")
    assert {lease.token for lease in unsafe} == {*losses.calls}
    assert not any(lease.held for lease in unsafe)
    # Replicated leases are kept. Lost names can be acquired again, with a larger fence.
    assert all(lease.held and lease.owned() for lease in safe)
    for lease in unsafe:
        with pytest.raises(LeaseLost):
            lease.release()
        again = Lock(lease.name, using=using).acquire(blocking_timeout=20)
        assert again and again.fence > lease.fence
        again.release()


def test_client_ignores_an_old_primary_that_returns(sentinels, using, figure) -> None:
    """The old primary returns with an outdated holder of the lock, and soon becomes a replica."""

    def retried(thing: Any, method: str, *args: Any) -> Any:
        return Sync().run(answered(Sync(), thing, method, *args))

    old, lock = sentinels.primary, Lock("back", using=using, timeout=LONG)
    first = lock.acquire()
    with client(sentinels.replicas[0]) as mine:
        wait_for(lambda: View(mine, "back").holding, "the copy")
    old.pause()
    wait_for(lambda: sentinels.current() is not old, "a new primary")
    retried(first, "release")
    second = retried(lock, "acquire", False)
    assert second and second.fence > first.fence
    old.resume()
    watch = within()
    with client(old) as mine:
        wait_for(lambda: mine.info("replication")["role"] == "slave", "the demotion")
        figure(recover=watch.seconds, lost=0)
        wait_for(lambda: mine.info("replication")["master_link_status"] == "up", "the copy")
    for _ in range(20):
        assert retried(lock, "acquire", False) is None
        assert retried(second, "owned")
        time.sleep(0.05)
    second.release()


def test_client_sends_no_command_to_a_replica(sentinels, using) -> None:
    """Status pages also read the primary, because a replica may lag."""
    with Lock("asked", using=using) as lease:
        assert lease.owned() and Lock("asked", using=using).status().holding == 1
        asyncio.run(Lock("asked", using=using).alocked())
    with client(sentinels.replicas[0]) as replica:
        stats = replica.info("commandstats")
    assert not {"cmdstat_evalsha", "cmdstat_blpop"} & set(stats)


def test_event_loop_that_ends_closes_its_connections_to_all_sentinels(sentinels, using) -> None:
    def ports(manager: Any) -> set[int]:
        return {one.connection_pool.connection_kwargs["port"] for one in manager.sentinels}

    async def main() -> None:
        async with Lock("a", using=using):
            pass
        kind, mine = redis.asyncio.sentinel.Sentinel, {port for _, port in sentinels.addresses}
        (manager,) = [manager for manager in living(kind) if ports(manager) == mine]
        for sentinel in manager.sentinels:
            await sentinel.ping()
        manager.sentinels[1] = manager.sentinels[0]  # a race of tasks in redis-py may do this

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [] == [str(w.message) for w in caught if w.category is ResourceWarning]
