"""Leases and errors: repr, pickling, callbacks, and counted outcomes."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    Unavailable,
    synchronized,
)
from django_redis_sync.engine import drivers
from django_redis_sync.engine.housekeeping import Housekeeper
from django_redis_sync.locks import transactions
from django_redis_sync.signals import lease_lost
from django_redis_sync.testing import without_redis
from tests.behaviour.both import both, until
from tests.behaviour.watching import View


@pytest.fixture
def in_memory() -> Iterator[None]:
    with without_redis():
        yield


# Objects


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Semaphore("a", 3), "Semaphore('a', 3)"),
        (Lock("a"), "Lock('a')"),
        (RLock("a"), "RLock('a')"),
        (ReadWriteLock("a"), "ReadWriteLock('a')"),
        (ReadWriteLock("a").read, "ReadWriteLock('a').read"),
        (ReadWriteLock("a").write, "ReadWriteLock('a').write"),
    ],
    ids=repr,
)
def test_repr_is_the_constructor_expression(made: Any, expected: str) -> None:
    assert expected == repr(made)


@both
async def test_status_of_a_key_differs_from_the_status_of_its_policy(io, in_memory) -> None:
    of_key, policy = Semaphore("exports", 3, key="7"), Semaphore("exports", 3)
    async with io.entered(of_key):
        status = await io.do(of_key, "status")
        assert (1, "7") == (status.in_use, status.key)
        assert 0 == (await io.do(policy, "status")).in_use
        assert await io.do(of_key, "locked") and not await io.do(policy, "locked")


# Errors


@pytest.mark.parametrize("kind", [NotAcquired, LeaseLost, Unavailable])
def test_error_repr_shows_its_message(kind: Any) -> None:
    assert f"[{kind.__name__}('no more')]" == str([kind("no more")])


@pytest.mark.parametrize("error", [NotAcquired("no more", "full", "a"), LeaseLost("no more", "a")])
def test_error_can_be_pickled(error: Any) -> None:
    other = pickle.loads(pickle.dumps(error))
    assert "no more" == str(error) == str(other)
    assert ("no more",) == error.args == other.args
    assert "a" == error.lock_name == other.lock_name
    assert getattr(error, "reason", "") == getattr(other, "reason", "")


# Leases


def test_lease_repr_shows_the_seconds_left_or_how_it_ended(in_memory) -> None:
    lease = Lock("a", timeout=12.3).acquire()
    assert lease
    head = f"<Lease 'a' {lease.token[:8]}"
    assert repr(lease) in (f"{head} 12.3 s left>", f"{head} 12.2 s left>")
    lease.release()
    assert f"{head} released>" == repr(lease)


def test_acquired_at_is_the_time_of_the_fence(in_memory) -> None:
    with Lock("a") as lease:
        assert datetime.fromtimestamp(lease.fence / 1e6, tz=timezone.utc) == lease.acquired_at


@both
async def test_downgraded_lease_is_adopted_as_a_reader(io, in_memory) -> None:
    lock = ReadWriteLock("rows")
    async with io.entered(lock.write) as lease:
        assert await io.do(lock, "downgrade") is lease
        handle = await io.do(lease, "detach")
    adopted = await io.do(Lease, "from_handle", handle)
    assert 1 == adopted.permits
    with pytest.raises(TypeError, match="only a writer's"):
        await io.do(adopted, "downgrade")
    await io.do(adopted, "release")


@both
async def test_downgrade_can_be_retried_after_unavailable(io, in_memory, monkeypatch) -> None:
    def fail(*_: Any) -> Any:
        raise Unavailable("down")

    lock = ReadWriteLock("rows")
    lease = await io.do(lock.write, "acquire")
    with monkeypatch.context() as patch:
        for driver in ("drive", "adrive"):
            patch.setattr(drivers, driver, fail)
        with pytest.raises(Unavailable):
            await io.do(lock, "downgrade")
    assert lease is await io.do(lock, "downgrade")
    with pytest.raises(NotAcquired):
        await io.do(lock.write, "release")
    await io.do(lock.read, "release")
    assert not lease.held


@both
async def test_lost_lease_runs_callback_and_receivers_and_logs_once(io, raw, caplog) -> None:
    called, received = list[Any](), list[Any]()

    def receive(sender: Any, lease: Lease, reason: str, **_: Any) -> None:
        received.append((sender, lease, reason))

    lease = await io.do(Lock("a", on_lost=called.append), "acquire")
    View(raw, "a").clear()
    lease_lost.connect(receive)
    try:
        for _ in range(2):
            with pytest.raises(LeaseLost):
                await io.do(lease, "renew")
        await until(io, lambda: called and received)
    finally:
        lease_lost.disconnect(receive)
    reason = "Redis no longer has it"
    assert ([lease], [(Lease, lease, reason)]) == (called, received)
    assert 1 == caplog.text.count("lost a lease of 'a'")
    assert f"<Lease 'a' {lease.token[:8]} {reason}>" == repr(lease)


@both
async def test_lost_adopted_lease_calls_only_the_callback_of_its_adopter(io, raw) -> None:
    former, adopter = list[Any](), list[Any]()
    lease = await io.do(Lock("a", on_lost=former.append), "acquire")
    adopted = await io.do(
        Lease, "from_handle", await io.do(lease, "detach"), on_lost=adopter.append
    )
    View(raw, "a").clear()
    with pytest.raises(LeaseLost):
        await io.do(adopted, "renew")
    await until(io, lambda: adopter)
    assert ([], [adopted]) == (former, adopter)


# Functions


def test_synchronized_holds_until_a_returned_coroutine_has_ended(in_memory) -> None:
    held: list[bool] = []

    @synchronized("a")
    def start() -> Any:
        async def body() -> str:
            held.append(await Lock("a").alocked())
            return "done"

        return body()

    async def main() -> Any:
        return await found

    found = start()
    assert Lock("a").locked()
    assert "done" == asyncio.run(main())
    assert ([True], False) == (held, Lock("a").locked())


# Counted outcomes


@both
async def test_each_outcome_is_counted_once(io, in_memory, monkeypatch) -> None:
    kinds, held = list[str](), list[int]()

    def count(_: Any, terms: Any, kind: str, ms: int, *more: Any) -> None:
        kinds.append(kind)
        held.extend([ms] * (kind == "r"))

    monkeypatch.setattr(Housekeeper, "count", count)
    async with io.entered(Lock("a")):
        await io.sleep(0.01)
        assert await io.do(Lock("a", blocking=False), "acquire") is None
        assert await io.do(Lock("a"), "acquire", blocking_timeout=0.01) is None
    assert ["g", "n", "t", "r"] == kinds
    assert 10 <= held[0] < 10_000, "a hold is counted in milliseconds"


# Dropped transactions


def test_lease_of_a_dropped_transaction_is_released_on_another_thread(monkeypatch) -> None:
    """The garbage collector can run on any thread, at any bytecode instruction."""
    called, released = list[Any](), list[str]()
    monkeypatch.setattr(transactions, "run_callbacks", called.append)
    lease: Any = SimpleNamespace(name="a", release=lambda: released.append("a"))
    here = threading.get_ident()
    transactions._release(lease, here, ["default"])
    assert (["a"], []) == (released, called)
    transactions._release(lease, here + 1, ["default"])
    assert (["a"], 1) == (released, len(called))
    left = ["default", "other"]
    transactions._release(lease, here, left)
    assert ["a"] == released, "the last of several transactions releases"
    transactions._release(lease, here, left)
    assert ["a", "a"] == released
