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
    """Yield a warning if Celery can lose tasks with on_full="retry"."""
    celery = sys.modules.get("django_redis_sync.locks.celery")
    if celery is not None and (tasks := celery.losing()):
        yield Warning(
            f'{", ".join(tasks)}: with on_full="retry", a task is lost if its worker is killed '
            "after the worker acknowledged the task and before it sent the task again.",
            hint="Set acks_late=True and reject_on_worker_lost=True on each of these tasks, or the "
            "settings task_acks_late and task_reject_on_worker_lost for all tasks.",
            id="redis_sync.W026",
        )


def check_results() -> Iterator[CheckMessage]:
    """Yield an error for each cache of single_flight functions that is not in CACHES."""
    flights = sys.modules.get("django_redis_sync.locks.single_flight")
    for alias, function in flights.aliases.items() if flights is not None else ():
        if alias not in conf_settings.CACHES:
            yield Error(
                f"{function}: single_flight stores results in the cache {alias!r}, which is not in "
                "CACHES.",
                hint="Give an alias from CACHES.",
                id="redis_sync.E034",
            )


@register(TAG, deploy=True)
def check_deployment(**_: Any) -> list[CheckMessage]:
    """Return the findings that matter in production only."""
    from . import settings, views

    if [*settings.check_readable()]:
        return []
    return [*settings.check_deployment(), *views.check_deployment()]
