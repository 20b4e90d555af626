"""Servers of their own for tests that break them, as the cache alias `private`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from devtools.servers import RedisServer
from django_redis_sync.engine import renewal

from .watching import View

_numbers = itertools.count(1)


@pytest.fixture
def view(raw: redis.Redis) -> Callable[[str], View]:
    """A name on the test run's server, clean at the start."""
    return lambda name: View(raw, name)


@pytest.fixture
def alias(settings: Any) -> Iterator[Callable[..., str]]:
    """Adds a cache alias for a URL. Each has a name of its own: what an earlier test left to the
    keeper of an alias does not get in the way."""
    names = []

    def add(url: str, **options: Any) -> str:
        name = f"private-{next(_numbers)}"
        cache = {**settings.CACHES["default"], "LOCATION": url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, name: cache}
        names.append(name)
        return name

    yield add
    for name in names:  # its keeper would go on asking for an alias that is no more
        renewal.renewer(name).clear()


@pytest.fixture
def private(new_server: Callable[..., RedisServer]) -> RedisServer:
    """A server of the test's own."""
    return new_server()
