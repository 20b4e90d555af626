"""Decorator, mixin and middleware on views of every kind, by way of Django's test clients."""

import asyncio
import functools
import gc
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path as route
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.views import APIView

from django_redis_sync import (
    LeaseLost,
    Lock,
    NotAcquired,
    Semaphore,
    SemaphoreRequiredMixin,
    Unavailable,
    semaphore_required,
)
from django_redis_sync.limits import semaphore
from django_redis_sync.limits.response import note_of
from django_redis_sync.limits.routes import marks_of
from django_redis_sync.operators.actions import resize
from django_redis_sync.signals import acquire_rejected, lease_lost
from tests.behaviour.both import eventually
from tests.request_site.views import Mixed

MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
REQUESTS = RequestFactory()

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.django_db,
    pytest.mark.urls("tests.request_site.urls"),
    pytest.mark.promise(18),
]


@pytest.fixture
def with_middleware(settings):
    """Adds the middleware, and these to REDIS_SYNC."""

    def add(**sync):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, **sync}

    return add


@pytest.fixture(autouse=True)
def no_memory(monkeypatch) -> None:
    """No process remembers the rejections of an earlier test."""
    monkeypatch.setattr(semaphore, "_crowded", {})


def one() -> Semaphore:
    return Semaphore("one", 1, blocking=False)


def in_use(semaphore: Semaphore | None = None) -> int:
    return (semaphore or one()).status().in_use


def view_of_one(request) -> HttpResponse:
    """Says what the request holds."""
    return HttpResponse(" ".join(place.name for place in note_of(request)))


def get(path: str, asgi: bool = False, **options) -> HttpResponse:
    if asgi:
        return async_to_sync(AsyncClient().get)(path, **options)
    return Client().get(path, **options)


# Every kind of view, full and not

LIMITED = ["limited", "alimited", "adispatch", "onget", "mixed", "amixed", "template"]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", LIMITED)
def test_a_view_answers_refuses_while_full_and_answers_again(view: str, asgi: bool) -> None:
    assert 200 == get(f"/{view}/", asgi).status_code
    with one():
        refused = get(f"/{view}/", asgi)
    assert 503 == refused.status_code
    assert 1 <= int(refused["Retry-After"]) <= 120
    assert 200 == get(f"/{view}/", asgi).status_code
    assert 0 == in_use()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_a_failing_view_gives_its_permit_back_and_its_own_exception_out(asgi: bool) -> None:
    with pytest.raises(ValueError, match="the view failed"):
        get("/failing/", asgi)
    assert 0 == in_use()


@pytest.mark.parametrize("decorate", [semaphore_required, semaphore_required()])
def test_without_a_name_the_semaphore_is_named_after_the_view(settings, decorate) -> None:
    def view(request):
        return HttpResponse(str(sorted(place.name for place in note_of(request))))

    name = f"{__name__}.{view.__qualname__}"
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {name: {"limit": 1}}}
    assert f"['{name}']" == decorate(view)(REQUESTS.get("/")).content.decode()


def passing(view):
    """Some other decorator."""

    @functools.wraps(view)
    def passed(*args, **kwargs):
        return view(*args, **kwargs)

    return passed


@pytest.mark.parametrize("others", [[], [passing]], ids=["alone", "around another"])
def test_without_a_name_the_semaphore_of_a_method_is_named_after_the_class(
    others, settings
) -> None:
    @method_decorator([semaphore_required, *others], name="dispatch")
    class Report(View):
        def get(self, request):
            return HttpResponse(str(sorted(place.name for place in note_of(request))))

    class Daily(Report):
        pass

    names = [f"{__name__}.{view.__qualname__}" for view in (Report, Daily)]
    semaphores = {name: {"limit": 1} for name in names}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": semaphores}
    for view, name in zip((Report, Daily), names, strict=True):
        assert f"['{name}']" == view.as_view()(REQUESTS.get("/")).content.decode()


class Decorated(View):
    @semaphore_required
    def dispatch(self, request):
        return super().dispatch(request)

    @semaphore_required
    def get(self, request):
        return view_of_one(request)


class DecoratedAsync(View):
    @semaphore_required
    def dispatch(self, request):
        return super().dispatch(request)

    @semaphore_required
    async def get(self, request):
        return view_of_one(request)


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_a_method_that_is_decorated_itself_is_named_after_its_class(asgi: bool, settings) -> None:
    limited = DecoratedAsync if asgi else Decorated
    for view in (limited, type("Daily", (limited,), {})):
        names = [f"{__name__}.{view.__qualname__}{method}" for method in ("", ".get")]
        semaphores = {name: {"limit": 1} for name in names}
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": semaphores}
        with override_settings(ROOT_URLCONF=(route("x/", view.as_view()),)):
            assert set(names) == set(get("/x/", asgi).content.decode().split())
        assert [0, 0] == [in_use(Semaphore(name, 1)) for name in names]


@pytest.mark.parametrize("others", [[], [passing]], ids=["alone", "around another"])
def test_a_dispatch_that_is_decorated_from_outside_is_awaited(others) -> None:
    limited = method_decorator([semaphore_required("one", 1), *others], name="dispatch")
    view = limited(type("Report", (PlainAsync,), {})).as_view()
    with override_settings(ROOT_URLCONF=(route("x/", view),)):
        assert 200 == get("/x/", asgi=True).status_code
        with one():
            assert 503 == get("/x/", asgi=True).status_code
    assert 0 == in_use()


