"""A `with` block releases what it acquired and nothing else, whichever thread ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import django_redis_sync
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
from tests.behaviour.both import MAX_WAIT, Async, Sync, both, eventually
from tests.behaviour.watching import View, living
from tests.support.interrupting import (
    fast_collections,  # noqa: F401 - a fixture
    interruptions,
    run_async,  # noqa: F401 - a fixture
)

#: Each kind of context manager, and how many names it acquires: one (x) or two (x and y).
KINDS: dict[str, tuple[Callable[[], Any], int]] = {
    "lock": (lambda: Lock("x"), 1),
    "semaphore": (lambda: Semaphore("x", 9), 1),
    "for all threads": (lambda: Semaphore("x", 9, thread_local=False), 1),
    "rlock": (lambda: RLock("x"), 1),
    "readers": (lambda: ReadWriteLock("x").read, 1),
    "writer": (lambda: ReadWriteLock("x").write, 1),
    "several": (lambda: acquire_all([Lock("x"), Semaphore("y", 9)]), 2),
}
each_shared = pytest.mark.parametrize("kind", ("semaphore", "for all threads", "readers"))


@pytest.fixture
def held(raw: Any) -> Callable[..., list[int]]:
    """Return a function that counts the leases of x and, if `names` is 2, those of y."""
    return lambda names=1: [View(raw, name).holding for name in "xy"[:names]]


def elsewhere(call: Callable[..., Any], *args: Any) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *args).result()


def generator(manager: Any) -> Iterator[Any]:
    with manager as entered:
        yield entered


async def async_generator(manager: Any) -> AsyncIterator[Any]:
    async with manager as entered:
        yield entered


# Ways to begin and end a `with` block of `manager`. Each calls `inside` within the block.


def finished_by_another_thread(manager: Any, inside: Any) -> None:
    block = generator(manager)
    next(block)
    inside()
    elsewhere(list, block)


def closed_after_its_thread_ended(manager: Any, inside: Any) -> None:
    block = elsewhere(generator, manager)
    elsewhere(next, block)
    inside()
    block.close()


def closed_by_the_loop_after_a_break(manager: Any, inside: Any) -> None:
    async def main() -> None:
        async for _ in async_generator(manager):
            inside()
            break

    asyncio.run(main())


def ended_by_another_task(manager: Any, inside: Any) -> None:
    async def main() -> None:
        block: Any = async_generator(manager)
        await asyncio.create_task(anext(block))
        inside()
        await asyncio.create_task(block.aclose())

    asyncio.run(main())


def ended_by_hand(manager: Any, inside: Any) -> None:
    manager.__enter__()
    inside()
    manager.__exit__(None, None, None)
    with pytest.raises(NotAcquired, match="holds nothing"):
        manager.__exit__(None, None, None)


def ended_by_hand_in_another_thread(manager: Any, inside: Any) -> None:
    manager.__enter__()
    inside()
    elsewhere(manager.__exit__, None, None, None)


WAYS = (
    *(finished_by_another_thread, closed_after_its_thread_ended, ended_by_another_task),
    *(closed_by_the_loop_after_a_break, ended_by_hand, ended_by_hand_in_another_thread),
)


@pytest.mark.promise(16)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_permit_is_released_even_if_its_with_block_ends_in_another_thread_or_task(
    kind: str, way: Any, held: Any
) -> None:
    make, names = KINDS[kind]
    inside = list[list[int]]()
    way(make(), lambda: inside.append(held(names)))
    assert ([[1] * names], [0] * names) == (inside, held(names))


@each_shared
def test_no_lease_is_released_if_another_thread_ends_one_of_two_open_with_blocks(
    kind: str, held: Any, caplog: Any
) -> None:
    manager = KINDS[kind][0]()
    first, second = generator(manager), generator(manager)
    leases = elsewhere(next, first), elsewhere(next, second)
    elsewhere(list, first)
    assert all(lease.held for lease in leases), "a block released the lease of another block"
    assert "Several blocks of the same object are open" in caplog.text
    references = [*map(weakref.ref, leases)]
    elsewhere(list, second)
    del first, second, leases
    eventually(lambda: [None, None] == [reference() for reference in references])
    assert [2] == held(), "the leases stay in Redis until they expire"


@each_shared
def test_each_with_block_releases_one_permit_if_blocks_are_nested_or_interleaved(
    kind: str, held: Any
) -> None:
    manager = KINDS[kind][0]()
    with manager as one, manager as other:
        with manager as third:
            assert [3] == held()
        assert (False, True, True) == (third.held, other.held, one.held)
    first, second = generator(manager), generator(manager)
    next(first), next(second)
    list(first)
    assert [1] == held()
    list(second)
    assert [0] == held()


@pytest.mark.parametrize("end", ["release", "detach", "lose"])
def test_inner_with_block_does_not_release_the_outer_lease_if_its_own_lease_ended(
    end: str, raw: Any
) -> None:
    semaphore = Semaphore("x", 9)
    with semaphore as outer:
        block = generator(semaphore)
        inner = next(block)
        if end == "release":
            semaphore.release()
        elif end == "detach":
            inner.detach()
        else:
            raw.zrem(View(raw, "x").keys.leases, inner.token)
            with pytest.raises(LeaseLost):
                inner.renew()
            with pytest.raises(LeaseLost):
                next(block)
        assert [] == list(block)
        assert outer.held and not inner.held, "the inner block released the lease of the outer one"
    assert not outer.held


def test_rlock_is_released_only_after_all_its_with_blocks_have_ended(held: Any) -> None:
    lock = RLock("x")
    first, second = generator(lock), generator(RLock("x"))
    lease = next(first)
    assert next(second) is lease
    with lock:
        elsewhere(list, first)
        assert lease.held
    assert lease.held
    elsewhere(list, second)
    assert [0] == held()
    with lock as again:
        assert again is not lease


# References to leases. The lease renewer renews a lease as long as a reference exists.


def reference_to(semaphore: Semaphore, release: bool = False) -> weakref.ref[Any]:
    lease = semaphore.acquire()
    if release:
        lease.release()  # type: ignore[union-attr]
    return weakref.ref(lease)  # type: ignore[arg-type]


def test_lease_is_garbage_collected_when_its_lock_is_deleted_or_its_thread_ends(held: Any) -> None:
    reference = reference_to(Lock("x"))
    assert reference() is None, "the lease outlives its object"
    lock = Lock("y")
    reference = elsewhere(reference_to, lock)
    eventually(lambda: reference() is None)


@pytest.mark.parametrize("thread_local", [True, False])
def test_semaphore_drops_its_references_to_ended_leases(held: Any, thread_local: bool) -> None:
    """A semaphore keeps references to its leases until they end."""
    semaphore = Semaphore("x", 10_000, thread_local=thread_local)
    leases: list[Any] = [semaphore.acquire() for _ in range(350)]
    released = [reference_to(semaphore, release=True) for _ in range(1000)]
    assert sum(ref() is not None for ref in released) < 250
    for lease in reversed(leases):
        assert lease.held
        semaphore.release()
        assert not lease.held
    short = Semaphore("y", 10_000, timeout=0.01, thread_local=thread_local)
    lost = [reference_to(short) for _ in range(600)]
    # Wait, because pending `on_lost` callbacks keep references to their leases.
    eventually(lambda: sum(ref() is not None for ref in lost) < 450)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_leases_of_a_closed_event_loop_are_not_renewed_even_with_gc_disabled(raw: Any) -> None:
    """They are lost, because their tasks can't release them. A lease of a task that was done when
    its event loop was closed is renewed."""
    views, held, lost = [View(raw, f"x{n}") for n in range(6)], list[str](), list[Any]()
    loop = asyncio.new_event_loop()

    async def hold(lock: Lock, method: str) -> None:
        await getattr(lock, method)()
        held.append(lock.name)  # the server may know this before the task does
        await asyncio.sleep(1000)

    async def main() -> None:
        for n, method in enumerate(("__aenter__", "aacquire") * 3):
            lock = Lock(
                f"x{n}", timeout=1.5, renew=True, on_lost=lambda lease: lost.append(lease.name)
            )
            asyncio.get_running_loop().create_task(hold(lock, method))
        while len(held) < len(views):
            await asyncio.sleep(0.01)

    gc.collect()
    gc.disable()
    try:
        kept = asyncio.run(Lock("kept", timeout=4, renew=True).aacquire())
        loop.run_until_complete(main())
        loop.close()
        del loop
        eventually(lambda: all(view.empty for view in views))
        eventually(lambda: sorted(lost) == [f"x{n}" for n in range(6)])
        assert kept is not None
        eventually(View(raw, "kept").renewals())
    finally:
        gc.enable()
    kept.release()
    # The sockets of the closed loop are dropped when the next loop uses the library. Do this here,
    # where the test ignores their warnings.
    asyncio.run(Lock("x").alocked())
    gc.collect()


# Interruptions, for example by the exception of a signal handler


async def acquire(io: Any, semaphore: Any, inside: list[str]) -> None:
    await io.do(semaphore, "acquire")
    inside.append("acquired")


async def enter_block(io: Any, semaphore: Any, inside: list[str]) -> None:
    async with io.entered(semaphore):
        inside.append("in the block")


FOLDER = Path(django_redis_sync.__file__).parent / "locks"
#: The files in whose code the test interrupts an acquire: all of locks/ except options.py, which
#: only prepares the request.
FILES = [f"/locks/{path.name}" for path in FOLDER.glob("*.py") if path.name != "options.py"]


def all_released() -> bool:
    """Return True if all Lease objects in memory have ended. A live one would be renewed."""
    gc.collect()
    # A lease whose __init__ was interrupted has no attribute `ended`.
    return all(getattr(lease, "ended", True) for lease in living(Lease))


@pytest.mark.promise(6)
@pytest.mark.usefixtures("fast_collections")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("io", [Sync(), Async()], ids=repr)
@pytest.mark.parametrize("take", [acquire, enter_block])
@pytest.mark.parametrize("kind", ["lock", "for all threads", "rlock", "several"])
def test_interrupted_acquire_leaves_no_lease_behind(
    kind: str,
    take: Any,
    io: Any,
    raw: Any,
    run_async: Any,  # noqa: F811
) -> None:
    semaphore, run = KINDS[kind][0](), io.run if repr(io) == "sync" else run_async
    inside, count = list[str](), 0
    attempts = interruptions(
        lambda: run(take(io, semaphore, inside)),
        *FILES,
        after=("__init__",),  # interrupt only after a lease's __init__ has begun
    )
    for where in attempts:
        if inside:  # this acquire succeeded, so all its bytecodes were interrupted before
            break
        count += 1
        print(where)
        eventually(all_released)
        with pytest.raises(NotAcquired):
            semaphore.release()
            pytest.fail(f"a lease is stored after {where}")
        raw.flushdb()  # a lease of an interrupted caller may remain
    assert count > 10, "too few interruptions"


@pytest.mark.promise(6)
def test_interrupted_release_is_completed_in_the_background(view: Any) -> None:
    leases = list[Any]()

    def hold() -> None:
        leases.append(Lock("x", timeout=60).acquire(blocking_timeout=20))
        leases[-1].release()

    count = 0
    files = "/locks/lease.py", "/locks/lease_state.py"
    for place in interruptions(hold, *files, after=("giving_back",)):  # interrupt releases only
        count += 1
        print(place)
        eventually(lambda: view("x").empty)
    assert count > 10, "too few interruptions"


@both
@pytest.mark.parametrize("end", ["block", "release", "detach"])
async def test_block_over_an_ended_lease_does_not_run(io, end: str, view) -> None:
    lease = await io.do(Lock("x"), "acquire")
    async with contextlib.AsyncExitStack() as first:
        if end == "block":  # the twin: the block over a lease that is held runs
            await first.enter_async_context(io.entered(lease))
            assert 1 == view("x").holding
        else:
            await io.do(lease, end)
    ran = []
    with pytest.raises(NotAcquired, match=r"'x' was (released|detached) already"):
        async with io.entered(lease):
            ran.append("without the lock")
    assert [] == ran


@pytest.mark.parametrize(
    "made",
    [
        lambda: Lock("x"),
        lambda: RLock("x"),
        lambda: Semaphore("x", 1, thread_local=False),
        lambda: ReadWriteLock("x").write,
        lambda: acquire_all([Lock("x")]),
    ],
    ids=["Lock", "RLock", "Semaphore", "writer", "acquire_all"],
)
@both
async def test_block_releases_the_lease_that_replaced_its_own(io, view, made: Any) -> None:
    """As code does that lets others in between two steps, or that waits for a condition."""
    lock = made()
    async with io.entered(lock):
        for _ in range(2):
            await io.do(lock, "release")
            assert view("x").empty
            await io.do(lock, "acquire")
            assert view("x").holding == 1
    assert view("x").empty


@both
async def test_block_keeps_leases_that_were_acquired_beside_its_own(io, view) -> None:
    seats = Semaphore("x", 9)
    before = await io.do(seats, "acquire")
    async with io.entered(seats) as lease:
        inside = await io.do(seats, "acquire")
    assert not lease.held and before.held and inside.held
    async with io.entered(seats) as outer:
        await io.do(outer, "release")
        async with io.entered(seats) as inner:
            pass
        assert not inner.held
        kept = await io.do(seats, "acquire")
    assert not kept.held and before.held and inside.held
    assert view("x").holding == 2


def test_condition_over_a_lock_waits_and_leaves_it_free(view: Any) -> None:
    condition, results = threading.Condition(Lock("x")), []

    def wait() -> None:
        with condition:
            results.append(condition.wait(MAX_WAIT))

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: condition._waiters)  # type: ignore[attr-defined]
    with condition:
        condition.notify()
    thread.join(MAX_WAIT)
    assert [True] == results and view("x").empty
