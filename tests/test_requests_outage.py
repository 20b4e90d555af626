"""Redis down: what on_outage says holds, no request pays for it, and it ends by itself."""

import asyncio
import json
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from devtools.servers import RedisServer, free_port
from django_redis_sync import Lease, Semaphore, Unavailable
from django_redis_sync.limits.decorator import semaphore_required
from django_redis_sync.limits.outage import Breaker, breaker
from django_redis_sync.limits.rooms import rooms
from django_redis_sync.protocol.plans import Refusal
from django_redis_sync.signals import acquire_rejected, outage_changed
from tests.request_site import gate
from tests.request_site.server import Site

REQUESTS = RequestFactory()
MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"


def becomes(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not (so := what()) and time.monotonic() < end:
        time.sleep(0.01)
    return so


@pytest.fixture
def server(new_server, settings) -> RedisServer:
    """A Redis of our own, to stop."""
    server = new_server()
    point_at(settings, server.url)
    return server


@pytest.fixture
def no_server(settings) -> None:
    """Nobody listens where Redis should be."""
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


def enters(**options) -> bool:
    """Whether a request gets in now."""
    visit = Visit(**options)
    visit.leave.set()
    visit.thread.join(60)
    return visit.status == 200


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_local_keeps_the_limit_in_this_process(no_server, asgi: bool) -> None:
    first, second = Visit(asgi, limit=2), Visit(asgi, limit=2)
    assert first.inside.wait(30) and second.inside.wait(30)
    assert not enters(asgi=asgi, limit=2)
    assert 200 == first.end()
    assert enters(asgi=asgi, limit=2)
    assert 200 == second.end()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_local_lets_wait_in_order_and_no_more_than_may(no_server, asgi: bool) -> None:
    options = {"asgi": asgi, "blocking_timeout": 15, "max_waiters": 2}
    visits = [Visit(**options)]
    assert visits[0].inside.wait(30)
    (place,) = rooms()._rooms
    for number in (1, 2):
        visits.append(Visit(**options))
        assert becomes(lambda number=number: rooms().waiting(place) == number)
    refused: list[tuple[str, int]] = []

    def note(refusal, **said) -> None:
        refused.append((refusal.reason, refusal.waiting))

    acquire_rejected.connect(note)
    try:
        assert not enters(**options)
    finally:
        acquire_rejected.disconnect(note)
    assert [("full", 2)] == refused  # by which Retry-After goes
    for earlier, later in zip(visits, [*visits[1:], None], strict=True):
        assert 200 == earlier.end()
        if later is not None:
            assert later.inside.wait(30)
    assert {} == rooms()._rooms


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_local_gives_up_a_wait_that_lasts_too_long(no_server, asgi: bool) -> None:
    holder = Visit()
    assert holder.inside.wait(30)
    assert not enters(asgi=asgi, blocking_timeout=0.1)
    assert 200 == holder.end()
    assert {} == rooms()._rooms


def test_a_task_cancelled_while_it_waits_here_leaves_no_place_taken(no_server) -> None:
    @semaphore_required("one", limit=1, blocking_timeout=20)
    async def view(request):
        return HttpResponse()

    async def main() -> None:
        waiting = asyncio.create_task(view(REQUESTS.get("/")))
        while not rooms().waiting(place):
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    holder = Visit()
    assert holder.inside.wait(30)
    (place,) = rooms()._rooms
    asyncio.run(main())
    assert 200 == holder.end()
    assert {} == rooms()._rooms


def test_open_lets_all_in_and_closed_none(no_server) -> None:
    visits = [Visit(on_outage="open") for _ in range(3)]
    assert all(visit.inside.wait(30) for visit in visits)
    assert [200] * 3 == [visit.end() for visit in visits]
    for key in (None, "ip"):
        visit = Visit(on_outage="closed", key=key)
        assert 503 == visit.end()


def test_an_outage_is_not_blamed_on_other_requests(no_server) -> None:
    @semaphore_required("one", limit=1, on_outage="closed")
    def view(request):
        return HttpResponse()

    response = view(REQUESTS.get("/", headers={"accept": "application/json"}))
    assert "Please try again in a moment." == json.loads(response.content)["detail"]
    assert response["Retry-After"]


def test_shadow_mode_lets_all_in(no_server) -> None:
    visits = [Visit(on_outage="closed", enforce=False) for _ in range(3)]
    assert all(visit.inside.wait(30) for visit in visits)
    assert [200] * 3 == [visit.end() for visit in visits]


def test_an_outage_is_told_once_and_so_is_its_end(server, caplog) -> None:
    told = []

    def receiver(**said):
        told.append((said["alias"], said["down"]))

    outage_changed.connect(receiver)
    caplog.set_level(logging.WARNING, "django_redis_sync")
    try:
        assert enters()
        server.stop()
        assert [True] * 5 == [enters() for _ in range(5)]
        assert becomes(lambda: told == [("default", True)])
        server.start()
        assert becomes(lambda: enters() and not breaker("default").down)
        assert becomes(lambda: told == [("default", True), ("default", False)])
        assert [True] * 5 == [enters() for _ in range(5)]
    finally:
        outage_changed.disconnect(receiver)
    lines = [r.getMessage() for r in caplog.records if "Redis of the cache" in r.getMessage()]
    assert 2 == len(lines)
    assert "is down" in lines[0] and "is back" in lines[1]


def test_an_outage_is_told_once_however_many_permits_are_held(server, caplog) -> None:
    caplog.set_level(logging.INFO, "django_redis_sync")
    options = {"limit": 12, "timeout": 3}
    leaving, staying = ([Visit(asgi, **options) for asgi in (False, True) * 3] for _ in range(2))
    assert all(visit.inside.wait(30) for visit in (*leaving, *staying))
    server.kill()
    assert enters(limit=20)
    assert [200] * 6 == [visit.end() for visit in leaving]
    time.sleep(1.5)  # their leases are due every second
    server.restart()
    assert becomes(lambda: enters(limit=20) and not breaker("default").down)
    assert [200] * 6 == [visit.end() for visit in staying]
    said = [r.getMessage() for r in caplog.records if r.name == "django_redis_sync"]
    lines = [line for line in said if "'default'" in line or "'one'" in line]
    lost = [line for line in lines if "is lost" in line]  # the server came back with nothing
    told = ("is down", "could not be renewed", "are renewed again", "is back")
    assert [1, 1, 1, 1] == [sum(words in line for line in lines) for words in told]
    assert 4 + len(lost) == len(lines)


# The breaker, one report after the other


@pytest.fixture
def quiet(monkeypatch) -> Breaker:
    """A breaker whose probes are made by hand."""
    monkeypatch.setattr(Breaker, "_look_after_probes", lambda self: None)
    return Breaker("default")


def answered(breaker: Breaker) -> None:
    breaker._answered = True


GONE = Unavailable("Redis: gone")


def test_a_success_of_who_asked_before_the_failure_does_not_end_the_outage(quiet) -> None:
    early, late = quiet.ask(), quiet.ask()
    quiet.failed(late, GONE)
    quiet.succeeded(early)
    assert quiet.down
    assert quiet.ask() is None


def test_a_failure_of_who_asked_before_the_end_begins_no_new_outage(quiet) -> None:
    early, late = quiet.ask(), quiet.ask()
    quiet.failed(early, GONE)
    answered(quiet)
    trial = quiet.ask()
    quiet.succeeded(trial)
    assert not quiet.down
    quiet.failed(late, GONE)
    quiet.failed(trial, GONE)
    assert not quiet.down
    quiet.failed(quiet.ask(), GONE)
    assert quiet.down


def test_an_answered_probe_lets_one_request_try(quiet) -> None:
    quiet.failed(quiet.ask(), GONE)
    with ThreadPoolExecutor(16) as threads:
        for _ in range(50):
            answered(quiet)
            tried = [
                era for era in threads.map(lambda _: quiet.ask(), range(16)) if era is not None
            ]
            assert 1 == len(tried)
            quiet.failed(tried[0], GONE)
            assert quiet.down and quiet.ask() is None
    answered(quiet)
    quiet.succeeded(quiet.ask())
    assert quiet.ask() is not None and quiet.ask() is not None


def test_a_trial_that_was_cancelled_leaves_it_to_another(quiet) -> None:
    early = quiet.ask()
    quiet.failed(early, GONE)
    quiet.abandoned(early)  # was none
    assert quiet.ask() is None
    answered(quiet)
    trial = quiet.ask()
    assert quiet.ask() is None
    quiet.abandoned(trial)
    assert quiet.ask() == trial
    assert quiet.ask() is None


def test_a_trial_of_an_earlier_outage_says_nothing_of_a_later_one(quiet) -> None:
    quiet.failed(quiet.ask(), GONE)
    answered(quiet)
    slow = quiet.ask()
    answered(quiet)
    quiet.succeeded(quiet.ask())
    quiet.failed(quiet.ask(), GONE)
    quiet.succeeded(slow)
    assert quiet.down
    quiet.abandoned(slow)
    assert quiet.ask() is None


def test_a_probe_of_an_earlier_outage_answers_for_no_later_one(monkeypatch) -> None:
    mine = Breaker("default")
    monkeypatch.setattr("django_redis_sync.limits.outage.WINDOW", 0.0)
    asked = []

    def is_there(self) -> bool:
        """While it asks, this outage ends and the next one begins."""
        asked.append(self.era)
        if len(asked) == 1:
            self._answered = True
            self.succeeded(self.ask())
            self.failed(self.ask(), GONE)
            return True
        return False

    monkeypatch.setattr(Breaker, "_is_there", is_there)
    try:
        mine.failed(mine.ask(), GONE)
        assert becomes(lambda: len(asked) > 1)
        assert mine.down and mine.ask() is None
    finally:
        mine.retire()


def test_where_no_thread_can_be_started_the_next_request_starts_the_probes(monkeypatch) -> None:
    mine = Breaker("default")
    monkeypatch.setattr("django_redis_sync.limits.outage.WINDOW", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        mine.failed(mine.ask(), GONE)
        assert mine.down and mine.ask() is None
    mine.ask()
    assert becomes(lambda: mine._answered)
    mine.retire()


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


# The trial, in a request


@pytest.fixture
def half_open(clean_redis) -> Breaker:
    """Redis is there, and one request may find that out."""
    breaker("default").failed(breaker("default").ask(), GONE)
    answered(breaker("default"))
    yield breaker("default")
    breaker("default").retire()


def test_a_trial_that_is_cancelled_lets_the_next_request_try(half_open, monkeypatch) -> None:
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
    assert {} == rooms()._rooms


def test_a_trial_that_has_to_wait_ends_the_outage_before_its_turn_comes(half_open) -> None:
    with Semaphore("one", 1):
        waiting = Visit(blocking_timeout=20)
        assert becomes(lambda: not half_open.down)
        assert not waiting.inside.is_set()
    assert waiting.inside.wait(30)
    assert 200 == waiting.end()


@pytest.mark.parametrize("outcome", [GONE, Refusal("full"), KeyboardInterrupt()], ids=repr)
def test_a_place_in_the_process_is_given_back_when_redis_gives_no_permit(
    half_open, monkeypatch, outcome
) -> None:
    """While one whom Redis does not know is inside, the next ones take a place here first."""

    def take(*_: object) -> Refusal:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    half_open._answered = False
    alone = Visit(limit=2)
    assert alone.inside.wait(30)
    answered(half_open)
    (place,) = rooms()._rooms
    monkeypatch.setattr(Semaphore, "_got", take)
    view = semaphore_required("one", limit=2)(lambda request: HttpResponse())
    if isinstance(outcome, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            view(REQUESTS.get("/"))
    else:
        # Without Redis there is one more place in this process; Redis' own no is one.
        assert (503 if outcome is not GONE else 200) == view(REQUESTS.get("/")).status_code
    assert 1 == rooms().inside(place)
    assert 200 == alone.end()
    assert {} == rooms()._rooms


def test_requests_of_before_and_of_the_outage_are_together_no_more_than_the_limit(server) -> None:
    before = Visit()
    assert before.inside.wait(30)
    server.pause()
    assert not enters()
    assert breaker("default").down
    assert 200 == before.end()
    during = Visit()
    assert during.inside.wait(30)
    server.resume()
    for _ in range(20):  # the one inside now was let in without Redis, which knows nobody
        assert not enters()
        time.sleep(0.1)
    assert 200 == during.end()
    assert becomes(lambda: enters() and not breaker("default").down)
    assert becomes(lambda: Semaphore("one", 1).status().in_use == 0)
    assert {} == rooms()._rooms


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_no_request_asks_a_server_that_is_known_to_be_down(server, asgi: bool) -> None:
    assert enters(asgi=asgi)
    server.pause()
    assert enters(asgi=asgi)  # the one that notices
    start = time.monotonic()
    for _ in range(50):
        assert enters(asgi=asgi)
    assert time.monotonic() - start < 5  # 50 attempts would last 25 s at the least
    server.resume()


def test_no_request_waits_to_give_back_what_it_took_before_the_outage(server, monkeypatch) -> None:
    released = []
    monkeypatch.setattr(Lease, "release", lambda lease: released.append(lease))
    before = Visit()
    assert before.inside.wait(30)
    server.pause()
    assert not enters()
    assert 200 == before.end()
    assert [] == released
    server.resume()
    assert becomes(lambda: Semaphore("one", 1).status().in_use == 0)


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


def test_an_outage_under_load_neither_lifts_the_limit_nor_slows_requests_down(site) -> None:
    site, server = site

    def load(number: int) -> list[float]:
        """What each of the requests took, refused ones too."""

        def ask(_: int) -> float:
            start = time.monotonic()
            assert client.get("/quick/").status_code in (200, 503)
            return time.monotonic() - start

        with site.client() as client, ThreadPoolExecutor(6) as threads:
            return list(threads.map(ask, range(number)))

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
    assert becomes(lambda: site.get("/reports/list/").status_code == 200)
    load(100)
    assert 3 >= gate.peak("quick")
    print(f"p99 {p99(normal) * 1000:.1f} ms, in the outage {p99(out) * 1000:.1f} ms")
    # Each question to the hung server takes half a second: next to nobody asks it.
    assert len(out) / 10 > sum(took > 0.5 for took in out)
    log = site.log.read_text()
    assert 1 == log.count("is down") == log.count("is back")
