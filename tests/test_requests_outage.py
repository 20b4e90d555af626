"""While Redis is down, on_outage decides, no request waits for Redis, and the limits hold."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from devtools.servers import RedisServer, free_port
from django_redis_sync import Lease, Semaphore, Unavailable, semaphore_required
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.limits import breaker as breakers
from django_redis_sync.limits.breaker import Breaker, breaker
from django_redis_sync.limits.local import LocalLimiter, LocalWait, local_limiter
from django_redis_sync.limits.policy import SemaphoreKey
from django_redis_sync.protocol.plans import Rejection
from django_redis_sync.signals import acquire_rejected, outage_changed
from tests.behaviour.both import eventually
from tests.request_site import gate
from tests.request_site.server import Site
from tests.support.interrupting import (
    ADMISSION,
    Interrupted,
    handles_signals,
    interruptions,
)

pytestmark = pytest.mark.promise(24)
REQUESTS = RequestFactory()
MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
KEY = SemaphoreKey("default", "one", None)
BOTH = pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])


@pytest.fixture
def server(new_server, settings) -> RedisServer:
    """A Redis of the test's own, to stop."""
    server = new_server()
    point_at(settings, server.url)
    return server


@pytest.fixture
def no_server(settings) -> None:
    """Nothing listens where Redis should be."""
    point_at(settings, f"redis://127.0.0.1:{free_port()}")


def point_at(settings, url: str) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url}}


class Visit:
    """A request that stays inside its view until it is told to leave."""

    def __init__(self, asgi: bool = False, **options) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self._options, self._asgi = {"limit": 1, **options}, asgi
        self.status: int | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        @semaphore_required("one", **self._options)
        def view(request):
            self.inside.set()
            self.leave.wait(60)
            return HttpResponse()

        @semaphore_required("one", **self._options)
        async def aview(request):
            self.inside.set()
            await asyncio.to_thread(self.leave.wait, 60)
            return HttpResponse()

        if self._asgi:
            self.status = asyncio.run(aview(REQUESTS.get("/"))).status_code
        else:
            self.status = view(REQUESTS.get("/")).status_code

    def end(self) -> int | None:
        self.leave.set()
        self.thread.join(60)
        return self.status


def entered(**options) -> Visit:
    visit = Visit(**options)
    assert visit.inside.wait(30)
    return visit


def enters(**options) -> bool:
    """Return True if a request gets in now."""
    visit = Visit(**options)
    visit.leave.set()
    visit.thread.join(60)
    return visit.status == 200


def nothing_is_counted() -> bool:
    return not local_limiter.is_tracked(KEY) and not local_limiter.inside(KEY)


# What on_outage says


@BOTH
def test_local_keeps_the_limit_in_this_process(no_server, asgi: bool) -> None:
    first, second = (entered(asgi=asgi, limit=2) for _ in range(2))
    assert not enters(asgi=asgi, limit=2)
    assert 200 == first.end()
    assert enters(asgi=asgi, limit=2)
    assert 200 == second.end()


@BOTH
def test_local_queue_is_served_in_order_and_bounded(no_server, asgi: bool, settings) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": {"max_waiting_threads": 9}}
    options = {"asgi": asgi, "blocking_timeout": 15, "max_waiters": 2}
    visits = [entered(**options)]
    for number in (1, 2):
        visits.append(Visit(**options))
        eventually(lambda number=number: local_limiter.waiting(KEY) == number)
    rejected: list[tuple[str, int]] = []

    def note(rejection, **said) -> None:
        rejected.append((rejection.reason, rejection.waiting))

    acquire_rejected.connect(note)
    try:
        assert not enters(**options)
        assert [("full", 2)] == rejected  # by which Retry-After goes
        slots = {"max_waiting_threads": 0, "max_waiting_tasks": 0}
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": slots}
        assert not enters(**{**options, "max_waiters": 9})
    finally:
        acquire_rejected.disconnect(note)
    assert ("max_waiting_tasks" if asgi else "max_waiting_threads", 2) == rejected[1]
    for earlier, later in zip(visits, [*visits[1:], None], strict=True):
        assert 200 == earlier.end()
        if later is not None:
            assert later.inside.wait(30)
    assert nothing_is_counted()


@BOTH
def test_local_wait_ends_after_blocking_timeout(no_server, asgi: bool) -> None:
    holder = entered()
    assert not enters(asgi=asgi, blocking_timeout=0.1)
    assert 200 == holder.end()
    assert nothing_is_counted()


