"""Votes of a quorum of five servers. The tests check which commands the servers get, and how their
replies decide a call."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from operator import ge
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redis_sync import (
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    Unavailable,
)
from django_redis_sync.engine.quorum import voting
from django_redis_sync.exceptions import WrongKind
from tests.behaviour.both import MAX_WAIT, both, eventually, until
from tests.engine.test_threads import child_returns_true
from tests.support.interrupting import at_any_step, interruptions
from tests.support.no_threads import NoThreads
from tests.support.relays import CUT, SILENCE, Relay

FULL, PAUSED = ["no", "full", 0], ["no", "paused", 0]


class Impatient(Lock):
    _attempt = 1.0


class Five(list[Relay]):
    """Five proxies of Redis (relays), which act as the servers of a quorum. `lock()` returns a lock
    on all of them."""

    def lock(self, name: str = "x", kind: type[Lock] = Lock, **options: Any) -> Lock:
        return kind(name, using=[one.alias for one in self], **options)

    def answer(self, verb: str, *replies: Any) -> None:
        """Set each server's reply to the script `verb`. For None, the server runs the script."""
        for one, reply in zip(self, replies, strict=True):
            if reply is not None:
                one.answer(verb, reply)

    def calm(self) -> None:
        for one in self:
            one.calm()

    @property
    def holding(self) -> list[int]:
        return [one.view().holding for one in self]

    def counts(self, verb: str) -> list[int]:
        """Return how many times each server received the script `verb`."""
        return [len(one.verbs(verb)) for one in self]


@pytest.fixture
def five(relays: Callable[..., list[Relay]], monkeypatch: pytest.MonkeyPatch) -> Five:
    """Return five servers. A vote waits up to 3 s for replies, because a busy machine may delay
    them."""
    monkeypatch.setattr(voting, "LATE", 1e6)
    monkeypatch.setattr(voting, "PATIENCE", 3.0)
    return Five(relays(5))


# Acquiring


@pytest.mark.promise(17)
@pytest.mark.parametrize("kind", [Lock, RLock])
@both
async def test_quorum_lock_is_held_on_all_servers_until_its_release(io, five: Five, kind) -> None:
    async with io.entered(five.lock(kind=kind)) as lease:
        assert lease.held and 25 < lease.remaining <= 30
        await until(io, lambda: [1] * 5 == five.holding)
        if kind is RLock:
            async with io.entered(five.lock(kind=RLock)) as inner:
                assert inner is lease
        assert await io.do(five.lock(), "acquire", False) is None
        assert await io.do(five.lock(), "acquire", blocking_timeout=0.3) is None
        assert await io.do(five.lock(), "locked") and await io.do(lease, "owned")
        assert 1 == (await io.do(five.lock(), "status")).holding
        with pytest.raises(NotImplementedError):
            await io.do(lease, "detach")
        waiting = io.start(io.do(five.lock(), "acquire"))
    second = await io.result(waiting)
    assert second.held and second.fence > lease.fence
    await io.do(second, "release")
    assert [0] * 5 == five.holding and not await io.do(five.lock(), "locked")
    with pytest.raises(NotAcquired):
        await io.do(lease, "release")


@both
async def test_quorum_lease_expires_when_fewer_than_a_majority_of_servers_hold_it(
    io, five: Five
) -> None:
    """Clocks can run at different rates. So the servers grant a longer lease than the holder
    uses."""
    grants = [["ok", str(7 + n), ms] for n, ms in enumerate((40402, 30302, 20202, 10102))]
    five.answer("acquire", *grants, FULL)
    began = time.monotonic()
    lease = await io.do(five.lock(), "acquire", False)
    assert lease and 18 - (time.monotonic() - began) < lease.remaining <= 20
    assert 10 == lease.fence
    assert {"30302"} == {one.arguments("acquire")[0]["lease"] for one in five}
    five.answer("renew", ["ok", "50502"], ["ok", "40402"], ["ok", "15152"], ["lost"], ["lost"])
    began = time.monotonic()
    await io.do(lease, "renew")
    assert 13 - (time.monotonic() - began) < lease.remaining <= 15
    assert [7, 8, 9, 10] == [int(one.arguments("renew")[0]["fence"]) for one in five[:4]]


