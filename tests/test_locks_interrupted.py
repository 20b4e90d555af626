"""A caller that is interrupted while it takes something, as by a signal, keeps nothing of it."""

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
OURS = tuple(f"locks/{file}" for file in FILES)
#: Of ours, by name: they run when a permit was granted.
GRANTED = ("_settle", "_count")

# They live as long as this module, and with them what is noted in them.
LOCK = Lock("one")
SHARED = Semaphore("one", 2, thread_local=False)
REENTRANT = RLock("one")
SEVERAL = acquire_all([Lock("one"), RLock("two")])


def blocks(what: Any) -> None:
    with what:
        what.inside = True


def acquires(what: Any) -> None:
    what.acquire()
    what.inside = True


def aacquires(what: Any) -> None:
    async def main() -> None:
        await what.aacquire()
        what.inside = True

    on_the_loop(main())


def ablocks(what: Any) -> None:
    async def main() -> None:
        async with what:
            what.inside = True

    on_the_loop(main())


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """One for all tries of a test: making loops and connecting would be most of the work."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()


def on_the_loop(body: Coroutine[Any, Any, None]) -> None:
    asyncio.get_event_loop().run_until_complete(body)


def kept(*expected: str) -> list[str]:
    """The names of what this process has renewed; another thread that looks at it just now, or
    collects garbage, has a moment to end."""
    end = time.monotonic() + 10
    while True:
        for generation in (1, 2):  # all takes long, and only a collection meanwhile makes it old
            gc.collect(generation)
            found = [lease.name for lease in renewer("default")._held()]
            if found == [*expected] or time.monotonic() > end:
                return found


def given_back(what: Any) -> None:
    """By who was not interrupted before it had it."""
    while True:
        try:
            what.release()
        except NotAcquired:
            return


@pytest.mark.parametrize("take", [acquires, blocks, aacquires, ablocks])
@pytest.mark.parametrize(
    "what", [LOCK, SHARED, REENTRANT, SEVERAL], ids=["lock", "shared", "reentrant", "several"]
)
def test_an_interrupted_taking_leaves_nothing_that_is_renewed(raw, what: Any, take: Any) -> None:
    count = 0
    what.inside = False
    for where in interruptions(lambda: take(what), *OURS, after=GRANTED):
        if what.inside:  # by then it had it; what interrupts a release is another test's
            break
        count += 1
        assert [] == kept(), where
        assert_free(what, where)
        raw.flushdb()  # what was granted and not noted ends with its lease
    given_back(what)
    assert count > 10


def assert_free(what: Any, where: str) -> None:
    with pytest.raises(NotAcquired):
        what.release()
        pytest.fail(f"something is noted after {where}")