def test_without_a_name_the_semaphore_of_a_class_is_the_same_inside_and_outside(settings) -> None:
    """Around as_view() too, where every function is called `view`; and the check reads it so."""
    name = f"{__name__}.Noted"
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {name: {"limit": 1}}}
    for view in (semaphore_required(Noted.as_view()), semaphore_required()(Noted.as_view())):
        assert f"['{name}']" == view(REQUESTS.get("/")).content.decode()
        assert [name] == [fallback for _, fallback in marks_of(view)]


def test_a_view_of_which_nothing_says_a_limit_is_a_configuration_error() -> None:
    view = semaphore_required("unheard of")(lambda request: HttpResponse())
    with pytest.raises(ImproperlyConfigured, match="limit of 'unheard of'"):
        view(REQUESTS.get("/"))


class Noted(View):
    def get(self, request):
        return HttpResponse(str(sorted(place.name for place in note_of(request))))


class Plain(View):
    def get(self, request):
        return HttpResponse()


class Limited(SemaphoreRequiredMixin, Plain):
    semaphore_name, semaphore_limit = "one", 1


class Tenant(SemaphoreRequiredMixin, View):
    semaphore_limit = staticmethod(lambda request: int(request.GET.get("limit", 1)))
    semaphore_methods = ["GET"]

    def get_semaphore_name(self) -> str:
        return f"tenant-{self.kwargs['tenant']}"

    def get(self, request, tenant):
        return HttpResponse("tenant")

    post = get


def test_a_view_with_the_mixin_may_say_its_options_by_attributes_and_methods() -> None:
    view = Tenant.as_view()
    with Semaphore("tenant-1", 3, blocking=False):
        assert 503 == view(REQUESTS.get("/"), tenant=1).status_code
        assert 200 == view(REQUESTS.get("/?limit=2"), tenant=1).status_code
        assert 200 == view(REQUESTS.get("/"), tenant=2).status_code
        assert 200 == view(REQUESTS.post("/"), tenant=1).status_code
        open_for_two = Tenant.as_view(
            semaphore_limit=2, semaphore_status=500, semaphore_methods={"GET"}
        )
        assert 200 == open_for_two(REQUESTS.get("/"), tenant=1).status_code
        with Semaphore("tenant-1", 3, blocking=False):
            assert 500 == open_for_two(REQUESTS.get("/"), tenant=1).status_code


def of_closure(view):
    return lambda request: view.request.path


def of_method(view):
    return view.key


def of_default(view):
    return lambda request, view=view: view.request.path


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("make", [of_closure, of_method, of_default])
def test_callables_of_a_mixin_keep_no_request_alive(make, asgi: bool) -> None:
    class Keyed(SemaphoreRequiredMixin, PlainAsync if asgi else Plain):
        semaphore_name, semaphore_limit = "keyed", 1

        def key(self, request):
            return self.request.path

        get_semaphore_key = make
        get_semaphore_when = make

    view, requests = Keyed.as_view(), []

    def ask() -> int:
        request = REQUESTS.get("/x/")
        requests.append(weakref.ref(request))
        answer = view(request)
        return (async_to_sync(awaited)(answer) if asgi else answer).status_code

    assert [200] * 3 == [ask() for _ in range(3)]
    gc.collect()  # Django's views reference themselves
    assert [None] * 3 == [request() for request in requests]


async def awaited(answer):
    return await answer


@pytest.mark.parametrize(
    ("bases", "attributes", "said"),
    [
        ((View, SemaphoreRequiredMixin), {}, "before View"),
        ((Plain, SemaphoreRequiredMixin), {}, "before View"),
        ((SemaphoreRequiredMixin, View), {"semaphore_limits": 3}, "did you mean semaphore_limit?"),
        ((SemaphoreRequiredMixin,), {"semaphore_maximum": 3}, "no options: semaphore_maximum"),
        ((Limited,), {"get_semaphore_keys": print}, "did you mean get_semaphore_key?"),
    ],
)
def test_a_mixin_that_would_limit_nothing_is_refused_as_a_class(bases, attributes, said) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        type("Wrong", bases, attributes)


def test_what_is_no_view_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="method_decorator"):
        semaphore_required("x", limit=1)(View)
    with pytest.raises(TypeError, match="name first"):
        semaphore_required(3)
    with pytest.raises(TypeError, match="not for a int"):
        semaphore_required("x")(3)
    with pytest.raises(TypeError, match="synchronized"):
        semaphore_required("x", limit=1)(lambda number: number)(3)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"limit": 0}, ValueError),
        ({"limit": True}, TypeError),
        ({"limit": "3"}, TypeError),
        ({"limit": 1.5}, TypeError),
        ({"limit": float("nan")}, TypeError),
        ({"key": "users"}, ValueError),
        ({"key": 3}, TypeError),
        ({"methods": "POST"}, TypeError),
        ({"methods": []}, ValueError),
        ({"blocking_timeout": -1}, ValueError),
        ({"blocking_timeout": float("inf")}, ValueError),
        ({"max_waiters": -1}, ValueError),
        ({"status": 200}, ValueError),
        ({"on_outage": "panic"}, ValueError),
        ({"on_full": "skip"}, ValueError),
        ({"enforce": 1}, TypeError),
        ({"when": 3}, TypeError),
        ({"using": ["a", "b"]}, TypeError),
        ({"timeout": 0}, ValueError),
    ],
)
def test_wrong_options_are_refused_where_the_view_is_decorated(options, error) -> None:
    with pytest.raises(error, match=next(iter(options))):
        semaphore_required("x", **options)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
