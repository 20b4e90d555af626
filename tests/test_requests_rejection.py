"""The response to a rejected request: Retry-After, status, message, and page."""

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
from django_redis_sync.operators.actions import resize
from django_redis_sync.protocol.plans import Rejection


@pytest.fixture(params=["lowest", "highest"])
def jitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """The random factor: once the lowest, once the highest."""
    highest = request.param == "highest"
    monkeypatch.setattr(random, "uniform", lambda low, high: high if highest else low)
    return 1 + JITTER if highest else 1


def rejected(
    limit: int = 1,
    override: int | None = None,
    reason: str = "full",
    accept: str = "",
    **given: Any,
) -> HttpResponse:
    """Return the response to a request that Redis rejected with the reply `given`.

    `override`: the limit in the reply, which an operator has set.
    """
    options = {name: given.pop(name) for name in ("min_hold", "key", "status") if name in given}
    policy = parse("exports", {"limit": limit, **options})
    request = RequestFactory().get("/", headers={"accept": accept})
    request.resolver_match = None  # type: ignore[assignment]
    response = answer(
        request, RejectedRequest(policy, limit, Rejection(reason, limit=override, **given))
    )
    assert isinstance(response, HttpResponse)
    return response


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"mean_hold": 1.2}, 1.2),
        ({"mean_hold": 4.0}, 4.0),
        ({"mean_hold": 4.0, "waiting": 3}, 16.0),
        ({"mean_hold": 4.0, "waiting": 3, "limit": 4}, 4.0),
        ({"mean_hold": 6.0, "limit": 3, "override": 1}, 6.0),
        ({"mean_hold": 4.0, "waiting": 3, "min_hold": 6.0}, 24.0),
        ({"mean_hold": 30.0, "min_hold": 20.0}, 30.0),
        ({"mean_hold": None, "min_hold": 6.0}, 6.0),
        ({"mean_hold": None}, DEFAULT_SECONDS),
        ({"mean_hold": 0.1}, MIN_SECONDS),
        ({"mean_hold": 10_000.0}, MAX_SECONDS),
    ],
    ids=str,
)
def test_retry_after_is_the_time_until_a_permit_is_expected(
    given: Any, seconds: float, jitter: float
) -> None:
    expected = min(seconds * jitter, MAX_SECONDS)
    assert expected <= int(rejected(**given)["Retry-After"]) < expected + 1  # rounded up


def test_retry_after_differs_between_requests() -> None:
    given = {"waiting": 9, "mean_hold": 2.0}
    assert 1 < len({rejected(**given)["Retry-After"] for _ in range(200)})


@pytest.mark.usefixtures("clean_redis")
def test_retry_after_uses_the_limit_of_an_operator() -> None:
    view = semaphore_required("one", limit=3, min_hold=12)(lambda request: HttpResponse())
    resize("one", None, 1)
    with Semaphore("one", 3):
        # With the caller's limit, 12 / 3 seconds would be the least.
        assert 12 <= int(view(RequestFactory().get("/"))["Retry-After"]) <= 18


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
def test_status_and_message_distinguish_a_full_limit_from_an_outage(
    reason: str, given: Any, status: int, crowded: bool
) -> None:
    response = rejected(reason=reason, **given)
    data = json.loads(response.content)
    assert (status, crowded) == (response.status_code, "Too many requests" in data["detail"])
    assert (status, int(response["Retry-After"])) == (data["status"], data["retry_after"])
    assert "no-store" == response["Cache-Control"]


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_page_declares_its_language(language: str) -> None:
    with translation.override(language):
        page = rejected(reason="paused", accept="text/html").content.decode()
        title = translation.gettext("Please try again")
        message = translation.gettext("Please try again in a moment.")
    assert f'<html lang="{language}">' in page
    assert f"<title>{title}</title>" in page and f"<p>{message}</p>" in page


def test_page_is_plain_text_without_a_template_engine(settings: Any) -> None:
    settings.TEMPLATES = []
    assert b"Please try again in a moment." == rejected(reason="paused", accept="text/html").content
