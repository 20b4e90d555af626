"""A `with` gives back what it took and nothing else, in whichever thread or task it ends."""

from __future__ import annotations

import asyncio
import gc
import io
import unittest
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
)
from tests.behaviour.both import eventually

from .behaviour.watching import View

pytestmark = pytest.mark.usefixtures("clean_redis")

#: Whatever can be entered, with the names that it holds then.
KINDS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "lock": (lambda: Lock("x"), ("x",)),
    "semaphore": (lambda: Semaphore("x", 9), ("x",)),
    "for all threads": (lambda: Semaphore("x", 9, thread_local=False), ("x",)),
    "rlock": (lambda: RLock("x"), ("x",)),
    "readers": (lambda: ReadWriteLock("x").read, ("x",)),
    "writer": (lambda: ReadWriteLock("x").write, ("x",)),
    "several": (lambda: acquire_all([Lock("x"), Semaphore("y", 9)]), ("x", "y")),
}
SHARED = ("semaphore", "for all threads", "readers")

each = pytest.mark.parametrize("kind", KINDS)
each_shared = pytest.mark.parametrize("kind", SHARED)


@pytest.fixture
def held(raw: redis.Redis) -> Callable[..., list[int]]:
    return lambda *names: [View(raw, name).holding for name in names]


def elsewhere(call: Callable[..., Any], *args: Any) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *args).result()


def entered(thing: Any) -> Iterator[Any]:
    with thing as got:
        yield got


async def aentered(thing: Any) -> AsyncIterator[Any]:
    async with thing as got:
        yield got


@each
def test_a_generator_that_another_thread_runs_on_gives_back(kind: str, held: Any) -> None:
    make, names = KINDS[kind]
    parts = entered(make())
    next(parts)
    assert [1] * len(names) == held(*names)
    elsewhere(list, parts)
    assert [0] * len(names) == held(*names)


@each
def test_a_generator_that_another_thread_closes_gives_back(kind: str, held: Any) -> None:
    make, names = KINDS[kind]
    parts = elsewhere(entered, make())
    elsewhere(next, parts)
    parts.close()
    assert [0] * len(names) == held(*names)


@each_shared
def test_blocks_that_interleave_hold_one_permit_each(kind: str, held: Any) -> None:
    """Which of them ended can't be told, so the newest lease of the thread is released."""
    thing = KINDS[kind][0]()
    first, second = entered(thing), entered(thing)
    next(first)
    next(second)
    list(first)
    assert [1] == held("x")
    list(second)
    assert [0] == held("x")


@each_shared
def test_blocks_that_end_elsewhere_and_cannot_be_told_release_nothing(
    kind: str, held: Any, caplog: pytest.LogCaptureFixture
) -> None:
    thing = KINDS[kind][0]()
    first, second = entered(thing), entered(thing)
    one, other = elsewhere(next, first), elsewhere(next, second)
    elsewhere(list, first)
    assert one.held and other.held, "no block releases the lease of another"
    assert "several blocks with the same object are open" in caplog.text
    gone = [weakref.ref(lease) for lease in (one, other)]
    elsewhere(list, second)
    del first, second, one, other
    eventually(lambda: [None, None] == [ref() for ref in gone])
    assert [2] == held("x"), "their leases expire"


def test_block_whose_lease_was_lost_releases_no_other(held: Any, raw: redis.Redis) -> None:
    semaphore = Semaphore("x", 9)
    with semaphore as outer:
        with pytest.raises(LeaseLost), semaphore as inner:
            raw.delete(*View(raw, "x").left())
            with pytest.raises(LeaseLost):
                inner.renew()
        assert not inner.held and not outer.ended
        with pytest.raises(LeaseLost):
            outer.renew()
        semaphore.raise_on_release_error = False


@pytest.mark.parametrize("ends", ["released", "detached"])
def test_block_keeps_its_place_whatever_became_of_its_lease(ends: str, held: Any) -> None:
    semaphore = Semaphore("x", 9)
    with semaphore as outer:
        with semaphore as inner:
            if ends == "released":
                semaphore.release()
            else:
                inner.detach()
            assert inner.ended and outer.held
        assert outer.held, "the inner block released the lease of the outer one"
    assert not outer.held


def test_downgraded_block_releases_its_own_lease(held: Any) -> None:
    lock = ReadWriteLock("x")
    with lock.read as other:
        pass
    with lock.write as lease:
        lock.downgrade()
        assert lease.held and not other.held
        assert elsewhere(lock.read.acquire)
        assert [2] == held("x")
    assert not lease.held and [1] == held("x")


@each_shared
def test_nested_blocks_over_one_object_end_their_own(kind: str, held: Any) -> None:
    thing = KINDS[kind][0]()
    with thing as one, thing as other:
        with thing as third:
            assert [3] == held("x")
        assert not third.held and other.held and one.held
    assert [0] == held("x")


def test_an_rlock_taken_in_many_places_is_given_back_with_the_last(held: Any) -> None:
    lock = RLock("x")
    first, second = entered(lock), entered(RLock("x"))
    lease = next(first)
    assert next(second) is lease
    with lock:
        elsewhere(list, first)
        assert lease.held
    assert lease.held
    elsewhere(list, second)
    assert [0] == held("x")
    with lock as again:
        assert again is not lease


