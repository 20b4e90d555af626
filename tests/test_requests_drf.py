"""Limits on views of Django REST framework: its users, and its error responses."""

from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.db import connections
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from django_redis_sync import Semaphore, semaphore_required
from django_redis_sync.limits.admission import RejectedRequest
from django_redis_sync.limits.policy import parse
from django_redis_sync.limits.rejection import answer
from django_redis_sync.limits.routes import marks_of
from django_redis_sync.operators import actions
from django_redis_sync.protocol.plans import Rejection
from tests.request_site import drf

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.django_db,
    pytest.mark.urls("tests.request_site.drf"),
]


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.mark.parametrize(
    ("method", "path"), [("get", "/token/"), ("post", "/token/"), ("get", "/function/")]
)
def test_key_user_is_the_user_that_drf_authenticated(ann, method, path) -> None:
    call = getattr(Client(headers={"X-User": "ann"}), method)
    assert {"keys": [str(ann.pk)], "user": ann.pk} == call(path).json()
    with Semaphore("mine", 1, key=str(ann.pk)):
        rejected = call(path)
        assert 429 == rejected.status_code
        assert int(rejected["Retry-After"]) >= 1


def test_key_user_is_the_address_when_drf_authenticates_no_user(ann) -> None:
    answer = Client().get("/token/").json()
    (key,) = answer["keys"]
    assert key.startswith("ip-")
    assert answer["user"] is None


@pytest.mark.parametrize("path", ["/token/", "/by-address/"])
def test_middleware_uses_the_user_of_drf_with_atomic_requests(
    ann, path, settings, monkeypatch
) -> None:
    middleware = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware]
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    (key,) = Client(headers={"X-User": "ann"}).get(path).json()["keys"]
    assert key == str(ann.pk) if path == "/token/" else key.startswith("ip-")


def test_key_user_of_an_async_handler_is_the_user_of_drf(ann) -> None:
    @semaphore_required("mine", limit=1, key="user")
    async def handler(request):
        return drf.held(request)

    async def anonymous():
        return AnonymousUser()

    inner = AsyncRequestFactory().get("/")
    inner.auser = anonymous  # AuthenticationMiddleware sets it
    request = Request(inner)
    request.user = ann
    assert {"keys": [str(ann.pk)], "user": ann.pk} == async_to_sync(handler)(request).data


def test_options_request_that_drf_answers_is_unlimited() -> None:
    with Semaphore("limited", 1):
        view = semaphore_required("limited", limit=1)(drf.ByAddress.as_view())
        assert 200 == view(RequestFactory().options("/")).status_code
        assert 503 == view(RequestFactory().get("/")).status_code


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", ["open", "set", "mixed", "on-list", "on-dispatch"])
def test_rejection_uses_the_exception_handler_and_renderers_of_drf(
    view, asgi, settings, caplog
) -> None:
    middleware = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware]
    limited = {"name": "one", "limit": 1}
    endpoints = {"open": limited, "set": limited}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": endpoints}
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": "tests.request_site.drf.format_error"}
    get = async_to_sync(AsyncClient().get) if asgi else Client().get
    assert {"ok": True} == get(f"/{view}/").json()
    with Semaphore("one", 1):
        rejected = get(f"/{view}/")
        page = get(f"/{view}/", headers={"accept": "text/html"})
    actions.pause("one")
    paused = get(f"/{view}/")
    actions.resume("one")
    assert (503, "paused") == (paused.status_code, paused.json()["code"])
    assert 503 == rejected.status_code
    assert "application/json" == rejected["Content-Type"]
    assert (False, "full") == (rejected.json()["ok"], rejected.json()["code"])
    assert ("list" if view in ("set", "on-list") else None) == rejected.json()["action"]
    assert 1 <= int(rejected["Retry-After"]) <= 3
    assert "text/html; charset=utf-8" == page["Content-Type"]  # DRF's browsable API
    assert b"HTTP 503" in page.content
    assert [] == [one.name for one in caplog.records if one.name == "django.request"]


def test_rejection_uses_the_renderer_classes_of_as_view() -> None:
    class Problem(JSONRenderer):
        media_type = "application/problem+json"

    view = drf.ByAddress.as_view(renderer_classes=[Problem])
    request = RequestFactory().get("/")
    request.resolver_match = SimpleNamespace(func=view, args=(), kwargs={})
    rejected = answer(request, RejectedRequest(parse("one", {"limit": 1}), 1, Rejection("full")))
    assert (503, "application/problem+json") == (rejected.status_code, rejected.accepted_media_type)


def test_unnamed_semaphore_of_a_drf_function_is_named_after_the_function() -> None:
    names = {fallback for _, fallback in marks_of(semaphore_required(drf.function))}
    assert {"tests.request_site.drf.function"} == names
