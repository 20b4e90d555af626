"""Shares of requests: both bounds, and turns, on Redis and in the process alone."""

from __future__ import annotations

import asyncio
import threading
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
from django_redis_sync import Semaphore, SemaphoreRequiredMixin, semaphore_required
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
    """A request of a tenant that stays inside its view until it is told to leave."""

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
        """The response's status, once the request has left the view."""
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
    """A project with one view, which is limited through one of the three faces."""

    def __init__(self, settings: Any, face: str, asgi: bool) -> None:
        self._settings, self._face, self.asgi = settings, face, asgi

    def limit(self, **options: Any) -> None:
        view: Any = astay if self.asgi else stay
        if self._face == "decorator":
            view = semaphore_required("one", **options)(view)
        elif self._face == "mixin":
            attributes = {f"semaphore_{option}": value for option, value in options.items()}
            base = AsyncStays if self.asgi else Stays
            bases = (SemaphoreRequiredMixin, base)
            view = type("Limited", bases, {"semaphore_name": "one", **attributes}).as_view()
        else:
            entry = {"name": "one", **options}
            self._settings.MIDDLEWARE = [MIDDLEWARE]
            self.set(ENDPOINTS={"view": entry})
        self._settings.ROOT_URLCONF = (path("", view, name="view"),)
        clear_url_caches()

    def set(self, **sync: Any) -> None:
        self._settings.REDIS_SYNC = {**self._settings.REDIS_SYNC, **sync}

    def visit(self, tenant: str = "", **query: str) -> Visit:
        return Visit(tenant, self.asgi, **query)


FACES = ["decorator", "mixin", "middleware"]
SITES = [(face, asgi) for face in FACES for asgi in (False, True)]
NAMES = [f"{face}-{'async' if asgi else 'sync'}" for face, asgi in SITES]


@pytest.fixture(params=SITES, ids=NAMES)
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
    """The site with Redis, and while Redis is down."""
    if request.param == "local":
        url = f"redis://127.0.0.1:{free_port()}"
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url}}
    return site


def reasons(rejections: list[dict[str, Any]]) -> list[str]:
    return [said["refusal"].reason for said in rejections]


# Both bounds


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
    again = anywhere.visit("a").entered()
    assert [200] * 3 == [visit.end() for visit in (*flood[1:], other, again)]


def test_not_acquired_names_the_limit_that_the_waiter_waited_for(
    anywhere: Site, rejections: list[Any]
) -> None:
    anywhere.limit(limit=2, share=tenant_of, share_limit=1, blocking_timeout=0.3)
    inside = [anywhere.visit("a").entered()]
    assert 429 == anywhere.visit("a").status
    inside.append(anywhere.visit("b").entered())
    assert [429, 503] == [anywhere.visit(tenant).status for tenant in "ac"]
    assert ["share", "share", "timeout"] == reasons(rejections)
    assert [200, 200] == [visit.end() for visit in inside]


def test_shares_take_turns_and_each_serves_its_first(anywhere: Site) -> None:
    anywhere.limit(limit=1, share=tenant_of, blocking_timeout=50)
    inside, line = [anywhere.visit("a").entered()], []
    for tenant in "aab":
        line.append(anywhere.visit(tenant))
        eventually(lambda: waiting() == len(line))
    for turn in (0, 2, 1):
        assert not any(visit.inside.is_set() for visit in line)
        assert 200 == inside.pop().end()
        inside.append(line[turn].entered())
        line[turn] = SimpleNamespace(inside=threading.Event())
    assert 200 == inside.pop().end()


def waiting() -> int:
    """How many wait, in Redis and in this process."""
    here = local_limiter.waiting(KEY)
    if here:
        return here
    try:
        return Semaphore("one", 1).status().waiting
    except Exception:
        return 0


def test_waiter_of_a_full_share_lets_others_pass(anywhere: Site) -> None:
    anywhere.limit(limit=2, share=tenant_of, share_limit=1, blocking_timeout=50)
    first, second = anywhere.visit("a").entered(), anywhere.visit("a")
    eventually(lambda: waiting() == 1)
    other = anywhere.visit("b").entered()
    assert not second.inside.is_set()
    assert 200 == first.end()
    assert [200, 200] == [visit.entered().end() for visit in (second, other)]


def test_callers_without_a_share_are_one_share(anywhere: Site) -> None:
    anywhere.limit(limit=3, share=tenant_of, share_limit=1)
    visits = [anywhere.visit().entered()]
    assert 429 == anywhere.visit().status
    visits.append(anywhere.visit("a").entered())
    assert [200, 200] == [visit.end() for visit in visits]


def test_share_limit_may_depend_on_the_request(anywhere: Site) -> None:
    anywhere.limit(
        limit=9, share=tenant_of, share_limit=lambda request: int(request.GET.get("tier", 1))
    )
    visits = [anywhere.visit("gold", tier="2").entered() for _ in range(2)]
    visits.append(anywhere.visit("plain").entered())
    statuses = [anywhere.visit("gold", tier="2").status, anywhere.visit("plain").status]
    assert [429, 429] == statuses
    assert [200] * 3 == [visit.end() for visit in visits]


