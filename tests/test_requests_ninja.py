"""Ninja: a refused request gets an error as its API makes them."""

from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client

from django_redis_sync import Semaphore
from django_redis_sync.limits.rejection import answers_by_ninja

pytest.importorskip("ninja")

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.urls("tests.request_site.ninja_api"),
]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("view", ["within", "awithin", "outside", "aoutside"])
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_a_view_of_ninja_answers_as_its_api_does(view, asgi, accept, settings, caplog) -> None:
    middleware = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware]
    limited = {"name": "one", "limit": 1}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"limited-api:*outside": limited}}
    get = async_to_sync(AsyncClient().get) if asgi else Client().get
    assert {"ok": True} == get(f"/api/{view}").json()
    with Semaphore("one", 1):
        refused = get(f"/api/{view}", headers={"accept": accept})
    assert 503 == refused.status_code
    assert "application/json; charset=utf-8" == refused["Content-Type"]
    said = refused.json()
    assert {"ok", "error", "may_wait"} == said.keys()
    assert said["may_wait"]  # as any code of the project's that handles an error
    assert 1 <= int(refused["Retry-After"]) <= 3
    assert "no-store" == refused["Cache-Control"]
    assert [] == [one.name for one in caplog.records if one.name == "django.request"]


def test_what_else_has_operations_is_no_view_of_ninja() -> None:
    migration = SimpleNamespace(operations=["an operation"])
    assert answers_by_ninja(lambda request: migration.operations) is None
    other = type("Schema", (), {"__module__": "ninja.schema"})()
    assert answers_by_ninja(lambda request: other) is None
