"""Limits on views of Django Ninja: a rejection is an error of the API."""

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client

from django_redis_sync import Semaphore

pytest.importorskip("ninja")

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.urls("tests.request_site.ninja_api"),
]


@pytest.fixture
def limited_endpoints(settings) -> None:
    middleware = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware]
    limited = {"name": "one", "limit": 1}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"*endpoint": limited}}


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", ["decorated", "adecorated", "endpoint", "aendpoint"])
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_rejection_uses_the_exception_handler_of_ninja(
    view, asgi, accept, limited_endpoints, caplog
) -> None:
    get = async_to_sync(AsyncClient().get) if asgi else Client().get
    assert {"ok": True} == get(f"/api/{view}").json()
    with Semaphore("one", 1):
        rejected = get(f"/api/{view}", headers={"accept": accept})
    assert 503 == rejected.status_code
    assert "application/json; charset=utf-8" == rejected["Content-Type"]
    assert {"ok", "error"} == rejected.json().keys()
    assert 1 <= int(rejected["Retry-After"]) <= 3
    assert "no-store" == rejected["Cache-Control"]
    assert [] == [one.name for one in caplog.records if one.name == "django.request"]


@pytest.mark.parametrize("path", ["migration", "schema"])
def test_rejection_of_another_view_does_not_use_ninja(path, limited_endpoints) -> None:
    with Semaphore("one", 1):
        rejected = Client().get(f"/{path}/", headers={"accept": "text/html"})
    assert (503, "text/html") == (rejected.status_code, rejected["Content-Type"][:9])
