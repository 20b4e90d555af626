"""For tests of projects that use this app: fill a semaphore, switch limits off, do without Redis.

Each is a context manager and a decorator:

    with filled("exports"):
        assert client.get("/export/").status_code == 503
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test import override_settings

from . import conf
from .engine.server import replaced
from .limits import identity
from .limits.policy import endpoints
from .locks.lease import Lease
from .locks.semaphore import Semaphore
from .memory import MemoryServer


@contextmanager
def filled(
    name: str,
    limit: int | None = None,
    *,
    key: str | None = None,
    user: Any = None,
    using: str | None = None,
) -> Iterator[Lease]:
    """Hold all permits of a semaphore, so that everybody else is refused or has to wait.

    `limit`: that of the code or view under test; None: what SEMAPHORES or ENDPOINTS say of the
    name. `user` (a user object) fills the child of a policy with key "user"; `key` any other child,
    as it stands in its name. AssertionError when permits are in use already; ImproperlyConfigured
    when nothing says a limit.
    """
    if user is not None:
        key = identity.of_user(user.pk)
    limit = limit if limit is not None else _limit_of(name)
    semaphore = Semaphore(name, limit, key=key, using=using)
    got = semaphore.take(blocking=False, permits=semaphore.limit or _limit_of(name) or 1)
    if not isinstance(got, Lease):
        raise AssertionError(f"{semaphore!r} can't be filled: {got}")
    try:
        yield got
    finally:
        got.release()


def _limit_of(name: str) -> int | None:
    """The limit that the settings give a name, if it is a number."""
    config = conf.current()
    options = [config.semaphores.get(name, {})]
    options += [entry.options for entry in endpoints().entries.values() if entry.name == name]
    return next((o["limit"] for o in options if isinstance(o.get("limit"), int)), None)


@contextmanager
def limits_disabled() -> Iterator[None]:
    """Let every request in, without a word to Redis. Locks and semaphores in code go on."""
    given = getattr(settings, conf.SETTING, {})
    with override_settings(**{conf.SETTING: {**given, "ENABLED": False}}):
        yield


@contextmanager
def without_redis() -> Iterator[None]:
    """Locks, semaphores and limits work in the memory of this process; no Redis is asked.

    They work among its threads and event loops, with leases, queues and fences as usual. Nothing is
    shared with other processes, no statistics are kept, and what needs a server's own commands
    (listing names, `locks doctor`) raises NotImplementedError. Quorum locks are not covered.
    """
    servers: dict[str, MemoryServer] = {}

    def server(alias: str) -> Any:
        return servers.setdefault(alias, MemoryServer())

    def async_server(alias: str) -> Any:
        return server(alias).asynchronous

    with replaced(server, async_server):
        yield
