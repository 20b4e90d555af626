"""What the faces pass on, count and forget: on the server in memory."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from django_redis_sync import (
    Lease,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
    synchronized,
)
from django_redis_sync.engine.clerk import Clerk
from django_redis_sync.engine.keeper import Keeper, keeper
from django_redis_sync.exceptions import LeaseLost, Unavailable
from django_redis_sync.locks import abandoned, counting, transactions
from django_redis_sync.locks import acquire_all as acquiring
from django_redis_sync.locks import lease as lease_module
from django_redis_sync.locks.lease_state import LeaseState, Lost, Terms
from django_redis_sync.locks.waiting import this_caller
from django_redis_sync.protocol import plans
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Answer, Grant, Refusal
from django_redis_sync.protocol.scripts import said
from django_redis_sync.signals import lease_lost
from django_redis_sync.testing import without_redis
from tests.behaviour.both import eventually


@pytest.fixture(autouse=True)
def in_memory() -> Iterator[None]:
    with without_redis():
        yield


def elsewhere(work: Callable[[], Any]) -> Any:
    """The result of it in another thread."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    thread.join()
    return got[0]


# Objects


def test_an_object_for_all_threads_gives_back_what_any_of_them_took() -> None:
    own, shared = Lock("a"), Lock("b", thread_local=False)
    assert elsewhere(own.acquire) and elsewhere(shared.acquire)
    shared.release()
    with pytest.raises(NotAcquired):
        own.release()


def test_the_status_of_a_child_is_its_own() -> None:
    child, policy = Semaphore("exports", 3, key="7"), Semaphore("exports", 3)
    with child:
        assert (1, "7") == (child.status().in_use, child.status().key)
        assert 0 == policy.status().in_use
        assert child.locked() and not policy.locked()

        async def main() -> None:
            found = await child.astatus()
            assert (1, "7") == (found.in_use, found.key)
            assert await child.alocked() and not await policy.alocked()

        asyncio.run(main())


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (Semaphore("a", 3), "Semaphore('a', 3)"),
        (Semaphore("a"), "Semaphore('a')"),
        (Lock("a"), "Lock('a')"),
        (RLock("a"), "RLock('a')"),
        (ReadWriteLock("a"), "ReadWriteLock('a')"),
        (ReadWriteLock("a").read, "ReadWriteLock('a').read"),
        (ReadWriteLock("a").write, "ReadWriteLock('a').write"),
    ],
    ids=repr,
)
def test_an_object_is_shown_as_it_is_written(made: Any, shown: str) -> None:
    assert shown == repr(made)


@pytest.mark.parametrize("taking", ["acquire", "aacquire", "take", "atake"])
@pytest.mark.parametrize("face", [Semaphore, RLock, type(ReadWriteLock("a").read)])
def test_what_an_ask_leaves_out_is_as_the_object_says(face: Any, taking: str) -> None:
    _, *parameters = inspect.signature(getattr(face, taking)).parameters.values()
    left_out = {one.name: one.default for one in parameters}
    usual = {"blocking": None, "blocking_timeout": None, "permits": 1}
    assert {**usual, **({"sleep": None} if "sleep" in left_out else {})} == left_out
    given = inspect.signature(acquire_all).parameters
    assert [None] * 2 == [given[option].default for option in ("blocking", "blocking_timeout")]


def test_the_newest_lease_is_extended_by_so_much_or_to_so_much() -> None:
    lock = Lock("a", timeout=100)
    with lock as lease:
        assert lock.extend(50) and 140 < lease.remaining <= 150
        assert lock.extend(5, replace_ttl=True) and 1 < lease.remaining <= 5

    async def main() -> None:
        async with lock as lease:
            assert await lock.aextend(50) and 140 < lease.remaining <= 150
            assert await lock.aextend(5, replace_ttl=True) and 1 < lease.remaining <= 5

    asyncio.run(main())


def test_a_lock_that_is_full_says_so_by_name_and_reason() -> None:
    with Lock("a"):
        with pytest.raises(NotAcquired) as caught, Lock("a", blocking=False):
            pass
        assert ("full", "a") == (caught.value.reason, caught.value.lock_name)


