"""While Redis is down, on_outage applies, no request waits for Redis, and the limits hold."""

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
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from devtools.servers import RedisServer, free_port
from django_redis_sync import Lease, Semaphore, Unavailable, semaphore_required
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.engine.threads import Bell
from django_redis_sync.limits import breaker as breakers
from django_redis_sync.limits.breaker import Breaker, breaker
from django_redis_sync.limits.local import LocalLimiter, LocalWait, local_limiter
from django_redis_sync.limits.policy import SemaphoreKey
from django_redis_sync.limits.semaphore import RequestSemaphore
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Rejection
from django_redis_sync.protocol.steps import Failure
from django_redis_sync.signals import outage_changed
from tests.behaviour.both import eventually
from tests.request_site import gate
from tests.request_site.server import Site
from tests.request_site.visit import Visit
from tests.settings import PREFIX
from tests.support.interrupting import ADMISSION, Interrupted, handles_signals, interruptions

pytestmark = pytest.mark.promise(24)
REQUESTS = RequestFactory()
MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
KEY = SemaphoreKey("default", "one", None)
BOTH = pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])


@pytest.fixture
def server(new_server, settings) -> RedisServer:
    """A private Redis server that the test can stop."""
    server = new_server()
    point_at(settings, server.url)
    return server


@pytest.fixture
def no_server(settings) -> None:
    """Set the cache to an address where no server listens."""
    point_at(settings, f"redis://127.0.0.1:{free_port()}")


def point_at(settings, url: str) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url}}


def entered(**options) -> Visit:
    visit = Visit(**options)
    assert visit.inside.wait(30)
    return visit


def enters(**options) -> bool:
    """Return True if a request is admitted now."""
    return Visit(**options).end() == 200


def nothing_is_counted() -> bool:
    return not local_limiter.is_tracked(KEY) and not local_limiter.inside(KEY)


def renewed() -> list[Any]:
    """Return the leases of "one" that this process renews."""
    return renewer("default").newest(keys_of(PREFIX, "one"), 99)


@semaphore_required("one", limit=1)
async def aview(request) -> HttpResponse:
    return HttpResponse()


# The values of on_outage


@BOTH
def test_on_outage_local_enforces_the_limit_in_this_process(no_server, asgi: bool) -> None:
    first, second = (entered(asgi=asgi, limit=2) for _ in range(2))
    assert not enters(asgi=asgi, limit=2)
    assert 200 == first.end()
    assert enters(asgi=asgi, limit=2)
    assert 200 == second.end()