def test_task_cancelled_while_it_waits_here_leaves_the_queue(no_server) -> None:
    @semaphore_required("one", limit=1, blocking_timeout=20)
    async def view(request):
        return HttpResponse()

    async def main() -> None:
        waiting = asyncio.create_task(view(REQUESTS.get("/")))
        while not local_limiter.waiting(KEY):
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    holder = entered()
    asyncio.run(main())
    assert 200 == holder.end()
    assert nothing_is_counted()


def test_open_lets_all_in_and_closed_none(no_server) -> None:
    visits = [entered(on_outage="open") for _ in range(3)]
    assert [200] * 3 == [visit.end() for visit in visits]
    for key in (None, "ip"):
        assert 503 == Visit(on_outage="closed", key=key).end()


def test_outage_is_not_blamed_on_other_requests(no_server) -> None:
    @semaphore_required("one", limit=1, on_outage="closed")
    def view(request):
        return HttpResponse()

    response = view(REQUESTS.get("/", headers={"accept": "application/json"}))
    assert "Please try again in a moment." == json.loads(response.content)["detail"]
    assert response["Retry-After"]


def test_shadow_mode_lets_all_in(no_server) -> None:
    visits = [entered(on_outage="closed", enforce=False) for _ in range(3)]
    assert [200] * 3 == [visit.end() for visit in visits]


# How it begins and ends


def test_outage_and_its_end_are_each_reported_once(server, caplog) -> None:
    told = []

    def receiver(**said):
        told.append((said["alias"], said["down"]))

    outage_changed.connect(receiver)
    caplog.set_level(logging.WARNING, "django_redis_sync")
    try:
        assert enters()
        server.stop()
        assert [True] * 5 == [enters() for _ in range(5)]
        eventually(lambda: told == [("default", True)])
        server.start()
        eventually(lambda: enters() and not breaker("default").down)
        eventually(lambda: told == [("default", True), ("default", False)])
        assert [True] * 5 == [enters() for _ in range(5)]
    finally:
        outage_changed.disconnect(receiver)
    lines = [r.getMessage() for r in caplog.records if "Redis for cache" in r.getMessage()]
    assert 2 == len(lines)
    assert "is down" in lines[0] and "is available again" in lines[1]


def test_outage_is_reported_once_however_many_permits_are_held(server, caplog) -> None:
    caplog.set_level(logging.INFO, "django_redis_sync")
    options = {"limit": 12, "timeout": 3}
    leaving, staying = ([Visit(asgi, **options) for asgi in (False, True) * 3] for _ in range(2))
    assert all(visit.inside.wait(30) for visit in (*leaving, *staying))
    server.kill()
    assert enters(limit=20)
    assert [200] * 6 == [visit.end() for visit in leaving]
    time.sleep(1.5)  # their leases are due every second
    server.restart()
    eventually(lambda: enters(limit=20) and not breaker("default").down)
    assert [200] * 6 == [visit.end() for visit in staying]
    said = [r.getMessage() for r in caplog.records if r.name == "django_redis_sync"]
    lines = [line for line in said if "'default'" in line or "'one'" in line]
    lost = [
        line for line in lines if "lost its permit" in line
    ]  # the server came back with nothing
    told = ("is down", "could not be renewed", "are renewed again", "is available again")
    assert [1, 1, 1, 1] == [sum(words in line for line in lines) for words in told]
    assert 4 + len(lost) == len(lines)


@BOTH
def test_no_request_asks_a_server_that_is_known_to_be_down(server, asgi: bool) -> None:
    assert enters(asgi=asgi)
    server.pause()
    assert enters(asgi=asgi)  # the one that notices
    start = time.monotonic()
    for _ in range(50):
        assert enters(asgi=asgi)
    assert time.monotonic() - start < 5  # 50 attempts would last at least 25 s
    server.resume()


def test_no_request_waits_to_release_what_it_took_before_the_outage(server, monkeypatch) -> None:
    released = []
    monkeypatch.setattr(Lease, "release", lambda lease: released.append(lease))
    before = entered()
    server.pause()
    assert not enters()
    assert 200 == before.end()
    assert [] == released
    server.resume()
    eventually(lambda: Semaphore("one", 1).status().in_use == 0)


