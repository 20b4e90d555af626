"""Statements of docs/articles.md that need several processes to prove.

`python -m tests.test_articles_processes ROLE ARGS` runs one process, in a role defined below.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from .behaviour import child
from .behaviour.child import Child, forked, reap, say

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parent.parent
MODES = pytest.mark.parametrize("mode", ["sync", "async"])
BUYERS, PROCESSES, TICKETS = 50, 5, 10


class RoleProcess(Child):
    """A process in a role of this module."""

    module = __name__


# Tests


@MODES
def test_lock_sells_each_ticket_once_to_buyers_in_several_processes(raw, mode: str) -> None:
    from .behaviour.watching import View

    stock = "test-sync-stock"
    raw.set(stock, TICKETS)
    try:
        with RoleProcess("sell", "tickets", mode, stock, PROCESSES, BUYERS // PROCESSES) as shop:
            printed = shop.ended()
        left = int(raw.get(stock))
    finally:
        raw.delete(stock)
    sold = [int(number) for word, number in printed if word == "sold"]
    assert list(range(1, TICKETS + 1)) == sold
    assert 0 == left
    words = [word for word, _ in printed]
    assert words.count("left") > 0  # buyers that stopped waiting or raised an error
    assert BUYERS == len(words)
    assert View(raw, "tickets").empty


@MODES
def test_update_with_an_older_fence_changes_nothing_after_a_pause(
    raw, tmp_path, redis_url, mode: str
) -> None:
    """The lease of the first process expires while the process is stopped."""
    database = tmp_path / "accounts.sqlite3"
    environment = {"DJANGO_REDIS_SYNC_TEST_DB": str(database)}
    with (
        RoleProcess("account", "paused", mode, 0.5, "a", "prepare", **environment) as first,
        RoleProcess("account", "paused", mode, 60, "b", "-", **environment) as second,
    ):
        assert ["ready"] == first.line() == second.line()
        first.send_line()
        fence = int(first.line()[1])
        os.kill(first.process.pid, signal.SIGSTOP)
        second.send_line()
        newer = int(second.line()[1])
        assert newer > fence
        second.send_line()
        assert [["wrote", "1"], ["left", "well"]] == [second.line(), second.line()]
        os.kill(first.process.pid, signal.SIGCONT)
        first.send_line()
        assert [["wrote", "0"], ["left", "LeaseLost"]] == [first.line(), first.line()]
    with contextlib.closing(sqlite3.connect(database)) as file:
        assert [(newer, "b")] == file.execute("SELECT fence, owner FROM account").fetchall()


@MODES
def test_handle_lets_another_process_adopt_and_release_a_permit(raw, mode: str) -> None:
    from django_redis_sync import LeaseLost, Semaphore

    from .behaviour.watching import View

    sem, view = Semaphore("handed", 1, blocking=False), View(raw, "handed")
    with RoleProcess("finish", mode) as worker:
        with sem as lease:
            handle = lease.detach(timeout=60)
        assert 30 < view.ends_in <= 60
        assert sem.acquire() is None
        worker.send_line(handle)
        assert ["adopted", str(lease.fence)] == worker.line()
        with pytest.raises(LeaseLost):
            lease.renew()
        assert sem.acquire() is None
        worker.send_line()
        assert ["released"] == worker.line()
        worker.send_line(handle)  # a queue may deliver a message twice
        assert ["rejected", "LeaseLost"] == worker.line()
    assert sem.acquire()


@MODES
def test_permit_of_an_unadopted_handle_expires(raw, mode: str) -> None:
    from django_redis_sync import Lock

    async def work(io: Any) -> None:
        await io.do(await io.do(Lock("dropped"), "acquire"), "detach", timeout=0.3)
        assert await io.do(Lock("dropped"), "acquire", blocking_timeout=20)

    _run_one(mode, work)


@MODES
def test_min_hold_lets_one_of_ten_processes_run_a_periodic_job(raw, mode: str) -> None:
    from .behaviour.watching import View

    with RoleProcess("nightly", "nightly", mode, 10) as fleet:
        printed = fleet.ended()
    assert ["None"] * 9 + ["ran"] == sorted(word for (word,) in printed)
    assert 30 < View(raw, "nightly").ends_in <= 60  # retained, though the job has ended


@MODES
def test_permanent_lease_of_a_crashed_holder_is_shown_and_can_be_cleared(raw, mode: str) -> None:
    import io

    from django.core.management import call_command

    from django_redis_sync import Lock
    from django_redis_sync.operators import doctor

    with RoleProcess("hold_for_ever", "crashed", mode) as holder:
        assert ["held"] == holder.line()
    lock = Lock("crashed", blocking=False)
    assert lock.acquire() is None
    (row,) = lock.status().holders
    assert row.permanent
    shown = io.StringIO()
    call_command("locks", "status", "crashed", stdout=shown, no_color=True)
    assert "permanent" in shown.getvalue()
    found = [finding for finding in doctor.examine() if finding.id == "permanent"]
    assert [True] == ["crashed" in str(finding) for finding in found]
    call_command("locks", "clear", "crashed", "--no-input", stdout=io.StringIO())
    assert lock.acquire()


def test_reentrant_lock_is_not_owned_by_a_forked_child(raw) -> None:
    with RoleProcess("fork_inside") as child_and_parent:
        assert [["child", "None"], ["parent", "True"]] == child_and_parent.ended()


# Roles


def _run_one(mode: str, work: Callable[[Any], Awaitable[None]]) -> None:
    """Run `work(io)` in sync or async code."""
    from .behaviour.both import Async, Sync

    io = Sync() if mode == "sync" else Async()
    io.run(work(io))


def _threads(count: int, work: Callable[[int], Any]) -> None:
    crowd = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()


def _run(mode: str, count: int, work: Callable[[Any, int], Awaitable[None]]) -> None:
    """Run `work(io, number)` in `count` threads, or tasks."""
    from .behaviour.both import Async, Sync

    if mode == "sync":
        _threads(count, lambda number: Sync().run(work(Sync(), number)))
        return

    async def tasks() -> None:
        await asyncio.gather(*[work(Async(), number) for number in range(count)])

    asyncio.run(tasks())


def sell(name: str, mode: str, stock: str, processes: int, buyers: int) -> None:
    """Run buyers that read the stock, pause, and write the stock under the lock.

    A fifth of the buyers hardly waits for the lock, and another fifth raises an error.
    """
    import redis

    from django_redis_sync import Lock

    url = os.environ["DJANGO_REDIS_SYNC_TEST_URL"]

    def process(index: int) -> None:
        shop = redis.Redis.from_url(url)

        async def buyer(io: Any, number: int) -> None:
            chance = random.Random(index * 100 + number)
            lock = Lock(name, timeout=5, renew=True)
            if number % 5 == 0 and await io.do(lock, "acquire", blocking_timeout=0.001) is None:
                return say("left", number)
            if number % 5 != 0:
                await io.do(lock, "acquire")
            try:
                if number % 5 == 1:
                    raise LookupError("no money")
                left = int(shop.get(stock))
                await io.sleep(chance.random() / 200)
                if left > 0:
                    shop.set(stock, left - 1)
                    return say("sold", 11 - left)
                say("late", number)
            except LookupError:
                say("left", number)
            finally:
                await io.do(lock, "release")

        _run(mode, buyers, buyer)

    reap(forked(processes, process))


def account(name: str, mode: str, timeout: float, owner: str, prepare: str) -> None:
    """Take the lock after a line on stdin, and write with its fence after a second line."""
    from django.db import connection, models

    from django_redis_sync import LeaseLost, Lock

    class Account(models.Model):
        owner = models.CharField(max_length=9)
        fence = models.BigIntegerField(default=0)

        class Meta:
            app_label, db_table = "articles", "account"

    if prepare == "prepare":
        with connection.schema_editor() as editor:
            editor.create_model(Account)
        Account.objects.create(pk=1, owner="nobody")
    connection.close()
    say("ready")
    sys.stdin.readline()

    def write(fence: int) -> int:
        return Account.objects.filter(pk=1, fence__lte=fence).update(owner=owner, fence=fence)

    async def work(io: Any) -> None:
        lock = Lock(name, timeout=timeout)
        try:
            async with io.entered(lock) as lease:
                say("fence", lease.fence)
                sys.stdin.readline()
                say(
                    "wrote",
                    await asyncio.to_thread(write, lease.fence)
                    if mode == "async"
                    else write(lease.fence),
                )
        except LeaseLost as lost:
            say("left", type(lost).__name__)
        else:
            say("left", "well")

    _run_one(mode, work)


def finish(mode: str) -> None:
    """Adopt a permit from its handle, release it, and try to adopt it again."""
    from django_redis_sync import Lease, LeaseLost

    async def work(io: Any) -> None:
        lease = await io.do(Lease, "from_handle", sys.stdin.readline().strip())
        async with io.entered(lease):
            say("adopted", lease.fence)
            sys.stdin.readline()
        say("released")
        try:
            await io.do(Lease, "from_handle", sys.stdin.readline().strip())
        except LeaseLost:
            say("rejected", "LeaseLost")

    _run_one(mode, work)


def nightly(name: str, mode: str, hosts: int) -> None:
    """Start the same periodic job in `hosts` processes at once."""
    from django_redis_sync import synchronized

    @synchronized(name, on_full="skip", min_hold=60)
    def job() -> str:
        return "ran"

    @synchronized(name, on_full="skip", min_hold=60)
    async def ajob() -> str:
        return "ran"

    reap(forked(hosts, lambda _: say(job() if mode == "sync" else asyncio.run(ajob()))))


def hold_for_ever(name: str, mode: str) -> None:
    """Hold a permanent lease until the process is killed."""
    import math

    from django_redis_sync import Lock

    lock = Lock(name, timeout=math.inf)
    lease = lock.acquire() if mode == "sync" else asyncio.run(lock.aacquire())
    time.sleep(0.5)  # until the name is in the registry
    say("held" if lease else "rejected")
    time.sleep(60)


def fork_inside() -> None:
    """Hold a reentrant lock and fork a child that tries to acquire the lock."""
    from django_redis_sync import RLock

    with RLock("forked") as lease:
        pid = os.fork()
        if pid == 0:
            say("child", RLock("forked").acquire(blocking_timeout=0.2))
            os._exit(0)
        os.waitpid(pid, 0)
        say("parent", lease.owned() and RLock("forked").acquire() is lease)


if __name__ == "__main__":
    roles = (sell, account, finish, nightly, hold_for_ever, fork_inside)
    child.ROLES = {role.__name__: role for role in roles}
    child.main()
