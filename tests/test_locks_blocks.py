"""A `with` block releases what it acquired and nothing else, in whichever thread it ends."""

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

#: Every kind of context manager, with the names that it holds inside its block.
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


def generator(manager: Any) -> Iterator[Any]:
    with manager as entered:
        yield entered


async def async_generator(manager: Any) -> AsyncIterator[Any]:
    async with manager as entered:
        yield entered


@each
def test_block_in_a_generator_releases_when_another_thread_finishes_it(
    kind: str, held: Any
) -> None:
    make, names = KINDS[kind]
    block = generator(make())
    next(block)
    assert [1] * len(names) == held(*names)
    elsewhere(list, block)
    assert [0] * len(names) == held(*names)


@each
def test_block_in_a_generator_releases_when_another_thread_closes_it(kind: str, held: Any) -> None:
    make, names = KINDS[kind]
    block = elsewhere(generator, make())
    elsewhere(next, block)
    block.close()
    assert [0] * len(names) == held(*names)


@each_shared
def test_interleaved_blocks_release_one_permit_each(kind: str, held: Any) -> None:
    """Each end of a block releases the newest lease of the thread."""
    manager = KINDS[kind][0]()
    first, second = generator(manager), generator(manager)
    next(first)
    next(second)
    list(first)
    assert [1] == held("x")
    list(second)
    assert [0] == held("x")


@each_shared
def test_ambiguous_blocks_that_end_in_another_thread_release_nothing(
    kind: str, held: Any, caplog: pytest.LogCaptureFixture
) -> None:
    manager = KINDS[kind][0]()
    first, second = generator(manager), generator(manager)
    leases = elsewhere(next, first), elsewhere(next, second)
    elsewhere(list, first)
    assert all(lease.held for lease in leases), "a block released the lease of another block"
    assert "several blocks with the same object are open" in caplog.text
    references = [*map(weakref.ref, leases)]
    elsewhere(list, second)
    del first, second, leases
    eventually(lambda: [None, None] == [reference() for reference in references])
    assert [2] == held("x"), "the leases stay in Redis until they expire"


def test_block_with_a_lost_lease_releases_no_other_lease(held: Any, raw: redis.Redis) -> None:
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
def test_block_with_an_ended_lease_releases_no_other_lease(ends: str, held: Any) -> None:
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
def test_nested_blocks_over_one_object_release_their_own_leases(kind: str, held: Any) -> None:
    manager = KINDS[kind][0]()
    with manager as one, manager as other:
        with manager as third:
            assert [3] == held("x")
        assert not third.held and other.held and one.held
    assert [0] == held("x")


def test_rlock_is_released_when_its_last_block_ends(held: Any) -> None:
    lock = RLock("x")
    first, second = generator(lock), generator(RLock("x"))
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
def test_block_in_an_async_generator_releases_when_the_loop_closes_it(kind: str, held: Any) -> None:
    """After a `break`, the loop closes the generator in a task of its own."""
    make, names = KINDS[kind]

    async def main() -> None:
        async for _ in async_generator(make()):
            break
        for _ in range(200):
            gc.collect()
            await asyncio.sleep(0.01)
            if [0] * len(names) == held(*names):
                return
        raise AssertionError("still held")

    asyncio.run(main())


@each
def test_async_block_releases_when_it_ends_in_another_task(kind: str, held: Any) -> None:
    make, names = KINDS[kind]

    async def main() -> None:
        block = async_generator(make())
        await asyncio.create_task(anext(block))  # type: ignore[arg-type]
        assert [1] * len(names) == held(*names)
        await asyncio.create_task(block.aclose())  # type: ignore[attr-defined]
        assert [0] * len(names) == held(*names)

    asyncio.run(main())


@each
def test_enter_context_of_a_test_case_releases_after_the_test(kind: str, held: Any) -> None:
    make, names = KINDS[kind]

    class Case(unittest.TestCase):
        def runTest(self) -> None:
            if hasattr(self, "enterContext"):
                self.enterContext(make())
                assert [1] * len(names) == held(*names)

    assert unittest.TextTestRunner(stream=io.StringIO()).run(Case()).wasSuccessful()
    assert [0] * len(names) == held(*names)


