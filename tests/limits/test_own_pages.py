"""An operator can always undo a pause, and the page of a rejection never hides its mistakes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client

from django_redis_sync import Semaphore
from django_redis_sync.testing import filled
from tests.request_site.project import EVERYWHERE, MIDDLEWARE, call
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
