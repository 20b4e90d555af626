"""A cancelled asyncio task leaves no holder and no waiter, at any of its awaits."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from django_redis_sync import Lock
from tests.support.journal import journalling

from .both import Async, until
from .watching import count_of, shown

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(6)]

#: A number that is greater than the number of awaits in any scenario.
MANY = 40


def at_once(loop: Any, future: Any, cancel: Callable[[], Any]) -> None:
    """Cancel the task just before it suspends."""
    cancel()


def soon(loop: Any, future: Any, cancel: Callable[[], Any]) -> None:
    """Cancel the task as soon as it has suspended."""
    loop.call_soon(cancel)


def as_it_completes(loop: Any, future: Any, cancel: Callable[[], Any]) -> None:
    """Cancel the task when the future that it awaits is done, but before the task continues."""
    if future is None:  # the task waits for no future, as in sleep(0)
        loop.call_soon(cancel)
    else:
        future.add_done_callback(lambda _: cancel())


class Stepped:
    """An awaitable that runs the coroutine `body`. At the k-th suspension of `body`, and at the
    next `times` - 1 suspensions, it calls `how` to cancel the task."""

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
    await (await lock.aacquire()).arelease()  # type: ignore[union-attr]


async def in_a_block(lock: Lock) -> None:
    async with lock as lease:
        await asyncio.sleep(0)
        lease.check()


async def all_methods(lock: Lock) -> None:
    async with lock as lease:
        await lease.arenew()
        await lease.aextend(5)
        await lease.aowned()
        await lock.alocked()


async def cancelled_at(
    k: int, scenario: Any, how: Any, times: int, view: Any, queue: bool
) -> bool | None:
    """Run a scenario, and cancel its task at the k-th await. Return True if the task ended as
    cancelled, and False if it ended otherwise. Return None if the scenario has fewer than k awaits.

    `how`, `times`: see `Stepped`. `view`: a function that returns the View of a name. `queue`: True
    if another holder has the lock first, so that the task has to wait."""
    name = f"{scenario.__name__}-{k}"
    mine, holder = view(name), Lock(name, thread_local=False)
    if queue:
        assert await holder.aacquire()
    stepped = Stepped(scenario(Lock(name)), k, how, times)

    async def run() -> None:
        await stepped

    task = asyncio.create_task(run())
    if queue:
        while not mine.waiting and not task.done():
            await asyncio.sleep(0)
        if not task.done() and k > 2:
            await asyncio.sleep(0.002)  # after this, the task waits for its wake-up
        await holder.arelease()
    await asyncio.wait([task], timeout=20)
    assert task.done(), f"the task never ended after a cancellation at await {k}"
    if not task.cancelled():
        task.result()
    await until(Async(), lambda: mine.empty, 5)
    # No holder and no waiter is left, so the next caller gets the lock without waiting.
    lease = await Lock(name, blocking=False).aacquire()
    assert lease, f"a cancellation at await {k} left a holder or waiter"
    await lease.arelease()
    return task.cancelled() if stepped.suspended >= k else None


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("how", [at_once, soon, as_it_completes], ids=lambda how: how.__name__)
@pytest.mark.parametrize(
    ("scenario", "queue"),
    [
        (uncontended, False),
        (uncontended, True),
        (in_a_block, True),
        (all_methods, False),
    ],
    ids=["alone", "in the queue", "in a block after the queue", "all methods"],
)
def test_task_cancelled_at_any_await_leaves_no_holder_and_no_waiter(
    redis_url: str, view: Any, scenario: Any, queue: bool, how: Any, times: int
) -> None:
    async def main() -> list[bool]:
        cancelled = []
        for k in range(1, MANY):
            one = await cancelled_at(k, scenario, how, times, view, queue)
            if one is None:
                return cancelled
            cancelled.append(one)
        raise AssertionError("too many awaits")

    with journalling(redis_url) as journal:
        cancelled = asyncio.run(main())
        assert len(cancelled) > 1 and any(cancelled)
        time.sleep(0.3)  # if another thread repeats a release, it does so within this time
        journal.check()
        replies = [(entry.argv[0], entry.reply[0]) for entry in journal if entry.verb == "release"]
        answered = Counter(token for token, reply in replies if reply == "ok")
        again = [token for token, reply in replies if token in answered and reply != "ok"]
        assert 0 == sum(count_of(name, "lost") for name in shown()), "a lease was counted as lost"
        assert ([], {1}) == (again, {*answered.values()}), "an answered release was sent again"
