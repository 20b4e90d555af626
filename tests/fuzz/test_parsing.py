"""Random options, handles, settings, and headers are accepted, or raise a documented error."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_redis_sync import Lease, LeaseLost, Lock, Semaphore, Unavailable, semaphore_required
from django_redis_sync.defaults import REQUESTS, SETTINGS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
SERVER = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
KEYS = st.sampled_from(sorted(map(str.upper, SETTINGS))) | st.text(max_size=10)
VALUES = JSON | st.dictionaries(st.sampled_from(sorted(REQUESTS)) | st.text(max_size=5), JSON)


@pytest.mark.promise(29)
@given(st.sampled_from(["limit", "timeout", "blocking_timeout", "max_hold", "label"]), JSON)
def test_semaphore_accepts_an_option_or_raises_a_documented_error(option: str, value: Any) -> None:
    try:
        Semaphore("x", **{"limit": 1, option: value})
    except (TypeError, ValueError) as error:
        assert type(error) in (TypeError, ValueError)
    except ImproperlyConfigured:
        assert (option, value) == ("limit", None)


# Handles

GENUINE = [1, "default", "x", "0" * 32, "17", 1, 30.0, True, math.inf, 0.0, False, 1]


def encoded(values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


@SERVER
@given(
    st.text()
    | st.binary()
    | (st.lists(JSON, max_size=14) | JSON).map(encoded)
    | st.tuples(st.integers(0, len(GENUINE) - 1), JSON).map(
        lambda one: encoded([*GENUINE[: one[0]], one[1], *GENUINE[one[0] + 1 :]])
    )
)
@example(encoded([*GENUINE[:4], "9" * 400, *GENUINE[5:]]))
@example(encoded([*GENUINE[:3], "a b", *GENUINE[4:]]))
@example(encoded([*GENUINE[:2], "}victim", *GENUINE[3:]]))
@example(encoded([*GENUINE[:6], 10**400, *GENUINE[7:]]))
@example(base64.urlsafe_b64encode(b"[" * 3000).decode())
def test_forged_handle_raises_an_error_and_changes_no_other_key(raw: Any, handle: Any) -> None:
    raw.set("victim", "precious")
    with pytest.raises((ValueError, TypeError, LeaseLost, ImproperlyConfigured)) as caught:
        Lease.from_handle(handle)
    assert type(caught.value) in (ValueError, TypeError, LeaseLost, ImproperlyConfigured)
    assert b"precious" == raw.get("victim")


# Settings


@pytest.mark.promise(29)
@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUES, max_size=4) | JSON)
@example({"SEMAPHORES": {"x": {"limit": "3"}}})
@example({"TIMEOUT": -1})
def test_random_settings_are_valid_or_raise_improperly_configured(given_: Any) -> None:
    """No server listens on port 1, so with valid settings `acquire()` raises Unavailable."""
    from django.conf import settings as django

    caches = {"default": {**django.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    with override_settings(REDIS_SYNC=given_, CACHES=caches):
        with pytest.raises((ImproperlyConfigured, Unavailable)) as caught:
            Semaphore("x", 3).acquire(False)
        assert type(caught.value) in (ImproperlyConfigured, Unavailable)


# Labels and requests


@SERVER
@given(st.text(max_size=400))
@example('{"pid": ' + "9" * 5000 + "}")
@example("[" * 100_000)
def test_status_shows_a_label_unchanged_up_to_its_maximum_length(
    raw: redis.Redis, label: str
) -> None:
    with Lock("labelled", label=label) as lock:
        (holder,) = Lock("labelled").status().holders
        assert lock.held
    assert label[:200] == holder.label.get("label", "")


HEADER = st.text(st.characters(max_codepoint=255), max_size=80) | st.lists(
    st.ip_addresses().map(str)
    | st.sampled_from(["[::1]:80", "1.2.3.4:99", "unknown", "_hidden", "fe80::1%eth0", "", '"']),
    max_size=4,
).map(", ".join)


@semaphore_required("fuzz", limit=1, key="ip")
def nested(request: Any) -> HttpResponse:
    """While `request` holds its permit, handle the request `request.inside`, if there is one. Put
    the status code for the inner request into the response."""
    inside = getattr(request, "inside", None)
    return HttpResponse(nested(inside).status_code if inside else "")


def request(passed: str, nearest: str) -> Any:
    made = RequestFactory().get("/", REMOTE_ADDR=nearest)
    made.META["HTTP_X_FORWARDED_FOR"] = passed
    return made


@SERVER
@given(HEADER, HEADER, st.integers(0, 4), st.lists(st.ip_addresses(v=4).map(str), max_size=3))
@example("::1, [", "", 1, [])
@example("[" * 50, "\x00", 1, ["1.2.3.4"])
def test_ip_key_does_not_depend_on_addresses_that_a_client_can_forge(
    raw: redis.Redis, passed: str, nearest: str, proxies: int, forged: list[str]
) -> None:
    from django.conf import settings as django

    one = request(passed, nearest)
    if passed and len(passed.split(",")) >= proxies:
        one.inside = request(", ".join([*forged, passed]), nearest)
    with override_settings(
        REDIS_SYNC={**django.REDIS_SYNC, "REQUESTS": {"trusted_proxies": proxies}}
    ):
        response = nested(one)
    assert 200 == response.status_code
    assert response.content in (b"429", b""), "a forged address got a permit of its own"
