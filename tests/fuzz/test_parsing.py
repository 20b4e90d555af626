"""Parsers accept any input, or raise the documented error."""

from __future__ import annotations

import base64
import json
import math
import os
import socket
import threading
import unicodedata
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.test import override_settings
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_redis_sync import Lease, LeaseLost, Semaphore, Unavailable, conf
from django_redis_sync.defaults import REQUESTS, SETTINGS
from django_redis_sync.engine.wire import LABEL_FIELDS, MAX_LABEL, read_label, write_label
from django_redis_sync.limits import identity
from django_redis_sync.protocol.keys import MOST_BYTES, check_text, keys_of, split
from tests.support.packed import all_keys

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
#: Names that include control characters and delimiters.
TEXT = st.text(st.characters(), max_size=220) | st.text("{}@%:\0\n\x1b\u202eé", max_size=40)
SERVER = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


# Names


@given(TEXT | JSON, st.none() | TEXT)
@example("\ud800", None)
@example("a" * 201, None)
def test_name_and_key_are_usable_or_raise_an_error(name: Any, key: Any) -> None:
    try:
        keys = keys_of("sync", name, key)
    except (TypeError, ValueError) as error:
        assert type(error) in (TypeError, ValueError)
        return
    assert (name, key) == split(keys.quoted)
    for redis_key in all_keys(keys, "t"):
        assert redis_key.startswith("sync:{")
        assert redis_key.count("{") == 1 == redis_key.count("}")
        assert redis_key.isprintable() or not keys.display.isprintable()
        redis_key.encode()
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in keys.display)


@given(st.text())
def test_accepted_text_is_short_and_has_no_control_character(text: str) -> None:
    try:
        check_text("a name", text)
    except ValueError:
        return
    assert 0 < len(text.encode()) <= MOST_BYTES
    assert set() == {unicodedata.category(char) for char in text} & {"Cc", "Cs", "Zl", "Zp"}


@given(JSON, JSON, JSON, JSON, JSON)
def test_options_are_accepted_or_raise_an_error(
    limit: Any, timeout: Any, blocking: Any, hold: Any, label: Any
) -> None:
    options = {"timeout": timeout, "blocking_timeout": blocking, "max_hold": hold, "label": label}
    for option, value in options.items():
        try:
            Semaphore("x", 1, **{option: value})
        except (TypeError, ValueError) as error:
            assert type(error) in (TypeError, ValueError)
    try:
        made = Semaphore("x", limit)
    except (TypeError, ValueError) as error:
        assert type(error) in (TypeError, ValueError)
    except ImproperlyConfigured:
        assert limit is None
    else:
        assert type(made.limit) is int and made.limit >= 1


# Handles


def encoded(values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def refused(handle: Any) -> None:
    """Check that `from_handle()` raises a documented error."""
    with pytest.raises((ValueError, TypeError, LeaseLost, ImproperlyConfigured)) as caught:
        Lease.from_handle(handle)
    assert type(caught.value) in (ValueError, TypeError, LeaseLost, ImproperlyConfigured)


GENUINE = [1, "default", "x", "0" * 32, "17", 1, 30.0, True, math.inf, 0.0, False, 1]


@SERVER
@given(st.text() | st.binary())
def test_random_text_is_not_a_handle(clean_redis: None, handle: Any) -> None:
    refused(handle)


@SERVER
@given(st.lists(JSON, max_size=14) | JSON)
def test_random_json_is_not_a_handle(clean_redis: None, values: Any) -> None:
    refused(encoded(values))


@SERVER
@given(st.integers(0, len(GENUINE) - 1), JSON)
@example(4, "9" * 400)
@example(4, "-1")
@example(3, "")
@example(3, "a b")
@example(2, "other@key@more")
@example(5, -1)
@example(5, 10**30)
@example(6, 10**400)
@example(11, 10**400)
def test_handle_with_one_wrong_part_is_rejected(clean_redis: None, place: int, value: Any) -> None:
    refused(encoded([*GENUINE[:place], value, *GENUINE[place + 1 :]]))


@pytest.mark.parametrize("deep", ["[" * 3000, '{"a":' * 600], ids=["lists", "dicts"])
def test_deeply_nested_handle_is_rejected(clean_redis: None, deep: str) -> None:
    refused(base64.urlsafe_b64encode(deep.encode()).decode())


def test_handle_cannot_name_keys_outside_the_prefix(raw: Any) -> None:
    """`from_handle()` quotes the name, so a handle can't name a key of another program."""
    raw.set("victim", "precious")
    for name in ("victim", "}victim", "%7Dvictim{", "x}:leases"):
        refused(encoded([*GENUINE[:2], name, *GENUINE[3:]]))
    assert b"precious" == raw.get("victim")


# Settings


KEYS = st.sampled_from(sorted(map(str.upper, SETTINGS))) | st.text(max_size=10)
VALUES = JSON | st.dictionaries(st.sampled_from(sorted(REQUESTS)) | st.text(max_size=5), JSON)


@given(st.dictionaries(KEYS, VALUES, max_size=4) | JSON)
def test_settings_are_valid_or_raise_improperly_configured(given_: Any) -> None:
    with override_settings(REDIS_SYNC=given_):
        try:
            config = conf.current()
        except ImproperlyConfigured as error:
            assert ImproperlyConfigured is type(error)
            return
        assert config.timeout > 0
        assert config.keep() >= 0


NOTHING_THERE = "redis://127.0.0.1:1/0"


@settings(max_examples=40)
@given(st.sampled_from(["SEMAPHORES", "TIMEOUT", "MAX_HOLD", "BLOCKING_TIMEOUT"]), JSON, JSON)
def test_options_in_settings_are_used_or_raise_improperly_configured(
    key: str, value: Any, other: Any
) -> None:
    """No server runs at this address, so a call with valid options raises Unavailable."""
    from django.conf import settings as django

    cache = {**django.CACHES["default"], "LOCATION": NOTHING_THERE}
    entry: Any = {"x": {"limit": value, "timeout": other}} if key == "SEMAPHORES" else value
    caches = {**django.CACHES, "nowhere": cache}
    with override_settings(REDIS_SYNC={key: entry, "CACHE": "nowhere"}, CACHES=caches):
        with pytest.raises((ImproperlyConfigured, Unavailable)) as caught:
            Semaphore("x").acquire(False)
        assert type(caught.value) in (ImproperlyConfigured, Unavailable)


# Labels


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "replace")))
@example("9" * 5000)
@example('{"pid": ' + "9" * 5000 + "}")
@example('{"host": NaN}')
def test_random_text_is_readable_as_a_label(text: str) -> None:
    check_label(read_label(text))


