"""Decorator, mixin, and middleware on views of every kind, called through Django's test clients."""

import asyncio
import functools
import gc
import logging
import re
import socket
import time
import weakref

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
from django_redis_sync.signals import lease_lost
from tests.behaviour.both import eventually
from tests.request_site import gate
from tests.request_site.views import Mixed
from tests.request_site.visit import Visit

MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
REQUESTS = RequestFactory()
ONE = {"name": "one", "limit": 1}

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.django_db,
    pytest.mark.urls("tests.request_site.urls"),
    pytest.mark.promise(18),
]


@pytest.fixture
def with_middleware(settings):
    """Return a function that adds the middleware, and options to REDIS_SYNC."""

    def add(**sync):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
        configure(settings, **sync)

    return add


def configure(settings, **sync) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **sync}


@pytest.fixture(autouse=True)
def no_memory(monkeypatch) -> None:
    """Discard the rejections that this process remembers from earlier tests."""
    monkeypatch.setattr(semaphore, "_crowded", {})


def one() -> Semaphore:
    return Semaphore("one", 1, blocking=False)


def in_use(semaphore: Semaphore | None = None) -> int:
    return (semaphore or one()).status().in_use


def show_held(request) -> HttpResponse:
    """Respond with the names of the semaphores that the request holds."""
    return HttpResponse(" ".join(place.name for place in note_of(request)))


def respond_ok(request) -> HttpResponse:
    return HttpResponse()


async def arespond_ok(request) -> HttpResponse:
    return HttpResponse()


def reasons(rejections) -> list[str]:
    return [one["rejection"].reason for one in rejections]


def call(method: str, path: str, asgi: bool = False, **options) -> HttpResponse:
    if asgi:
        return async_to_sync(getattr(AsyncClient(), method))(path, **options)
    return getattr(Client(), method)(path, **options)


get = functools.partial(call, "get")


# Every kind of view, with a free permit and without

LIMITED = ["limited", "alimited", "adispatch", "onget", "mixed", "amixed", "template"]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", LIMITED)
def test_view_answers_503_while_full_and_200_before_and_after(view: str, asgi: bool) -> None:
    assert 200 == get(f"/{view}/", asgi).status_code
    with one():
        rejected = get(f"/{view}/", asgi)
    assert 503 == rejected.status_code
    assert 1 <= int(rejected["Retry-After"]) <= 120
    assert 200 == get(f"/{view}/", asgi).status_code
    assert 0 == in_use()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_failing_view_releases_its_permit_and_raises_its_own_exception(asgi: bool) -> None:
    with pytest.raises(ValueError, match="the view failed"):
        get("/failing/", asgi)
    assert 0 == in_use()


@pytest.mark.parametrize("decorate", [semaphore_required, semaphore_required()])
def test_unnamed_semaphore_is_named_after_its_view(settings, decorate) -> None:
    def view(request):
        return show_held(request)

    name = f"{__name__}.{view.__qualname__}"
    configure(settings, SEMAPHORES={name: {"limit": 1}})
    assert name == decorate(view)(REQUESTS.get("/")).content.decode()


def another_decorator(view):
    @functools.wraps(view)
    def passed(*args, **kwargs):
        return view(*args, **kwargs)

    return passed


@pytest.mark.parametrize("others", [[], [another_decorator]], ids=["alone", "around another"])
def test_unnamed_semaphore_of_a_decorated_dispatch_is_named_after_the_class(
    others, settings
) -> None:
    @method_decorator([semaphore_required, *others], name="dispatch")
    class Report(ShowHeld):
        pass

    class Daily(Report):
        pass

    names = [f"{__name__}.{view.__qualname__}" for view in (Report, Daily)]
    configure(settings, SEMAPHORES={name: {"limit": 1} for name in names})
    for view, name in zip((Report, Daily), names, strict=True):
        assert name == view.as_view()(REQUESTS.get("/")).content.decode()


class Decorated(View):
    @semaphore_required
    def dispatch(self, request):
        return super().dispatch(request)

    @semaphore_required
    def get(self, request):
        return show_held(request)