# Explicit calls of __enter__ and __exit__


@each
def test_explicit_exit_releases_an_explicit_enter(kind: str, held: Any) -> None:
    make, names = KINDS[kind]
    manager = make()
    manager.__enter__()
    assert [1] * len(names) == held(*names)
    manager.__exit__(None, None, None)
    assert [0] * len(names) == held(*names)
    with pytest.raises(NotAcquired, match="holds nothing"):
        manager.__exit__(None, None, None)


@each
def test_explicit_exit_in_another_thread_releases_the_only_lease(kind: str, held: Any) -> None:
    make, names = KINDS[kind]
    manager = make()
    manager.__enter__()
    elsewhere(manager.__exit__, None, None, None)
    assert [0] * len(names) == held(*names)


class Overriding(Semaphore):
    """Overrides `__enter__` and `__exit__`. Its `__enter__` acquires another lock."""

    def __enter__(self) -> Lease:
        with Lock("note"):
            return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)


def test_blocks_of_a_subclass_that_overrides_enter_and_exit_release(held: Any) -> None:
    semaphore = Overriding("x", 9)
    with semaphore as one:
        with semaphore as other:
            assert [0, 2] == held("note", "x")
        assert one.held and not other.held
    assert [0] == held("x")


# Leases that remain


def test_block_that_raises_not_acquired_holds_nothing(held: Any) -> None:
    lock, other = Lock("x", blocking=False), Lock("x")
    with other:
        block = generator(lock)
        with pytest.raises(NotAcquired):
            next(block)
    assert [0] == held("x")
    with lock:
        assert [1] == held("x")
    assert [0] == held("x")


def test_lease_is_collected_when_nothing_can_release_it(held: Any) -> None:
    """Otherwise the lease renewer would renew it forever."""
    lock = Lock("x")
    lease = lock.__enter__()
    reference = weakref.ref(lease)
    del lock, lease
    assert reference() is None


@pytest.mark.parametrize("thread_local", [True, False])
def test_leases_released_by_their_own_method_do_not_pile_up(thread_local: bool) -> None:
    """For example, a dispatcher acquires the leases, and its workers release them."""
    semaphore = Semaphore("x", 10_000, thread_local=thread_local)
    oldest = semaphore.acquire()
    references: list[weakref.ref[Lease]] = []
    for _ in range(1000):
        lease = semaphore.acquire()
        assert lease is not None
        references.append(weakref.ref(lease))
        lease.release()
        del lease
    assert sum(ref() is not None for ref in references) < 250
    semaphore.release()
    assert oldest is not None and not oldest.held


def test_lost_leases_do_not_pile_up() -> None:
    semaphore = Semaphore("x", 10_000, timeout=0.01)
    references = []
    for _ in range(600):
        lease = semaphore.acquire()
        assert lease is not None
        references.append(weakref.ref(lease))
        del lease
    # Pending `on_lost` callbacks keep references to their leases.
    eventually(lambda: sum(ref() is not None for ref in references) < 450)


def test_leases_of_a_thread_are_collected_after_it_ends() -> None:
    lock = Lock("x")
    reference = elsewhere(lambda: weakref.ref(lock.acquire()))
    eventually(lambda: reference() is None)


def test_leases_of_a_task_are_collected_after_it_ends() -> None:
    async def take() -> Any:
        return weakref.ref(await lock.aacquire())  # type: ignore[arg-type]

    async def main() -> None:
        reference = await asyncio.create_task(take())
        await asyncio.sleep(0)
        assert reference() is None, "the lease outlives its task"

    lock = Lock("x")
    asyncio.run(main())


def test_semaphore_releases_all_its_held_leases() -> None:
    semaphore = Semaphore("x", 10_000)
    leases = [semaphore.acquire() for _ in range(350)]
    for lease in reversed(leases):
        assert lease is not None and lease.held
        semaphore.release()
        assert not lease.held