@each
def test_an_async_generator_that_the_loop_closes_gives_back(kind: str, held: Any) -> None:
    """Left by `break`, it is closed in a task of the loop's own."""
    make, names = KINDS[kind]

    async def main() -> None:
        async for _ in aentered(make()):
            break
        for _ in range(200):
            gc.collect()
            await asyncio.sleep(0.01)
            if [0] * len(names) == held(*names):
                return
        raise AssertionError("still held")

    asyncio.run(main())


@each
def test_an_async_block_may_end_in_another_task(kind: str, held: Any) -> None:
    make, names = KINDS[kind]

    async def main() -> None:
        parts = aentered(make())
        await asyncio.create_task(anext(parts))  # type: ignore[arg-type]
        assert [1] * len(names) == held(*names)
        await asyncio.create_task(parts.aclose())  # type: ignore[attr-defined]
        assert [0] * len(names) == held(*names)

    asyncio.run(main())


@each
def test_a_context_that_a_test_case_enters_is_left_with_it(kind: str, held: Any) -> None:
    make, names = KINDS[kind]

    class Case(unittest.TestCase):
        def runTest(self) -> None:
            if hasattr(self, "enterContext"):
                self.enterContext(make())
                assert [1] * len(names) == held(*names)

    assert unittest.TextTestRunner(stream=io.StringIO()).run(Case()).wasSuccessful()
    assert [0] * len(names) == held(*names)


# By hand


@each
def test_what_was_entered_by_hand_is_left_by_hand(kind: str, held: Any) -> None:
    make, names = KINDS[kind]
    thing = make()
    thing.__enter__()
    assert [1] * len(names) == held(*names)
    thing.__exit__(None, None, None)
    assert [0] * len(names) == held(*names)
    with pytest.raises(NotAcquired, match="holds nothing"):
        thing.__exit__(None, None, None)


@each
def test_the_only_one_entered_by_hand_may_be_left_in_another_thread(kind: str, held: Any) -> None:
    make, names = KINDS[kind]
    thing = make()
    thing.__enter__()
    elsewhere(thing.__exit__, None, None, None)
    assert [0] * len(names) == held(*names)


class Loud(Semaphore):
    """Overrides `__enter__` and `__exit__`. Its `__enter__` acquires another lock."""

    def __enter__(self) -> Lease:
        with Lock("note"):
            return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)


def test_a_subclass_may_override_both_ends(held: Any) -> None:
    loud = Loud("x", 9)
    with loud as one:
        with loud as other:
            assert [0, 2] == held("note", "x")
        assert one.held and not other.held
    assert [0] == held("x")


# What is left behind


def test_a_block_that_could_not_begin_holds_nothing(held: Any) -> None:
    lock, other = Lock("x", blocking=False), Lock("x")
    with other:
        parts = entered(lock)
        with pytest.raises(NotAcquired):
            next(parts)
    assert [0] == held("x")
    with lock:
        assert [1] == held("x")
    assert [0] == held("x")


def test_a_block_keeps_no_lease_alive_that_nobody_can_give_back(held: Any) -> None:
    """Else the keeper would renew it for ever."""
    lock = Lock("x")
    lease = lock.__enter__()
    gone, lock = weakref.ref(lease), None  # type: ignore[assignment]
    del lease
    assert gone() is None


@pytest.mark.parametrize("thread_local", [True, False])
def test_leases_that_end_by_their_own_release_do_not_pile_up(thread_local: bool) -> None:
    """As of a dispatcher that takes, and whose workers give back."""
    semaphore = Semaphore("x", 10_000, thread_local=thread_local)
    oldest = semaphore.acquire()
    kept: list[weakref.ref[Lease]] = []
    for _ in range(1000):
        lease = semaphore.acquire()
        assert lease is not None
        kept.append(weakref.ref(lease))
        elsewhere_or_here = lease.release
        elsewhere_or_here()
        del lease, elsewhere_or_here
    assert sum(ref() is not None for ref in kept) < 250
    semaphore.release()
    assert oldest is not None and not oldest.held


def test_leases_that_were_lost_do_not_pile_up() -> None:
    semaphore = Semaphore("x", 10_000, timeout=0.01)
    kept = []
    for _ in range(600):
        lease = semaphore.acquire()
        assert lease is not None
        kept.append(weakref.ref(lease))
        del lease
    # Those whose receivers are still to be told are referred to by that.
    eventually(lambda: sum(ref() is not None for ref in kept) < 450)


def test_what_a_thread_acquired_goes_with_the_thread() -> None:
    lock = Lock("x")
    gone = elsewhere(lambda: weakref.ref(lock.acquire()))
    eventually(lambda: gone() is None)


def test_what_a_task_acquired_goes_with_the_task() -> None:
    async def take() -> Any:
        return weakref.ref(await lock.aacquire())  # type: ignore[arg-type]

    async def main() -> None:
        gone = await asyncio.create_task(take())
        await asyncio.sleep(0)
        assert gone() is None, "the lease outlives its task"

    lock = Lock("x")
    asyncio.run(main())


def test_leases_of_open_use_are_all_remembered() -> None:
    semaphore = Semaphore("x", 10_000)
    leases = [semaphore.acquire() for _ in range(350)]
    for lease in reversed(leases):
        assert lease is not None and lease.held
        semaphore.release()
        assert not lease.held