class DecoratedAsync(View):
    @semaphore_required
    def dispatch(self, request):
        return super().dispatch(request)

    @semaphore_required
    async def get(self, request):
        return show_held(request)


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_unnamed_semaphores_of_decorated_methods_are_named_after_the_class(
    asgi: bool, settings
) -> None:
    limited = DecoratedAsync if asgi else Decorated
    for view in (limited, type("Daily", (limited,), {})):
        names = [f"{__name__}.{view.__qualname__}{method}" for method in ("", ".get")]
        configure(settings, SEMAPHORES={name: {"limit": 1} for name in names})
        with override_settings(ROOT_URLCONF=(route("x/", view.as_view()),)):
            assert set(names) == set(get("/x/", asgi).content.decode().split())
        assert [0, 0] == [in_use(Semaphore(name, 1)) for name in names]


@pytest.mark.parametrize("others", [[], [another_decorator]], ids=["alone", "around another"])
def test_method_decorator_on_dispatch_limits_an_async_view(others) -> None:
    limited = method_decorator([semaphore_required("one", 1), *others], name="dispatch")
    view = limited(type("Report", (PlainAsync,), {})).as_view()
    with override_settings(ROOT_URLCONF=(route("x/", view),)):
        assert 200 == get("/x/", asgi=True).status_code
        with one():
            assert 503 == get("/x/", asgi=True).status_code
    assert 0 == in_use()


def test_unnamed_semaphore_around_as_view_is_named_after_the_class(settings) -> None:
    """as_view() returns functions that are all named `view`."""
    name = f"{__name__}.ShowHeld"
    configure(settings, SEMAPHORES={name: {"limit": 1}})
    for view in (semaphore_required(ShowHeld.as_view()), semaphore_required()(ShowHeld.as_view())):
        assert name == view(REQUESTS.get("/")).content.decode()
        assert [name] == [fallback for _, fallback in marks_of(view)]


def test_view_without_a_configured_limit_raises_improperly_configured() -> None:
    view = semaphore_required("unknown")(respond_ok)
    with pytest.raises(ImproperlyConfigured, match="limit of 'unknown'"):
        view(REQUESTS.get("/"))


class ShowHeld(View):
    def get(self, request):
        return show_held(request)


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


def test_mixin_takes_options_from_attributes_and_methods() -> None:
    view = Tenant.as_view()
    with Semaphore("tenant-1", 3, blocking=False):
        assert 503 == view(REQUESTS.get("/"), tenant=1).status_code
        assert 200 == view(REQUESTS.get("/?limit=2"), tenant=1).status_code
        assert 200 == view(REQUESTS.get("/"), tenant=2).status_code
        assert 200 == view(REQUESTS.post("/"), tenant=1).status_code
        limit_2 = Tenant.as_view(semaphore_limit=2, semaphore_status=500, semaphore_methods={"GET"})
        assert 200 == limit_2(REQUESTS.get("/"), tenant=1).status_code
        with Semaphore("tenant-1", 3, blocking=False):
            assert 500 == limit_2(REQUESTS.get("/"), tenant=1).status_code


def closure(view):
    return lambda request: view.request.path


def method(view):
    return view.key


def default_argument(view):
    return lambda request, view=view: view.request.path


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("make", [closure, method, default_argument])
def test_mixin_callables_do_not_keep_requests_alive(make, asgi: bool) -> None:
    class Keyed(SemaphoreRequiredMixin, PlainAsync if asgi else Plain):
        semaphore_name, semaphore_limit = "keyed", 1

        def key(self, request):
            return self.request.path

        get_semaphore_key = make
        get_semaphore_when = make

    view, requests = Keyed.as_view(), []

    def call() -> int:
        request = REQUESTS.get("/x/")
        requests.append(weakref.ref(request))
        return (async_to_sync(view) if asgi else view)(request).status_code

    assert [200] * 3 == [call() for _ in range(3)]
    gc.collect()  # Django's views reference themselves
    assert [None] * 3 == [request() for request in requests]


@pytest.mark.parametrize(
    ("bases", "attributes", "message"),
    [
        ((View, SemaphoreRequiredMixin), {}, "before View"),
        ((Plain, SemaphoreRequiredMixin), {}, "before View"),
        ((SemaphoreRequiredMixin, View), {"semaphore_limits": 3}, "did you mean semaphore_limit?"),
        ((SemaphoreRequiredMixin,), {"semaphore_maximum": 3}, "no options: semaphore_maximum"),
        ((Limited,), {"get_semaphore_keys": print}, "did you mean get_semaphore_key?"),
    ],
)
def test_mixin_class_that_would_limit_nothing_raises_type_error(bases, attributes, message) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        type("Wrong", bases, attributes)


