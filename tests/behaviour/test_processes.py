"""Leases across processes: forks, handles, and a job that runs once in a fleet."""

from __future__ import annotations

import os
import signal

import pytest

from django_redis_sync import Lock
from django_redis_sync.operators.names import names_in_use

from .both import both, until
from .child import Child
from .watching import View

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(3, 10)]


def test_forked_child_cannot_renew_or_release_its_parents_leases(view) -> None:
    with Child("fork_holding", "forked") as child:
        lines = child.ended()
    words = ("release", "renew", "detach", "check", "lock", "sem")
    assert [["lost", word] for word in words] == lines[: len(words)]
    assert lines[len(words) :] == [
        ["held", "False", "False"],
        ["mine", "True"],
        ["mine", "True"],  # after its lease duration: the child's renewal thread renewed it
        ["parent", "True", "True", "True", "True"],
        ["left", "False", "False"],
    ]
    assert view("forked").empty and view("forked-more").empty


@both
async def test_another_process_can_adopt_and_release_a_handle(io, view) -> None:
    async with io.entered(Lock("job", timeout=5, renew=True)) as lease:
        handle = await io.do(lease, "detach", 30)
    with Child("adopt") as worker:
        worker.send_line(handle)
        assert ["fence", str(lease.fence)] == worker.line()
        assert not lease.held
        assert await io.do(Lock("job", blocking=False), "acquire") is None
        await until(io, lambda: 0 < view("job").ends_in <= 5)  # its own timeout again
        worker.send_line()
        assert worker.line() == ["released"]
    assert view("job").empty


def test_min_hold_lets_one_of_ten_processes_run_a_periodic_job(view) -> None:
    with Child("once", "nightly", 10) as fleet:
        lines = fleet.ended()
    assert [words[0] for words in lines] == ["ran"]
    # The job has ended, and the name is still taken.
    assert 30 < view("nightly").ends_in <= 60


def test_names_of_a_process_that_exits_at_once_are_listed(raw) -> None:
    for run in range(4):
        with Child("brief", f"brief-{run}", 5) as child:
            child.ended()
        listed = names_in_use(pattern=f"brief-{run}-*")
        assert [(f"brief-{run}-{n}", None) for n in range(5)] == sorted(listed)


def test_paused_process_does_not_hold_its_expired_lease(raw) -> None:
    with Child("hold", "paused", 0.6, "hard") as holder:
        fence = int(holder.line()[1])
        os.kill(holder.process.pid, signal.SIGSTOP)
        with Lock("paused").acquire(blocking_timeout=20) as lease:
            assert lease.fence > fence  # a storage that checks fences rejects the old one
            os.kill(holder.process.pid, signal.SIGCONT)
            holder.send_line()
            assert holder.line() == ["held", "False"]
            assert lease.owned()


def test_permanent_lease_outlives_its_crashed_holder(raw) -> None:
    view = View(raw, "crashed")
    with Child("hold", "crashed", "inf", "hard") as holder:
        holder.line()
    assert Lock("crashed").acquire(blocking_timeout=0.2) is None
    view.clear()
    assert Lock("crashed", blocking=False).acquire()