def test_wrong_names_are_refused_where_the_view_is_decorated(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        semaphore_required(name, limit=1)


def test_a_sync_view_that_returns_a_coroutine_is_an_error_and_holds_nothing() -> None:
    async def body() -> HttpResponse:
        return HttpResponse()

    def view(request):
        return body()

    limited = semaphore_required("one", limit=1)(view)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"view .*view returned a coroutine, .* 'async def'"):
            limited(REQUESTS.get("/"))
        assert 0 == in_use()


# What a policy says of its semaphore


def test_a_policys_timeout_max_hold_and_min_hold_are_kept_by_the_server() -> None:
    def lease(request):
        (holder,) = one().status().holders
        return HttpResponse(f"{holder.ends_in}")

    short = semaphore_required("one", limit=1, timeout=7)(lease)
    assert 5 < float(short(REQUESTS.get("/")).content) <= 7

    def hangs(request):
        time.sleep(1)
        return HttpResponse(str(in_use()))

    capped = semaphore_required("one", limit=1, max_hold=0.3)(hangs)
    assert b"0" == capped(REQUESTS.get("/")).content
    spaced = semaphore_required("one", limit=1, min_hold=1.5)(respond_ok)
    assert [200, 503] == [spaced(REQUESTS.get("/")).status_code for _ in range(2)]
    eventually(lambda: in_use() == 0)
    assert 200 == spaced(REQUESTS.get("/")).status_code


# Refusals


def test_a_keyed_refusal_is_429_and_a_status_given_wins() -> None:
    for options, status in [
        ({}, 503),
        ({"key": lambda request: "k"}, 429),
        ({"status": 420}, 420),
        ({"key": "ip", "status": 503}, 503),
    ]:
        inner: list[HttpResponse] = []

        @semaphore_required("nested", limit=1, **options)
        def view(request, inner=inner):
            if not inner:
                inner.append(HttpResponse())
                inner[0] = view(REQUESTS.get("/"))
            return HttpResponse()

        assert 200 == view(REQUESTS.get("/")).status_code
        assert status == inner[0].status_code


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json", "application/json"),
        ("text/html, application/json;q=0.9", "text/html; charset=utf-8"),
        ("application/json, text/html;q=0.9", "application/json"),
        (
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "text/html; charset=utf-8",
        ),
        ("text/*", "text/html; charset=utf-8"),
        ("*/*", "application/json"),  # curl, requests, httpx, fetch()
        ("image/png", "application/json"),
        (None, "application/json"),
    ],
)
def test_a_refusal_comes_as_the_client_prefers(accept: str, kind: str) -> None:
    with one():
        refused = get("/limited/", headers={"accept": accept} if accept else {})
    assert kind == refused["Content-Type"]
    assert "Accept" in refused["Vary"]
    assert "no-store" == refused["Cache-Control"]


def test_a_refusal_tells_nothing_of_holders_hosts_or_tokens() -> None:
    import socket

    with one() as lease:
        for accept in ("text/html", "application/json"):
            refused = get("/limited/", headers={"accept": accept})
            shown = refused.content.decode() + str(refused.headers)
            for secret in (lease.token[:8], socket.gethostname(), str(lease.fence)):
                assert secret not in shown


