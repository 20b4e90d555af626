"""Limits on views of Django REST framework and of Django Ninja: users, and the form of errors."""

import asyncio
import importlib

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import connections
from django.test import AsyncRequestFactory, Client
from rest_framework.request import Request
from rest_framework.response import Response

from django_redis_sync import Semaphore, semaphore_required
from tests.request_site.project import CLIENTS, MIDDLEWARE, ONE, call, key_in
from tests.support.commands import locks

pytestmark = pytest.mark.usefixtures("clean_redis")
drf = pytest.mark.urls("tests.request_site.drf")
ninja = pytest.mark.urls("tests.request_site.ninja_api")


@pytest.fixture
def limited_endpoints(settings):
    """Limit the views that have no decorator, with the setting ENDPOINTS and the middleware."""
    settings.MIDDLEWARE = [MIDDLEWARE]
    globs = ("open", "set", "problem", "*endpoint")
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": dict.fromkeys(globs, ONE)}
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]


# Django REST framework


@drf
@pytest.mark.parametrize("user", ["7", None])
@pytest.mark.parametrize(
    ("method", "path"), [("get", "/token/"), ("post", "/token/"), ("get", "/function/")]
)
def test_key_user_is_the_user_that_drf_authenticated(method, path, user):
    client = Client(headers={"X-User": user} if user else {})
    assert {"user": user and int(user)} == getattr(client, method)(path).json()
    key = key_in("mine")
    assert key == user if user else key.startswith("ip-")
    with Semaphore("mine", 1, key=key):
        rejected = getattr(client, method)(path)
    assert 429 == rejected.status_code and int(rejected["Retry-After"]) >= 1


@drf
@pytest.mark.django_db
@pytest.mark.parametrize(("path", "start"), [("/token/", "7"), ("/by-address/", "ip-")])
def test_middleware_finds_the_key_of_a_drf_request_when_ATOMIC_REQUESTS_is_true(
    limited_endpoints, monkeypatch, path, start
):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert {"user": 7} == Client(headers={"X-User": "7"}).get(path).json()
    assert key_in("mine").startswith(start)


def test_key_user_is_the_user_that_drf_authenticated_in_an_async_handler():
    @semaphore_required("mine", limit=1, key="user")
    async def handler(request):
        return Response({"user": request.user.pk})

    async def anonymous():
        return AnonymousUser()

    inner = AsyncRequestFactory().get("/")
    inner.auser = anonymous  # set by AuthenticationMiddleware in a real request
    request = Request(inner)
    request.user = User(pk=7)
    assert {"user": 7} == asyncio.run(handler(request)).data
    assert "7" == key_in("mine")


@drf
@CLIENTS
@pytest.mark.parametrize("view", ["open", "set", "mixed", "on-list", "on-dispatch"])
def test_rejection_uses_the_exception_handler_and_renderers_of_drf(
    view, asgi, limited_endpoints, settings, caplog
):
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": "tests.request_site.drf.format_error"}
    assert {"ok": True} == call(f"/{view}/", asgi).json()
    with Semaphore("one", 1):
        rejected = call(f"/{view}/", asgi)
        page = call(f"/{view}/", asgi, headers={"accept": "text/html"})
    assert (503, "application/json") == (rejected.status_code, rejected["Content-Type"])
    body = rejected.json()
    assert "Too many requests" in body.pop("error")
    action = "list" if view in ("set", "on-list") else None
    assert {"ok": False, "code": "full", "action": action} == body
    assert 1 <= int(rejected["Retry-After"]) <= 3
    assert "text/html; charset=utf-8" == page["Content-Type"]  # DRF's browsable API
    assert b"HTTP 503" in page.content
    locks("pause", "one", "--create")
    paused = call(f"/{view}/", asgi)
    assert (503, "paused") == (paused.status_code, paused.json()["code"])
    assert [] == [one for one in caplog.records if one.name == "django.request"]


@drf
def test_rejection_uses_the_renderers_that_are_passed_to_as_view(limited_endpoints):
    with Semaphore("one", 1):
        rejected = call("/problem/")
    assert (503, "application/problem+json") == (rejected.status_code, rejected["Content-Type"])


# Django Ninja


@pytest.mark.parametrize("decorated", ["decorated", "endpoint"])
def test_decorator_above_an_operation_of_ninja_is_a_type_error(decorated):
    pytest.importorskip("ninja")
    views = importlib.import_module("tests.request_site.ninja_api")
    with pytest.raises(TypeError, match=f"@semaphore_required below .* {decorated} an operation"):
        semaphore_required("above", limit=1)(getattr(views, decorated))


@ninja
@CLIENTS
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
@pytest.mark.parametrize("view", ["decorated", "adecorated", "endpoint", "aendpoint"])
def test_rejection_uses_the_exception_handler_of_ninja(
    view, asgi, accept, limited_endpoints, caplog
):
    pytest.importorskip("ninja")
    assert {"ok": True} == call(f"/api/{view}", asgi).json()
    with Semaphore("one", 1):
        rejected = call(f"/api/{view}", asgi, headers={"accept": accept})
    assert (503, "application/json") == (rejected.status_code, rejected["Content-Type"][:16])
    assert {"ok", "error"} == rejected.json().keys()
    assert 1 <= int(rejected["Retry-After"]) <= 3
    assert "no-store" == rejected["Cache-Control"]
    assert [] == [one for one in caplog.records if one.name == "django.request"]
