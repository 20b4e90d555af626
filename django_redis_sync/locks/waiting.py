"""Where sync code may wait for Redis: not on a running event loop, which would stop."""

from __future__ import annotations

import asyncio
import os

from django.core.exceptions import SynchronousOnlyOperation


def check_may_wait(what: str, instead: str) -> None:
    """SynchronousOnlyOperation in a thread whose event loop runs, as Django's ORM raises it.

    `instead`: the call to write there. Like Django's own, DJANGO_ALLOW_ASYNC_UNSAFE lets it pass.
    """
    running = asyncio._get_running_loop() is not None
    if running and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(
            f"{what} waits for Redis and would stop this event loop, for ever when a task of it "
            f"holds what is waited for. Write {instead}, or call sync code by sync_to_async."
        )
