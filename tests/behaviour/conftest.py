"""Private servers and cache aliases for tests that break servers."""

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
    """Return a function that returns the View of a name on the shared server."""
    return lambda name: View(raw, name)


@pytest.fixture
def alias(settings: Any) -> Iterator[Callable[..., str]]:
    """Return a function that adds a cache alias for a URL. Each alias has a new name, so that the
    renewal thread of an earlier test's alias doesn't interfere."""
    names = []

    def add(url: str, **options: Any) -> str:
        name = f"private-{next(_numbers)}"
        cache = {**settings.CACHES["default"], "LOCATION": url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, name: cache}
        names.append(name)
        return name

    yield add
    for name in names:  # its renewal thread would go on using an alias that no longer exists
        renewal.renewer(name).clear()


@pytest.fixture
def private(new_server: Callable[..., RedisServer]) -> RedisServer:
    """A server that only this test uses."""
    return new_server()