@BOTH
def test_local_queue_is_served_in_order_and_bounded(
    no_server, asgi: bool, settings, rejections
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": {"max_waiting_threads": 9}}
    options = {"asgi": asgi, "blocking_timeout": 15, "max_waiters": 2}
    visits = [entered(**options)]
    for number in (1, 2):
        visits.append(Visit(**options))
        eventually(lambda number=number: local_limiter.waiting(KEY) == number)
    assert not enters(**options)
    slots = {"max_waiting_threads": 0, "max_waiting_tasks": 0}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": slots}
    assert not enters(**{**options, "max_waiters": 9})
    # Retry-After is computed from the number of waiters.
    expected = [("full", 2), ("max_waiting_tasks" if asgi else "max_waiting_threads", 2)]
    found = [one["rejection"] for one in rejections]
    assert expected == [(one.reason, one.waiting) for one in found]
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


def test_task_cancelled_while_waiting_leaves_the_local_queue(no_server) -> None:
    view = semaphore_required("one", limit=1, blocking_timeout=20)(aview)

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


def test_on_outage_open_admits_all_requests_and_closed_rejects_all(no_server) -> None:
    visits = [entered(on_outage="open") for _ in range(3)]
    assert [200] * 3 == [visit.end() for visit in visits]
    for key in (None, "ip"):
        assert 503 == Visit(on_outage="closed", key=key).end()


def test_rejection_in_an_outage_does_not_mention_other_requests(no_server) -> None:
    view = semaphore_required("one", limit=1, on_outage="closed")(lambda request: HttpResponse())
    response = view(REQUESTS.get("/", headers={"accept": "application/json"}))
    assert "Please try again in a moment." == json.loads(response.content)["detail"]
    assert response["Retry-After"]


def test_shadow_mode_admits_all_requests_in_an_outage(no_server) -> None:
    visits = [entered(on_outage="closed", enforce=False) for _ in range(3)]
    assert [200] * 3 == [visit.end() for visit in visits]


# The start and the end of an outage


def test_start_and_end_of_an_outage_are_each_reported_once(server, caplog) -> None:
    sent = []

    def receiver(alias: str, down: bool, **_: Any) -> None:
        sent.append((alias, down))

    outage_changed.connect(receiver)
    caplog.set_level(logging.WARNING, "django_redis_sync")
    try:
        assert enters()
        server.stop()
        assert [True] * 5 == [enters() for _ in range(5)]
        eventually(lambda: sent == [("default", True)])
        server.start()
        eventually(lambda: enters() and not breaker("default").down)
        eventually(lambda: sent == [("default", True), ("default", False)])
        assert [True] * 5 == [enters() for _ in range(5)]
    finally:
        outage_changed.disconnect(receiver)
    lines = [r.getMessage() for r in caplog.records if "Redis for cache" in r.getMessage()]
    assert 2 == len(lines)
    assert "is down" in lines[0] and "is available again" in lines[1]


def test_outage_is_logged_once_when_many_permits_are_held(server, caplog) -> None:
    caplog.set_level(logging.INFO, "django_redis_sync")
    options = {"limit": 12, "timeout": 3}
    leaving, staying = ([Visit(asgi, **options) for asgi in (False, True) * 3] for _ in range(2))
    assert all(visit.inside.wait(30) for visit in (*leaving, *staying))
    server.kill()
    assert enters(limit=20)
    assert [200] * 6 == [visit.end() for visit in leaving]
    time.sleep(1.5)  # the leases are renewed every second
    server.restart()
    eventually(lambda: enters(limit=20) and not breaker("default").down)
    assert [200] * 6 == [visit.end() for visit in staying]
    logged = [r.getMessage() for r in caplog.records if r.name == "django_redis_sync"]
    lines = [line for line in logged if "'default'" in line or "'one'" in line]
    lost = [
        line for line in lines if "lost its permit" in line
    ]  # the server restarted without data
    once = ("is down", "could not be renewed", "are renewed again", "is available again")
    assert [1, 1, 1, 1] == [sum(words in line for line in lines) for words in once]
    assert 4 + len(lost) == len(lines)


@BOTH
def test_requests_do_not_ask_a_server_that_is_known_to_be_down(server, asgi: bool) -> None:
    assert enters(asgi=asgi)
    server.pause()
    assert enters(asgi=asgi)  # this request notices the outage
    start = time.monotonic()
    for _ in range(50):
        assert enters(asgi=asgi)
    assert time.monotonic() - start < 5  # 50 attempts would last at least 25 s
    server.resume()


def test_request_from_before_an_outage_does_not_wait_for_its_release(server, monkeypatch) -> None:
    released = []
    monkeypatch.setattr(Lease, "release", lambda lease: released.append(lease))
    before = entered()
    server.pause()
    assert not enters()
    assert 200 == before.end()
    assert [] == released
    server.resume()
    eventually(lambda: Semaphore("one", 1).status().in_use == 0)


def test_requests_from_before_and_during_an_outage_share_the_limit(server) -> None:
    before = entered()
    server.pause()
    assert not enters()
    assert breaker("default").down
    assert 200 == before.end()
    during = entered()
    server.resume()
    for _ in range(20):  # the request inside counts, although Redis does not know it
        assert not enters()
        time.sleep(0.1)
    assert 200 == during.end()
    eventually(lambda: enters() and not breaker("default").down)
    eventually(lambda: Semaphore("one", 1).status().in_use == 0)
    assert nothing_is_counted()


# The trial: after an answered probe, one request may ask Redis

GONE = Unavailable("Redis: gone")


def allow_trial(breaker: Breaker) -> None:
    """Allow one trial, as an answered probe or a cancelled trial does."""
    breaker.cancelled(breaker.generation)


@pytest.fixture
def half_open(clean_redis) -> Iterator[Breaker]:
    found = breaker("default")
    found.failed(found.generation, GONE)
    allow_trial(found)
    yield found
    found.close()


def test_cancelled_trial_makes_the_next_request_the_trial(half_open, monkeypatch) -> None:
    asked = asyncio.Event()

    async def hang(*_: object) -> None:
        asked.set()
        await asyncio.sleep(20)

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(RequestSemaphore, "atake_for", hang)
            trial = asyncio.create_task(aview(REQUESTS.get("/")))
            await asked.wait()
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
        assert half_open.down
        assert 200 == (await aview(REQUESTS.get("/"))).status_code

    asyncio.run(main())
    assert not half_open.down
    assert nothing_is_counted()


def test_trial_that_waits_for_a_permit_ends_the_outage_at_once(half_open) -> None:
    with Semaphore("one", 1):
        waiting = Visit(blocking_timeout=20)
        eventually(lambda: not half_open.down)
        assert not waiting.inside.is_set()
    assert waiting.inside.wait(30)
    assert 200 == waiting.end()


def test_trial_rejected_locally_makes_the_next_request_the_trial(half_open) -> None:
    trial = half_open.allow()  # so that the next request does not ask Redis
    during = entered()
    half_open.cancelled(trial)
    assert not enters() and half_open.down
    assert trial == half_open.allow()
    half_open.cancelled(trial)
    assert 200 == during.end()
    assert enters() and not half_open.down


def test_shadow_mode_asks_redis_while_requests_from_the_outage_are_inside(half_open) -> None:
    trial = half_open.allow()
    during = entered(enforce=False)
    half_open.cancelled(trial)
    assert enters(enforce=False) and not half_open.down
    assert 200 == during.end()


@pytest.mark.parametrize("outcome", [GONE, Rejection("full"), KeyboardInterrupt()], ids=repr)
def test_local_permit_is_released_when_redis_grants_none(half_open, monkeypatch, outcome) -> None:
    """While a request that Redis does not know is inside, later requests first enter locally."""

    def take(*_: object) -> Rejection:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    trial = half_open.allow()
    during = entered(limit=2)
    half_open.cancelled(trial)
    monkeypatch.setattr(RequestSemaphore, "take_for", take)
    view = semaphore_required("one", limit=2)(lambda request: HttpResponse())
    if isinstance(outcome, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            view(REQUESTS.get("/"))
    else:
        # Without Redis, this process admits one more request. A rejection by Redis is final.
        assert (503 if outcome is not GONE else 200) == view(REQUESTS.get("/")).status_code
    assert 1 == local_limiter.inside(KEY)
    assert 200 == during.end()
    assert nothing_is_counted()


# The breaker, one report after the other


class Unprobed(Breaker):
    """A breaker without a thread that probes. `sent`: the notifications."""

    def __init__(self) -> None:
        super().__init__("default")
        self.sent: list[bool] = []

    def _ensure_prober(self) -> None: ...

    def _notify(self, down: bool) -> None:
        self.sent.append(down)


@pytest.fixture
def unprobed() -> Unprobed:
    return Unprobed()


def test_success_from_before_the_failure_does_not_end_the_outage(unprobed: Unprobed) -> None:
    early, late = unprobed.allow(), unprobed.allow()
    unprobed.failed(late, GONE)
    unprobed.failed(early, GONE)
    unprobed.succeeded(early)
    assert (True, None, [True]) == (unprobed.down, unprobed.allow(), unprobed.sent)


def test_failure_from_before_the_end_does_not_start_a_new_outage(unprobed: Unprobed) -> None:
    early, late = unprobed.allow(), unprobed.allow()
    unprobed.failed(early, GONE)
    allow_trial(unprobed)
    trial = unprobed.allow()
    unprobed.succeeded(trial)
    unprobed.failed(late, GONE)
    unprobed.failed(trial, GONE)
    assert (False, [True, False]) == (unprobed.down, unprobed.sent)
    unprobed.failed(unprobed.allow(), GONE)
    assert unprobed.down


def test_answered_probe_allows_one_trial(unprobed: Unprobed) -> None:
    unprobed.failed(unprobed.allow(), GONE)
    with ThreadPoolExecutor(16) as threads:
        for _ in range(50):
            allow_trial(unprobed)
            answers = threads.map(lambda _: unprobed.allow(), range(16))
            (trial,) = (one for one in answers if one is not None)
            unprobed.failed(trial, GONE)
            assert unprobed.down and unprobed.allow() is None
    allow_trial(unprobed)
    unprobed.succeeded(unprobed.allow())
    assert unprobed.allow() is not None and unprobed.allow() is not None


def test_only_the_trial_of_this_outage_can_be_cancelled_or_succeed(unprobed: Unprobed) -> None:
    early = unprobed.allow()
    unprobed.failed(early, GONE)
    unprobed.cancelled(early)  # `early` was not the trial
    assert unprobed.allow() is None
    allow_trial(unprobed)
    trial = unprobed.allow()
    unprobed.cancelled(trial)
    assert [trial, None] == [unprobed.allow(), unprobed.allow()]
    allow_trial(unprobed)
    unprobed.succeeded(unprobed.allow())
    unprobed.failed(unprobed.allow(), GONE)
    unprobed.succeeded(trial)
    unprobed.cancelled(trial)
    assert unprobed.down and unprobed.allow() is None


def test_probe_of_an_earlier_outage_does_not_end_a_later_one(monkeypatch) -> None:
    found = Breaker("default")
    monkeypatch.setattr(breakers, "PROBE_INTERVAL", 0.0)
    probed = []

    def command(*_: Any, **options: Any) -> None:
        """Answer the first probe, after its outage has ended and the next one has begun."""
        probed.append(found.generation)
        if len(probed) > 1:
            raise Failure(GONE, 0.0, "unreachable")
        allow_trial(found)
        found.succeeded(found.allow())
        found.failed(found.allow(), GONE)

    monkeypatch.setattr(breakers, "server_of", lambda alias: SimpleNamespace(command=command))
    try:
        found.failed(found.allow(), GONE)
        eventually(lambda: len(probed) > 1)
        assert found.down and found.allow() is None
    finally:
        found.close()


def test_next_request_starts_the_probes_when_no_thread_could_be_started(monkeypatch) -> None:
    def cannot_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found = Breaker("default")
    monkeypatch.setattr(breakers, "PROBE_INTERVAL", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        found.failed(found.allow(), GONE)
        assert found.down and found.allow() is None
    eventually(lambda: found.allow() is not None)
    found.close()


def test_one_daemon_thread_probes_a_server_that_hangs(server, settings) -> None:
    """A daemon thread keeps no process alive, and each probe has a timeout."""
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
def test_changed_settings_end_all_outages(setting: str, settings: Any) -> None:
    before = [breaker(alias) for alias in ("default", "other")]
    for one in before:
        one.failed(one.generation, GONE)
    setattr(settings, setting, {**getattr(settings, setting)})
    assert [False, False] == [one.down for one in before]
    assert breaker("default") is not before[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_has_no_outage_and_no_request_of_its_parent(no_server) -> None:
    visit = entered()
    assert breaker("default").down and 1 == local_limiter.inside(KEY)
    with local_limiter._lock:  # another thread may hold the lock during a fork
        pid = os.fork()
    if pid == 0:
        os._exit(int(breaker("default").down) + 2 * local_limiter.inside(KEY))
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert 200 == visit.end()


# The limiter that counts the requests of one process


class FakeHold:
    """Stands for the hold of a request. The limiter references holds weakly."""


class Text(str):
    """A string that can be referenced weakly."""


def enter(limiter: LocalLimiter, limit: int = 1, waiters: int = 9) -> tuple[FakeHold, Any]:
    hold = FakeHold()
    return hold, limiter.try_enter(KEY, hold, limit, waiters)


@pytest.fixture
def full() -> tuple[LocalLimiter, FakeHold]:
    """A limiter with one request inside that Redis does not know, and the hold of that request."""
    limiter, inside = LocalLimiter(), FakeHold()
    limiter.enter(KEY, inside)
    return limiter, inside


def test_limiter_counts_requests_that_redis_admitted_before() -> None:
    limiter, known, elsewhere = LocalLimiter(), FakeHold(), FakeHold()
    limiter.admitted(KEY, known)
    limiter.admitted(KEY._replace(name="y"), elsewhere)
    assert (1, False) == (limiter.inside(KEY), limiter.is_tracked(KEY))
    assert enter(limiter, waiters=0)[1] is False
    assert limiter.is_tracked(KEY) and not limiter.has_local_admissions(KEY)
    for _ in range(2):  # a second `left` changes nothing
        limiter.left(KEY, known)
    assert (0, False) == (limiter.inside(KEY), limiter.is_tracked(KEY))
    hold, admitted = enter(limiter, waiters=0)
    assert hold and admitted is True


def test_waiter_is_admitted_when_a_request_that_redis_admitted_leaves(full) -> None:
    limiter, inside = full
    known = FakeHold()
    limiter.admitted(KEY, known)
    hold, waiter = enter(limiter, limit=2)
    assert 2 == limiter.inside(KEY) and isinstance(waiter, LocalWait)
    limiter.left(KEY, known)
    assert waiter.wait(5)
    limiter.left(KEY, inside)
    assert limiter.has_local_admissions(KEY)  # Redis does not know the request that waited
    limiter.left(KEY, hold)
    assert not limiter.is_tracked(KEY)


def test_request_that_no_longer_exists_uses_no_permit() -> None:
    limiter = LocalLimiter()
    gone, _ = enter(limiter)
    del gone
    hold, admitted = enter(limiter)
    assert admitted is True and 1 == limiter.inside(KEY) and hold
    known, key = FakeHold(), Text("7")
    limiter.admitted(KEY._replace(key=key), known)
    remembered = weakref.ref(key)
    del known, key
    assert remembered() is None


def test_waiter_that_no_longer_exists_does_not_block_the_queue(full) -> None:
    limiter, inside = full
    gone = enter(limiter)
    hold, waiter = enter(limiter)
    del gone
    assert 1 == limiter.waiting(KEY)
    assert enter(limiter, waiters=1)[1] is False
    limiter.left(KEY, inside)
    assert waiter.wait(5)
    assert (1, 0) == (limiter.inside(KEY), limiter.waiting(KEY)) and hold


def test_waiter_that_gives_up_lets_later_waiters_that_fit_enter(full) -> None:
    limiter, _inside = full
    (_one, limited_to_1), (_two, limited_to_2) = enter(limiter, limit=1), enter(limiter, limit=2)
    assert not limited_to_1.wait(0.01)
    assert limited_to_2.wait(5)
    assert (2, 0) == (limiter.inside(KEY), limiter.waiting(KEY))


@pytest.mark.parametrize("early", [True, False], ids=["before it waits", "while it waits"])
def test_waiting_task_is_woken_by_another_thread(early: bool, full) -> None:
    limiter, inside = full
    hold, waiter = enter(limiter)

    async def wait() -> bool:
        leaver = threading.Timer(0 if early else 0.2, lambda: limiter.left(KEY, inside))
        leaver.start()
        if early:
            leaver.join()
        waiting = asyncio.ensure_future(waiter.await_(20))
        await asyncio.wait_for(asyncio.sleep(0), 5)  # the wait does not block its loop
        return await asyncio.wait_for(waiting, 10)

    assert asyncio.run(wait())
    assert 1 == limiter.inside(KEY) and hold


def test_waiter_of_a_closed_loop_does_not_block_other_requests(full) -> None:
    limiter, inside = full
    hold, waiter = enter(limiter)
    waiting = waiter.await_(20)

    async def begin_to_wait() -> None:
        waiting.send(None)

    asyncio.run(begin_to_wait())
    limiter.left(KEY, inside)
    assert 1 == limiter.inside(KEY)
    waiting.close()
    del waiter, hold
    assert 0 == limiter.inside(KEY)


@BOTH
def test_interrupted_wait_leaves_the_queue_while_its_request_still_exists(
    asgi: bool, full, monkeypatch
) -> None:
    """An error reporter may keep the request, with all frames."""
    limiter, _inside = full
    hold, waiter = enter(limiter)

    def interrupted(bell: Bell, seconds: float) -> bool:
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
        monkeypatch.setattr(Bell, "wait", interrupted)
        with pytest.raises(Interrupted):
            waiter.wait(20)
    assert 0 == limiter.waiting(KEY) and hold


# Interruptions


@pytest.mark.promise(6)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@BOTH
@pytest.mark.parametrize("down", [False, True], ids=["redis", "no redis"])
def test_interrupted_request_holds_no_permit(down: bool, asgi: bool, request, clean_redis) -> None:
    if down:
        request.getfixturevalue("no_server")

    view = semaphore_required("one", limit=1)(lambda request: HttpResponse())

    def visit() -> None:
        request = REQUESTS.get("/")
        asyncio.run(aview(request)) if asgi else view(request)

    visit()
    where = ""
    for where in interruptions(visit, *ADMISSION, where=handles_signals):
        gc.collect(1)
        if local_limiter.inside(KEY) or renewed():
            gc.collect()  # an earlier collection may have moved the request to the last generation
        assert 0 == local_limiter.inside(KEY), where
        if not down:
            assert [] == renewed(), where
    assert where


@pytest.mark.promise(6)
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_limiter_is_unlocked_and_empty_after_many_signals() -> None:
    """CPython raises the exceptions at any of its own signal checks inside the limiter."""
    limiter, interruptions = LocalLimiter(), 0

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    def enter_and_leave() -> None:
        hold, waiter = enter(limiter)
        if isinstance(waiter, LocalWait):
            waiter.wait(0.0001)
        limiter.left(KEY, hold)

    def enter_and_leave_until_interrupted() -> None:
        # Not in the `try` itself: CPython 3.13 may raise at the end of this loop outside of it.
        signal.setitimer(signal.ITIMER_REAL, 0.00005)
        # If a callback of a weakref swallows the exception, no second signal follows.
        late = time.monotonic() + 0.05
        while time.monotonic() < late:
            enter_and_leave()

    before = signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + 2
    try:
        while time.monotonic() < end:
            try:
                enter_and_leave_until_interrupted()
            except Interrupted:
                interruptions += 1
            assert not limiter._lock.locked()
            assert 0 == limiter.inside(KEY) == limiter.waiting(KEY)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interruptions > 100
    assert enter(limiter, waiters=0)[1] is True


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
        """Return the seconds that each request took, including rejected requests."""

        def ask(client: Any) -> list[float]:
            took = []
            for _ in range(number // 6 + 1):
                start = time.monotonic()
                assert client.get("/quick/").status_code in (200, 503)
                took.append(time.monotonic() - start)
            return took

        # Each thread has its own client: one thread may close a connection that another reads.
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(6) as threads:
            clients = [stack.enter_context(site.client()) for _ in range(6)]
            return [seconds for took in threads.map(ask, clients) for seconds in took]

    def p99(took: list[float]) -> float:
        return statistics.quantiles(took, n=100)[98]

    load(50)
    normal = load(300)
    server.pause()
    load(20)  # some of these requests notice the outage
    in_outage = load(600)
    assert 503 == site.get("/reports/list/").status_code
    assert 3 >= gate.peak("quick")
    server.resume()
    eventually(lambda: site.get("/reports/list/").status_code == 200)
    load(100)
    assert 3 >= gate.peak("quick")
    print(f"p99 {p99(normal) * 1000:.1f} ms, in the outage {p99(in_outage) * 1000:.1f} ms")
    # A command to the hung server takes half a second. Nearly all requests send none.
    assert len(in_outage) / 10 > sum(took > 0.5 for took in in_outage)
    log = site.log.read_text()
    assert 1 == log.count("is down") == log.count("is available again")