@pytest.mark.promise(5)
@pytest.mark.parametrize(
    ("replies", "outcome", "undone"),
    [
        ([None, None, None, FULL, FULL], "granted", [0] * 5),
        ([None, None, None, CUT, CUT], "granted", [0] * 5),
        ([None, None, None, SILENCE, SILENCE], "granted", [0] * 5),
        ([None, None, FULL, FULL, FULL], "full", [1, 1, 0, 0, 0]),
        ([None, None, FULL, FULL, SILENCE], "full", [1, 1, 0, 0, 1]),
        ([FULL, FULL, PAUSED, FULL, FULL], "paused", [0] * 5),
        ([None, FULL, FULL, FULL, ["kind", "w"]], "kind", [1, 0, 0, 0, 0]),
        ([None, None, CUT, CUT, CUT], "unanswered", [1] * 5),
        ([None, None, "-LOADING x", "-LOADING x", CUT], "unanswered", [1] * 5),
        ([None, None, "-NOPERM no", "-NOPERM no", "-NOPERM no"], "final", [1] * 5),
        ([SILENCE] * 5, "unanswered", [1] * 5),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@both
async def test_majority_of_servers_decides_the_result_of_a_quorum_acquire(
    io, five: Five, replies: list[Any], outcome: str, undone: list[int]
) -> None:
    five.answer("acquire", *replies)
    errors = {"kind": WrongKind, "unanswered": Unavailable, "final": Unavailable}
    expected = errors.get(outcome, NotAcquired)
    stack, kind = contextlib.AsyncExitStack(), Impatient if expected is Unavailable else Lock
    held, began = io.entered(five.lock(kind=kind, blocking=False)), time.monotonic()
    if outcome == "granted":
        await stack.enter_async_context(held)
    else:
        with pytest.raises(expected) as caught:
            await stack.enter_async_context(held)
        if expected is NotAcquired:
            assert outcome == caught.value.reason
        if expected is Unavailable:
            assert " of 5 servers" in str(caught.value)
            assert outcome == "final" or caught.value.maybe_executed
    assert time.monotonic() - began < 9
    # Each server gets at least the expected undos. A late reply can cause a further undo.
    await until(io, lambda: all(map(ge, undone_on(five), undone)), 15)
    five.calm()
    await stack.aclose()
    await until(io, lambda: [0] * 5 == five.holding, 15)


def undone_on(five: Five) -> list[int]:
    """Return how many releases in the mode "undo" each server received."""
    return [sum(each["how"] == "undo" for each in one.arguments("release")) for one in five]


@both
async def test_quorum_call_does_not_wait_for_a_server_that_left_earlier_calls_unanswered(
    io, five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "LATE", 0.05)
    for verb in ("acquire", "release"):
        five[4].answer(verb, SILENCE)
    began = time.monotonic()
    for _ in range(10):
        async with io.entered(five.lock()):
            assert await io.do(five.lock(), "acquire", False) is None
    assert time.monotonic() - began < 30, "each of 30 calls waited 3 s for the silent server"


@both
async def test_waiter_of_a_quorum_lock_uses_a_new_token_for_each_attempt(io, five: Five) -> None:
    """The undo of an attempt can leave a tombstone for its token, so the next attempt needs a new
    token."""
    for one in five[:3]:
        one.answer("acquire", FULL, times=3)
    lease = await io.do(five.lock(), "acquire")
    assert lease and lease.held
    tokens = [{each["token"] for each in one.arguments("acquire")} for one in five]
    assert [4] * 5 == [*map(len, tokens)] and 4 == len(set.union(*tokens))
    await io.do(lease, "release")
    assert [0] * 5 == five.holding


@pytest.mark.parametrize("reply", [None, FULL], ids=["grant", "rejection"])
@both
async def test_late_reply_adds_a_server_to_a_quorum_lease_only_if_the_reply_is_a_grant(
    io, five: Five, reply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "LATE", 0.05)
    go, late = threading.Event(), five[4]

    def answer(command: Any, forward: Any) -> Any:
        found = forward() if reply is None else reply
        go.wait(MAX_WAIT)
        return found

    late.answer("acquire", answer)
    lease = await io.do(five.lock(), "acquire", False)
    assert lease
    go.set()
    granted = five[: 5 if reply is None else 4]
    for rounds in range(500):
        await io.do(lease, "renew")
        if rounds > 1 and all(one.verbs("renew") for one in granted):
            break
        await io.sleep(0.02)
    assert bool(late.verbs("renew")) == (reply is None)
    await io.do(lease, "release")
    await until(io, lambda: all(five.counts("release")))

    def hows(one: Relay) -> set[str]:
        return {arguments["how"] for arguments in one.arguments("release")}

    # The release doesn't wait for a server that was late, so an undo may overtake it there.
    await until(io, lambda: all("release" in hows(one) for one in granted))
    assert reply is None or {"undo"} == hows(late)
    await until(io, lambda: [0] * 5 == five.holding)


@pytest.mark.promise(6)
def test_grant_to_a_task_that_was_cancelled_during_the_vote_is_undone(five: Five) -> None:
    go = threading.Event()

    def answer(command: Any, forward: Any) -> Any:
        go.wait(MAX_WAIT)
        return forward()

    async def main() -> None:
        task = asyncio.create_task(five.lock().aacquire())
        while five.counts("acquire") != [1] * 5:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0.01)
        go.set()
        await asyncio.wait([task])
        assert task.cancelled()

    for one in five:
        one.answer("acquire", answer, times=1)
    asyncio.run(main())
    eventually(lambda: all(undone_on(five)))
    assert [0] * 5 == five.holding


# Renewing and releasing


@both
async def test_quorum_lease_is_lost_only_when_no_majority_of_servers_can_hold_it(
    io, five: Five
) -> None:
    lease = await io.do(five.lock(kind=Impatient), "acquire")
    await until(io, lambda: [1] * 5 == five.holding)
    five.answer("renew", ["lost"], ["lost"], CUT, CUT, None)
    with pytest.raises(Unavailable):
        await io.do(lease, "renew")
    assert lease.held
    five.calm()
    await io.do(lease, "renew")  # the other three servers are a majority
    five.answer("renew", ["lost"], ["lost"], ["lost"], None, None)
    with pytest.raises(LeaseLost):
        await io.do(lease, "renew")
    assert not lease.held
    await until(io, lambda: [0, 0] == five.holding[3:])  # both other servers get a release


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ([CUT, CUT, None, None, None], None),
        (["-ERR odd"] * 3 + [None] * 2, Unavailable),
        ([["lost"]] * 2 + ["-ERR odd"] * 3, Unavailable),
        ([["lost"]] * 3 + ["-ERR odd"] * 2, LeaseLost),
        ([["lost"]] * 2 + [None] * 3, None),
    ],
    ids=["two cut", "three failed", "two lost", "three lost", "two lost, three released"],
)
@both
async def test_quorum_release_is_repeated_on_each_server_on_which_it_failed(
    io, five: Five, replies: list[Any], error: Any, monkeypatch: Any
) -> None:
    # If a server replies more than LATE seconds after the majority, it gets the release again. A
    # larger LATE prevents this on a busy machine.
    monkeypatch.setattr("django_redis_sync.engine.quorum.voting.LATE", 5.0)
    lease = await io.do(five.lock(), "acquire")
    await until(io, lambda: [1] * 5 == five.holding)
    five.answer("release", *replies)
    with pytest.raises(error) if error else contextlib.nullcontext():
        await io.do(lease, "release")
    five.calm()
    failed = [not isinstance(one, list) and one is not None for one in replies]
    await until(
        io, lambda: not any(h for h, again in zip(five.holding, failed, strict=True) if again), 15
    )
    if error is Unavailable:
        released = [one is None for one in replies]
        counts = five.counts("release")
        assert all(n == 1 for n, done in zip(counts, released, strict=True) if done)