def test_a_project_can_give_its_own_template(settings, tmp_path) -> None:
    folder = tmp_path / "django_redis_sync"
    folder.mkdir()
    (folder / "503.html").write_text("busy: {{ status }}, {{ retry_after }}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    with one():
        refused = get("/limited/", headers={"accept": "text/html"})
    assert f"busy: 503, {refused['Retry-After']}" == refused.content.decode()


PATHS = ["limited", "alimited", "adispatch", "mixed", "amixed", "reports/aexport"]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("path", PATHS)
def test_a_template_of_the_projects_own_may_ask_for_the_user(
    settings, tmp_path, with_middleware, path: str, asgi: bool
) -> None:
    folder = tmp_path / "django_redis_sync"
    folder.mkdir()
    (folder / "503.html").write_text("busy, {{ user.username }}: {{ retry_after }}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    with_middleware(ENDPOINTS={"reports:*": {"name": "one", "limit": 1}})
    client = AsyncClient() if asgi else Client()
    client.force_login(User.objects.create(username="ann"))
    ask = async_to_sync(client.get) if asgi else client.get
    with one():
        refused = ask(f"/{path}/", headers={"accept": "text/html"})
    assert 503 == refused.status_code
    assert refused.content.decode().startswith("busy, ann: ")


def in_teapots(request, rejection):
    text = f"{rejection.reason} {rejection.name} {rejection.message}"
    return HttpResponse(text, status=418)


async def asleep(request, rejection):
    return HttpResponse(status=rejection.status, headers={"Retry-After": "99"})


class Object:
    """A callable that is async, though inspection does not show it."""

    async def __call__(self, request, rejection):
        return in_teapots(request, rejection)


@pytest.mark.parametrize(
    ("response", "asgi"),
    [
        (in_teapots, False),
        (in_teapots, True),
        (f"{__name__}.in_teapots", False),
        (Object(), True),
    ],
)
def test_a_policy_may_have_a_response_of_its_own(response, asgi: bool) -> None:
    view = semaphore_required("one", limit=1, response=response)(
        arespond_ok if asgi else respond_ok
    )
    with one():
        rejected = view(REQUESTS.get("/"))
        rejected = asyncio.run(rejected) if asgi else rejected
    assert 418 == rejected.status_code
    assert rejected.content.startswith(b"full one Too many requests")
    assert 1 <= int(rejected["Retry-After"]) <= 3
    assert "no-store" == rejected["Cache-Control"]


def test_a_response_of_its_own_keeps_its_headers() -> None:
    view = semaphore_required("one", limit=1, response=asleep)(arespond_ok)
    with one():
        rejected = asyncio.run(view(REQUESTS.get("/")))
    assert (503, "99") == (rejected.status_code, rejected["Retry-After"])


def nothing(request, rejection) -> None: ...


def text(request, rejection) -> str:
    return "come back later"


@pytest.mark.parametrize("limited_by", ["decorator", "middleware"])
@pytest.mark.parametrize(
    ("response", "asgi"),
    [
        *((response, asgi) for response in (nothing, text) for asgi in (False, True)),
        (asleep, False),
        (Object(), False),
    ],
)
def test_a_response_that_is_none_lets_no_request_in(
    response, asgi: bool, limited_by: str, with_middleware, caplog
) -> None:
    body = arespond_ok if asgi else respond_ok
    options = {"name": "one", "limit": 1, "response": response}
    if limited_by == "middleware":
        with_middleware(ENDPOINTS={"x": options})
        view = body
    else:
        view = semaphore_required(**options)(body)
    with override_settings(ROOT_URLCONF=(route("x/", view, name="x"),)), one():
        rejected = get("/x/", asgi)
    assert 503 == rejected.status_code
    assert 1 <= int(rejected["Retry-After"])
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    name = "Object" if isinstance(response, Object) else response.__name__
    assert f"response={__name__}.{name} of the limit 'one' returned a " in line


def test_the_settings_may_name_a_response_for_all(settings) -> None:
    path = f"{__name__}.in_teapots"
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": {"response": path}}
    with one():
        assert 418 == get("/limited/").status_code


def test_on_full_raise_raises_where_the_project_can_catch_it() -> None:
    view = semaphore_required("one", limit=1, on_full="raise")(lambda request: HttpResponse())
    with one(), pytest.raises(NotAcquired) as raised:
        view(REQUESTS.get("/"))
    assert ("full", "one") == (raised.value.reason, raised.value.lock_name)
    assert "'one'" in str(raised.value)


# Who counts


def test_options_and_head_pass_no_limit_of_a_function() -> None:
    called = []
    everything = semaphore_required("one", limit=1)(lambda r: called.append(r) or HttpResponse())
    reads = semaphore_required("one", limit=1, methods=["get"])(everything)
    with one():
        for method in ("get", "head", "post", "options"):
            headers = {"Origin": "https://x", "Access-Control-Request-Method": "GET"}
            request = REQUESTS.generic(method.upper(), "/", headers=headers)
            assert 503 == everything(request).status_code
        for method in ("GET", "HEAD"):
            assert 503 == reads(REQUESTS.generic(method, "/")).status_code
    assert [] == called


def test_methods_say_which_requests_are_limited() -> None:
    posts = semaphore_required("one", limit=1, methods=["post"])(lambda request: HttpResponse())
    with one():
        assert 200 == posts(REQUESTS.get("/")).status_code
        assert 200 == posts(REQUESTS.options("/")).status_code
        assert 503 == posts(REQUESTS.post("/")).status_code


class PlainAsync(View):
    async def get(self, request):
        return HttpResponse()


class AnswersItself(Limited):
    def options(self, request):
        return HttpResponse("made at length")


class DispatchesAtLength(Plain):
    def dispatch(self, request):
        return super().dispatch(request)


LIMIT = semaphore_required("one", limit=1)


@pytest.mark.parametrize("limited_by", ["decorator", "middleware"])
@pytest.mark.parametrize(
    ("view", "status"),
    [
        (Limited.as_view(), 200),
        (method_decorator(LIMIT, name="dispatch")(type("V", (Plain,), {})).as_view(), 200),
        (LIMIT(Plain.as_view()), 200),
        (LIMIT(PlainAsync.as_view()), 200),
        (AnswersItself.as_view(), 503),
        (LIMIT(DispatchesAtLength.as_view()), 503),
    ],
)
def test_options_is_free_only_where_the_framework_answers_it(
    view, status, limited_by, with_middleware
) -> None:
    if limited_by == "middleware":
        with_middleware(ENDPOINTS={"preflight": {"name": "one", "limit": 1}})
    with override_settings(ROOT_URLCONF=(route("x/", view, name="preflight"),)), one():
        assert status == Client().options("/x/").status_code
        assert status == async_to_sync(AsyncClient().options)("/x/").status_code
        assert 503 == Client().get("/x/").status_code
        assert 503 == Client().head("/x/").status_code


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", [Plain, PlainAsync])
def test_a_preflight_is_free_for_the_middleware_alone(view, asgi: bool, with_middleware) -> None:
    with_middleware(ENDPOINTS={"preflight": {"name": "one", "limit": 1}})
    client = AsyncClient() if asgi else Client()
    asks = (client.options, client.get)
    with override_settings(ROOT_URLCONF=(route("x/", view.as_view(), name="preflight"),)), one():
        statuses = [(async_to_sync(ask) if asgi else ask)("/x/").status_code for ask in asks]
    assert [200, 503] == statuses


def test_when_says_which_requests_are_limited() -> None:
    view = semaphore_required("one", limit=1, when=lambda request: "big" in request.GET)(
        lambda request: HttpResponse()
    )
    with one():
        assert 200 == view(REQUESTS.get("/")).status_code
        assert 503 == view(REQUESTS.get("/?big")).status_code


def test_a_limit_may_depend_on_the_request() -> None:
    view = semaphore_required("one", limit=lambda request: int(request.GET["limit"]))(
        lambda request: HttpResponse()
    )
    with Semaphore("one", 2):
        assert 503 == view(REQUESTS.get("/?limit=1")).status_code
        assert 200 == view(REQUESTS.get("/?limit=2")).status_code
        with pytest.raises(ValueError, match="limit"):
            view(REQUESTS.get("/?limit=0"))


def test_limits_can_be_switched_off(settings) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENABLED": False}
    with one():
        assert 200 == get("/limited/").status_code


def test_a_visitor_sent_to_the_login_takes_no_permit(raw) -> None:
    def written() -> list[bytes]:
        return [key for key in raw.scan_iter() if b"{one}" in key]

    assert 302 == get("/members/").status_code
    assert [] == written()
    assert 200 == get("/limited/").status_code
    assert [] != written()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_a_policy_by_user_limits_each_user_alone(asgi: bool) -> None:
    ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
    clients = []
    for user in (ann, bob):
        client = AsyncClient() if asgi else Client()
        if asgi:
            async_to_sync(client.aforce_login)(user)
            client = Both(client)
        else:
            client.force_login(user)
        clients.append(client)
    with Semaphore("mine", 1, key=str(ann.pk)):
        assert 429 == clients[0].get("/mine/").status_code
        assert 200 == clients[1].get("/mine/").status_code


class Both:
    def __init__(self, client: AsyncClient) -> None:
        self.get = async_to_sync(client.get)


# Streams


def test_a_streaming_response_holds_its_permit_until_it_is_closed() -> None:
    for path in ("/stream/", "/file/"):
        response = get(path)
        assert 1 == in_use()
        assert 503 == get(path).status_code
        body = iter(response.streaming_content)
        next(body)
        assert 1 == in_use()
        list(body)
        assert 0 == in_use()


def test_a_stream_that_fails_gives_its_permit_back() -> None:
    response = get("/stream/?fail")
    with pytest.raises(OSError, match="the source"):
        list(response.streaming_content)
    assert 0 == in_use()


def test_a_stream_that_goes_on_in_another_response_keeps_its_permit() -> None:
    @semaphore_required("one", limit=1)
    def view(request):
        return StreamingHttpResponse(iter([b"a", b"b"]))

    replaced = StreamingHttpResponse(view(REQUESTS.get("/")).streaming_content)
    gc.collect()
    assert 1 == in_use()
    assert b"ab" == b"".join(replaced)


# Other middleware


@pytest.mark.parametrize("path", ["/limited/", "/stream/", "/reports/export/", "/reports/stream/"])
@pytest.mark.parametrize("ours", ["inside", "outside"])
@pytest.mark.parametrize("other", ["failing", "replacing"])
def test_a_response_that_another_middleware_drops_gives_its_permit_back(
    other: str, ours: str, path: str, settings
) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "ENDPOINTS": {"reports:*": {"name": "one", "limit": 1}},
    }
    pair = [f"tests.request_site.middleware.{other}", MIDDLEWARE]
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, *(pair if ours == "inside" else pair[::-1])]
    status = {"failing": 500, "replacing": 304}[other]
    assert status == Client(raise_request_exception=False).get(path).status_code
    assert 0 == in_use()