def test_requests_from_before_and_during_an_outage_keep_the_limit_together(server) -> None:
    before = entered()
    server.pause()
    assert not enters()
    assert breaker("default").down
    assert 200 == before.end()
    during = entered()
    server.resume()
    for _ in range(20):  # Redis knows no one, but the request inside counts
        assert not enters()
        time.sleep(0.1)
    assert 200 == during.end()
    eventually(lambda: enters() and not breaker("default").down)
    eventually(lambda: Semaphore("one", 1).status().in_use == 0)
    assert nothing_is_counted()


# The trial: Redis is there, and one request may find that out

GONE = Unavailable("Redis: gone")


def probe_answered(breaker: Breaker) -> None:
    breaker._probe_answered = True


@pytest.fixture
def half_open(clean_redis) -> Iterator[Breaker]:
    found = breaker("default")
    found.failed(found.generation, GONE)
    probe_answered(found)
    yield found
    found.close()


def test_cancelled_trial_lets_the_next_request_try(half_open, monkeypatch) -> None:
    asked = asyncio.Event()

    async def hang(*_: object) -> None:
        asked.set()
        await asyncio.sleep(20)

    @semaphore_required("one", limit=1)
    async def view(request):
        return HttpResponse()

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Semaphore, "_agot", hang)
            trial = asyncio.create_task(view(REQUESTS.get("/")))
            await asked.wait()
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
        assert half_open.down
        assert 200 == (await view(REQUESTS.get("/"))).status_code

    asyncio.run(main())
    assert not half_open.down
    assert nothing_is_counted()


def test_trial_that_has_to_wait_ends_the_outage_when_its_wait_begins(half_open) -> None:
    with Semaphore("one", 1):
        waiting = Visit(blocking_timeout=20)
        eventually(lambda: not half_open.down)
        assert not waiting.inside.is_set()
    assert waiting.inside.wait(30)
    assert 200 == waiting.end()


def test_trial_that_is_rejected_locally_lets_the_next_request_try(half_open) -> None:
    half_open._probe_answered = False
    during = entered()
    probe_answered(half_open)
    assert not enters() and half_open.down
    assert half_open._probe_answered
    assert 200 == during.end()
    assert enters() and not half_open.down


def test_shadow_mode_lets_redis_count_those_from_an_outage(half_open) -> None:
    half_open._probe_answered = False
    during = entered(enforce=False)
    probe_answered(half_open)
    assert enters(enforce=False) and not half_open.down
    assert 200 == during.end()