def test_shares_are_counted_within_each_key(anywhere: Site) -> None:
    key = lambda request: request.GET["room"]  # noqa: E731
    anywhere.limit(limit=2, key=key, share=tenant_of, share_limit=1)
    visits = [anywhere.visit("a", room=room).entered() for room in "xy"]
    assert 429 == anywhere.visit("a", room="x").status
    assert [200, 200] == [visit.end() for visit in visits]


def test_status_of_the_policy_applies_to_both_rejections(anywhere: Site) -> None:
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
    assert not any(said["enforced"] for said in rejections)


# What callers give


class Broken:
    """A callable that returns or raises what it is given."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, request: Any) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


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
def test_callable_that_fails_admits_nothing(
    option: str, value: Any, error: str, asgi: bool
) -> None:
    options = {"share": tenant_of, "share_limit": 1, option: Broken(value)}
    entered = False

    def view(request: Any) -> HttpResponse:
        nonlocal entered
        entered = True
        return HttpResponse()

    async def aview(request: Any) -> HttpResponse:
        return view(request)

    limited = semaphore_required("one", limit=2, **options)(aview if asgi else view)
    with pytest.raises((KeyError, TypeError, ValueError), match=error):
        asyncio.run(limited(REQUESTS.get("/"))) if asgi else limited(REQUESTS.get("/"))
    assert not entered and 0 == Semaphore("one", 2).status().in_use


@pytest.mark.parametrize("asgi", [False, True], ids=["sync", "async"])
def test_share_user_counts_users_apart_and_the_anonymous_together(asgi: bool) -> None:
    @semaphore_required("one", limit=4, share="user", share_limit=1)
    def view(request: Any) -> HttpResponse:
        inner = request.then.pop() if request.then else None
        return HttpResponse() if inner is None else view(asked(inner, request.then))

    @semaphore_required("one", limit=4, share="user", share_limit=1)
    async def aview(request: Any) -> HttpResponse:
        inner = request.then.pop() if request.then else None
        return HttpResponse() if inner is None else await aview(asked(inner, request.then))

    def asked(pk: Any, then: list[Any]) -> Any:
        request = REQUESTS.get("/", REMOTE_ADDR=f"10.0.0.{len(then)}")
        request.user = SimpleNamespace(pk=pk) if pk else AnonymousUser()
        request.then = then
        return request

    def status(*pks: Any) -> int:
        """The answer to the last request, which comes while the others are inside."""
        *others, first = pks[::-1]
        request = asked(first, others)
        return (asyncio.run(aview(request)) if asgi else view(request)).status_code

    assert [200, 200] == [status(7, 8), status(7, 0)]
    assert [429, 429] == [status(7, 8, 7), status(0, 7, 0)]


# The limiter that counts the requests of one process


class Someone:
    """In the place of a request's hold."""


def test_limiter_counts_a_request_under_each_of_its_limits() -> None:
    mine, one, other = LocalLimiter(), Someone(), KEY._replace(name="other")
    mine.admitted(KEY, one)
    mine.admitted(other, one)
    assert (1, 1) == (mine.inside(KEY), mine.inside(other))
    mine.left(other, one)
    assert (1, 0) == (mine.inside(KEY), mine.inside(other))
    mine.left(KEY, one)
    assert {} == mine._by_redis


def test_limiter_counts_the_shares_of_those_that_redis_admitted() -> None:
    mine, one, two = LocalLimiter(), Someone(), Someone()
    mine.admitted(KEY, one, "a")
    assert mine.try_enter(KEY, two, 5, 0, "a", 1) is False
    assert ("share", 0, 1) == rejected(mine, "a", 1)
    assert mine.try_enter(KEY, two, 5, 0, "b", 1) is True
    assert ("full", 0, None) == rejected(mine, "c", 1)


def rejected(limiter: LocalLimiter, share: str | None, share_limit: int) -> tuple[Any, ...]:
    rejection = limiter.rejection(KEY, share, share_limit)
    return rejection.reason, rejection.waiting, rejection.limit


def test_waiter_that_gives_up_leaves_its_turn_to_the_next_of_its_share() -> None:
    mine, inside = LocalLimiter(), Someone()
    mine.enter(KEY, inside, "a")
    people = [Someone() for _ in range(3)]
    waiters = [
        mine.try_enter(KEY, it, 1, 9, share) for it, share in zip(people, "bcb", strict=True)
    ]
    assert all(isinstance(waiter, LocalWait) for waiter in waiters)
    mine.left(KEY, people[0])
    mine.left(KEY, inside)
    assert (False, True) == tuple(waiter.wait(0.01) for waiter in waiters[1:])
