"""Statements of docs/articles.md that need several processes to prove.

`python -m tests.test_articles_processes ROLE ARGS` runs one process, in a role defined below.
"""

from __future__ import annotations

import contextlib
import io as streams
import math
import os
import random
import signal
import sqlite3

import pytest
import redis
from django.core.management import call_command

from django_redis_sync import Lease, LeaseLost, Lock, RLock, Semaphore
from django_redis_sync.operators import doctor

from .behaviour import child
from .behaviour.both import Async, Sync, both, eventually
from .behaviour.child import Child, forked, reap, say
from .behaviour.watching import View

pytestmark = pytest.mark.tools

BUYERS, PROCESSES, TICKETS = 50, 5, 10


class RoleProcess(Child):
    """A process in a role of this module."""

    module = __name__


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_lock_sells_each_ticket_once_to_buyers_in_several_processes(raw, mode: str) -> None:
    stock = "test-sync-stock"
    raw.set(stock, TICKETS)
    try:
        with RoleProcess("sell", "tickets", mode, stock, PROCESSES, BUYERS // PROCESSES) as shop:
            printed = shop.ended()
        assert 0 == int(raw.get(stock))
    finally:
        raw.delete(stock)
    assert [*range(1, TICKETS + 1)] == [int(number) for word, number in printed if word == "sold"]
    words = [word for word, _ in printed]
    assert 0 < words.count("left"), "no buyer stopped waiting or raised an error"
    assert BUYERS == len(words)
    assert View(raw, "tickets").empty


@both
async def test_update_with_an_older_fence_changes_nothing_after_a_pause(io, raw) -> None:
    """The lease of a stopped process expires, and then this process gets the lock."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute("CREATE TABLE account (owner, fence)")
    database.execute("INSERT INTO account VALUES ('nobody', 0)")

    def write(owner: str, fence: int) -> int:
        sql = "UPDATE account SET owner = ?, fence = ? WHERE fence <= ?"
        return database.execute(sql, [owner, fence, fence]).rowcount

    with contextlib.closing(database), Child("hold", "paused", 0.5, "hard") as first:
        fence = int(first.line()[1])
        os.kill(first.process.pid, signal.SIGSTOP)
        second = await io.do(Lock("paused", timeout=60), "acquire", blocking_timeout=20)
        assert second.fence > fence
        assert [1, 0] == [write("second", second.fence), write("first", fence)]
        os.kill(first.process.pid, signal.SIGCONT)
        first.send_line()
        assert ["held", "False"] == first.line()
        assert ("second", second.fence) == database.execute("SELECT * FROM account").fetchone()


@both
async def test_handle_lets_another_process_adopt_and_release_a_permit(io, raw) -> None:
    sem, view = Semaphore("handed", 1, blocking=False), View(raw, "handed")
    with Child("adopt") as worker:
        async with io.entered(sem) as lease:
            handle = await io.do(lease, "detach", timeout=60)
        assert 30 < view.ends_in <= 60
        assert await io.do(sem, "acquire") is None
        worker.send_line(handle)
        assert ["fence", str(lease.fence)] == worker.line()
        with pytest.raises(LeaseLost):
            await io.do(lease, "renew")
        assert await io.do(sem, "acquire") is None
        worker.send_line()
        assert ["released"] == worker.line()
    with pytest.raises(LeaseLost):  # a task queue delivers the handle twice
        await io.do(Lease, "from_handle", handle)
    await io.do(await io.do(sem, "acquire"), "detach", timeout=0.3)  # this handle is never adopted
    assert await io.do(Semaphore("handed", 1), "acquire", blocking_timeout=20)


def test_permanent_lease_of_a_crashed_holder_is_shown_and_can_be_cleared(raw) -> None:
    def shown() -> str:
        text = streams.StringIO()
        call_command("locks", "status", "crashed", stdout=text, no_color=True)
        return text.getvalue()

    with Child("hold", "crashed", math.inf, "-") as holder:
        assert "fence" == holder.line()[0]
        eventually(lambda: "permanent" in shown())
    lock = Lock("crashed", blocking=False)
    assert lock.acquire() is None
    (row,) = lock.status().holders
    assert row.permanent
    found = [finding for finding in doctor.examine() if finding.id == "permanent"]
    assert [True] == ["crashed" in str(finding) for finding in found]
    call_command("locks", "clear", "crashed", "--no-input", stdout=streams.StringIO())
    assert lock.acquire()


def test_reentrant_lock_is_not_owned_by_a_forked_child(raw) -> None:
    with RoleProcess("fork_inside") as child_and_parent:
        assert [["child", "None"], ["parent", "True"]] == child_and_parent.ended()


def sell(name: str, mode: str, stock: str, processes: int, buyers: int) -> None:
    """Run buyers that read the stock, pause, and write the stock under the lock. A fifth of the
    buyers hardly waits for the lock. Another fifth raises an error."""
    io = Sync() if mode == "sync" else Async()

    def process(index: int) -> None:
        shop = redis.Redis.from_url(os.environ["DJANGO_REDIS_SYNC_TEST_URL"])

        async def buyer(number: int) -> None:
            chance = random.Random(index * 100 + number)
            lock, wait = Lock(name, timeout=5, renew=True), None if number % 5 else 0.001
            if await io.do(lock, "acquire", blocking_timeout=wait) is None:
                return say("left", number)
            try:
                if number % 5 == 1:
                    raise LookupError("no money")
                left = int(shop.get(stock))
                await io.sleep(chance.random() / 200)
                if left > 0:
                    shop.set(stock, left - 1)
                say("sold" if left > 0 else "late", 11 - left)
            except LookupError:
                say("left", number)
            finally:
                await io.do(lock, "release")

        async def crowd() -> None:
            await io.gather(*map(buyer, range(buyers)))

        io.run(crowd())

    reap(forked(processes, process))


def fork_inside() -> None:
    """Hold a reentrant lock and fork a child that tries to acquire the lock."""
    with RLock("forked") as lease:
        pid = os.fork()
        if pid == 0:
            say("child", RLock("forked").acquire(blocking_timeout=0.2))
            os._exit(0)
        os.waitpid(pid, 0)
        say("parent", lease.owned() and RLock("forked").acquire() is lease)


if __name__ == "__main__":
    child.ROLES = {"sell": sell, "fork_inside": fork_inside}
    child.main()
