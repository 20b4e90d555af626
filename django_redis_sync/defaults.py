"""Every key of the REDIS_SYNC setting with its default, and why."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

REQUESTS = MappingProxyType(
    {
        # A request that has to wait holds a worker: refuse at once unless told otherwise.
        "blocking_timeout": 0,
        # Waiting requests must not eat every worker.
        "max_waiters": 100,
        # No request runs longer than this; a hung one must not be renewed for ever.
        "max_hold": 3600,
        # Redis down: local keeps a limit per process, open lets all in, closed refuses all.
        "on_outage": "local",
        # X-Forwarded-For can be forged: believe nobody unless told how many proxies there are.
        "trusted_proxies": 0,
        # False: shadow mode, counts whom it would have refused and refuses nobody.
        "enforce": True,
    }
)

DEFAULTS: MappingProxyType[str, Any] = MappingProxyType(
    {
        # False switches the request limits off; locks and semaphores in code go on.
        "ENABLED": True,
        # The cache alias whose django-redis connection is used.
        "CACHE": "default",
        # Prefix of all keys; None: "<the alias's KEY_PREFIX>:sync", or "sync".
        "KEY_PREFIX": None,
        # Seconds of a lease: a crashed holder's permits come back after so long.
        "TIMEOUT": 30,
        # Seconds that code waits for a permit; None: as long as it takes.
        "BLOCKING_TIMEOUT": None,
        # Seconds after which a lease is renewed no more; None: while its holder lives.
        "MAX_HOLD": None,
        # What request limits start from.
        "REQUESTS": REQUESTS,
        # Named semaphores: {"exports": {"limit": 3}}.
        "SEMAPHORES": MappingProxyType({}),
        # Limits by view name or glob: {"reports:export": "exports", "api:*": {"limit": 20}}.
        "ENDPOINTS": MappingProxyType({}),
        # Counters and history, written by the scripts that run anyway.
        "STATS": True,
        # Hours of per-minute history.
        "STATS_HOURS": 6,
        # Dotted path of a callable alias -> redis.asyncio client, when ours can't be rebuilt.
        "ASYNC_CLIENT": None,
    }
)
