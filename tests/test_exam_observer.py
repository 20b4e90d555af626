"""The exam's observer records events that workers report, and events that it detects itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exam.observer import Event, Observer, Reporter

from .behaviour.both import eventually

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc"),
]


@pytest.fixture
def observer() -> Iterator[Observer]:
    with Observer() as one:
        yield one
    assert not Path(one.path).exists(), "the observer left its file behind"


def kinds(observer: Observer) -> list[str]:
    """Return the kinds of the recorded events. Omit "busy", because a busy machine can cause it."""
    return [one.what for one in observer.history() if one.what != "busy"]


def forked(path: str, body: Callable[[Reporter], object], who: str = "") -> int:
    """Fork a process that runs `body` and reports events to `path`. Return its process id."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), Reporter(path, who) as reporter:
            body(reporter)
        os._exit(0)
    return pid


def test_history_contains_the_events_that_a_worker_reported(observer: Observer) -> None:
    with observer.reporter("me") as reporter:
        times = [reporter.ask("x", 1.5), reporter.enter(7)]
        assert reporter.still() and not reporter.still(lambda: False)
        times += [reporter.leave(), reporter.released()]
    words = ["ask", "enter", "probe", "held", "probe", "lost", "leave", "released", "closed"]
    assert words == kinds(observer)
    asked, entered, *_ = observer.history()
    assert Event(asked.at, asked.reporter, os.getpid(), "me", "ask", "x", 1.5) == asked
    assert (7, "x", sorted(times)) == (entered.number, entered.name, times)
    assert entered.at - asked.at == pytest.approx(times[1] - times[0], abs=1e-5)


def test_observer_detects_that_a_worker_is_paused_resumed_or_killed(observer: Observer) -> None:
    pid = forked(observer.path, lambda reporter: (reporter.ask("x"), time.sleep(60)))
    eventually(lambda: kinds(observer))
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: "stopped" in kinds(observer))
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: "resumed" in kinds(observer))
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "died" in kinds(observer))
    os.waitpid(pid, 0)
    assert ["ask", "stopped", "resumed", "died"] == kinds(observer)
    stop, go = (one for one in observer.history() if one.what in ("stopped", "resumed"))
    assert stop.number is not None and stop.number <= stop.at
    assert go.at - stop.at >= 0.5 - 0.2, "a stop may be detected 0.2 s late at most"


def test_observer_records_how_long_each_worker_waited_for_a_processor(observer: Observer) -> None:
    """Three workers share a processor, so each must wait for it. The observer must record the waits
    of each worker. The test also passes the first worker to `watch()`, like a server."""

    def spin(reporter: Reporter | None = None) -> None:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        end = time.monotonic() + 1
        while time.monotonic() < end:
            pass

    pids = [forked(observer.path, spin) for _ in range(3)]
    observer.watch(pids[0])
    for pid in pids:
        os.waitpid(pid, 0)
    busy = [one for one in observer.history() if one.what == "busy" and one.name]
    assert {*map(str, pids)} == {one.name for one in busy}
    assert 0.3 < sum(one.number or 0 for one in busy if one.name == str(pids[0])) < 60


def test_forked_process_can_not_report_events_of_its_parent(observer: Observer) -> None:
    with observer.reporter("parent") as reporter:
        os.waitpid(forked(observer.path, lambda _: reporter.ask("x"), "child"), 0)
    reports = [(one.who, one.what) for one in observer.history()]
    assert ("child", "closed") in reports and ("parent", "ask") not in reports
