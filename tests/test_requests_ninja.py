"""Ninja: a refused request gets an error as its API makes them."""

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
def from_outside(settings) -> None:
    middleware = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware]
    limited = {"name": "one", "limit": 1}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"*outside": limited}}


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", ["within", "awithin", "outside", "aoutside"])
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_a_view_of_ninja_answers_as_its_api_does(view, asgi, accept, from_outside, caplog) -> None:
    get = async_to_sync(AsyncClient().get) if asgi else Client().get
    assert {"ok": True} == get(f"/api/{view}").json()
    with Semaphore("one", 1):
        refused = get(f"/api/{view}", headers={"accept": accept})
    assert 503 == refused.status_code
    assert "application/json; charset=utf-8" == refused["Content-Type"]
    said = refused.json()
    assert {"ok", "error"} == said.keys()
    assert 1 <= int(refused["Retry-After"]) <= 3
    assert "no-store" == refused["Cache-Control"]
    assert [] == [one.name for one in caplog.records if one.name == "django.request"]


@pytest.mark.parametrize("path", ["migration", "schema"])
def test_what_else_has_operations_is_no_view_of_ninja(path, from_outside) -> None:
    with Semaphore("one", 1):
        refused = Client().get(f"/{path}/", headers={"accept": "text/html"})
    assert (503, "text/html") == (refused.status_code, refused["Content-Type"][:9])
