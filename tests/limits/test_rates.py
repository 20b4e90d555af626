"""Rates of requests: 429 with an exact Retry-After, per key, and per process in an outage."""

from __future__ import annotations

import json

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from django_redis_sync import Lock, ReadWriteLock, Semaphore, semaphore_required
from django_redis_sync.limits import local
from django_redis_sync.operators.statistics import SITE, statistics_of
from django_redis_sync.testing import filled, without_redis
from tests.behaviour.both import eventually
from tests.support.operators import act, as_json

pytestmark = pytest.mark.promise(35)
MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"


def answers(view, count: int) -> list[int]:
    request = RequestFactory().get("/")
    return [view(request).status_code for _ in range(count)]


def test_requests_above_the_rate_get_429_and_the_exact_time(raw) -> None:
    @semaphore_required("search", rate="3/m")
    def search(request):
        return HttpResponse("found")

    assert answers(search, 4) == [200, 200, 200, 429]
    rejected = search(RequestFactory().get("/"))
    assert 50 <= int(rejected["Retry-After"]) <= 60


def test_a_request_above_the_rate_is_told_to_come_later(raw) -> None:
    @semaphore_required("search", limit=5, rate="1/m")
    def search(request):
        return HttpResponse("found")

    assert answers(search, 1) == [200]
    detail = json.loads(search(RequestFactory().get("/")).content)["detail"]
    assert "Too many requests. Please try again later." == detail, "not 'at the same time'"
    with filled("full", 1):
        full = semaphore_required("full", limit=1)(search)
        assert b"at the same time" in full(RequestFactory().get("/")).content


@pytest.mark.parametrize("raising", ["a lock in the view", "the limit of the view"])
def test_middleware_answers_an_error_of_a_rate_with_the_exact_time(raw, raising) -> None:
    @semaphore_required("search", rate="1/m", on_full="raise")
    def search(request):
        return HttpResponse("found")

    def send(request):
        with Semaphore("search", rate="1/m", blocking=False):
            return HttpResponse("sent")

    view = send if raising == "a lock in the view" else search
    site = override_settings(ROOT_URLCONF=(path("", view),), MIDDLEWARE=[MIDDLEWARE])
    with site:
        assert [200, 503] == [Client().get("/").status_code for _ in range(2)]
        rejected = Client().get("/")
    assert 50 <= int(rejected["Retry-After"]) <= 60
    assert "Please try again later." in rejected.json()["detail"]


def test_each_key_has_a_rate_of_its_own(raw) -> None:
    @semaphore_required("search", limit=5, rate="1/m", key=lambda request: request.GET["q"])
    def search(request):
        return HttpResponse("found")

    asked = [RequestFactory().get("/", {"q": q}) for q in "aabb"]
    assert [search(request).status_code for request in asked] == [200, 429, 200, 429]


def test_key_with_a_rate_takes_about_a_kilobyte_and_expires_after_the_period(raw) -> None:
    @semaphore_required("search", limit=5, rate="30/m", key=lambda request: request.GET["q"])
    def search(request):
        return HttpResponse("found")

    for n in range(50):
        search(RequestFactory().get("/", {"q": f"user-{n}"}))
    keys = [key for key in raw.scan_iter("*{search@*") if not key.endswith(b":stats")]
    assert 50 == len(keys), "more than one key per user"
    assert max(raw.memory_usage(key) for key in keys) < 1100
    assert all(0 < raw.pttl(key) <= 80_000 for key in keys)


def test_rate_of_the_settings_applies_to_code_and_requests(raw, settings) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"mails": {"rate": "2/m"}}}

    @semaphore_required("mails")
    def send(request):
        return HttpResponse("sent")

    with Semaphore("mails"):
        assert answers(send, 2) == [200, 429]


def test_shadow_mode_admits_and_counts(raw) -> None:
    @semaphore_required("search", rate="1/m", enforce=False)
    def search(request):
        return HttpResponse("found")

    assert answers(search, 3) == [200, 200, 200]
    assert Semaphore("search", rate="1/m").status().rate.used == 3
    (shown,) = as_json("status", "search")["names"]
    assert (2, 2) == (shown["ever"]["shadow_rejected"], shown["ever"]["rate_rejected"])
    eventually(lambda: statistics_of([SITE])[0].history.ever.rate_rejected == 2)
    act("pause", "search")
    assert answers(search, 1) == [200]
    (shown,) = as_json("status", "search")["names"]
    assert (1, 2) == (shown["ever"]["pause_rejected"], shown["ever"]["rate_rejected"])
    act("resume", "search")
    Semaphore("search", rate="1/m").cool_down(60)
    assert answers(search, 1) == [200]
    (shown,) = as_json("status", "search")["names"]
    counts = shown["ever"]["pause_rejected"], shown["ever"]["rate_rejected"]
    assert (1, 3) == counts, "a cool-down is no pause of an operator"


@pytest.mark.parametrize("waits", [0, 1])
def test_without_redis_each_process_keeps_the_rate(waits) -> None:
    @semaphore_required("search", rate="2/m", blocking_timeout=waits / 10)
    def search(request):
        return HttpResponse("found")

    with without_redis():
        assert answers(search, 3) == [200, 200, 429]
        mails = Semaphore("mails", 3)
        mails.cool_down(30)
        assert mails.acquire(blocking=False) is None


def test_combinations_that_make_no_sense_are_refused_with_the_reason() -> None:
    with pytest.raises(ImproperlyConfigured, match="several servers can't have a rate"):
        Lock("x", using=["default", "other", "third"], rate="5/m")
    with pytest.raises(ImproperlyConfigured, match="read/write lock can't have a rate"):
        ReadWriteLock("x", rate="5/m").read.acquire()
    with pytest.raises(ValueError, match="6 permits can never fit a rate of 5/m"):
        Semaphore("x", 10, rate="5/m").acquire(permits=6)


def test_each_process_keeps_the_rate_while_redis_is_down(new_server, project) -> None:
    server = new_server()
    project.use_redis(server.url)
    project.limit(rate="3/m", limit=None)
    assert 200 == project.status()
    server.stop()
    assert [project.status() for _ in range(4)] == [200, 200, 429, 429], "one was granted before"


def test_many_keys_with_a_short_period_let_no_other_rate_forget_its_grants(monkeypatch) -> None:
    class Hold:
        """A request. The limiter refers to it weakly."""

    now, holds, limiter = 1000.0, list[Hold](), local.LocalLimiter()
    monkeypatch.setattr(local, "_MAX_LOGS", 1)
    monkeypatch.setattr(local, "clock", lambda: now)

    def enters(name: str, seconds: float) -> bool:
        holds.append(Hold())
        wait = local.LocalWait(("default", name), holds[-1], 9, rate=(1, seconds))
        return limiter.try_enter(wait, 0) is True

    assert enters("hourly", 3600)
    now += 2
    assert [enters(f"key {n}", 1) for n in range(3)] == [True] * 3
    assert not enters("hourly", 3600), "granted twice within an hour"
    now += 3600
    assert enters("hourly", 3600)
