"""The response to a rejected request: when the client may come again, and what it says."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils import translation

from django_redis_sync import Semaphore, semaphore_required
from django_redis_sync.limits.admission import RejectedRequest
from django_redis_sync.limits.policy import parse
from django_redis_sync.limits.rejection import (
    DEFAULT_SECONDS,
    JITTER,
    MAX_SECONDS,
    MIN_SECONDS,
    answer,
)
from django_redis_sync.protocol.plans import Rejection


@pytest.fixture(params=["least", "most"])
def jitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """The factor that is drawn: the least or the most."""
    most = request.param == "most"
    monkeypatch.setattr(random, "uniform", lambda low, high: high if most else low)
    return 1 + JITTER if most else 1


def rejected(limit: int = 1, reason: str = "full", accept: str = "", **given: Any) -> HttpResponse:
    """Return the response to a request that Redis rejected with this answer."""
    options = {name: given.pop(name) for name in ("min_hold", "key", "status") if name in given}
    policy = parse("exports", {"limit": limit, **options})
    request = RequestFactory().get("/", headers={"accept": accept})
    request.resolver_match = None  # type: ignore[assignment]
    response = answer(request, RejectedRequest(policy, limit, Rejection(reason, **given)))
    assert isinstance(response, HttpResponse)
    return response


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"mean_hold": 1.2}, 1.2),
        ({"mean_hold": 4.0}, 4.0),
        ({"mean_hold": 4.0, "waiting": 3}, 16.0),
        ({"mean_hold": 4.0, "waiting": 3, "limit": 4}, 4.0),
        ({"mean_hold": 4.0, "waiting": 3, "min_hold": 6.0}, 24.0),
        ({"mean_hold": None, "min_hold": 6.0}, 6.0),
        ({"mean_hold": None}, DEFAULT_SECONDS),
        ({"mean_hold": 0.1}, MIN_SECONDS),
        ({"mean_hold": 10_000.0}, MAX_SECONDS),
    ],
    ids=str,
)
def test_retry_after_is_when_the_queue_has_had_its_time(
    given: Any, seconds: float, jitter: float
) -> None:
    expected = min(seconds * jitter, MAX_SECONDS)
    assert expected <= int(rejected(**given)["Retry-After"]) < expected + 1  # never too soon


@pytest.mark.usefixtures("clean_redis")
def test_retry_after_counts_with_the_limit_in_force() -> None:
    """An operator's limit replaces the caller's."""
    view = semaphore_required("one", limit=3)(lambda request: HttpResponse())
    with Semaphore("one", 3).acquire(permits=3):
        assert 1 <= int(view(RequestFactory().get("/"))["Retry-After"]) <= 3


@pytest.mark.parametrize(
    ("reason", "given", "status", "crowded"),
    [
        ("full", {}, 503, True),
        ("full", {"key": "ip"}, 429, True),
        ("full", {"key": "ip", "status": 420}, 420, True),
        ("full", {"status": 420}, 420, True),
        ("timeout", {"key": "ip"}, 429, True),
        ("cleared", {"key": "ip"}, 503, False),
        ("outage", {"key": "ip", "status": 420}, 503, False),
        ("paused", {"key": "ip"}, 503, False),
    ],
)
def test_status_and_message_tell_a_crowd_from_an_outage(
    reason: str, given: Any, status: int, crowded: bool
) -> None:
    response = rejected(reason=reason, **given)
    data = json.loads(response.content)
    assert (status, crowded) == (response.status_code, "Too many requests" in data["detail"])
    assert (status, int(response["Retry-After"])) == (data["status"], data["retry_after"])
    assert "no-store" == response["Cache-Control"]


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_page_says_in_which_language_it_is(language: str) -> None:
    with translation.override(language):
        page = rejected(reason="paused", accept="text/html").content.decode()
        title = translation.gettext("Please try again")
        message = translation.gettext("Please try again in a moment.")
    assert f'<html lang="{language}">' in page
    assert f"<title>{title}</title>" in page and f"<p>{message}</p>" in page


def test_page_is_the_sentence_without_a_template_engine(settings: Any) -> None:
    settings.TEMPLATES = []
    assert b"Please try again in a moment." == rejected(reason="paused", accept="text/html").content