@given(JSON)
def test_random_json_is_readable_as_a_label(values: Any) -> None:
    check_label(read_label(json.dumps(values)))


@given(st.text(max_size=400), st.text(max_size=400), st.text(max_size=400))
def test_written_label_is_short_and_on_one_line(label: str, user: str, request: str) -> None:
    written = write_label(label, user, request)
    assert written.isascii() and written.isprintable()
    read = read_label(written)
    thread = threading.current_thread().name
    here = {"host": socket.gethostname(), "pid": os.getpid(), "thread": thread}
    texts = {"label": label[:200], "user": user[:200], "request": request[:200]}
    assert {**here, **{field: text for field, text in texts.items() if text}} == read


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000], ids=["lists", "dicts"])
def test_deeply_nested_label_is_ignored(deep: str) -> None:
    assert {} == read_label(deep)


def check_label(read: dict[str, Any]) -> None:
    for key, value in read.items():
        assert key in LABEL_FIELDS
        assert isinstance(value, (str, int))
        assert not isinstance(value, str) or len(value) <= MAX_LABEL


# Requests


HEADER = st.text(st.characters(max_codepoint=255), max_size=80) | st.lists(
    st.ip_addresses().map(str)
    | st.sampled_from(
        ["[::1]:80", "1.2.3.4:99", "unknown", "_hidden", "fe80::1%eth0", "", '"::1"']
    ),
    max_size=4,
).map(", ".join)


@given(HEADER, HEADER, st.integers(0, 4))
@example("::1, [", "", 1)
@example("[" * 50, "\x00", 1)
def test_forwarded_addresses_become_a_valid_key(passed: str, nearest: str, proxies: int) -> None:
    request = HttpRequest()
    request.META = {"HTTP_X_FORWARDED_FOR": passed, "REMOTE_ADDR": nearest}
    key = identity.of_address(request, proxies)
    keys_of("sync", "policy", key)
    assert key.startswith("ip-") and key.isascii()
    assert not nearest or len(nearest) < 5 or nearest not in key
    if proxies == 0:
        del request.META["HTTP_X_FORWARDED_FOR"]
        assert key == identity.of_address(request, 0)  # the header has no effect


@given(st.integers(1, 3), st.lists(st.ip_addresses(v=4).map(str), min_size=3, max_size=6))
def test_addresses_before_the_trusted_proxies_do_not_affect_the_key(
    proxies: int, passed: list[str]
) -> None:
    def key(addresses: list[str]) -> str:
        request = HttpRequest()
        request.META = {"HTTP_X_FORWARDED_FOR": ", ".join(addresses), "REMOTE_ADDR": "10.0.0.1"}
        return identity.of_address(request, proxies)

    assert key(passed) == key(["6.6.6.6", *passed[-proxies:]])


@given(JSON | TEXT)
def test_value_of_a_policy_key_becomes_a_key_or_raises_type_error(value: Any) -> None:
    try:
        key = identity.of_value(value)
    except TypeError:
        assert isinstance(value, bool) or not isinstance(value, (str, int))
        return
    keys_of("sync", "policy", key)
    keys_of("sync", "policy", identity.of_user(value))
