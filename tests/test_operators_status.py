"""The registry of names, and their statuses."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import redis
from django.conf import settings

from devtools.servers import RedisServer
from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.engine import names, renewal
from django_redis_sync.exceptions import ForeignValue
from django_redis_sync.operators.facts import Status
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import astatus_of, readable, status_of, statuses
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import eventually
from tests.behaviour.watching import counted
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")

REGISTRY = f"{settings.PREFIX}:names"
LIMITS = {"exports": 3, "a:b": 4, "shop": None, "by-function": None, "unknown": None}


# The registry


def test_name_is_listed_within_seconds_of_its_first_use(raw: redis.Redis) -> None:
    start = time.monotonic()
    with Lock("a"):
        eventually(lambda: listed("a"))
    assert time.monotonic() - start < 5  # not at the next minute
    assert listed("a")  # still, a while after


def test_names_in_use_lists_the_most_recent_name_first(raw: redis.Redis) -> None:
    raw.zadd(REGISTRY, {"old": 1000, "newer": 3000, "new": 2000})
    assert names_in_use() == [("newer", None), ("new", None), ("old", None)]


def test_names_in_use_distinguishes_a_key_from_a_name_with_an_at_sign(raw: redis.Redis) -> None:
    with Lock("a@b"), Semaphore("a", 1, key="b"), Lock("{x}%:y"):
        wanted = {("a@b", None), ("a", "b"), ("{x}%:y", None)}
        eventually(lambda: wanted <= set(names_in_use()))


def test_names_in_use_reads_special_characters_of_a_pattern_as_a_glob(raw: redis.Redis) -> None:
    raw.zadd(REGISTRY, {"x[1]": 1, "x1": 2, "exports%4042": 3, "exports@42": 4})
    assert names_in_use(pattern="x[1]") == [("x1", None)]
    assert names_in_use(pattern="x[[]1]") == [("x[1]", None)]
    assert names_in_use(pattern="exports@*") == [("exports", "42"), ("exports@42", None)]


def test_name_is_registered_once_a_minute(raw: redis.Redis) -> None:
    with Lock("seen"):
        eventually(lambda: listed("seen"))
    with counted(raw) as commands:
        for _ in range(200):
            with Lock("seen"):
                pass
        time.sleep(2 * names.NOTED_AFTER)
    # A cycle needs at most one ZADD, for its lease; none is for the registry.
    assert commands["zadd"] <= 200
    assert commands["zrevrange"] == commands["keys"] == commands["scan"] == 0


def test_held_name_is_registered_again_after_a_minute(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "NOTED_EVERY", 0.2)
    with Lock("held for long"):
        eventually(lambda: raw.zscore(REGISTRY, "held for long"))
        raw.delete(REGISTRY)
        eventually(lambda: raw.zscore(REGISTRY, "held for long"))


def test_registry_drops_names_that_are_old_or_too_many(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "MOST_NOTED", 3)
    now = raw.time()[0] * 1000
    old = now - 86_400_000 - 5000
    raw.zadd(REGISTRY, {"yesterday": old, "a": now - 3, "b": now - 2, "c": now - 1})
    with Lock("new"):
        eventually(lambda: raw.zcard(REGISTRY) == 3)
    assert raw.zscore(REGISTRY, "yesterday") is None
    assert raw.zscore(REGISTRY, "a") is None
    eventually(lambda: 0 < raw.pttl(REGISTRY) <= 2 * 86_400_000)


def test_name_is_registered_after_an_outage(
    new_server: Callable[..., RedisServer], settings: Any
) -> None:
    server = new_server()
    cache = {**settings.CACHES["default"], "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "private": cache}
    server.kill()
    found = renewal.renewer("private").housekeeper
    found.note(keys_of(settings.PREFIX, "later"))
    time.sleep(0.1)
    server.restart()
    eventually(lambda: names_in_use(using="private") == [("later", None)])


# Statuses


def test_status_of_an_idle_name_contains_the_limit_of_the_settings(settings: Any) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "SEMAPHORES": {"exports": {"limit": 3}, "by-function": {"blocking_timeout": 1}},
        "ENDPOINTS": {
            "r:e": "exports",
            "shop:*": {"limit": lambda r: 5, "name": "shop"},
            "a:b": {"limit": 4},
        },
    }
    limits = {one.name: one.limit for one in statuses([(n, None) for n in LIMITS])}
    assert LIMITS == limits
    assert 3 == statuses([("exports", "7")])[0].limit
    with Semaphore("exports", 9):
        assert 9 == status_of("exports").limit


def test_astatus_of_equals_status_of(settings: Any) -> None:
    named = {"exports": {"limit": 3}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": named}

    def undated(status: Status) -> Status:
        return replace(status, at=datetime.min)

    with Semaphore("held", 2, timeout=math.inf):
        for name, key in (("exports", None), ("exports", "7"), ("held", None)):
            found = asyncio.run(astatus_of(name, key))
            assert undated(status_of(name, key)) == undated(found)


def test_unavailable_does_not_contain_the_password(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://me:secret@127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "dead": cache}
    for ask in (
        lambda: names_in_use(using="dead"),
        lambda: statuses([("a", None)], using="dead"),
        lambda: histories([("a", None)], using="dead"),
    ):
        with pytest.raises(Unavailable) as caught:
            ask()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "ask",
    [
        status_of,
        lambda name: asyncio.run(astatus_of(name)),
        lambda name: statuses([("exports", None), (name, None)]),
        lambda name: readable([(name, None)]),
    ],
    ids=["status_of", "astatus_of", "statuses", "readable"],
)
def test_foreign_value_error_names_the_key(ask: Callable[..., Any], raw: redis.Redis) -> None:
    for key in keys_of(settings.PREFIX, "spoiled").declared:
        raw.set(key, "foreign")
    with pytest.raises(ForeignValue, match=r"another program's value.*\{spoiled\}"):
        ask("spoiled")
