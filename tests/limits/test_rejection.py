"""The response to a rejected request: status, Retry-After, form, and the project's own response."""

import contextlib
import logging
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.http import HttpResponse
from django.utils import translation

from django_redis_sync import NotAcquired, Semaphore
from django_redis_sync.limits.rejection import retry_after
from django_redis_sync.testing import filled
from tests.behaviour.both import eventually
from tests.request_site.project import BOTH, EVERYWHERE, OBEYING, call
from tests.support.commands import locks

pytestmark = pytest.mark.promise(19)


@contextlib.contextmanager
def full(limit=1, waiters=0, **options):
    """Hold all permits of "one", and let `waiters` threads wait for a permit."""

    def wait():
        with Semaphore("one", limit, blocking_timeout=60):
            pass

    options.setdefault("wait", waiters > 0)
    with ThreadPoolExecutor(max(1, waiters)) as threads, filled("one", limit, **options) as lease:
        for _ in range(waiters):
            threads.submit(wait)
        eventually(lambda: not waiters or Semaphore("one", 1).status().waiting == waiters)
        yield lease


# Retry-After


@pytest.mark.parametrize("factor", [1, 1.5])
@pytest.mark.parametrize(
    ("options", "waiters", "override", "seconds"),
    [
        ({}, 0, None, 2),  # the default applies when no hold was measured
        ({"min_hold": 4.2}, 0, None, 4.2),
        ({"min_hold": 4.2, "limit": 3}, 0, None, 1.4),
        ({"min_hold": 4.2}, 3, None, 16.8),
        ({"min_hold": 4.2, "limit": 2}, 3, None, 8.4),
        ({"min_hold": 4.2, "limit": 3}, 0, "1", 4.2),
        ({"min_hold": 4.2, "limit": 3, "blocking_timeout": 0.01}, 0, None, 1.4),
        ({"min_hold": 4.2, "limit": 3, "blocking_timeout": 0.01}, 0, "1", 4.2),
        ({"min_hold": 0.1}, 0, None, 1),
        ({"min_hold": 1000}, 0, None, 120),
    ],
)
def test_retry_after_is_the_time_until_a_permit_is_expected(
    project, monkeypatch, options, waiters, override, seconds, factor
):
    bounds = []
    monkeypatch.setattr(random, "uniform", lambda *given: bounds.append(given) or factor)
    project.limit(**options)
    with full(options.get("limit", 1), waiters):
        if override:
            locks("resize", "one", override, "--create")
        found = int(project.get()["Retry-After"])
    expected = min(seconds * factor, 120)
    assert expected <= found < expected + 1, "not rounded up"
    assert (1, 1.5) in bounds, "the delay is not random, so clients would return together"


def test_retry_after_of_a_known_time_is_the_next_whole_second():
    exact = {0.01: 1, 1.0: 1, 1.2: 2, 59.01: 60, 400.5: 401}
    assert [*exact.values()] == [retry_after(exact=seconds) for seconds in exact]


def test_retry_after_grows_with_the_recent_mean_hold_time(project):
    project.limit()
    with Semaphore("one", 1):
        time.sleep(0.5)
    with full(waiters=9):
        found = int(project.get()["Retry-After"])
    assert found >= 5, "less than the ten holds of 0.5 s until a permit is free"
    project.limit(min_hold=4.2)
    with full():
        assert int(project.get()["Retry-After"]) >= 5, "min_hold keeps a permit longer than holds"


# Status and body of the response to a rejected request


@pytest.mark.parametrize(
    ("cause", "options", "status", "crowded"),
    [
        ("full", {}, 503, True),
        ("full", {"key": "ip"}, 429, True),
        ("full", {"key": "ip", "status": 420}, 420, True),
        ("full", {"key": lambda request: "k", "status": 503}, 503, True),
        ("full", {"status": 420}, 420, True),
        ("full", {"key": "ip", "blocking_timeout": 0.05}, 429, True),
        ("paused", {"key": "ip", "status": 420}, 503, False),
        ("paused", {"blocking_timeout": 0.05}, 503, False),
        ("outage", {"key": "ip", "status": 420, "on_outage": "closed"}, 503, False),
    ],
)
@BOTH
def test_status_code_and_message_distinguish_a_full_limit_from_a_pause(
    project, cause, options, status, crowded
):
    project.limit(**options)
    with contextlib.ExitStack() as stack:
        if cause == "full":
            inside = project.visit().entered()
            stack.callback(inside.end)
        elif cause == "paused":
            locks("pause", "one", "--create")
        else:
            project.lose_redis()
        response = project.get()
    assert (status, status) == (response.status_code, response.json()["status"])
    assert crowded == ("Too many requests" in response.json()["detail"])
    assert int(response["Retry-After"]) == response.json()["retry_after"]
    assert "no-store" == response["Cache-Control"]


