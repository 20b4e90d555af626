"""Shares of requests: limit, share_limit, and turns, with Redis and during an outage."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import clear_url_caches, path
from django.views import View

from devtools.servers import free_port
from django_redis_sync import (
    Semaphore,
    SemaphoreRequiredMixin,
    Unavailable,
    semaphore_required,
)
from django_redis_sync.limits.local import LocalLimiter, LocalWait, local_limiter
from django_redis_sync.limits.policy import SemaphoreKey
from tests.behaviour.both import eventually

pytestmark = [pytest.mark.promise(32), pytest.mark.usefixtures("clean_redis")]
MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
REQUESTS = RequestFactory()
KEY = SemaphoreKey("default", "one", None)


def tenant_of(request: Any) -> str | None:
    return request.GET.get("tenant")


class Visit:
    """A request of a tenant in its own thread. It stays inside its view until `end()`."""

    open: dict[str, Visit] = {}

    def __init__(self, tenant: str, asgi: bool = False, **query: str) -> None:
        self.tenant, self.inside, self.leave = tenant, threading.Event(), threading.Event()
        self.response: Any = None
        self._asgi, number = asgi, str(id(self))
        self.open[number] = self
        self._query = {"visit": number, **query, **({"tenant": tenant} if tenant else {})}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        get: Any = async_to_sync(AsyncClient().get) if self._asgi else Client().get
        self.response = get("/", self._query)

    @property
    def status(self) -> int:
        """The status of the response, after the request has left the view."""
        self.thread.join(60)
        return self.response.status_code

    def end(self) -> int:
        self.leave.set()
        return self.status

    def entered(self) -> Visit:
        assert self.inside.wait(30)
        return self


def stay(request: Any) -> HttpResponse:
    visit = Visit.open[request.GET["visit"]]
    visit.inside.set()
    visit.leave.wait(60)
    return HttpResponse()


async def astay(request: Any) -> HttpResponse:
    return await asyncio.to_thread(stay, request)


class Stays(View):
    def get(self, request: Any) -> HttpResponse:
        return stay(request)


class AsyncStays(View):
    async def get(self, request: Any) -> HttpResponse:
        return await astay(request)


class Site:
    """A project with one view, limited by a decorator, a mixin, or the middleware."""

    def __init__(self, settings: Any, kind: str, asgi: bool) -> None:
        self._settings, self._kind, self.asgi = settings, kind, asgi

    def limit(self, **options: Any) -> None:
        view: Any = astay if self.asgi else stay
        options["name"] = "one"
        if self._kind == "decorator":
            view = semaphore_required(**options)(view)
        elif self._kind == "mixin":
            attributes = {f"semaphore_{option}": value for option, value in options.items()}
            bases = (SemaphoreRequiredMixin, AsyncStays if self.asgi else Stays)
            view = type("Limited", bases, attributes).as_view()
        else:
            self._settings.MIDDLEWARE = [MIDDLEWARE]
            sync = {**self._settings.REDIS_SYNC, "ENDPOINTS": {"view": options}}
            self._settings.REDIS_SYNC = sync
        self._settings.ROOT_URLCONF = (path("", view, name="view"),)
        clear_url_caches()

    def visit(self, tenant: str = "", **query: str) -> Visit:
        return Visit(tenant, self.asgi, **query)


KINDS = ["decorator", "mixin", "middleware"]
SITES = [(kind, asgi) for kind in KINDS for asgi in (False, True)]


@pytest.fixture(params=SITES, ids=[f"{kind}-{'async' if asgi else 'sync'}" for kind, asgi in SITES])
def site(request: Any, settings: Any) -> Iterator[Site]:
    settings.MIDDLEWARE = []
    requests = {"max_waiting_threads": 99}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": requests}
    yield Site(settings, *request.param)
    for visit in Visit.open.values():
        visit.end()
    Visit.open.clear()
    clear_url_caches()
    assert not local_limiter._counters and not local_limiter._by_redis


@pytest.fixture(params=["redis", "local"])
def anywhere(request: Any, site: Site, settings: Any) -> Site:
    """Return the site with Redis, and while Redis is down."""
    if request.param == "local":
        url = f"redis://127.0.0.1:{free_port()}"
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url}}
    return site


def reasons(rejections: list[dict[str, Any]]) -> list[str]:
    return [sent["rejection"].reason for sent in rejections]


# The limit and the limit of a share


def test_share_and_limit_both_hold_and_each_rejection_names_its_bound(
    anywhere: Site, rejections: list[Any]
) -> None:
    anywhere.limit(limit=3, share=tenant_of, share_limit=2)
    flood = [anywhere.visit("a").entered(), anywhere.visit("a").entered()]
    third = anywhere.visit("a")
    assert 429 == third.status
    assert 1 <= int(third.response["Retry-After"]) <= 120
    other = anywhere.visit("b").entered()
    assert [503, 429] == [anywhere.visit(tenant).status for tenant in ("b", "a")]
    assert ["share", "full", "share"] == reasons(rejections)
    assert 200 == flood[0].end()
    third = anywhere.visit("a").entered()
    assert [200] * 3 == [visit.end() for visit in (*flood[1:], other, third)]


def test_timeout_names_the_bound_that_blocked_the_request(
    anywhere: Site, rejections: list[Any]
) -> None:
    anywhere.limit(limit=2, share=tenant_of, share_limit=1, blocking_timeout=0.3)
    inside = [anywhere.visit("a").entered()]
    assert 429 == anywhere.visit("a").status
    inside.append(anywhere.visit("b").entered())
    assert [429, 503] == [anywhere.visit(tenant).status for tenant in "ac"]
    assert ["share", "share", "timeout"] == reasons(rejections)
    assert [200, 200] == [visit.end() for visit in inside]


def test_shares_take_turns_and_each_admits_its_first_waiter(anywhere: Site) -> None:
    anywhere.limit(limit=1, share=tenant_of, blocking_timeout=50)
    inside, queue = anywhere.visit("a").entered(), []
    for tenant in "aab":
        queue.append(anywhere.visit(tenant))
        eventually(lambda: waiting() == len(queue))
    first, second, of_b = queue
    for admitted in (first, of_b, second):
        assert not any(visit.inside.is_set() for visit in queue)
        assert 200 == inside.end()
        inside = admitted.entered()
        queue.remove(admitted)
    assert 200 == inside.end()


def waiting() -> int:
    """Return the number of waiters, in this process or in Redis."""
    local = local_limiter.waiting(KEY)
    if local:
        return local
    try:
        return Semaphore("one", 1).status().waiting
    except Unavailable:
        return 0


def test_waiter_of_a_full_share_does_not_block_other_shares(anywhere: Site) -> None:
    anywhere.limit(limit=2, share=tenant_of, share_limit=1, blocking_timeout=50)
    first, second = anywhere.visit("a").entered(), anywhere.visit("a")
    eventually(lambda: waiting() == 1)
    other = anywhere.visit("b").entered()
    assert not second.inside.is_set()
    assert 200 == first.end()
    assert [200, 200] == [visit.entered().end() for visit in (second, other)]


def test_requests_without_a_share_count_as_one_share(anywhere: Site) -> None:
    anywhere.limit(limit=3, share=tenant_of, share_limit=1)
    visits = [anywhere.visit().entered()]
    assert 429 == anywhere.visit().status
    visits.append(anywhere.visit("a").entered())
    assert [200, 200] == [visit.end() for visit in visits]


def test_callable_share_limit_depends_on_the_request(anywhere: Site) -> None:
    anywhere.limit(
        limit=9, share=tenant_of, share_limit=lambda request: int(request.GET.get("tier", 1))
    )
    visits = [anywhere.visit("gold", tier="2").entered() for _ in range(2)]
    visits.append(anywhere.visit("plain").entered())
    statuses = [anywhere.visit("gold", tier="2").status, anywhere.visit("plain").status]
    assert [429, 429] == statuses
    assert [200] * 3 == [visit.end() for visit in visits]


def test_shares_are_counted_within_each_key(anywhere: Site) -> None:
    anywhere.limit(limit=2, key=lambda r: r.GET["key"], share=tenant_of, share_limit=1)
    visits = [anywhere.visit("a", key=key).entered() for key in "xy"]
    assert 429 == anywhere.visit("a", key="x").status
    assert [200, 200] == [visit.end() for visit in visits]


def test_status_option_applies_to_both_kinds_of_rejection(anywhere: Site) -> None:
    anywhere.limit(limit=2, share=tenant_of, share_limit=1, status=420)
    visits = [anywhere.visit("a").entered(), anywhere.visit("b").entered()]
    assert [420, 420] == [anywhere.visit(tenant).status for tenant in "ac"]
    assert [200, 200] == [visit.end() for visit in visits]


def test_shadow_mode_names_the_bound_that_would_have_rejected(
    site: Site, rejections: list[Any]
) -> None:
    site.limit(limit=2, share=tenant_of, share_limit=1, enforce=False)
    visits = [site.visit(tenant).entered() for tenant in "aabc"]
    assert [200] * 4 == [visit.end() for visit in visits]
    assert ["share", "full", "full"] == reasons(rejections)
    assert not any(sent["enforced"] for sent in rejections)


# The callables of a policy


@pytest.mark.parametrize("asgi", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("share", KeyError("tenant"), "tenant"),
        ("share", 1.5, "share must be a str"),
        ("share", True, "share must be a str"),
        ("share", object(), "share must be a str"),
        ("share", "", "a share must not be empty"),
        ("share", "x" * 201, "a share must not be longer than 200 bytes"),
        ("share", "two\nlines", "control character"),
        ("share_limit", KeyError("tier"), "tier"),
        ("share_limit", 0, "share_limit must be from 1"),
        ("share_limit", "3", "share_limit must be an int"),
    ],
)
def test_request_is_not_admitted_when_a_callable_fails(
    option: str, value: Any, error: str, asgi: bool
) -> None:
    def fails(request: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def view(request: Any) -> HttpResponse:
        pytest.fail("the request was admitted")

    async def aview(request: Any) -> HttpResponse:
        return view(request)

    options = {"share": tenant_of, "share_limit": 1, option: fails}
    limited = semaphore_required("one", limit=2, **options)(aview if asgi else view)
    with pytest.raises((KeyError, TypeError, ValueError), match=error):
        asyncio.run(limited(REQUESTS.get("/"))) if asgi else limited(REQUESTS.get("/"))
    assert 0 == Semaphore("one", 2).status().in_use


@pytest.mark.parametrize("asgi", [False, True], ids=["sync", "async"])
def test_share_user_is_one_share_per_user_and_one_for_all_anonymous_users(asgi: bool) -> None:
    limited = semaphore_required("one", limit=4, share="user", share_limit=1)

    @limited
    def view(request: Any) -> HttpResponse:
        return view(request_of(request.inner)) if request.inner else HttpResponse()

    @limited
    async def aview(request: Any) -> HttpResponse:
        return await aview(request_of(request.inner)) if request.inner else HttpResponse()

    def request_of(pks: tuple[int, ...]) -> Any:
        """Return a request of the first user. Its view makes the requests of the other users."""
        request: Any = REQUESTS.get("/", REMOTE_ADDR=f"10.0.0.{len(pks)}")
        pk, *request.inner = pks
        request.user = SimpleNamespace(pk=pk) if pk else AnonymousUser()
        return request

    def status(*pks: int) -> int:
        """Return the status of the last request, made while the others are inside. 0: anonymous."""
        response = asyncio.run(aview(request_of(pks))) if asgi else view(request_of(pks))
        return response.status_code

    assert [200, 200] == [status(7, 8), status(7, 0)]
    assert [429, 429] == [status(7, 8, 7), status(0, 7, 0)]


# The limiter that counts the requests of one process


class FakeHold:
    """Stands for the hold of a request. The limiter references holds weakly."""


def test_limiter_counts_a_request_under_each_of_its_limits() -> None:
    limiter, hold, other = LocalLimiter(), FakeHold(), KEY._replace(name="other")
    limiter.admitted(KEY, hold)
    limiter.admitted(other, hold)
    assert (1, 1) == (limiter.inside(KEY), limiter.inside(other))
    limiter.left(other, hold)
    assert (1, 0) == (limiter.inside(KEY), limiter.inside(other))
    limiter.left(KEY, hold)
    assert 0 == weakref.getweakrefcount(hold)  # the limiter keeps no entry


def test_limiter_counts_the_shares_of_requests_that_redis_admitted() -> None:
    limiter, known, hold = LocalLimiter(), FakeHold(), FakeHold()
    limiter.admitted(KEY, known, "a")
    assert limiter.try_enter(KEY, hold, 5, 0, "a", 1) is False
    assert ("share", 0, 1) == rejected(limiter, "a", 1)
    assert limiter.try_enter(KEY, hold, 5, 0, "b", 1) is True
    assert ("full", 0, None) == rejected(limiter, "c", 1)


def rejected(limiter: LocalLimiter, share: str | None, share_limit: int) -> tuple[Any, ...]:
    rejection = limiter.rejection(KEY, share, share_limit)
    return rejection.reason, rejection.waiting, rejection.limit


def test_turn_of_a_waiter_that_gives_up_passes_to_the_next_of_its_share() -> None:
    limiter, inside = LocalLimiter(), FakeHold()
    limiter.enter(KEY, inside, "a")
    requests = [(FakeHold(), share) for share in "bcb"]
    waiters = [limiter.try_enter(KEY, hold, 1, 9, share) for hold, share in requests]
    assert all(isinstance(waiter, LocalWait) for waiter in waiters)
    limiter.left(KEY, requests[0][0])
    limiter.left(KEY, inside)
    assert (False, True) == tuple(waiter.wait(0.01) for waiter in waiters[1:])