@pytest.mark.parametrize("kind", [NotAcquired, LeaseLost, Unavailable])
def test_an_error_that_is_shown_in_a_list_says_what_it_says(kind: Any) -> None:
    assert f"[{kind.__name__}('no more')]" == str([kind("no more")])


def test_an_error_says_its_message_alone_and_keeps_the_rest_on_its_way_elsewhere() -> None:
    for error in (NotAcquired("no more", "full", "a"), LeaseLost("no more", "a")):
        other = pickle.loads(pickle.dumps(error))
        assert "no more" == str(error) == str(other)
        assert ("no more",) == error.args == other.args
        assert "a" == error.lock_name == other.lock_name
        assert getattr(error, "reason", "") == getattr(other, "reason", "")


@pytest.mark.parametrize(
    "ends",
    [Lease.release, Lease.release_later, Lease.detach, lambda lease: lease._lose(Lost("gone"))],
    ids=["released", "released later", "detached", "lost"],
)
def test_a_lease_that_was_given_away_is_kept_no_more_though_somebody_keeps_it(ends: Any) -> None:
    lease = Lock("a").acquire()
    assert lease in keeper("default")._held()
    ends(lease)
    assert lease not in keeper("default")._held()


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_whoever_releases_nothing_is_told_of_which_lock(kind: Any) -> None:
    with pytest.raises(NotAcquired) as caught:
        kind("a").release()
    assert ("", "a") == (caught.value.reason, caught.value.lock_name)
    with Lock("a") as lease:
        pass
    with pytest.raises(NotAcquired) as caught:
        lease.release()
    assert "a" == caught.value.lock_name