@pytest.mark.parametrize("path", ["/stream/", "/reports/stream/"])
def test_a_stream_that_another_middleware_wraps_keeps_its_permit(path: str, settings) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "ENDPOINTS": {"reports:*": {"name": "one", "limit": 1}},
    }
    wrapping = "tests.request_site.middleware.wrapping"
    settings.MIDDLEWARE = [wrapping, *settings.MIDDLEWARE, MIDDLEWARE]
    response = get(path)
    gc.collect()
    body = iter(response.streaming_content)
    assert b"FIRST" == next(body)
    assert 1 == in_use()
    assert [b"LAST"] == list(body)
    assert 0 == in_use()


# Permits that are lost


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_a_lease_lost_in_mid_request_is_told_and_the_response_stands(asgi, raw, caplog) -> None:
    told = []

    def receiver(**said):
        told.append(said["lease"].name)

    def body():
        raw.flushdb()
        return HttpResponse("done")

    @semaphore_required("one", limit=1)
    def view(request):
        return body()

    @semaphore_required("one", limit=1)
    async def aview(request):
        return body()

    lease_lost.connect(receiver)
    try:
        answer = asyncio.run(aview(REQUESTS.get("/"))) if asgi else view(REQUESTS.get("/"))
        assert b"done" == answer.content
        eventually(lambda: told == ["one"])
    finally:
        lease_lost.disconnect(receiver)
    assert [r for r in caplog.records if "lost" in r.getMessage()]


