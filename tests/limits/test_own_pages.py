"""An operator can always undo a pause, the page of a rejection never hides its mistakes, and the
middleware can be subclassed and wrapped."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from django_redis_sync import Semaphore
from django_redis_sync.middleware import ConcurrencyLimitMiddleware
from django_redis_sync.testing import filled
from tests.request_site.project import EVERYWHERE, MIDDLEWARE, call, respond_ok
from tests.support.operators import act
from tests.support.pages import LIST, get

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("clean_redis")]


@pytest.mark.parametrize("pattern", ["admin:*", "*", "admin:django_redis_sync_name_changelist"])
def test_pages_of_this_app_are_never_limited(
    settings: Any, admin_client: Client, pattern: str
) -> None:
    entry = {"limit": 1, "name": "site", "methods": ["GET", "POST"]}
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {pattern: entry}}
    act("pause", "site")
    covers_others = "*" in pattern
    assert (503 if covers_others else 200) == admin_client.get("/admin/auth/user/").status_code
    for page in ("", "site/change/", "site/history/", "data/", "live/", "site/act/resume/"):
        assert 200 == admin_client.get(f"{LIST}{page}").status_code, page
    assert 302 == admin_client.post(f"{LIST}site/act/resume/").status_code
    assert not Semaphore("site", 1).status().paused
    assert 200 == admin_client.get("/admin/auth/user/").status_code


def test_operator_action_succeeds_if_the_database_of_the_log_is_read_only(
    admin_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with Semaphore("exports", 2), connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = ON")
        try:
            response = admin_client.post(f"{LIST}exports/act/pause/", {"reason": "backup"})
        finally:
            cursor.execute("PRAGMA query_only = OFF")
        assert 302 == response.status_code
        assert Semaphore("exports", 2).status().paused
        page = get(admin_client, "exports/change/")
    assert "Paused exports." in page.html and "could not record" in page.html
    assert not LogEntry.objects.exists()
    assert "backup" in get(admin_client, "exports/history/").text, "Redis has no record"
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert "exports" in record.getMessage() and record.exc_info


MISTAKES = {
    "extends": '{% extends "no/such/base.html" %}',
    "include": 'busy {% include "no/such/part.html" %}',
    "syntax": "{% nonsense %}",
    "reverse": '{% url "no-such-view" %}',
}


@EVERYWHERE
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", ["503", "rejected"])
def test_template_with_a_mistake_is_one_error_in_the_log_and_plain_text(
    project: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, mistake: str, name: str
) -> None:
    folder = tmp_path / "django_redis_sync"
    folder.mkdir()
    (folder / f"{name}.html").write_text(MISTAKES[mistake])
    settings = project.settings
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    project.limit()
    with filled("one", 1):
        rejected = call("/home/", project.asgi, headers={"accept": "text/html"})
    assert 503 == rejected.status_code and rejected["Retry-After"]
    assert rejected.content.decode().startswith("Too many requests at the same time")
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert "503.html" in record.getMessage() and "/home/" in record.getMessage()
    assert record.exc_info, "the log does not say what is wrong in the template"


@EVERYWHERE
def test_rejection_without_any_template_logs_no_error(
    project: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings = project.settings
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False}]
    project.limit()
    with filled("one", 1):
        rejected = call("/home/", project.asgi, headers={"accept": "text/html"})
    assert 503 == rejected.status_code and b"Too many requests" in rejected.content
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


# Subclasses of the middleware that skip some requests


class SkipsAll(ConcurrencyLimitMiddleware):
    """Does what a project does that doesn't want the middleware for some paths."""

    def __call__(self, request):
        if request.path == "/skipped/":
            return self.get_response(request)
        return super().__call__(request)


class SkipsLimits(ConcurrencyLimitMiddleware):
    def process_view(self, request, view, args, kwargs):
        if request.path == "/skipped/":
            return None
        return super().process_view(request, view, args, kwargs)


def shows_use(request):
    return HttpResponse(Semaphore("shown", 1).status().in_use)


urlpatterns = [path("limited/", shows_use), path("skipped/", shows_use)]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("kind", [SkipsAll, SkipsLimits])
def test_subclass_of_the_middleware_can_skip_requests(kind, asgi, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [f"{__name__}.{kind.__name__}"]
    settings.REDIS_SYNC = {"ENDPOINTS": {f"{__name__}.shows_use": {"limit": 1, "name": "shown"}}}
    get = async_to_sync(AsyncClient().get) if asgi else Client().get
    for _ in range(2):  # the second time, a permit that the first request has left would be in use
        assert b"0" == get("/skipped/").content, "a skipped request takes no permit"
        assert b"1" == get("/limited/").content
    with filled("shown", 1):
        assert [200, 503] == [get(f"/{name}/").status_code for name in ("skipped", "limited")]
    assert 0 == Semaphore("shown", 1).status().in_use, "a request has left its permit in use"


class Traced:
    """Wraps the middleware as packages that trace requests do: each of its methods in a function
    that is sync, even if the method is async."""

    sync_capable = async_capable = True

    def __init__(self, get_response):
        self.inner = ConcurrencyLimitMiddleware(get_response)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request):
        return self.inner(request)

    def process_view(self, *args):
        return self.inner.process_view(*args)


async def shows_use_async(request):
    return HttpResponse((await Semaphore("shown", 1).astatus()).in_use)


urlpatterns += [path("async/", shows_use_async), path("free/", respond_ok)]


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_method_of_the_middleware_works_inside_a_sync_function(asgi, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [f"{__name__}.Traced"]
    limited = {"limit": 1, "name": "shown"}
    settings.REDIS_SYNC = {"ENDPOINTS": {f"{__name__}.shows_use*": limited}}
    get = async_to_sync(AsyncClient().get) if asgi else Client().get
    for _ in range(2):  # the second time, a permit that the first request has left would be in use
        assert [b"1", b"1"] == [get("/limited/").content, get("/async/").content]
    with filled("shown", 1):
        assert [503, 503, 200] == [
            get(f"/{at}/").status_code for at in ("limited", "async", "free")
        ]
    assert 0 == Semaphore("shown", 1).status().in_use, "a request has left its permit in use"