def test_a_writer_that_became_a_reader_is_handed_on_as_a_reader() -> None:
    lock = ReadWriteLock("rows")
    with lock.write as lease:
        assert lock.downgrade() is lease
        handle = lease.detach()
    adopted = Lease.from_handle(handle)
    assert 1 == adopted.permits
    with pytest.raises(TypeError, match="only a writer's"):
        adopted.downgrade()
    adopted.release()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_writer_that_could_not_become_a_reader_is_the_writer_still_and_may_ask_again(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise Unavailable("down")

    async def adowngrade(lock: ReadWriteLock) -> None:
        with monkeypatch.context() as patch:
            lease = await lock.write.aacquire()
            patch.setattr(lease_module.drivers, "adrive", fail)
            with pytest.raises(Unavailable):
                await lock.adowngrade()
            assert lease is lock.write.newest(keep=True)
        assert lease is await lock.adowngrade()
        assert lease is lock.read.newest(keep=True)
        with pytest.raises(TypeError, match="only a writer's"):
            await lease.adowngrade()

    def downgrade(lock: ReadWriteLock) -> None:
        with monkeypatch.context() as patch:
            lease = lock.write.acquire()
            patch.setattr(lease_module.drivers, "drive", fail)
            with pytest.raises(Unavailable):
                lock.downgrade()
            assert lease is lock.write.newest(keep=True)
        assert lease is lock.downgrade()
        assert lease is lock.read.newest(keep=True)
        with pytest.raises(TypeError, match="only a writer's"):
            lease.downgrade()

    if mode == "sync":
        downgrade(ReadWriteLock("rows"))
    else:
        asyncio.run(adowngrade(ReadWriteLock("rows")))


@pytest.mark.parametrize(
    "adopts",
    [Lease.from_handle, lambda *of, **said: asyncio.run(Lease.afrom_handle(*of, **said))],
    ids=["sync", "async"],
)
def test_an_adopted_lease_tells_its_new_owner(adopts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    summed: list[Any] = []
    monkeypatch.setattr(Clerk, "adopted", lambda clerk, keys: summed.append(keys.display))
    monkeypatch.setattr(
        "django_redis_sync.locks.lease.tell", lambda *calls: [call() for call in calls]
    )
    handle = Lock("a", on_lost=lambda lease: told.append("the former")).acquire().detach()  # type: ignore[union-attr]
    adopted = adopts(handle, on_lost=told.append)
    adopted._lose(Lost("taken away"))
    adopted._lose(Lost("again"))
    assert ([adopted], ["a"]) == (told, summed)
    assert adopts(Lock("b").acquire().detach()).terms.on_lost is None  # type: ignore[union-attr]


def test_that_a_lease_is_lost_is_told_and_logged_once_and_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def receive(**said: Any) -> None:
        told.append((said["sender"], said["lease"], said["reason"]))

    monkeypatch.setattr(
        "django_redis_sync.locks.lease.tell", lambda *calls: [call() for call in calls]
    )
    lease = Lock("a").acquire()
    assert lease
    lease_lost.connect(receive)
    try:
        for reason in ("taken away", "again"):
            lease._lose(Lost(reason))
    finally:
        lease_lost.disconnect(receive)
    assert [(Lease, lease, "taken away")] == told
    said = f"lost a lease of 'a' ({lease.token[:8]}): taken away"
    assert [("ERROR", said)] == [(record.levelname, record.message) for record in caplog.records]


def test_a_holder_is_told_as_soon_as_a_renewal_says_that_it_is_lost() -> None:
    lost: list[Lease] = []
    lease = Lock("a", on_lost=lost.append).acquire()
    assert lease
    step = plans.renewing(lease.terms.keys, lease._state.grant, 30.0, 1, 1.0)
    lease.tended(step, Answer(["lost"], 0.0, 0.0))
    assert not lease.held
    eventually(lambda: lost == [lease])
    assert repr(lease) == f"<Lease 'a' {lease.token[:8]} the server has it no more>"


def test_the_collector_is_sent_for_a_lease_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, now = list[Any](), lease_module.clock()
    monkeypatch.setattr(abandoned, "collected", lambda loop: asked.append(loop) or True)
    with Lock("a", renew=True) as lease:
        lease._loop = ended = weakref.ref(threading.current_thread())  # type: ignore[assignment]
        for nth in (1, 2):
            step = plans.renewing(lease.terms.keys, lease._state.grant, 30.0, nth, 1.0)
            lease.tended(step, Answer(["ok", "30000"], now, now))
    assert [ended] == asked


def test_a_lease_says_when_it_was_granted_by_the_servers_clock() -> None:
    with Lock("a") as lease:
        assert lease.acquired_at == datetime.fromtimestamp(lease.fence / 1e6, tz=timezone.utc)


def test_a_loop_that_would_wait_for_itself_is_refused_unless_it_insists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> bool:
        with Lock("a") as lease:
            return lease.held

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(main())
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    assert asyncio.run(main())


def test_a_lease_that_is_checked_has_its_keeper_looked_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    lease = Lock("a").acquire()
    assert lease
    mine = SimpleNamespace(look_after=lambda: looked.append(1))
    with monkeypatch.context() as patch:
        patch.setattr("django_redis_sync.locks.lease.keeper", lambda alias: mine)
        lease.check()
    assert [1] == looked
    lease.release()
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_lease_of_a_name_is_no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lock("a").acquire()
    assert lease
    keys = lease.terms.keys
    other = keys_of("p", "b")
    said = [lease.is_of(keys, "default"), lease.is_of(keys, "aside"), lease.is_of(other, "default")]
    assert [True, False, False] == said
    caller, _ = this_caller()
    assert lease.is_of_caller(caller)
    assert not elsewhere(lambda: lease.is_of_caller(this_caller()[0]))
    lease._state.pid += 1  # as in a fork
    assert not lease.is_of(keys, "default") and not lease.is_of_caller(caller)


def test_a_fork_that_leaves_its_parents_block_gives_nothing_back() -> None:
    def leave(lease: Lease) -> None:
        with lease:
            lease._state.pid += 1  # as in a fork

    async def aleave(lease: Lease) -> None:
        async with lease:
            lease._state.pid += 1

    for left in (leave, lambda lease: asyncio.run(aleave(lease))):
        lease = Lock("a").acquire()
        assert lease
        left(lease)
        assert Lock("a").locked()
        with pytest.raises(LeaseLost, match=f"held by process {lease._state.pid}, not by this"):
            lease.release()
        lease._state.pid -= 1
        lease.release()


# Several at once


def test_the_time_to_wait_is_that_of_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], list[Any]()
    monkeypatch.setattr(acquiring, "clock", lambda: now[0])

    class Slow(Lock):
        def take(self, blocking: Any = None, blocking_timeout: Any = None, permits: int = 1) -> Any:
            asked.append((self.name, blocking, blocking_timeout, permits))
            now[0] += 0.75
            return super().take(False, None, permits)

    both = [(Slow("b"), 1), (Slow("a"), 1), (Slow("c"), 1)]
    group = acquire_all(both, blocking_timeout=1.0)
    leases = group.acquire()
    assert leases
    assert [("a", None, 1.0, 1), ("b", None, 0.25, 1), ("c", None, 0.0, 1)] == asked
    assert ["b", "a", "c"] == [lease.name for lease in leases]
    group.release()


def test_children_of_a_name_are_several() -> None:
    one, other = (Semaphore("a", 1, key=key) for key in "xy")
    with acquire_all([one, other]) as leases:
        assert ["a@x", "a@y"] == [lease.name for lease in leases]
    with pytest.raises(ValueError, match="each name once"):
        acquire_all([one, Semaphore("a", 1, key="x")])


def test_all_or_nothing_passes_on_what_each_is_asked_for() -> None:
    seats = Semaphore("seats", 5)
    with acquire_all([(seats, 3), (Lock("a"), 1)], blocking=False) as (three, one):
        assert (3, 1) == (three.permits, one.permits)
        assert acquire_all([(seats, 3)], blocking=False).acquire() is None
    with pytest.raises(ValueError, match="never fit"):
        acquire_all([(Lock("a"), 1), (seats, 6)]).acquire()
    assert not Lock("a").locked()


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_of_all_or_nothing_what_came_is_given_back(kind: Any) -> None:
    group = acquire_all([kind("a"), Lock("b")], blocking=False)
    with Lock("b"):
        assert group.acquire() is asyncio.run(group.aacquire()) is None
    for lock in (kind("a"), Lock("b")):
        assert not lock.locked()
        with pytest.raises(NotAcquired):
            lock.release()


def test_on_a_loop_those_who_wait_are_told_on_its_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    waiting_on = Semaphore._waiting_on

    def noted(semaphore: Semaphore, channel: str, ask: Any) -> Any:
        told.append(semaphore.name)
        return waiting_on(semaphore, channel, ask)

    async def main() -> None:
        for lock in (Lock("a"), Lock("b", blocking=False), Lock("c", blocking_timeout=9)):
            assert await lock.aacquire()

    monkeypatch.setattr(Semaphore, "_waiting_on", noted)
    asyncio.run(main())
    assert ["a", "c"] == told


def test_a_lease_that_was_lost_while_the_others_came_fails_all() -> None:
    class Losing(Lock):
        def take(self, *args: Any) -> Any:
            taken[0]._state.lose("meanwhile")
            return super().take(*args)

    taken: list[Any] = []

    class First(Lock):
        def take(self, *args: Any) -> Any:
            taken.append(super().take(*args))
            return taken[0]

    with pytest.raises(LeaseLost, match="meanwhile"):
        acquire_all([First("a"), Losing("b")]).acquire()
    assert not Lock("b").locked()


# Functions


def test_a_label_of_the_callers_own_rules() -> None:
    @synchronized("a")
    def plain() -> Any:
        return Lock("a").status().holders[0].label["label"]

    @synchronized("a", label="mine")
    def labelled() -> Any:
        return Lock("a").status().holders[0].label["label"]

    assert (f"{__name__}.{plain.__qualname__}", "mine") == (plain(), labelled())


def test_what_a_sync_function_returns_to_be_awaited_is_awaited_inside() -> None:
    held: list[bool] = []

    @synchronized("a")
    def start() -> Any:
        async def body() -> str:
            held.append(await Lock("a").alocked())
            return "done"

        return body()

    found = start()
    assert Lock("a").locked()
    assert "done" == asyncio.run(_awaited(found))
    assert ([True], False) == (held, Lock("a").locked())


async def _awaited(found: Any) -> Any:
    return await found


@pytest.mark.parametrize(("on_full", "result"), [("skip", None), ("raise", NotAcquired)])
def test_a_full_function_is_skipped_or_raises(on_full: Any, result: Any) -> None:
    @synchronized("a", on_full=on_full, blocking=False)
    def work() -> str:
        return "done"

    assert "done" == work()
    with Lock("a"):
        if result is None:
            assert work() is None
        else:
            with pytest.raises(result):
                work()


# Sums


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is counted: the kind, and milliseconds."""
    found: list[tuple[str, int]] = []
    count = Clerk.count

    def counted(clerk: Clerk, named: Any, kind: str, ms: int) -> None:
        before = len(clerk.tally.events)
        count(clerk, named, kind, ms)
        if len(clerk.tally.events) > before:
            found.append((kind, ms))

    monkeypatch.setattr(Clerk, "count", counted)
    monkeypatch.setattr(counting, "clock", lambda: 107.25)
    return found


def clerk() -> Clerk:
    return keeper("default").clerk


def terms(keep: int = 360) -> Terms:
    return Terms(keys_of("p", "x", None, keep), "default", 30.0, True, 1e9, 0.0)


def grant(**said: Any) -> Grant:
    return Grant("t", 1, 1, 100.0, 130.0, 130.0, False, **said)


@pytest.mark.parametrize(
    ("got", "counted"),
    [
        (grant(), [("g", 0)]),
        (grant(waited=0.25), [("w", 250)]),
        (grant(refused="full"), [("s", 0), ("g", 0)]),
        (Refusal("full"), [("n", 0)]),
        (Refusal("paused"), [("n", 0)]),
        (Refusal("timeout"), [("t", 0)]),
        (Refusal("large"), []),
    ],
    ids=str,
)
def test_how_an_ask_ended_is_counted(got: Any, counted: Any, events: Any) -> None:
    if isinstance(got, Grant):
        counting.granted(clerk(), terms(), got)
    else:
        counting.refused(clerk(), terms(), got)
    assert counted == events


def test_how_long_a_lease_was_held_is_counted_in_milliseconds(events: Any) -> None:
    counting.released(clerk(), terms(), grant())
    counting.lost(clerk(), terms())
    assert [("r", 7250), ("l", 0)] == events


def test_without_statistics_nothing_is_counted(events: Any) -> None:
    counting.granted(clerk(), terms(keep=0), grant())
    counting.released(clerk(), terms(keep=0), grant())
    assert [] == events


def test_who_is_refused_is_counted(events: Any) -> None:
    with Lock("a"):
        assert Lock("a", blocking=False).acquire() is None
        assert asyncio.run(Lock("a", blocking=False).aacquire()) is None
    assert ["g", "n", "n", "r"] == [kind for kind, _ in events]


@pytest.mark.parametrize(("said", "alias"), [(None, "default"), ("aside", "aside")])
def test_a_transaction_that_would_be_nested_is_looked_for_where_it_is_to_be(
    said: Any, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(transactions, "in_transaction", lambda using: asked.append(using) or True)
    with pytest.raises(RuntimeError, match=f"begins a transaction on '{alias}'"):
        Lock("a").atomic(said).__enter__()
    assert [alias] == asked


def test_a_lease_that_is_given_back_or_lost_is_counted_once(events: Any) -> None:
    Lock("a").acquire().release()  # type: ignore[union-attr]
    lease = Lock("a").acquire()
    assert lease
    lease._lose(Lost("taken away"))
    lease._lose(Lost("again"))
    assert ["g", "r", "g", "l"] == [kind for kind, _ in events]


# The end


def test_leases_of_ended_loops_are_collected_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [100.0], list[Any]()
    monkeypatch.setattr(abandoned, "clock", lambda: now[0])
    monkeypatch.setattr(abandoned, "_next", [0.0])
    monkeypatch.setattr(abandoned, "tell", told.append)

    async def main() -> Any:
        running = weakref.ref(asyncio.get_running_loop())
        assert not abandoned.collected(running)
        return running

    loop = asyncio.run(main())
    assert [True, False] == [abandoned.collected(loop) for _ in range(2)]
    now[0] += abandoned.PAUSE
    assert abandoned.collected(loop)
    assert [gc.collect, gc.collect] == told


def test_a_lease_of_a_transaction_is_given_back_where_it_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The garbage collector runs on any thread, and may run in the middle of anything."""
    told: list[Any] = []
    monkeypatch.setattr(transactions, "tell", told.append)
    released: list[int] = []
    lease: Any = SimpleNamespace(name="a", release=lambda: released.append(threading.get_ident()))
    here = threading.get_ident()
    transactions._release(lease, here, ["default"])
    assert ([here], []) == (released, told)
    elsewhere(lambda: transactions._release(lease, here, ["default"]))
    assert ([here], 1) == (released, len(told))
    told[0]()
    assert 2 == len(released)


def test_of_several_transactions_the_last_gives_it_back() -> None:
    released: list[str] = []
    lease: Any = SimpleNamespace(name="a", release=lambda: released.append("a"))
    left = ["default", "other"]
    transactions._release(lease, threading.get_ident(), left)
    assert [] == released
    transactions._release(lease, threading.get_ident(), left)
    assert ["a"] == released


def test_what_fails_at_the_end_of_a_transaction_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise LeaseLost("too late")

    lease: Any = SimpleNamespace(name="a", release=fail)
    with caplog.at_level(logging.ERROR):
        transactions._release(lease, threading.get_ident(), ["default"])
    assert ["releasing 'a' at the end of a transaction: too late"] == caplog.messages


@pytest.mark.parametrize(
    "error", [Unavailable("down", maybe_executed=True), KeyboardInterrupt()], ids=repr
)
def test_what_could_not_be_given_back_is_given_back_later(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Any] = []
    leases = [Lock(name).acquire() for name in "ab"]
    tokens = [lease.token for lease in leases if lease]

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "later", lambda keeper, step: later.append(step))
        patch.setattr("django_redis_sync.locks.lease.drivers.attempt", fail)
        patch.setattr("django_redis_sync.locks.lease.drivers.adrive", fail)
        with pytest.raises(type(error)):
            leases[0].release()  # type: ignore[union-attr]
        with pytest.raises(type(error)):
            asyncio.run(leases[1].arelease())  # type: ignore[union-attr]
    assert tokens == [step.argv[0] for step in later]
    assert ["release", "release"] == [said(step.verb, step.argv)["how"] for step in later]


