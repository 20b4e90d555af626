"""The record of a job of a task queue: two deliveries of a job never run at the same time, and a
delivery must not run only if the job has ended or an operator cleared it."""

from __future__ import annotations

import pytest

from django_redis_sync.protocol.scripts import CONSTANTS as C
from tests.protocol.test_scripts import Name

pytestmark = pytest.mark.promise(33)
JOB = "5f" * 12


@pytest.fixture
def x() -> Name:
    return Name(keep=5)


@pytest.fixture(params=["compact", "expanded"])
def y(request: pytest.FixtureRequest, x: Name) -> Name:
    """A name. If it has another holder, it is in the expanded state."""
    if request.param == "expanded":
        x.hold("other", limit=9, lease=9_000_000)
    return x


def say(x: Name, verb: str, token: str = "", **said: object) -> str:
    return " ".join(x.do(verb, token, **said))


def begin(x: Name, token: str, ms: int = 5000) -> str:
    x.hold(token, limit=9)
    return x.renew(token, how="begin", ms=ms, nth=1, job=JOB)


def end(x: Name, token: str) -> None:
    assert "ok" == x.end(token, id=JOB)


def note(x: Name, how: str) -> str:
    return say(x, "job", how=how, id=JOB)


def test_second_delivery_must_not_begin_while_the_first_runs(y: Name) -> None:
    assert "ok 5000" == begin(y, "a")
    assert "runs" == begin(y, "b")
    assert "ok 5000" == y.renew("a", how="begin", ms=5000, nth=1, job=JOB)  # the reply was lost


def test_second_delivery_begins_after_the_lease_of_the_first_has_expired(y: Name) -> None:
    begin(y, "a", 500)
    y.pass_time(501)
    assert "ok 5000" == begin(y, "b")


@pytest.mark.parametrize("how", ["set", "adopt"])
def test_renewal_keeps_the_record_of_a_run(y: Name, how: str) -> None:
    begin(y, "a", 500)
    for nth in range(2, 12):
        y.pass_time(400)
        assert "ok 9000" == y.renew("a", how=how, ms=9000, nth=nth, known=nth, job=JOB)
        y.pass_time(8000)
    assert "runs" == begin(y, "b")


def test_job_runs_again_after_its_end_if_no_copy_was_seen(y: Name) -> None:
    """The same id may be used for a new job."""
    begin(y, "a")
    end(y, "a")
    assert "ok" == note(y, "ended")
    assert "ok 5000" == begin(y, "b")


@pytest.mark.parametrize("seen", ["flag", "second", "before"])
def test_copy_must_not_run_after_the_task_queue_has_finished_with_the_job(
    y: Name, seen: str
) -> None:
    if seen == "before":
        assert "ok" == note(y, "seen")
    begin(y, "a")
    if seen == "flag":
        assert "ok" == note(y, "seen")
    elif seen == "second":
        assert "runs" == begin(y, "b")
    end(y, "a")
    # The worker may be killed now, and then the job has to run again.
    assert "runs" == begin(y, "c")
    assert "ok" == note(y, "ended")
    assert "ended" == begin(y, "d") == note(y, "seen")
    y.pass_time(C["NOTED"] + 1)
    assert "ok 5000" == begin(y, "e")


def test_copy_runs_if_the_worker_was_killed_after_the_release(y: Name) -> None:
    note(y, "seen")
    begin(y, "a")
    end(y, "a")
    y.pass_time(C["ENDING"] + 1)
    assert "ok 5000" == begin(y, "b")


def test_end_of_a_copy_does_not_end_the_lease_of_another_run(y: Name) -> None:
    begin(y, "a", 500)
    y.pass_time(501)
    note(y, "seen")
    begin(y, "b")
    note(y, "ended")
    assert "ok 7000" == y.renew("b", how="set", ms=7000, nth=2, job=JOB)
    end(y, "b")


def test_cleared_waiter_of_a_job_never_runs(x: Name) -> None:
    x.hold("a", limit=1)
    x.wait("w", limit=1, label=f'{{"job":"{JOB}"}}')
    assert "ok" == say(x, "clear", "w")
    x.end("a")
    assert "cleared" == begin(x, "b") == note(x, "seen")


def test_label_of_a_caller_can_not_clear_a_job(x: Name) -> None:
    x.hold("a", limit=1)
    x.wait("w", limit=1, label=f'{{"label":"\\"job\\":\\"{JOB}\\""}}')
    say(x, "clear", "w")
    x.end("a")
    assert "ok 5000" == begin(x, "b")


def test_held_jobs_count_as_waiters_for_callers_but_not_for_jobs(x: Name) -> None:
    x.hold("a", limit=1)
    assert "ok" == say(x, "job", how="held", id="w1", held=4)
    assert "ok" == say(x, "job", how="held", id="w2", held=2)
    *_, waiting, _, _, workers = x.do("inspect")
    assert (6, {("w1", "4"), ("w2", "2")}) == (
        int(waiting),
        {*zip(workers[::2], workers[1::2], strict=True)},
    )
    assert "no full" == x.ask("b", "wait", limit=1, max_waiters=6)[:7]
    assert "wait" == x.ask("c", "wait", limit=1, max_waiters=7)[:4]
    assert "wait" == x.ask("d", "wait", limit=1, max_waiters=-2)[:4]
    assert "no full" == x.ask("e", "wait", limit=1, max_waiters=-2)[:7]


def test_number_of_held_jobs_is_forgotten_if_the_worker_falls_silent(x: Name) -> None:
    x.hold("a", limit=1)
    say(x, "job", how="held", id="w1", held=4)
    x.pass_time(C["HELD_LIFE"] - 1)
    say(x, "job", how="held", id="w2", held=1)
    x.pass_time(1)
    assert ["w2", "1"] == x.do("inspect")[-1]
    say(x, "job", how="held", id="w2", held=0)
    assert [] == x.do("inspect")[-1]


def test_jobs_are_noted_while_memory_is_full(y: Name) -> None:
    y.hold("a", limit=3)
    y.full = True
    assert "ok 5000" == y.renew("a", how="begin", ms=5000, nth=1, job=JOB)
    assert "ok" == note(y, "seen")
    end(y, "a")
    assert "ok" == note(y, "ended")


def test_all_keys_of_jobs_expire(x: Name) -> None:
    note(x, "seen")
    begin(x, "a")
    end(x, "a")
    note(x, "ended")
    say(x, "job", how="held", id="w", held=3)
    x.pass_time(C["NOTED"] + 1)
    assert [] == x.left_keys()
