"""Helpers for tests of operators: the command, a private server, and a free permit."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from devtools.servers import RedisServer
from django_redis_sync import Semaphore


def locks(*words: str, **options: Any) -> str:
    """Return what `manage.py locks` prints."""
    out = StringIO()
    call_command("locks", *words, stdout=out, no_color=True, **options)
    return out.getvalue()


def has_free_permit(name: str, limit: int = 1, **options: Any) -> bool:
    """Return True if `acquire()` grants a permit at once. The permit is released again."""
    lease = Semaphore(name, limit, **options).acquire(blocking=False)
    if lease is not None:
        lease.release()
    return lease is not None


@pytest.fixture(name="private")
def private_server(new_server: Callable[..., RedisServer], settings: Any) -> Callable[..., str]:
    """Return a function that starts a server with a configuration, as the cache alias `private`."""

    def start(*, login: str = "", database: int = 0, scheme: str = "redis", **config: Any) -> str:
        words = {name.replace("_", "-"): value for name, value in config.items()}
        server = new_server(config=words)
        url = server.url.replace("redis://", f"{scheme}://{login}").replace("/0", f"/{database}")
        cache = {**settings.CACHES["default"], "LOCATION": url}
        settings.CACHES = {**settings.CACHES, "private": cache}
        return server.url

    return start
