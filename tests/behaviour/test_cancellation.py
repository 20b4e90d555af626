"""A cancelled asyncio task leaves no holder and no waiter, at any of its awaits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest
import redis

from django_redis_sync import Lock
from tests.support.journal import journalling

from .watching import View

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(6)]

#: More awaits than any scenario has.
MANY = 40


def at_once(loop: Any, future: Any, cancel: Callable[[], Any]) -> None:
    """Cancel before the task suspends."""
    cancel()


def soon(loop: Any, future: Any, cancel: Callable[[], Any]) -> None:
    """Cancel while the request is being sent."""
    loop.call_soon(cancel)


def as_it_completes(loop: Any, future: Any, cancel: Callable[[], Any]) -> None:
    """Cancel when the reply has arrived, and the task has not continued yet."""
    if future is None:  # a bare yield has no reply
        loop.call_soon(cancel)
    else:
        future.add_done_callback(lambda _: cancel())


class Stepped:
    """Await a coroutine, and cancel its task at the k-th and the next `times` - 1 suspensions."""

    def __init__(self, body: Coroutine[Any, Any, Any], k: int, how: Any, times: int) -> None:
        self.body, self.k, self.how, self.times = body, k, how, times
        self.suspended = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        steps = self.body.__await__()
        throwing: BaseException | None = None
        while True:
            try:
                future = steps.send(None) if throwing is None else steps.throw(throwing)
            except StopIteration as stop:
                return stop.value
            self.suspended += 1
            if self.k <= self.suspended < self.k + self.times:
                blocking = getattr(future, "_asyncio_future_blocking", None)
                self.how(loop, future if blocking else None, task.cancel)
            throwing = None
            try:
                yield future
            except BaseException as error:
                throwing = error


async def uncontended(lock: Lock) -> None:
    lease = await lock.aacquire()
    assert lease
    await lease.arelease()


async def in_a_block(lock: Lock) -> None:
    async with lock as lease:
        await asyncio.sleep(0)
        lease.check()
        await lease.arenew()


async def in_a_block_that_waits(lock: Lock) -> None:
    async with lock:
        await asyncio.sleep(0)


async def asking(lock: Lock) -> None:
    async with lock as lease:
        await lease.aextend(5)
        await lease.aowned()
        await lock.alocked()


async def cancel_everywhere(scenario: Any, how: Any, times: int, url: str, contended: bool) -> int:
    """Run a scenario with a cancellation at each of its awaits, and return the number of runs."""
    cancelled = 0
    with redis.Redis.from_url(url) as client:
        for k in range(1, MANY):
            name = f"{scenario.__name__}-{k}"
            view, holder = View(client, name), Lock(name, thread_local=False)
            if contended:
                assert await holder.aacquire()
            stepped = Stepped(scenario(Lock(name)), k, how, times)

            async def run(stepped: Stepped = stepped) -> None:
                await stepped

            task = asyncio.create_task(run())
            if contended:
                while not view.waiting and not task.done():
                    await asyncio.sleep(0)
                if not task.done() and k > 2:
                    await asyncio.sleep(0.002)  # until the task waits in the queue
                await holder.arelease()
            await asyncio.wait([task], timeout=20)
            assert task.done(), f"cancelled at await {k}, it never ended"
            cancelled += task.cancelled()
            if not task.cancelled():
                task.result()
            for _ in range(300):
                if view.empty:
                    break
                await asyncio.sleep(0.01)
            assert (view.holding, view.waiting) == (0, 0), f"left behind at await {k}"
            # The next caller gets the permit at once.
            lease = await Lock(name, blocking=False).aacquire()
            assert lease
            await lease.arelease()
            if stepped.suspended < k:
                assert cancelled
                return k
    raise AssertionError("too many awaits")


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("how", [at_once, soon, as_it_completes], ids=lambda how: how.__name__)
@pytest.mark.parametrize(
    ("scenario", "contended"),
    [
        (uncontended, False),
        (uncontended, True),
        (in_a_block, False),
        (in_a_block_that_waits, True),
        (asking, False),
    ],
    ids=["alone", "in the queue", "in a block", "in a block after the queue", "more methods"],
)
def test_task_cancelled_at_any_await_leaves_no_holder_and_no_waiter(
    redis_url: str, scenario: Any, contended: bool, how: Any, times: int
) -> None:
    with journalling(redis_url) as journal:
        count = asyncio.run(cancel_everywhere(scenario, how, times, redis_url, contended))
        assert count > 2
        time.sleep(0.3)  # another thread would send a release again
        journal.check()
        assert [] == sent_again(journal), "an answered release was sent again"


def sent_again(journal: Any) -> list[str]:
    """Return the tokens that were released again after a release had been answered."""
    answered, again = set[str](), []
    for entry in journal:
        if entry.verb == "release":
            token = entry.argv[0]
            if token in answered:
                again.append(token)
            if entry.reply[0] == "ok":
                answered.add(token)
    return again


def test_event_loop_that_ends_leaves_no_holder_and_no_waiter(redis_url: str, view) -> None:
    """asyncio.run cancels all tasks when its main coroutine ends."""

    async def holder() -> None:
        async with Lock("ending"):
            await asyncio.sleep(60)

    async def main() -> None:
        tasks = [asyncio.create_task(holder()) for _ in range(5)]
        while view("ending").waiting < 4:
            await asyncio.sleep(0.01)
        assert len(tasks) == 5

    asyncio.run(main())
    assert view("ending").empty


def test_waiter_cancelled_by_wait_for_leaves_the_queue(view) -> None:
    async def main() -> None:
        first = await Lock("limited").aacquire()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Lock("limited").aacquire(), 0.1)
        assert view("limited").waiting == 0
        await first.arelease()

    asyncio.run(main())
    assert view("limited").empty


def test_each_event_loop_gets_its_own_client(view) -> None:
    async def main() -> None:
        async with Lock("loops") as lease:
            assert lease.held
        assert await Lock("loops").aacquire(blocking_timeout=1)

    async def fails() -> None:
        assert await Lock("loops").aacquire(blocking_timeout=0.05) is None

    asyncio.run(main())
    asyncio.run(fails())
    view("loops").clear()
    asyncio.run(main())
