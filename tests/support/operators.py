"""Helpers for tests of what operators use: `manage.py locks`, the admin page, and statuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError

from devtools.servers import RedisServer
from django_redis_sync import Semaphore
from tests.support.commands import locks as locks

#: Options that select the cache of the fixture `second`.
OTHER: dict[str, Any] = {"using": "other"}


def as_json(*words: str, **options: Any) -> Any:
    """Return the JSON that `manage.py locks` prints."""
    return json.loads(locks(*words, "--format", "json", **options))


def failed(*words: str, **options: Any) -> tuple[int, str]:
    """Return the exit code and the error of `manage.py locks`, which must fail."""
    with pytest.raises(CommandError) as caught:
        locks(*words, **options)
    return caught.value.returncode, str(caught.value)


def act(action: str, name: str, *words: str, key: str | None = None, **options: Any) -> str:
    """Run an action of `manage.py locks`, even on a name that was never used. Return the output."""
    create = ["--create"] * (action in ("pause", "resize") and "--reset" not in words)
    return locks(action, name, *words, *create, *(["--key", key] if key else []), **options)


def status_of(name: str, key: str | None = None, **options: Any) -> Any:
    return Semaphore(name, 9, key=key, **options).status()


def has_free_permit(name: str, limit: int = 1, **options: Any) -> bool:
    """Return True if `acquire()` grants a permit at once. Release this permit."""
    lease = Semaphore(name, limit, **options).acquire(blocking=False)
    if lease is not None:
        lease.release()
    return lease is not None


@pytest.fixture(name="private")
def private_server(new_server: Callable[..., RedisServer], settings: Any) -> Callable[..., str]:
    """Return a function that starts a Redis server, adds it as the cache `private`, and returns the
    URL of the server.

    `login`, `database`, `scheme`: parts of the cache's URL. Other arguments are settings of
    redis.conf, with `_` instead of `-`."""

    def start(*, login: str = "", database: int = 0, scheme: str = "redis", **config: Any) -> str:
        words = {name.replace("_", "-"): value for name, value in config.items()}
        server = new_server(config=words)
        url = server.url.replace("redis://", f"{scheme}://{login}").replace("/0", f"/{database}")
        cache = {**settings.CACHES["default"], "LOCATION": url}
        settings.CACHES = {**settings.CACHES, "private": cache}
        return server.url

    return start


@pytest.fixture(name="dead")
def dead_cache(settings: Any) -> None:
    """Add a cache `dead`, whose server is down."""
    cache = {**settings.CACHES["default"], "LOCATION": "redis://me:secret@127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "dead": cache}