def test_decorator_on_anything_but_a_view_raises_type_error() -> None:
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
def test_decorator_raises_for_invalid_options(options, error) -> None:
    with pytest.raises(error, match=next(iter(options))):
        semaphore_required("x", **options)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
def test_decorator_raises_for_invalid_names(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        semaphore_required(name, limit=1)


def test_sync_view_that_returns_a_coroutine_raises_and_holds_no_permit() -> None:
    async def body() -> HttpResponse:
        return HttpResponse()

    def view(request):
        return body()

    limited = semaphore_required("one", limit=1)(view)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"view .*view returned a coroutine, .* 'async def'"):
            limited(REQUESTS.get("/"))
        assert 0 == in_use()


# Options that a policy passes to its semaphore


def test_server_applies_timeout_max_hold_and_min_hold_of_a_policy() -> None:
    def lease(request):
        (holder,) = one().status().holders
        return HttpResponse(f"{holder.ends_in}")

    short = semaphore_required("one", limit=1, timeout=7)(lease)
    assert 5 < float(short(REQUESTS.get("/")).content) <= 7

    def hangs(request):
        time.sleep(1)
        return HttpResponse(str(in_use()))

    with_max_hold = semaphore_required("one", limit=1, max_hold=0.3)(hangs)
    assert b"0" == with_max_hold(REQUESTS.get("/")).content
    with_min_hold = semaphore_required("one", limit=1, min_hold=1.5)(respond_ok)
    assert [200, 503] == [with_min_hold(REQUESTS.get("/")).status_code for _ in range(2)]
    eventually(lambda: in_use() == 0)
    assert 200 == with_min_hold(REQUESTS.get("/")).status_code


# Rejections


def test_rejection_of_a_keyed_policy_is_429_unless_status_is_given() -> None:
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
def test_rejection_has_the_content_type_that_the_client_prefers(accept: str, kind: str) -> None:
    with one():
        rejected = get("/limited/", headers={"accept": accept} if accept else {})
    assert kind == rejected["Content-Type"]
    assert "Accept" in rejected["Vary"]
    assert "no-store" == rejected["Cache-Control"]


def test_rejection_contains_no_token_hostname_or_fence() -> None:
    with one() as lease:
        for accept in ("text/html", "application/json"):
            rejected = get("/limited/", headers={"accept": accept})
            shown = rejected.content.decode() + str(rejected.headers)
            for secret in (lease.token[:8], socket.gethostname(), str(lease.fence)):
                assert secret not in shown


PATHS = ["limited", "alimited", "adispatch", "mixed", "amixed", "reports/aexport"]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("path", PATHS)
def test_project_template_of_a_rejection_can_show_the_user(
    settings, tmp_path, with_middleware, path: str, asgi: bool
) -> None:
    folder = tmp_path / "django_redis_sync"
    folder.mkdir()
    template = "busy, {{ user.username }}: {{ status }}, {{ retry_after }}"
    (folder / "503.html").write_text(template)
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    with_middleware(ENDPOINTS={"reports:*": ONE})
    client = AsyncClient() if asgi else Client()
    client.force_login(User.objects.create(username="ann"))
    ask = async_to_sync(client.get) if asgi else client.get
    with one():
        rejected = ask(f"/{path}/", headers={"accept": "text/html"})
    assert 503 == rejected.status_code
    assert f"busy, ann: 503, {rejected['Retry-After']}" == rejected.content.decode()


def respond_418(request, rejection):
    text = f"{rejection.reason} {rejection.name} {rejection.message}"
    return HttpResponse(text, status=418)


async def arespond_after_99_seconds(request, rejection):
    return HttpResponse(status=rejection.status, headers={"Retry-After": "99"})


class AsyncCallable:
    """A callable whose `__call__` is async: `iscoroutinefunction` returns False for it."""

    async def __call__(self, request, rejection):
        return respond_418(request, rejection)