def test_a_lost_lease_does_not_mask_the_exception_of_the_view(raw) -> None:
    @semaphore_required("one", limit=1)
    def view(request):
        raw.flushdb()
        raise KeyError("the view's own")

    with pytest.raises(KeyError, match="the view's own"):
        view(REQUESTS.get("/"))


# Errors of a view's own locks


def contended(request) -> HttpResponse:
    with Lock("stock", blocking=False):
        return HttpResponse()


async def acontended(request) -> HttpResponse:
    async with Lock("stock", blocking=False):
        return HttpResponse()


def down(request) -> HttpResponse:
    raise Unavailable("Redis is down")


class ContendedApi(APIView):
    def get(self, request):
        return contended(request)


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", [contended, acontended, down, ContendedApi.as_view()])
def test_an_error_of_a_views_own_lock_is_answered_503(
    view, asgi: bool, settings, with_middleware, caplog
) -> None:
    with_middleware()
    settings.ROOT_URLCONF = (route("x/", view, name="x"),)
    with Lock("stock"):
        response = get("/x/", asgi)
    assert (503, 503) == (response.status_code, response.json().get("status", 503))
    assert 2 <= int(response["Retry-After"]) <= 3
    error = "Unavailable" if view is down else "NotAcquired"
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert line.startswith(f"503 for /x/: {error}: ")


@pytest.mark.parametrize("error", [KeyError("other"), LeaseLost("lost")])
def test_other_errors_of_a_view_are_left_alone(error, settings, with_middleware) -> None:
    def view(request):
        raise error

    with_middleware()
    settings.ROOT_URLCONF = (route("x/", view),)
    with pytest.raises(type(error)):
        get("/x/")


def test_errors_of_a_views_own_locks_can_be_left_alone(settings, with_middleware) -> None:
    with_middleware(ERROR_RESPONSES=False)
    settings.ROOT_URLCONF = (route("x/", down),)
    with pytest.raises(Unavailable):
        get("/x/")


# Shadow


def shadowed(body) -> Callable:
    return semaphore_required("one", limit=1, enforce=False, blocking_timeout=30)(body)


def test_shadow_mode_counts_all_who_are_inside() -> None:
    seen = []

    @shadowed
    def view(request) -> HttpResponse:
        seen.append(in_use())
        return view(REQUESTS.get("/")) if len(seen) < 3 else HttpResponse()

    assert 200 == view(REQUESTS.get("/")).status_code
    assert [1, 2, 3] == seen
    assert 0 == in_use()


# Waiting


class Visit:
    """A request in a thread of its own, inside until it is told to leave."""

    def __init__(self, asgi: bool = False, name: str = "one", **options) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        decorate = semaphore_required(name, **{"limit": 1, **options})

        def body(request) -> HttpResponse:
            self.inside.set()
            self.leave.wait(20)
            return HttpResponse()

        async def abody(request) -> HttpResponse:
            return await asyncio.to_thread(body, request)

        self.view = async_to_sync(decorate(abody)) if asgi else decorate(body)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.status = self.view(REQUESTS.get("/")).status_code

    def end(self) -> int:
        self.leave.set()
        self.thread.join(20)
        return self.status


@pytest.fixture
def rejected():
    """Why requests were refused, in order."""
    reasons = []

    def receiver(**said):
        reasons.append(said["rejection"].reason)

    acquire_rejected.connect(receiver)
    yield reasons
    acquire_rejected.disconnect(receiver)


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_a_request_waits_its_turn_but_no_longer_than_it_may(asgi: bool, rejected) -> None:
    first = Visit(asgi)
    assert first.inside.wait(10)
    second = Visit(asgi, blocking_timeout=15)
    eventually(lambda: one().status().waiting == 1)
    assert 503 == Visit(asgi, blocking_timeout=0.1).end()
    assert 200 == first.end()
    assert second.inside.wait(10)
    assert 200 == second.end()
    assert ["timeout"] == rejected
    assert 0 == in_use()


def test_no_more_wait_than_may(rejected) -> None:
    options = {"blocking_timeout": 15, "max_waiters": 1}
    visits = [Visit(**options)]
    assert visits[0].inside.wait(10)
    visits.append(Visit(**options))
    eventually(lambda: one().status().waiting == 1)
    assert 503 == Visit(**options).end()
    assert ["full"] == rejected
    assert [200, 200] == [visit.end() for visit in visits]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_no_more_wait_in_a_process_than_it_has_seats(asgi, rejected, settings) -> None:
    seats = {"max_waiting_tasks" if asgi else "max_waiting_threads": 1}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": seats}
    first = Visit(asgi)
    assert first.inside.wait(10)
    second = Visit(asgi, blocking_timeout=15)
    slots = semaphore.tasks if asgi else semaphore.threads
    # It takes the place after it has entered the queue.
    eventually(lambda: slots.full(REQUESTS.get("/")))
    with Semaphore("two", 1):
        for name in ("one", "two"):  # the seats are those of the process, not of a policy
            assert 503 == Visit(asgi, name, blocking_timeout=15).end()
    assert 200 == Visit(asgi, "three", blocking_timeout=15).end()  # what is free takes no seat
    assert [*seats] * 2 == rejected
    assert 200 == first.end()
    assert second.inside.wait(10)
    assert 200 == second.end()
    assert 0 == in_use()


