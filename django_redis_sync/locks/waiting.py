"""Where a wait can't end: on an event loop that it stops, for what the caller holds itself."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation

from ..engine.keeper import keeper
from ..protocol.keys import Keys
from .abandoned import Loop

logger = logging.getLogger("django_redis_sync")

#: A task, or the thread where none runs.
Caller = weakref.ref[Any]
#: Of a process with more leases, so many are looked through for the caller's own.
_NEWEST = 100


def may_wait() -> bool:
    """Whether sync code may wait here: not in a thread whose event loop runs. As with Django's ORM,
    DJANGO_ALLOW_ASYNC_UNSAFE lets it."""
    return asyncio._get_running_loop() is None or bool(os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"))


def waits_here(what: str, instead: str) -> SynchronousOnlyOperation:
    """The error where it may not. `instead`: the call to write there."""
    return SynchronousOnlyOperation(
        f"{what} waits for Redis and would stop this event loop, for ever when a task of it "
        f"holds what is waited for. Write {instead}, or call sync code by sync_to_async."
    )


def this_caller() -> tuple[Caller, Loop | None]:
    """The thread or task that runs, and the event loop where one does."""
    loop = asyncio._get_running_loop()  # current_task() would raise where there is none
    if loop is None:
        return weakref.ref(threading.current_thread()), None
    return weakref.ref(asyncio.current_task(loop) or threading.current_thread()), weakref.ref(loop)


def own_hold(keys: Keys, alias: Any) -> str:
    """What to say of a lock that this thread or task holds itself; empty when it does not."""
    caller, _ = this_caller()
    if not any(lease.is_of_caller(caller) for lease in keeper(alias).newest(keys, _NEWEST)):
        return ""
    who = "thread" if isinstance(caller(), threading.Thread) else "task"
    return f"this {who} holds it: an RLock may be taken again"


def warn_of_own_hold(keys: Keys, alias: Any) -> None:
    """Log a wait that nothing but the caller itself could end."""
    if said := own_hold(keys, alias):
        logger.warning("%r waits for itself: %s", keys.display, said)