@pytest.mark.parametrize(
    ("response", "asgi"),
    [
        (respond_418, False),
        (respond_418, True),
        (f"{__name__}.respond_418", False),
        (AsyncCallable(), True),
    ],
)
def test_response_function_of_a_policy_makes_the_rejection(response, asgi: bool) -> None:
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


def test_response_function_can_set_status_and_retry_after() -> None:
    view = semaphore_required("one", limit=1, response=arespond_after_99_seconds)(arespond_ok)
    with one():
        rejected = asyncio.run(view(REQUESTS.get("/")))
    assert (503, "99") == (rejected.status_code, rejected["Retry-After"])


def return_none(request, rejection) -> None: ...


def return_text(request, rejection) -> str:
    return "come back later"


@pytest.mark.parametrize("limited_by", ["decorator", "middleware"])
@pytest.mark.parametrize(
    ("response", "asgi"),
    [
        *((response, asgi) for response in (return_none, return_text) for asgi in (False, True)),
        (arespond_after_99_seconds, False),
        (AsyncCallable(), False),
    ],
)
def test_request_is_rejected_when_the_response_function_returns_no_response(
    response, asgi: bool, limited_by: str, with_middleware, caplog
) -> None:
    body = arespond_ok if asgi else respond_ok
    options = {**ONE, "response": response}
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
    name = getattr(response, "__name__", "AsyncCallable")
    assert f"response={__name__}.{name} of the limit 'one' returned a " in line


def test_response_setting_applies_to_all_limits(settings) -> None:
    configure(settings, REQUESTS={"response": f"{__name__}.respond_418"})
    with one():
        assert 418 == get("/limited/").status_code


def test_on_full_raise_raises_not_acquired_out_of_the_view() -> None:
    view = semaphore_required("one", limit=1, on_full="raise")(respond_ok)
    with one(), pytest.raises(NotAcquired) as raised:
        view(REQUESTS.get("/"))
    assert ("full", "one") == (raised.value.reason, raised.value.lock_name)
    assert "'one'" in str(raised.value)


# Which requests count


def test_limit_of_a_function_view_counts_options_and_head_requests() -> None:
    called = []
    all_methods = LIMIT(lambda request: called.append(request) or HttpResponse())
    only_get = semaphore_required("one", limit=1, methods=["get"])(all_methods)
    headers = {"Origin": "https://x", "Access-Control-Request-Method": "GET"}
    with one():
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            request = REQUESTS.generic(method, "/", headers=headers)
            assert 503 == all_methods(request).status_code
        for method in ("GET", "HEAD"):
            assert 503 == only_get(REQUESTS.generic(method, "/")).status_code
    assert [] == called


def test_policy_limits_only_requests_with_the_given_methods() -> None:
    posts = semaphore_required("one", limit=1, methods=["post"])(respond_ok)
    with one():
        assert 200 == posts(REQUESTS.get("/")).status_code
        assert 200 == posts(REQUESTS.options("/")).status_code
        assert 503 == posts(REQUESTS.post("/")).status_code


class PlainAsync(View):
    async def get(self, request):
        return HttpResponse()


class HasOptions(Limited):
    def options(self, request):
        return HttpResponse()


class HasDispatch(Plain):
    def dispatch(self, request):
        return super().dispatch(request)


LIMIT = semaphore_required("one", limit=1)
LIMITED_DISPATCH = method_decorator(LIMIT, name="dispatch")(type("V", (Plain,), {}))


@pytest.mark.parametrize(
    ("limited_by", "view", "status"),
    [
        *(
            (limited_by, view, status)
            for limited_by in ("view", "view and middleware")
            for view, status in (
                (Limited.as_view(), 200),
                (LIMITED_DISPATCH.as_view(), 200),
                (LIMIT(Plain.as_view()), 200),
                (LIMIT(PlainAsync.as_view()), 200),
                (HasOptions.as_view(), 503),
                (LIMIT(HasDispatch.as_view()), 503),
            )
        ),
        ("middleware", Plain.as_view(), 200),
        ("middleware", PlainAsync.as_view(), 200),
    ],
)
def test_options_request_is_unlimited_only_if_the_framework_answers_it(
    view, status, limited_by, with_middleware
) -> None:
    if "middleware" in limited_by:
        with_middleware(ENDPOINTS={"preflight": ONE})
    with override_settings(ROOT_URLCONF=(route("x/", view, name="preflight"),)), one():
        for asgi in (False, True):
            assert status == call("options", "/x/", asgi).status_code
            assert 503 == call("get", "/x/", asgi).status_code
            assert 503 == call("head", "/x/", asgi).status_code


