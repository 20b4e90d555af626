"""A caller that is interrupted while it acquires, for example by a signal, keeps no lease."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from django_redis_sync import Lock, NotAcquired, RLock, Semaphore, acquire_all
from django_redis_sync.engine.renewal import renewer
from tests.support.interrupting import interruptions

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FILES = ("semaphore.py", "acquiring.py", "callers.py", "acquire_all.py", "locks.py")
WATCHED = tuple(f"locks/{file}" for file in FILES)
#: Functions in FILES that run after a permit was granted.
GRANTED = ("_settle", "_count")

# These objects exist as long as the module, and so do the leases that they store.
LOCK = Lock("one")
SHARED = Semaphore("one", 2, thread_local=False)
REENTRANT = RLock("one")
SEVERAL = acquire_all([Lock("one"), RLock("two")])


def enter_block(semaphore: Any) -> None:
    with semaphore:
        semaphore.inside = True


def acquire(semaphore: Any) -> None:
    semaphore.acquire()
    semaphore.inside = True


def acquire_async(semaphore: Any) -> None:
    async def main() -> None:
        await semaphore.aacquire()
        semaphore.inside = True

    run_on_the_loop(main())


def enter_async_block(semaphore: Any) -> None:
    async def main() -> None:
        async with semaphore:
            semaphore.inside = True

    run_on_the_loop(main())


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """One event loop for all attempts of a test: a new loop and connection would take too long."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()


def run_on_the_loop(body: Coroutine[Any, Any, None]) -> None:
    asyncio.get_event_loop().run_until_complete(body)


def renewed_names() -> list[str]:
    """Return the names of the leases that this process renews. Wait up to 10 s until there are
    none, because another thread may still use a lease or collect garbage."""
    end = time.monotonic() + 10
    while True:
        for generation in (1, 2):  # a full collection is slow, and seldom needed
            gc.collect(generation)
            found = [lease.name for lease in renewer("default")._held()]
            if not found or time.monotonic() > end:
                return found


def release_all(semaphore: Any) -> None:
    """Release `semaphore` until it holds nothing."""
    while True:
        try:
            semaphore.release()
        except NotAcquired:
            return


@pytest.mark.parametrize("take", [acquire, enter_block, acquire_async, enter_async_block])
@pytest.mark.parametrize(
    "semaphore", [LOCK, SHARED, REENTRANT, SEVERAL], ids=["lock", "shared", "reentrant", "several"]
)
def test_interrupted_acquire_leaves_no_renewed_lease(raw, semaphore: Any, take: Any) -> None:
    count = 0
    semaphore.inside = False
    for where in interruptions(lambda: take(semaphore), *WATCHED, after=GRANTED):
        if semaphore.inside:  # the acquire has ended; interrupted releases have another test
            break
        count += 1
        assert [] == renewed_names(), where
        with pytest.raises(NotAcquired):
            semaphore.release()
            pytest.fail(f"a lease is stored after {where}")
        raw.flushdb()  # a lease that was granted but not stored would end only when it expires
    release_all(semaphore)
    assert count > 10