@pytest.mark.parametrize("outcome", [GONE, Rejection("full"), KeyboardInterrupt()], ids=repr)
def test_local_place_is_released_if_redis_grants_no_permit(half_open, monkeypatch, outcome) -> None:
    """While a request that Redis does not know is inside, the next ones first enter locally."""

    def take(*_: object) -> Rejection:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    half_open._probe_answered = False
    during = entered(limit=2)
    probe_answered(half_open)
    monkeypatch.setattr(Semaphore, "_got", take)
    view = semaphore_required("one", limit=2)(lambda request: HttpResponse())
    if isinstance(outcome, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            view(REQUESTS.get("/"))
    else:
        # Without Redis there is one more place in this process. A rejection by Redis is final.
        assert (503 if outcome is not GONE else 200) == view(REQUESTS.get("/")).status_code
    assert 1 == local_limiter.inside(KEY)
    assert 200 == during.end()
    assert nothing_is_counted()


# The breaker, one report after the other


class Quiet(Breaker):
    """Without a thread that probes. `told`: what receivers get."""

    def __init__(self) -> None:
        super().__init__("default")
        self.told: list[bool] = []

    def _ensure_prober(self) -> None: ...

    def _notify(self, down: bool) -> None:
        self.told.append(down)


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


def test_success_from_before_the_failure_does_not_end_the_outage(quiet: Quiet) -> None:
    early, late = quiet.allow(), quiet.allow()
    quiet.failed(late, GONE)
    quiet.failed(early, GONE)
    quiet.succeeded(early)
    assert (True, None, [True]) == (quiet.down, quiet.allow(), quiet.told)


def test_failure_from_before_the_end_begins_no_new_outage(quiet: Quiet) -> None:
    early, late = quiet.allow(), quiet.allow()
    quiet.failed(early, GONE)
    probe_answered(quiet)
    trial = quiet.allow()
    quiet.succeeded(trial)
    quiet.failed(late, GONE)
    quiet.failed(trial, GONE)
    assert (False, [True, False]) == (quiet.down, quiet.told)
    quiet.failed(quiet.allow(), GONE)
    assert quiet.down


def test_answered_probe_lets_one_request_try(quiet: Quiet) -> None:
    quiet.failed(quiet.allow(), GONE)
    with ThreadPoolExecutor(16) as threads:
        for _ in range(50):
            probe_answered(quiet)
            answers = threads.map(lambda _: quiet.allow(), range(16))
            (trial,) = (one for one in answers if one is not None)
            quiet.failed(trial, GONE)
            assert quiet.down and quiet.allow() is None
    probe_answered(quiet)
    quiet.succeeded(quiet.allow())
    assert quiet.allow() is not None and quiet.allow() is not None


def test_only_the_trial_of_this_outage_can_be_cancelled_or_succeed(quiet: Quiet) -> None:
    early = quiet.allow()
    quiet.failed(early, GONE)
    quiet.cancelled(early)  # it was not the trial
    assert quiet.allow() is None
    probe_answered(quiet)
    trial = quiet.allow()
    quiet.cancelled(trial)
    assert [trial, None] == [quiet.allow(), quiet.allow()]
    probe_answered(quiet)
    quiet.succeeded(quiet.allow())
    quiet.failed(quiet.allow(), GONE)
    quiet.succeeded(trial)
    quiet.cancelled(trial)
    assert quiet.down and quiet.allow() is None


def test_probe_of_an_earlier_outage_does_not_end_a_later_one(monkeypatch) -> None:
    mine = Breaker("default")
    monkeypatch.setattr(breakers, "PROBE_INTERVAL", 0.0)
    asked = []

    def answers(self) -> bool:
        """While it probes, this outage ends and the next one begins."""
        asked.append(self.generation)
        if len(asked) == 1:
            self._probe_answered = True
            self.succeeded(self.allow())
            self.failed(self.allow(), GONE)
            return True
        return False

    monkeypatch.setattr(Breaker, "_redis_answers", answers)
    try:
        mine.failed(mine.allow(), GONE)
        eventually(lambda: len(asked) > 1)
        assert mine.down and mine.allow() is None
    finally:
        mine.close()


def test_next_request_starts_the_probes_if_no_thread_could_be_started(monkeypatch) -> None:
    def cannot_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    mine = Breaker("default")
    monkeypatch.setattr(breakers, "PROBE_INTERVAL", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        mine.failed(mine.allow(), GONE)
        assert mine.down and mine.allow() is None
    mine.allow()
    eventually(lambda: mine._probe_answered)
    mine.close()


def test_one_daemon_thread_probes_a_server_that_hangs(server, settings) -> None:
    """No process outlives its work for it, and no probe waits without end."""
    before = {*threading.enumerate()}
    server.pause()
    assert [True] * 5 == [enters() for _ in range(5)]
    started = {*threading.enumerate()} - before
    (prober,) = (one for one in started if "redis-sync-probe" in one.name)
    assert prober.daemon
    time.sleep(2.5)  # some probes are not answered
    server.resume()
    eventually(lambda: enters() and not breaker("default").down)
    eventually(lambda: not prober.is_alive())


@pytest.mark.parametrize("setting", ["REDIS_SYNC", "CACHES"])
def test_changed_settings_end_all_probes(setting: str, settings: Any, monkeypatch) -> None:
    monkeypatch.setattr(Breaker, "_ensure_prober", lambda self: None)
    some = [breaker(alias) for alias in ("default", "other")]
    for one in some:
        one.failed(one.generation, GONE)
    setattr(settings, setting, {**getattr(settings, setting)})
    assert [False, False] == [one.down for one in some]
    assert breaker("default") is not some[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_has_no_outage_and_no_request_of_its_parent(no_server) -> None:
    visit = entered()
    assert breaker("default").down and 1 == local_limiter.inside(KEY)
    with local_limiter._lock:  # as another thread may hold it
        pid = os.fork()
    if pid == 0:
        os._exit(int(breaker("default").down) + 2 * local_limiter.inside(KEY))
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert 200 == visit.end()


# The limiter that counts the requests of one process


class Someone:
    """In the place of a request's hold."""


def enter(limiter: LocalLimiter, limit: int = 1, waiters: int = 9) -> tuple[Someone, Any]:
    one = Someone()
    return one, limiter.try_enter(KEY, one, limit, waiters)


def test_limiter_counts_those_that_redis_admitted_before() -> None:
    mine, one, elsewhere = LocalLimiter(), Someone(), Someone()
    mine.admitted(KEY, one)
    mine.admitted(KEY._replace(name="y"), elsewhere)
    assert (1, False) == (mine.inside(KEY), mine.is_tracked(KEY))
    assert enter(mine, waiters=0)[1] is False
    assert mine.is_tracked(KEY) and not mine.has_local_admissions(KEY)
    for _ in range(2):  # to leave twice changes nothing
        mine.left(KEY, one)
    assert (0, False) == (mine.inside(KEY), mine.is_tracked(KEY))
    other, admitted = enter(mine, waiters=0)
    assert other and admitted is True


def test_request_that_redis_admitted_meanwhile_lets_the_next_in_when_it_leaves() -> None:
    mine, during, one = LocalLimiter(), Someone(), Someone()
    mine.enter(KEY, during)
    mine.admitted(KEY, one)
    patient, waiter = enter(mine, limit=2)
    assert 2 == mine.inside(KEY) and isinstance(waiter, LocalWait)
    mine.left(KEY, one)
    assert waiter.wait(5)
    mine.left(KEY, during)
    assert mine.has_local_admissions(KEY)  # Redis does not know the one that waited
    mine.left(KEY, patient)
    assert not mine.is_tracked(KEY)


def test_request_that_no_longer_exists_uses_no_permit() -> None:
    mine = LocalLimiter()
    one, _ = enter(mine)
    del one
    other, admitted = enter(mine)
    assert admitted is True and 1 == mine.inside(KEY) and other
    known = Someone()
    mine.admitted(KEY._replace(key="7"), known)
    del known
    assert {} == mine._by_redis


def test_waiter_that_no_longer_exists_does_not_block_the_queue() -> None:
    mine, inside = LocalLimiter(), Someone()
    mine.enter(KEY, inside)
    gone = enter(mine)
    patient, waiter = enter(mine)
    del gone
    assert 1 == mine.waiting(KEY)
    assert enter(mine, waiters=1)[1] is False
    mine.left(KEY, inside)
    assert waiter.wait(5)
    assert (1, 0) == (mine.inside(KEY), mine.waiting(KEY)) and patient


def test_waiter_that_gives_up_lets_in_those_behind_it_that_fit() -> None:
    mine, inside = LocalLimiter(), Someone()
    mine.enter(KEY, inside)
    (_large, narrow), (_small, wide) = enter(mine, limit=1), enter(mine, limit=2)
    assert not narrow.wait(0.01)
    assert wide.wait(5)
    assert (2, 0) == (mine.inside(KEY), mine.waiting(KEY))


@pytest.mark.parametrize("early", [True, False], ids=["before it waits", "while it waits"])
def test_waiting_task_is_woken_by_another_thread(early: bool) -> None:
    mine, inside = LocalLimiter(), Someone()
    mine.enter(KEY, inside)
    patient, waiter = enter(mine)

    async def wait() -> bool:
        leaver = threading.Timer(0 if early else 0.2, lambda: mine.left(KEY, inside))
        leaver.start()
        if early:
            leaver.join()
        waiting = asyncio.ensure_future(waiter.await_(20))
        await asyncio.wait_for(asyncio.sleep(0), 5)  # it does not stop its loop
        return await asyncio.wait_for(waiting, 10)

    assert asyncio.run(wait())
    assert 1 == mine.inside(KEY) and patient


def test_waiter_of_a_closed_loop_stops_no_other_request() -> None:
    mine, inside = LocalLimiter(), Someone()
    mine.enter(KEY, inside)
    patient, waiter = enter(mine)
    waiting = waiter.await_(20)

    async def leave_it() -> None:
        waiting.send(None)

    asyncio.run(leave_it())
    mine.left(KEY, inside)
    assert 1 == mine.inside(KEY)
    waiting.close()
    del waiter, patient
    assert 0 == mine.inside(KEY)


@BOTH
def test_interrupted_wait_leaves_the_queue_though_its_request_is_kept(asgi: bool) -> None:
    """An error reporter may keep it, with all its frames."""
    mine, inside = LocalLimiter(), Someone()
    mine.enter(KEY, inside)
    patient, waiter = enter(mine)

    def interrupted(seconds: float) -> bool:
        raise Interrupted

    async def cancelled() -> None:
        task = asyncio.ensure_future(waiter.await_(20))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    if asgi:
        asyncio.run(cancelled())
    else:
        waiter._bell.wait = interrupted
        with pytest.raises(Interrupted):
            waiter.wait(20)
    assert 0 == mine.waiting(KEY) and patient


# Interrupted


@pytest.mark.promise(6)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@BOTH
@pytest.mark.parametrize("down", [False, True], ids=["redis", "no redis"])
def test_interrupted_request_is_not_inside_any_more(
    down: bool, asgi: bool, request, clean_redis
) -> None:
    if down:
        request.getfixturevalue("no_server")

    @semaphore_required("one", limit=1)
    def view(request: Any) -> HttpResponse:
        return HttpResponse()

    @semaphore_required("one", limit=1)
    async def aview(request: Any) -> HttpResponse:
        return HttpResponse()

    def visit() -> None:
        request = REQUESTS.get("/")
        asyncio.run(aview(request)) if asgi else view(request)

    visit()
    where = ""
    for where in interruptions(visit, *ADMISSION, where=handles_signals):
        gc.collect(1)
        if local_limiter.inside(KEY) or renewer("default")._held():
            gc.collect()  # a collection meanwhile has made it old
        assert 0 == local_limiter.inside(KEY), where
        if not down:
            assert [] == renewer("default")._held(), where
    assert where


@pytest.mark.promise(6)
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_storm_of_signals_leaves_the_limiter_open_and_empty() -> None:
    """The exceptions come as CPython delivers them: not everywhere, but anywhere in the limiter."""
    mine, heard = LocalLimiter(), 0

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    def comes_and_goes() -> None:
        one, waiter = enter(mine)
        if isinstance(waiter, LocalWait):
            waiter.wait(0.0001)
        mine.left(KEY, one)

    def come_and_go_until_interrupted() -> None:
        # Not in the `try` itself: CPython 3.13 may raise at the end of this loop outside of it.
        signal.setitimer(signal.ITIMER_REAL, 0.00005)
        # A weakref's callback swallows the exception, and no other would come.
        late = time.monotonic() + 0.05
        while time.monotonic() < late:
            comes_and_goes()

    before = signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + 2
    try:
        while time.monotonic() < end:
            try:
                come_and_go_until_interrupted()
            except Interrupted:
                heard += 1
            assert not mine._lock.locked()
            assert 0 == mine.inside(KEY) == mine.waiting(KEY)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard > 100
    assert enter(mine, waiters=0)[1] is True


# On a server, under load


@pytest.fixture
def site(new_server, tmp_path, clean_redis) -> Iterator[tuple[Site, RedisServer]]:
    server = new_server()
    endpoints = {
        "quick": {"limit": 3},
        "reports:list": {"limit": 1, "on_outage": "closed"},
    }
    options = {"redis": server.url, "middleware": [MIDDLEWARE], "sync": {"ENDPOINTS": endpoints}}
    with Site("gunicorn", tmp_path / "log", threads=8, **options) as site:
        yield site, server


def test_outage_under_load_neither_lifts_the_limit_nor_delays_requests(site) -> None:
    site, server = site

    def load(number: int) -> list[float]:
        """What each of the requests took, refused ones too."""

        def ask(client: Any) -> list[float]:
            took = []
            for _ in range(number // 6 + 1):
                start = time.monotonic()
                assert client.get("/quick/").status_code in (200, 503)
                took.append(time.monotonic() - start)
            return took

        # A client for each thread: one that threads share may close what another reads from.
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(6) as threads:
            clients = [stack.enter_context(site.client()) for _ in range(6)]
            return [seconds for took in threads.map(ask, clients) for seconds in took]

    def p99(took: list[float]) -> float:
        return statistics.quantiles(took, n=100)[98]

    load(50)
    normal = load(300)
    server.pause()
    load(20)  # some of these notice
    out = load(600)
    assert 503 == site.get("/reports/list/").status_code
    assert 3 >= gate.peak("quick")
    server.resume()
    eventually(lambda: site.get("/reports/list/").status_code == 200)
    load(100)
    assert 3 >= gate.peak("quick")
    print(f"p99 {p99(normal) * 1000:.1f} ms, in the outage {p99(out) * 1000:.1f} ms")
    # Each question to the hung server takes half a second: hardly a request asks it.
    assert len(out) / 10 > sum(took > 0.5 for took in out)
    log = site.log.read_text()
    assert 1 == log.count("is down") == log.count("is available again")