def test_held_quorum_lease_can_be_renewed_after_many_other_leases_ended(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "MAX_REMEMBERED", 0)
    held = five.lock().acquire()
    for n in range(5):
        five.lock(f"other{n}").acquire().release()
    held.renew()
    held.release()


@both
async def test_locked_method_returns_true_if_a_majority_of_servers_may_have_a_holder(
    io, five: Five
) -> None:
    for number, one in enumerate(five, 1):
        assert (number > 3) == await io.do(five.lock(), "locked")
        if number == 3:
            five.answer("inspect", None, None, None, CUT, CUT)
            assert not await io.do(five.lock(), "locked"), "only two servers reported a holder"
            five.calm()
        await io.do(Lock("x", using=one.alias), "acquire", False)
    five.answer("inspect", CUT, CUT, None, None, None)
    assert await io.do(five.lock(), "locked")
    five.calm()
    five.answer("inspect", *["-NOPERM no"] * 3, None, None)
    with pytest.raises(Unavailable, match="2 of 5 servers"):
        await io.do(five.lock(), "locked")


def test_names_are_registered_on_each_server_that_answers(five: Five) -> None:
    five.answer("time", CUT, None, None, None, None)
    five.answer("zadd", None, CUT, None, None, None)
    with five.lock():
        registry = f"{five[0].view().keys.prefix}:names"
        eventually(lambda: all(one.raw.zscore(registry, "x") for one in (five[0], *five[2:])))
    five.calm()
    with five.lock("y"):
        of_quorums = registry.replace(":names", ":quorums")
        eventually(lambda: all(one.raw.ttl(of_quorums) > 0 for one in five))


