"""When a refused client may come again, and what it is told: without a server."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils import translation

from django_redis_sync.exceptions import NotAcquired
from django_redis_sync.limits import refusal
from django_redis_sync.limits.enforcement import Refused
from django_redis_sync.limits.policy import parse
from django_redis_sync.limits.refusal import JITTER, LATEST, aanswer, answer, retry_after, said_of
from django_redis_sync.protocol.plans import Refusal


@pytest.fixture(params=["least", "most"])
def jitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """What is drawn: the least or the most."""
    most = request.param == "most"
    monkeypatch.setattr(random, "uniform", lambda low, high: high if most else low)
    return 1 + JITTER if most else 1


def refused(limit: int = 1, reason: str = "full", **said: Any) -> Refused:
    options = {name: said.pop(name) for name in ("min_hold", "key", "status") if name in said}
    return Refused(parse("exports", {"limit": limit, **options}), limit, Refusal(reason, **said))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"mean_hold": 1.2}, 1.2),
        ({"mean_hold": 4.0}, 4.0),
        ({"mean_hold": 4.0, "waiting": 3}, 16.0),
        ({"mean_hold": 4.0, "waiting": 3, "limit": 2}, 8.0),
        ({"mean_hold": 4.0, "waiting": 3, "min_hold": 6.0}, 24.0),
        ({"mean_hold": None, "min_hold": 6.0}, 6.0),
        ({"mean_hold": None}, refusal.USUAL),
        ({"mean_hold": 0.1}, refusal.SOONEST),
        ({"mean_hold": 10_000.0}, LATEST),
    ],
    ids=str,
)
def test_it_may_come_again_when_those_ahead_have_had_their_time(
    said: Any, seconds: float, jitter: float
) -> None:
    wanted = min(seconds * jitter, LATEST)
    found = retry_after(refused(**said))
    assert wanted <= found < wanted + 1  # never too soon


def test_the_callers_own_limit_counts_where_none_is_in_force(jitter: float) -> None:
    assert 2 * jitter <= retry_after(refused(limit=4, mean_hold=2.0, waiting=3)) < 2 * jitter + 1


def own(request: Any, said: Any) -> HttpResponse:
    return HttpResponse("own", status=said.status)


async def own_async(request: Any, said: Any) -> HttpResponse:
    return own(request, said)


@pytest.mark.parametrize("response", [None, own, own_async], ids=["ours", "sync", "async"])
@pytest.mark.parametrize("ask", [answer, async_to_sync(aanswer)], ids=["answer", "aanswer"])
def test_what_is_to_be_raised_is_raised_and_else_the_own_response_is_given(
    response: Any, ask: Any
) -> None:
    request = RequestFactory().get("/")
    request.resolver_match = None  # type: ignore[assignment]
    for on_full in ("raise", "response"):
        policy = parse("exports", {"limit": 1, "on_full": on_full, "response": response})
        full = Refused(policy, 1, Refusal("full"))
        if on_full == "raise":
            with pytest.raises(NotAcquired):
                ask(request, full)
        else:
            assert (response is not None) == (b"own" == ask(request, full).content)


def test_programs_are_told_the_sentence_the_status_and_when_to_come_again() -> None:
    request, full = RequestFactory().get("/"), refused(key="ip")
    request.resolver_match = None  # type: ignore[assignment]
    response = answer(request, full)
    told = {"detail": said_of(full).message, "status": 429}
    assert {**told, "retry_after": int(response["Retry-After"])} == json.loads(response.content)


def test_where_no_engine_has_our_templates_the_page_is_the_sentence(settings: Any) -> None:
    settings.TEMPLATES = []
    assert "Busy." == refusal._page(RequestFactory().get("/"), "Busy.", 503, 7)


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_page_says_in_what_language_it_is(language: str) -> None:
    with translation.override(language):
        said = said_of(refused(reason="paused")).message
        page = refusal._page(RequestFactory().get("/"), said, 503, 7)
        title = translation.gettext("Please try again")
    assert f'<html lang="{language}">' in page
    assert f"<title>{title}</title>" in page and f"<p>{said}</p>" in page


@pytest.mark.parametrize(
    ("reason", "said", "status", "crowded"),
    [
        ("full", {}, 503, True),
        ("full", {"key": "ip"}, 429, True),
        ("full", {"key": "ip", "status": 420}, 420, True),
        ("full", {"status": 420}, 420, True),
        ("waiters", {"key": "ip"}, 429, True),
        ("timeout", {"key": "ip"}, 429, True),
        ("cleared", {"key": "ip"}, 503, False),
        ("outage", {"key": "ip", "status": 420}, 503, False),
        ("paused", {"key": "ip"}, 503, False),
    ],
)
def test_a_crowd_is_told_from_an_outage(reason: str, said: Any, status: int, crowded: bool) -> None:
    told = said_of(refused(reason=reason, **said))
    assert (status, crowded) == (told.status, "Too many requests" in told.message)
    assert ("exports", reason) == (told.name, told.reason)
