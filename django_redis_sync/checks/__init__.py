"""System checks. They open no connection: `manage.py locks doctor` examines the server.

The module `settings` checks REDIS_SYNC and the caches. The module `views` checks MIDDLEWARE and the
limits of the views in the URLconf. Both are imported only when the checks run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from django.conf import settings as conf_settings
from django.core.checks import CheckMessage, Error, Warning, register

TAG = "redis_sync"


@register(TAG)
def check_project(**_: Any) -> list[CheckMessage]:
    """Return the findings of all checks. If REDIS_SYNC can't be read, return only that error."""
    from . import settings, views

    own = [*check_tasks(), *check_results()]
    return [*settings.check_readable()] or [*settings.check(), *views.check(), *own]


def check_tasks() -> Iterator[CheckMessage]:
    """Yield a warning if the installed Celery can't hold the tasks with on_full="hold"."""
    tasks = sys.modules.get("django_redis_sync.locks.celery.tasks")
    if tasks is None or not (names := tasks.limited_tasks(tasks.current_app)):
        return
    from ..locks.celery.undocumented import missing

    if lacks := missing():
        yield Warning(
            f'{", ".join(names)}: Celery workers can\'t hold tasks with on_full="hold", so these '
            f"wait in the processes of the pool. Unknown or missing: {lacks}.",
            hint="Install a version of Celery that the docs about task queues name.",
            id="redis_sync.W026",
        )


def check_results() -> Iterator[CheckMessage]:
    """Yield an error for each cache of single_flight functions that is not in CACHES."""
    for alias, function in _caches_of_flights():
        if alias not in conf_settings.CACHES:
            yield Error(
                f"{function}: single_flight stores results in the cache {alias!r}, which is not in "
                "CACHES.",
                hint="Give an alias from CACHES.",
                id="redis_sync.E034",
            )


def _caches_of_flights() -> list[tuple[str, str]]:
    """Return each cache of single_flight functions, and the first function that uses it."""
    flights = sys.modules.get("django_redis_sync.locks.single_flight")
    return [] if flights is None else [*flights.aliases.items()]


@register(TAG, deploy=True)
def check_deployment(**_: Any) -> list[CheckMessage]:
    """Return the findings that matter in production only."""
    from . import settings, views

    if [*settings.check_readable()]:
        return []
    return [*settings.check_deployment(), *views.check_deployment(), *check_shared_results()]


def check_shared_results() -> Iterator[CheckMessage]:
    """Yield a warning for each cache of single_flight functions that processes don't share."""
    from django.core.cache import InvalidCacheBackendError, caches
    from django.core.cache.backends.dummy import DummyCache
    from django.core.cache.backends.locmem import LocMemCache

    for alias, function in _caches_of_flights():
        try:
            backend = caches[alias]
        except InvalidCacheBackendError:  # Django's own check, or E034, reports it
            continue
        if isinstance(backend, (DummyCache, LocMemCache)):
            yield Warning(
                f"{function}: single_flight stores results in the cache {alias!r}, which each "
                "process has for itself: other processes run the function again.",
                hint="Give single_flight a cache that all processes share, such as one in Redis.",
                id="redis_sync.W036",
            )