def test_a_wait_that_cannot_succeed_is_refused_at_once_after_the_first_in_vain(
    rejected, settings
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": {"max_waiting_threads": None}}
    with one():
        time.sleep(0.3)  # what a hold lasts, as far as the server knows
    visits = [Visit(blocking_timeout=15)]
    assert visits[0].inside.wait(10)
    for number in range(1, 4):
        visits.append(Visit(blocking_timeout=15))
        eventually(lambda number=number: one().status().waiting == number)
    for _ in range(2):
        assert 503 == Visit(blocking_timeout=0.5).end()
    assert ["timeout", "full"] == rejected
    assert [200] * 4 == [visit.end() for visit in visits]


def test_a_wait_is_not_begun_that_an_operators_limit_makes_hopeless(rejected) -> None:
    resize("one", None, 1)
    with one():
        time.sleep(0.3)
    options = {"blocking_timeout": 15, "limit": 9}
    with one():
        first = Visit(**options)
        eventually(lambda: one().status().waiting == 1)
        for _ in range(2):  # 0.3 s by the operator's limit
            assert 503 == Visit(limit=9, blocking_timeout=0.1).end()
    assert ["timeout", "full"] == rejected
    assert 200 == first.end()


def test_a_request_cancelled_while_it_waits_leaves_the_queue() -> None:
    view = semaphore_required("one", limit=1, blocking_timeout=15)(arespond_ok)

    async def main() -> None:
        waiting = asyncio.create_task(view(REQUESTS.get("/")))
        while not (await one().astatus()).waiting:
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert 0 == (await one().astatus()).waiting

    with one():
        asyncio.run(main())
    assert 0 == in_use()


def respond_ok(request) -> HttpResponse:
    return HttpResponse()


async def arespond_ok(request) -> HttpResponse:
    return HttpResponse()


# The middleware


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", ["export", "aexport"])
def test_the_middleware_limits_by_view_name(with_middleware, view: str, asgi: bool) -> None:
    with_middleware(
        SEMAPHORES={"one": {"limit": 1}},
        ENDPOINTS={f"reports:{view}": "one", "reports:*": {"limit": 5}},
    )
    assert 200 == get(f"/reports/{view}/", asgi).status_code
    with one():
        assert 503 == get(f"/reports/{view}/", asgi).status_code
        assert 200 == get("/reports/list/", asgi).status_code
        assert 200 == get("/free/", asgi).status_code
    assert 0 == in_use()


def test_an_entry_of_its_own_is_named_as_it_says_or_after_its_pattern(with_middleware) -> None:
    with_middleware(
        ENDPOINTS={"reports:export": {"name": "one", "limit": 1}, "reports:*": {"limit": 1}}
    )
    with one():
        assert 503 == get("/reports/export/").status_code
    with Semaphore("reports:*", 1):
        assert 200 == get("/reports/export/").status_code
        assert 503 == get("/reports/list/").status_code


@pytest.mark.parametrize("view", ["stream", "astream"])
def test_the_middleware_holds_a_stream_until_it_is_closed(with_middleware, view: str) -> None:
    with_middleware(ENDPOINTS={"reports:*": {"name": "one", "limit": 1}})

    async def read() -> None:
        response = await AsyncClient().get(f"/reports/{view}/")
        assert 1 == (await one().astatus()).in_use
        if view == "astream":
            assert b"firstlast" == b"".join([part async for part in response])
        else:
            response.close()

    asyncio.run(read())
    eventually(lambda: in_use() == 0)


def test_one_permit_per_request_however_many_places_name_it(with_middleware) -> None:
    with_middleware(SEMAPHORES={"one": {"limit": 1}}, ENDPOINTS={"*": "one"})
    for view in ("limited", "alimited", "adispatch", "mixed", "onget"):
        assert 200 == get(f"/{view}/").status_code
    twice = semaphore_required("one", limit=1)(
        semaphore_required("one", limit=1)(lambda request: HttpResponse())
    )
    assert 200 == twice(REQUESTS.get("/")).status_code
    assert 0 == in_use()


def test_the_middleware_gives_back_what_it_took_before_a_refusal(
    with_middleware, monkeypatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    with_middleware(ENDPOINTS={"limited": {"name": "another", "limit": 1}})
    with one():
        assert 503 == get("/limited/").status_code
        gc.disable()
        try:
            assert 0 == in_use(Semaphore("another", 1))
        finally:
            gc.enable()
    assert 200 == get("/limited/").status_code


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_a_mixins_options_may_ask_the_database_wherever_they_are_asked_for(
    with_middleware, monkeypatch, asgi: bool
) -> None:
    asked = []

    def limit(self):
        asked.append(User.objects.count())
        return 1

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    monkeypatch.setattr(Mixed, "get_semaphore_limit", limit)
    with_middleware()
    assert 200 == get("/mixed/", asgi).status_code
    assert 2 == len(asked)  # by the middleware, then by the view itself


def test_a_mixins_options_know_the_views_request_where_the_middleware_asks_for_them(
    settings, with_middleware, monkeypatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    settings.ROOT_URLCONF = (route("<int:tenant>/", Tenant.as_view()),)
    with_middleware()
    with Semaphore("tenant-7", 1, blocking=False):
        assert (503, 200) == (get("/7/").status_code, get("/8/").status_code)


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_a_policy_that_the_middleware_asked_is_not_asked_again_by_the_view(
    settings, with_middleware, monkeypatch, asgi: bool
) -> None:
    asked = []

    def when(request):
        asked.append("when")
        return len(asked) == 1  # the next one would be another answer

    def key(request):
        asked.append("key")
        return "anyone"

    limited = semaphore_required("asked", limit=1, when=when, key=key)
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    settings.ROOT_URLCONF = (route("", limited(view_of_one)),)
    with_middleware()
    assert b"asked" == get("/", asgi).content
    assert ["when", "key"] == asked


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_options_are_read_once_where_no_transaction_has_to_be_awaited(
    with_middleware, monkeypatch, asgi: bool
) -> None:
    asked = []

    def limit(self):
        asked.append(self)
        return 1

    monkeypatch.setattr(Mixed, "get_semaphore_limit", limit)
    with_middleware()
    assert 200 == get("/mixed/", asgi).status_code
    assert 1 == len(asked)


def test_the_middleware_passes_a_visitor_on_to_the_login_without_a_permit(with_middleware) -> None:
    with_middleware(ENDPOINTS={"members": {"name": "one", "limit": 1}})
    with one():
        assert 302 == get("/members/").status_code


def test_an_unlimited_request_sends_no_command_and_a_limited_one_two(with_middleware, raw) -> None:
    with_middleware(ENDPOINTS={"reports:export": {"name": "one", "limit": 1}})

    def commands() -> int:
        return sum(v["calls"] for k, v in raw.info("commandstats").items() if "evalsha" in k)

    for asgi in (False, True):
        for path, most in (("/free/", 0), ("/reports/export/", 2)):
            get(path, asgi)
            sent = []
            for _ in range(5):
                before = commands()
                get(path, asgi)
                sent.append(commands() - before)
            assert most == min(sent)  # threads of earlier tests may add some, and take none away


# What stays in Redis


def visit(limited, key: str) -> None:
    assert 200 == limited(REQUESTS.get(f"/{key}")).status_code


def test_what_stays_of_a_key_is_gone_when_the_pages_say(raw, settings) -> None:
    """Keys live as long as benchmarks/RESULTS.md says."""
    by_path = semaphore_required("paths", limit=1, key=lambda request: request.path)
    visit(by_path(lambda request: HttpResponse()), "one")
    visit(semaphore_required("plain", limit=1)(lambda request: HttpResponse()), "")
    minutes = {
        name: raw.pttl(next(iter(raw.scan_iter(match=f"*{{{name}*}}:stats")))) / 60_000
        for name in ("paths@", "plain")
    }
    assert 60 <= minutes["paths@"] <= 62
    assert 24 * 60 <= minutes["plain"] <= 24 * 60 + 2
    ages = [raw.pttl(key) for key in raw.scan_iter(match="*:leases")]
    assert 2 == len(ages) and max(ages) <= 40_000


def test_only_so_many_keys_of_a_process_leave_statistics(raw, monkeypatch) -> None:
    monkeypatch.setattr(semaphore, "counted_keys", semaphore.CountedKeys())
    monkeypatch.setattr(semaphore.CountedKeys, "MAX", 3)
    by_path = semaphore_required("paths", limit=1, key=lambda request: request.path)
    view = by_path(lambda request: HttpResponse())
    for key in "abcdefab":
        visit(view, key)
    assert 3 == len(list(raw.scan_iter(match="*:stats")))
    assert 6 == len(list(raw.scan_iter(match="*:leases")))
    monkeypatch.setattr(semaphore.CountedKeys, "HOUR", 0.0)
    counts = semaphore.CountedKeys()
    assert [True] * 9 == [counts.has(number) for number in range(9)]


# Cancelled requests


@pytest.mark.parametrize("path", ["/alimited/", "/adispatch/", "/amixed/", "/reports/aexport/"])
def test_a_request_cancelled_at_any_await_leaves_no_permit(with_middleware, path: str) -> None:
    with_middleware(ENDPOINTS={"reports:*": {"name": "one", "limit": 1}})

    async def cancel_after(steps: int) -> bool:
        """Whether the request was over before it was cancelled."""
        request = asyncio.create_task(AsyncClient().get(path))
        for _ in range(steps):
            await asyncio.sleep(0)
            if request.done():
                break
        over = request.done()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert 0 == (await one().astatus()).in_use
        return over

    async def main() -> None:
        await AsyncClient().get(path)
        for steps in range(0, 400, 3):
            if await cancel_after(steps):
                return
        await AsyncClient().get(path)

    asyncio.run(main())


def test_a_sync_view_that_runs_on_after_its_request_was_cancelled_keeps_its_permit(
    with_middleware, redis_url
) -> None:
    from tests.request_site import gate

    with_middleware(ENDPOINTS={"reports:*": {"name": "one", "limit": 1}})

    async def main() -> None:
        request = asyncio.create_task(AsyncClient().get("/reports/export/?gate=sync"))
        while not gate.now_inside("plain"):
            await asyncio.sleep(0.01)
        request.cancel()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert 1 == gate.now_inside("plain")
        assert 1 == (await one().astatus()).in_use
        gate.open_gate("sync")
        await asyncio.gather(request, return_exceptions=True)

    asyncio.run(main())
    assert 0 == gate.now_inside("plain")
    eventually(lambda: in_use() == 0)
