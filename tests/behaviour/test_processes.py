"""Leases across processes: forks, handles, and processes that stop or die."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from django_redis_sync import Lease, LeaseLost, Lock, Semaphore

from .both import both, eventually
from .child import SETTINGS, Child

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(3, 10)]


def test_forked_child_cannot_renew_or_release_its_parents_leases(view) -> None:
    with Child("fork_holding", "forked") as child:
        lines = child.ended()
    assert lines == [
        ["held", "False", "False"],
        ["mine", "True"],
        ["mine", "True"],  # after 4 s: the child has renewed its own lease of 3 s
        ["parent", "True", "True", "True", "True"],
        ["left", "False", "False"],
    ]
    assert view("forked").empty and view("forked-more").empty


def test_async_waits_compare_no_bytes_with_texts() -> None:
    """`python -bb`, with which some projects run their tests, makes such a comparison an error."""
    words = [sys.executable, "-bb", "-m", Child.module, "crowd", "strict", "9"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, f"python -bb ended async waits:\n{done.stderr}"
    assert "BytesWarning" not in done.stderr, f"a warning of python -bb:\n{done.stderr}"


@pytest.mark.promise(9)
@both
async def test_paused_holder_cannot_update_a_database_row_with_its_old_fence(io) -> None:
    """The test pauses a holder. When its lease has expired, the test itself acquires the lock."""
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


@pytest.mark.promise(15)
@both
async def test_handle_lets_another_process_adopt_and_release_a_permit(io, view) -> None:
    semaphore = Semaphore("handed", 1, blocking=False)
    with Child("adopt") as worker:
        async with io.entered(semaphore) as lease:
            handle = await io.do(lease, "detach", timeout=60)
        assert 30 < view("handed").ends_in <= 60
        assert await io.do(semaphore, "acquire") is None
        worker.send_line(handle)
        assert ["fence", str(lease.fence)] == worker.line()
        with pytest.raises(LeaseLost):
            await io.do(lease, "renew")
        assert await io.do(semaphore, "acquire") is None
        worker.send_line()
        assert ["released"] == worker.line()
    with pytest.raises(LeaseLost):  # as if a task queue delivered the handle twice
        await io.do(Lease, "from_handle", handle)
    await io.do(await io.do(semaphore, "acquire"), "detach", timeout=0.3)  # never adopted
    assert await io.do(Semaphore("handed", 1), "acquire", blocking_timeout=20)


# If waiters die or are paused, the rest of the queue is delayed by a few seconds in total.

#: Max seconds by which all dead or paused waiters together may delay the next waiter. Each lease
#: lasts ten minutes.
MOST = 10
VICTIMS = 3


@pytest.mark.promise(4)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=lambda what: what.name)
def test_dead_or_paused_waiters_delay_the_next_waiter_only_for_seconds(view, mode, what) -> None:
    name = view("x")
    with contextlib.ExitStack() as stack:

        def start(place: int) -> Child:
            child = stack.enter_context(Child("hold", "x", 600, "hard", mode))
            eventually(lambda: (name.holding, name.waiting) == (1, place))
            return child

        holder, *victims, last = [start(place) for place in range(VICTIMS + 2)]
        fence = int(holder.line()[1])
        os.kill(holder.process.pid, signal.SIGKILL)
        for victim in victims:
            os.kill(victim.process.pid, what)
        name.clear()  # end the lease of the killed holder
        cleared = name.now()
        granted = int(last.line()[1])
        assert granted > fence and granted / 1000 - cleared < MOST * 1000
        if what == signal.SIGSTOP:
            for victim in victims:
                os.kill(victim.process.pid, signal.SIGCONT)
            # The resumed victims wait again, and hold nothing.
            eventually(lambda: name.waiting == VICTIMS)
        assert name.holding == 1
