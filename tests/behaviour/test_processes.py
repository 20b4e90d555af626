"""Leases across processes: forks, handles, and a job that runs once in a fleet."""

from __future__ import annotations

import pytest

from django_redis_sync import LeaseLost, Lock
from django_redis_sync.operators.names import names_in_use

from .both import both, until
from .child import Child
from .watching import View

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(3, 10)]


def test_a_forked_child_neither_renews_nor_releases_its_parents_leases(view) -> None:
    with Child("fork_holding", "forked") as child:
        said = child.ended()
    words = ("release", "renew", "detach", "check", "lock", "sem")
    assert [["lost", word] for word in words] == said[: len(words)]
    assert said[len(words) :] == [
        ["held", "False", "False"],
        ["mine", "True"],
        ["mine", "True"],  # longer than its lease: the child's own keeper renewed it
        ["parent", "True", "True", "True", "True"],
        ["left", "False", "False"],
    ]
    assert view("forked").empty and view("forked-more").empty


@both
async def test_another_process_adopts_a_handle_and_releases_it(io, view) -> None:
    async with io.entered(Lock("job", timeout=5, renew=True)) as lease:
        handle = await io.do(lease, "detach", 30)
    with Child("adopt") as worker:
        worker.run_callbacks(handle)
        assert ["fence", str(lease.fence)] == worker.line()
        assert not lease.held
        assert await io.do(Lock("job", blocking=False), "acquire") is None
        await until(io, lambda: 0 < view("job").ends_in <= 5)  # its own timeout again
        worker.run_callbacks()
        assert worker.line() == ["released"]
    assert view("job").empty


def test_of_ten_processes_one_runs_the_periodic_job(view) -> None:
    with Child("once", "nightly", 10) as fleet:
        said = fleet.ended()
    assert [words[0] for words in said] == ["ran"]
    # It ended long ago, and the name is still taken.
    assert 30 < view("nightly").ends_in <= 60


def test_names_of_a_process_that_ends_at_once_are_listed(raw) -> None:
    for run in range(4):
        with Child("brief", f"brief-{run}", 5) as child:
            child.ended()
        listed = names_in_use(pattern=f"brief-{run}-*")
        assert [(f"brief-{run}-{n}", None) for n in range(5)] == sorted(listed)


def test_a_paused_holder_learns_that_its_time_went_by(raw) -> None:
    import os
    import signal

    with Child("hold", "paused", 0.6, "hard") as holder:
        fence = int(holder.line()[1])
        os.kill(holder.process.pid, signal.SIGSTOP)
        with Lock("paused").acquire(blocking_timeout=20) as lease:
            assert lease.fence > fence  # a store that looks at fences refuses the old one
            os.kill(holder.process.pid, signal.SIGCONT)
            holder.run_callbacks()
            assert holder.line() == ["held", "False"]
            assert lease.owned()


def test_a_permanent_lease_outlives_its_crashed_holder(raw) -> None:
    view = View(raw, "crashed")
    with Child("hold", "crashed", "inf", "hard") as holder:
        holder.line()
    assert Lock("crashed").acquire(blocking_timeout=0.2) is None
    view.clear()
    assert Lock("crashed", blocking=False).acquire()


@both
async def test_a_handle_works_once_it_is_released_no_more(io) -> None:
    from django_redis_sync import Lease

    handle = await io.do(await io.do(Lock("spent"), "acquire"), "detach")
    first = await io.do(Lease, "from_handle", handle)
    await io.do(first, "release")
    with pytest.raises(LeaseLost):
        await io.do(Lease, "from_handle", handle)