HTML = "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json", "application/json"),
        ("text/html, application/json;q=0.9", HTML),
        ("application/json, text/html;q=0.9", "application/json"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", HTML),  # browsers
        ("text/*", HTML),
        ("*/*", "application/json"),  # sent by curl, requests, httpx, and fetch()
        ("image/png", "application/json"),
        (None, "application/json"),
    ],
)
@pytest.mark.promise(28)
def test_rejection_has_the_preferred_content_type_and_no_secrets(project, accept, kind, caplog):
    project.limit()
    with full() as lease:
        rejected = call("/home/", headers={"accept": accept} if accept else {})
    assert kind == rejected["Content-Type"] and "Accept" in rejected["Vary"]
    shown = rejected.content.decode() + str(rejected.headers)
    for secret in (lease.token[:8], socket.gethostname(), str(lease.fence)):
        assert secret not in shown
    assert [] == [one for one in caplog.records if one.name == "django.request"]


@EVERYWHERE
def test_rejection_template_of_the_project_can_show_the_user(project, tmp_path):
    folder = tmp_path / "django_redis_sync"
    folder.mkdir()
    template = "busy, {{ request.user.pk }}: {{ status }}, {{ retry_after }}"
    (folder / "503.html").write_text(template)
    settings = project.settings
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    settings.MIDDLEWARE = [OBEYING, *settings.MIDDLEWARE]
    project.limit()
    with full():
        rejected = call("/home/?user=7", project.asgi, headers={"accept": "text/html"})
    assert 503 == rejected.status_code
    assert f"busy, 7: 503, {rejected['Retry-After']}" == rejected.content.decode()


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_rejection_page_is_in_the_active_language(project, language):
    project.limit()
    locks("pause", "one", "--create")
    with translation.override(language):
        page = call("/home/", headers={"accept": "text/html"}).content.decode()
        title = translation.gettext("Please try again")
        message = translation.gettext("Please try again in a moment.")
        project.settings.TEMPLATES = []
        text = call("/home/", headers={"accept": "text/html"}).content.decode()
    assert f'<html lang="{language}">' in page
    assert f"<title>{title}</title>" in page and f"<p>{message}</p>" in page
    assert message == text


# The option `response`: the project makes the response to a rejected request


def respond_418(request, rejection):
    text = f"{rejection.reason} {rejection.name} {rejection.status} {rejection.message}"
    return HttpResponse(text, status=418)


async def arespond_after_99_seconds(request, rejection):
    return HttpResponse("later", status=rejection.status, headers={"Retry-After": "99"})


class AsyncCallable:
    """A callable with an async `__call__`, for which `iscoroutinefunction` returns False."""

    async def __call__(self, request, rejection):
        return respond_418(request, rejection)


def return_none(request, rejection): ...


def return_text(request, rejection):
    return "come back later"


@pytest.mark.promise(18)
@pytest.mark.parametrize(
    ("response", "in_sync", "in_async"),
    [
        # Expected in sync and in async code: the status, or the name of the wrong type in the log.
        (respond_418, 418, 418),
        (f"{__name__}.respond_418", 418, 418),
        (AsyncCallable(), "coroutine", 418),
        (arespond_after_99_seconds, "coroutine", 503),
        (return_none, "NoneType", "NoneType"),
        (return_text, "str", "str"),
    ],
)
@EVERYWHERE
def test_response_function_can_replace_the_rejection_but_cannot_admit_the_request(
    project, response, in_sync, in_async, caplog
):
    project.limit(response=response)
    with full():
        rejected = project.get()
    expected = in_async if project.asgi else in_sync
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    if isinstance(expected, str):
        name = getattr(response, "__name__", "AsyncCallable")
        words = f"response={__name__}.{name} of the limit 'one' returned a {expected},"
        assert 503 == rejected.status_code and words in errors[0]
        assert "Too many requests" in rejected.json()["detail"]
    else:
        assert (expected, []) == (rejected.status_code, errors)
        said = b"later" if expected == 503 else b"full one 503 Too many requests"
        assert rejected.content.startswith(said)
    assert ("99" == rejected["Retry-After"]) == (expected == 503)
    assert "no-store" == rejected["Cache-Control"]


@EVERYWHERE
def test_full_limit_raises_not_acquired_if_on_full_is_raise(project):
    project.limit(on_full="raise")
    with full(), pytest.raises(NotAcquired, match="'one': all permits are in use") as raised:
        project.get()
    assert ("full", "one") == (raised.value.reason, raised.value.lock_name)