def test_policy_limits_only_requests_for_which_when_is_true() -> None:
    view = semaphore_required("one", limit=1, when=lambda r: "big" in r.GET)(respond_ok)
    with one():
        assert 200 == view(REQUESTS.get("/")).status_code
        assert 503 == view(REQUESTS.get("/?big")).status_code


def test_callable_limit_depends_on_the_request() -> None:
    view = semaphore_required("one", limit=lambda r: int(r.GET["limit"]))(respond_ok)
    with Semaphore("one", 2):
        assert 503 == view(REQUESTS.get("/?limit=1")).status_code
        assert 200 == view(REQUESTS.get("/?limit=2")).status_code
        with pytest.raises(ValueError, match="limit"):
            view(REQUESTS.get("/?limit=0"))


def test_no_request_is_limited_when_enabled_is_false(settings) -> None:
    configure(settings, ENABLED=False)
    with one():
        assert 200 == get("/limited/").status_code


def test_request_redirected_to_the_login_takes_no_permit(raw) -> None:
    def keys() -> list[bytes]:
        return [key for key in raw.scan_iter() if b"{one}" in key]

    assert 302 == get("/members/").status_code
    assert [] == keys()
    assert 200 == get("/limited/").status_code
    assert [] != keys()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_key_user_limits_each_user_separately(asgi: bool) -> None:
    def get_as(user: User) -> int:
        client = AsyncClient() if asgi else Client()
        client.force_login(user)
        return (async_to_sync(client.get) if asgi else client.get)("/mine/").status_code

    ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
    with Semaphore("mine", 1, key=str(ann.pk)):
        assert [429, 200] == [get_as(ann), get_as(bob)]


# Streams


def test_streaming_response_holds_its_permit_until_it_ends() -> None:
    for path in ("/stream/", "/file/"):
        response = get(path)
        assert 1 == in_use()
        assert 503 == get(path).status_code
        body = iter(response.streaming_content)
        next(body)
        assert 1 == in_use()
        list(body)
        assert 0 == in_use()


def test_failing_stream_releases_its_permit() -> None:
    response = get("/stream/?fail")
    with pytest.raises(OSError, match="the source"):
        list(response.streaming_content)
    assert 0 == in_use()


def test_stream_moved_into_another_response_keeps_its_permit() -> None:
    @LIMIT
    def view(request):
        return StreamingHttpResponse(iter([b"a", b"b"]))

    replaced = StreamingHttpResponse(view(REQUESTS.get("/")).streaming_content)
    gc.collect()
    assert 1 == in_use()
    assert b"ab" == b"".join(replaced)


# Other middleware


@pytest.mark.parametrize("path", ["/limited/", "/stream/", "/reports/export/", "/reports/stream/"])
@pytest.mark.parametrize("position", ["outside", "inside"])
@pytest.mark.parametrize("other", ["failing", "replacing"])
def test_permit_is_released_when_another_middleware_drops_the_response(
    other: str, position: str, path: str, settings
) -> None:
    configure(settings, ENDPOINTS={"reports:*": ONE})
    pair = [f"tests.request_site.middleware.{other}", MIDDLEWARE]
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, *(pair if position == "outside" else pair[::-1])]
    status = {"failing": 500, "replacing": 304}[other]
    assert status == Client(raise_request_exception=False).get(path).status_code
    assert 0 == in_use()


@pytest.mark.parametrize("path", ["/stream/", "/reports/stream/"])
def test_permit_is_kept_when_another_middleware_wraps_the_stream(path: str, settings) -> None:
    configure(settings, ENDPOINTS={"reports:*": ONE})
    wrapping = "tests.request_site.middleware.wrapping"
    settings.MIDDLEWARE = [wrapping, *settings.MIDDLEWARE, MIDDLEWARE]
    response = get(path)
    gc.collect()
    body = iter(response.streaming_content)
    assert b"FIRST" == next(body)
    assert 1 == in_use()
    assert [b"LAST"] == list(body)
    assert 0 == in_use()