# The event loop on which sync calls of a quorum run


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_quorum_call_interrupted_at_any_bytecode_does_not_block_other_threads(five: Five) -> None:
    lock, count = five.lock(), 0
    for place in interruptions(lambda: lock.locked(), "quorum/server.py", where=at_any_step):
        count += 1
        done: list[bool] = []
        other = threading.Thread(target=lambda done=done: done.append(lock.locked()))
        other.start()
        other.join(10)
        assert [False] == done, place
    assert count > 10


def test_quorum_call_starts_the_thread_that_an_earlier_call_could_not_start(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("django_redis_sync.engine.quorum.server._loop", None)
        with NoThreads(monkeypatch), pytest.raises(Unavailable):
            five.lock().acquire(False)
        with five.lock() as lease:
            assert lease.held
            thread = next(t for t in threading.enumerate() if t.name == "redis-sync-quorum")
            assert thread.daemon


def test_forked_child_has_its_own_event_loop_for_quorums(five: Five) -> None:
    def works() -> bool:
        with five.lock() as lease:
            return lease.held

    assert works() and child_returns_true(works) and works()


# Which servers


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda using: Lock("x", using=using[:2]), "fewer than three"),
        (lambda using: Lock("x", using=[*using, using[0]]), "twice"),
        (lambda using: Lock("x", using=using, timeout=math.inf), "permanent"),
        (lambda using: Lock("x", using=tuple(using), fair=True), "fair"),
        (lambda using: Semaphore("x", 2, using=using), "majority"),
        (lambda using: ReadWriteLock("x", using=using), "readers"),
        (lambda using: Lock("x", using=[*using, "nowhere"]).acquire(), "nowhere"),
        (lambda using: asyncio.run(Lock("x", using=[*using, "nowhere"]).aacquire()), "nowhere"),
        (lambda using: Lock("x", using=[*using[:2], "same"]).acquire(), "same LOCATION"),
        (lambda using: asyncio.run(Lock("x", using=[*using[:2], "same"]).aacquire()), "same LOC"),
    ],
)
def test_quorum_rejects_unsafe_options(five: Five, settings: Any, make: Any, reason: str) -> None:
    settings.CACHES = {**settings.CACHES, "same": settings.CACHES[five[0].alias]}
    with pytest.raises(ImproperlyConfigured, match=reason):
        make([one.alias for one in five])
    with pytest.raises(TypeError):
        Lock("x", using=[1, 2, 3])