def test_a_lease_is_shown_with_its_time_or_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lock("a").acquire()
    assert lease
    head = f"<Lease 'a' {lease.token[:8]}"
    for left, shown in ((12.34, "12.3 s left"), (0.0, "over")):
        monkeypatch.setattr(lease_module, "clock", lambda left=left: lease._state.until - left)
        assert f"{head} {shown}>" == repr(lease)
    lease.release()
    assert f"{head} released>" == repr(lease)


def test_a_lease_that_is_lost_is_owned_no_more_whatever_the_server_says() -> None:
    lease = Lock("a").acquire()
    assert lease and lease.owned()
    lease._state.lose("it could not be renewed")
    assert lease.locked() and not lease.owned() and not asyncio.run(lease.aowned())


def test_a_renewal_is_watched_before_it_is_sent_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    lease = Lock("a").acquire()
    assert lease
    drive = lease_module.drivers.drive
    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "moved", lambda *_: happened.append("watched"))
        patch.setattr(
            lease_module.drivers, "drive", lambda *args: happened.append("sent") or drive(*args)
        )
        lease.renew(3)
    assert ["watched", "sent", "watched"] == happened
    lease.release()


def test_a_lease_that_is_detached_is_renewed_as_one_that_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    renewal = LeaseState.renewal

    def noted(state: LeaseState, *args: Any) -> Any:
        asked.append((args[0], *args[2:]))
        return renewal(state, *args)

    monkeypatch.setattr(LeaseState, "renewal", noted)
    for given in ((3,), ()):
        with Lock("a") as first, Lock("b") as second:
            first.detach(*given)
            asyncio.run(second.adetach(*given))
            # Else it would be said of them that they were dropped.
            assert not {first.token, second.token} & {*keeper("default")._kept}
        for lease in (first, second):
            keeper("default").later(lease._state.giving_back())
            eventually(lambda lease=lease: not lease.locked())
    assert [(3, True)] * 2 + [(None, True)] * 2 == asked


def test_a_status_is_that_of_the_objects_own_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def asks(*of: Any, **said: Any) -> None:
        asked.append((of, said))

    of_semaphores = "django_redis_sync.locks.semaphore"
    monkeypatch.setattr(f"{of_semaphores}.status_of", lambda *of, **said: asked.append((of, said)))
    monkeypatch.setattr(f"{of_semaphores}.astatus_of", asks)
    for one in (Semaphore("exports", 3, key="7", using="other"), Semaphore("exports", 3)):
        one.status()
        asyncio.run(one.astatus())
    assert [
        *[(("exports", "7"), {"using": "other"})] * 2,
        *[(("exports", None), {"using": "default"})] * 2,
    ] == asked