# Lost permits


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_lease_lost_during_a_request_is_signaled_and_the_response_is_sent(
    asgi, raw, caplog
) -> None:
    lost = []

    def receiver(**arguments):
        lost.append(arguments["lease"].name)

    def view(request):
        raw.flushdb()
        return HttpResponse("done")

    async def aview(request):
        return view(request)

    lease_lost.connect(receiver)
    try:
        limited = async_to_sync(LIMIT(aview)) if asgi else LIMIT(view)
        assert b"done" == limited(REQUESTS.get("/")).content
        eventually(lambda: lost == ["one"])
    finally:
        lease_lost.disconnect(receiver)
    assert [r for r in caplog.records if "lost" in r.getMessage()]


def test_lost_lease_does_not_mask_the_exception_of_the_view(raw) -> None:
    @LIMIT
    def view(request):
        raw.flushdb()
        raise KeyError("the view's own")

    with pytest.raises(KeyError, match="the view's own"):
        view(REQUESTS.get("/"))


# Errors of locks inside a view


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
def test_middleware_answers_503_when_a_lock_inside_the_view_fails(
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
def test_middleware_does_not_handle_other_errors_of_a_view(
    error, settings, with_middleware
) -> None:
    def view(request):
        raise error

    with_middleware()
    settings.ROOT_URLCONF = (route("x/", view),)
    with pytest.raises(type(error)):
        get("/x/")


def test_middleware_does_not_handle_lock_errors_when_error_responses_is_false(
    settings, with_middleware
) -> None:
    with_middleware(ERROR_RESPONSES=False)
    settings.ROOT_URLCONF = (route("x/", down),)
    with pytest.raises(Unavailable):
        get("/x/")


# Shadow mode


def test_shadow_mode_counts_all_requests_inside() -> None:
    seen = []

    @semaphore_required("one", limit=1, enforce=False, blocking_timeout=30)
    def view(request) -> HttpResponse:
        seen.append(in_use())
        return view(REQUESTS.get("/")) if len(seen) < 3 else HttpResponse()

    assert 200 == view(REQUESTS.get("/")).status_code
    assert [1, 2, 3] == seen
    assert 0 == in_use()


# Waiting


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_request_waits_for_a_permit_up_to_its_blocking_timeout(asgi: bool, rejections) -> None:
    first = Visit(asgi)
    assert first.inside.wait(10)
    second = Visit(asgi, blocking_timeout=15)
    eventually(lambda: one().status().waiting == 1)
    assert 503 == Visit(asgi, blocking_timeout=0.1).end()
    assert 200 == first.end()
    assert second.inside.wait(10)
    assert 200 == second.end()
    assert ["timeout"] == reasons(rejections)
    assert 0 == in_use()


def test_request_is_rejected_when_max_waiters_wait(rejections) -> None:
    options = {"blocking_timeout": 15, "max_waiters": 1}
    visits = [Visit(**options)]
    assert visits[0].inside.wait(10)
    visits.append(Visit(**options))
    eventually(lambda: one().status().waiting == 1)
    assert 503 == Visit(**options).end()
    assert ["full"] == reasons(rejections)
    assert [200, 200] == [visit.end() for visit in visits]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_request_is_rejected_when_its_process_has_no_wait_slot_left(
    asgi, rejections, settings
) -> None:
    option = "max_waiting_tasks" if asgi else "max_waiting_threads"
    configure(settings, REQUESTS={option: 1})
    first = Visit(asgi)
    assert first.inside.wait(10)
    second = Visit(asgi, blocking_timeout=15)
    slots = semaphore.tasks if asgi else semaphore.threads
    # A request takes a wait slot after it has entered the queue.
    eventually(lambda: slots.full(REQUESTS.get("/")))
    with Semaphore("two", 1):
        for name in ("one", "two"):  # all policies of a process share its wait slots
            assert 503 == Visit(asgi, name, blocking_timeout=15).end()
    # If a permit is free, the request needs no wait slot.
    assert 200 == Visit(asgi, "three", blocking_timeout=15).end()
    assert [option] * 2 == reasons(rejections)
    assert 200 == first.end()
    assert second.inside.wait(10)
    assert 200 == second.end()
    assert 0 == in_use()


def test_hopeless_wait_is_rejected_at_once_after_a_first_timeout(rejections, settings) -> None:
    configure(settings, REQUESTS={"max_waiting_threads": None})
    with one():
        time.sleep(0.3)  # from now on, the server's mean hold is 0.3 s
    visits = [Visit(blocking_timeout=15)]
    assert visits[0].inside.wait(10)
    for number in range(1, 4):
        visits.append(Visit(blocking_timeout=15))
        eventually(lambda number=number: one().status().waiting == number)
    for _ in range(2):
        assert 503 == Visit(blocking_timeout=0.5).end()
    assert ["timeout", "full"] == reasons(rejections)
    assert [200] * 4 == [visit.end() for visit in visits]


def test_hopeless_wait_is_estimated_with_the_operators_limit(rejections) -> None:
    resize("one", None, 1)
    with one():
        time.sleep(0.3)
    options = {"blocking_timeout": 15, "limit": 9}
    with one():
        first = Visit(**options)
        eventually(lambda: one().status().waiting == 1)
        for _ in range(2):  # with the operator's limit of 1, the wait would last 0.3 s
            assert 503 == Visit(limit=9, blocking_timeout=0.1).end()
    assert ["timeout", "full"] == reasons(rejections)
    assert 200 == first.end()


def test_request_cancelled_while_waiting_leaves_the_queue() -> None:
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


# The middleware


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", ["export", "aexport"])
def test_middleware_limits_by_view_name(with_middleware, view: str, asgi: bool) -> None:
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


def test_endpoint_semaphore_is_named_after_its_name_option_or_its_pattern(with_middleware) -> None:
    with_middleware(ENDPOINTS={"reports:export": ONE, "reports:*": {"limit": 1}})
    with one():
        assert 503 == get("/reports/export/").status_code
    with Semaphore("reports:*", 1):
        assert 200 == get("/reports/export/").status_code
        assert 503 == get("/reports/list/").status_code


@pytest.mark.parametrize("view", ["stream", "astream"])
def test_middleware_holds_the_permit_of_a_stream_until_it_is_closed(
    with_middleware, view: str
) -> None:
    with_middleware(ENDPOINTS={"reports:*": ONE})

    async def read() -> None:
        response = await AsyncClient().get(f"/reports/{view}/")
        assert 1 == (await one().astatus()).in_use
        if view == "astream":
            assert b"firstlast" == b"".join([part async for part in response])
        else:
            response.close()

    asyncio.run(read())
    eventually(lambda: in_use() == 0)


def test_request_takes_one_permit_when_several_limits_name_its_semaphore(with_middleware) -> None:
    with_middleware(SEMAPHORES={"one": {"limit": 1}}, ENDPOINTS={"*": "one"})
    for view in ("limited", "alimited", "adispatch", "mixed", "onget"):
        assert 200 == get(f"/{view}/").status_code
    assert 200 == LIMIT(LIMIT(respond_ok))(REQUESTS.get("/")).status_code
    assert 0 == in_use()


def test_middleware_releases_its_permits_when_a_later_limit_rejects(
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
def test_mixin_options_can_query_the_database_in_middleware_and_view(
    with_middleware, monkeypatch, asgi: bool
) -> None:
    calls = []

    def limit(self):
        calls.append(User.objects.count())
        return 1

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    monkeypatch.setattr(Mixed, "get_semaphore_limit", limit)
    with_middleware()
    assert 200 == get("/mixed/", asgi).status_code
    assert 2 == len(calls)  # the middleware, then the view


def test_mixin_options_can_read_the_urls_arguments_in_the_middleware(
    settings, with_middleware, monkeypatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    settings.ROOT_URLCONF = (route("<int:tenant>/", Tenant.as_view()),)
    with_middleware()
    with Semaphore("tenant-7", 1, blocking=False):
        assert (503, 200) == (get("/7/").status_code, get("/8/").status_code)


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_view_does_not_call_when_and_key_again_after_the_middleware(
    settings, with_middleware, monkeypatch, asgi: bool
) -> None:
    calls = []

    def when(request):
        calls.append("when")
        return len(calls) == 1  # a second call would return False

    def key(request):
        calls.append("key")
        return "k"

    limited = semaphore_required("keyed", limit=1, when=when, key=key)
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    settings.ROOT_URLCONF = (route("", limited(show_held)),)
    with_middleware()
    assert b"keyed" == get("/", asgi).content
    assert ["when", "key"] == calls


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_mixin_options_are_read_once_without_atomic_requests(
    with_middleware, monkeypatch, asgi: bool
) -> None:
    calls = []

    def limit(self):
        calls.append(self)
        return 1

    monkeypatch.setattr(Mixed, "get_semaphore_limit", limit)
    with_middleware()
    assert 200 == get("/mixed/", asgi).status_code
    assert 1 == len(calls)


def test_middleware_lets_login_required_redirect_when_the_limit_is_full(with_middleware) -> None:
    with_middleware(ENDPOINTS={"members": ONE})
    with one():
        assert 302 == get("/members/").status_code


def test_unlimited_request_sends_no_command_and_a_limited_request_two(with_middleware, raw) -> None:
    with_middleware(ENDPOINTS={"reports:export": ONE})

    def commands() -> int:
        return sum(v["calls"] for k, v in raw.info("commandstats").items() if "evalsha" in k)

    for asgi in (False, True):
        for path, expected in (("/free/", 0), ("/reports/export/", 2)):
            get(path, asgi)
            sent = []
            for _ in range(5):
                before = commands()
                get(path, asgi)
                sent.append(commands() - before)
            assert expected == min(sent)  # threads of earlier tests may send commands, too


# What remains in Redis


def visit(limited, key: str) -> None:
    assert 200 == limited(REQUESTS.get(f"/{key}")).status_code


def test_redis_keys_of_requests_expire_as_documented(raw) -> None:
    """benchmarks/RESULTS.md states these times."""
    by_path = semaphore_required("paths", limit=1, key=lambda request: request.path)
    visit(by_path(respond_ok), "one")
    visit(semaphore_required("plain", limit=1)(respond_ok), "")
    minutes = {
        name: raw.pttl(next(iter(raw.scan_iter(match=f"*{{{name}*}}:stats")))) / 60_000
        for name in ("paths@", "plain")
    }
    assert 60 <= minutes["paths@"] <= 62
    assert 24 * 60 <= minutes["plain"] <= 24 * 60 + 2
    ages = [raw.pttl(key) for key in raw.scan_iter(match="*:leases")]
    assert 2 == len(ages) and max(ages) <= 40_000


def test_process_writes_statistics_for_a_bounded_number_of_keys(raw, monkeypatch) -> None:
    monkeypatch.setattr(semaphore, "counted_keys", semaphore.CountedKeys())
    monkeypatch.setattr(semaphore.CountedKeys, "MAX", 3)
    view = semaphore_required("paths", limit=1, key=lambda r: r.path)(respond_ok)
    for key in "abcdefab":
        visit(view, key)
    assert 3 == len(list(raw.scan_iter(match="*:stats")))
    assert 6 == len(list(raw.scan_iter(match="*:leases")))
    monkeypatch.setattr(semaphore.CountedKeys, "HOUR", 0.0)
    counts = semaphore.CountedKeys()
    assert [True] * 9 == [counts.has(number) for number in range(9)]


# Cancelled requests


@pytest.mark.parametrize("path", ["/alimited/", "/adispatch/", "/amixed/", "/reports/aexport/"])
def test_request_cancelled_at_any_await_leaves_no_permit(with_middleware, path: str) -> None:
    with_middleware(ENDPOINTS={"reports:*": ONE})

    async def cancel_after(steps: int) -> bool:
        """Return True if the request had ended before it was cancelled."""
        request = asyncio.create_task(AsyncClient().get(path))
        for _ in range(steps):
            await asyncio.sleep(0)
            if request.done():
                break
        ended = request.done()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert 0 == (await one().astatus()).in_use
        return ended

    async def main() -> None:
        await AsyncClient().get(path)
        for steps in range(0, 400, 3):
            if await cancel_after(steps):
                return
        await AsyncClient().get(path)

    asyncio.run(main())


def test_sync_view_that_outlives_its_cancelled_request_keeps_its_permit(
    with_middleware,
) -> None:
    with_middleware(ENDPOINTS={"reports:*": ONE})

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
