"""The list: every lock that the exam knows, with what its own documentation claims."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial

from .adapter import LEASE, Entry
from .adapters import planted
from .adapters.correct import SerialLock
from .judge import Claims

_OURS = Claims(
    lease=LEASE,
    renewed=True,
    fair=True,
    fenced=True,
    told=True,
    punctual=True,
    retries=True,
    forks=True,
    dead_waiter=3.0,
)
#: Of most: a lease of its time, and a time to wait.
_LEASED = Claims(lease=LEASE, punctual=True)
_SMART = "django_smart_ratelimit"


def _ours(title: str, make: str, claims: Claims = _OURS, **more: object) -> Entry:
    words: dict[str, object] = {
        "module": "django_redis_sync",
        "package": "django-redis-sync",
        **more,
    }
    return Entry(title, f"exam.adapters.ours:{make}", claims, **words)  # type: ignore[arg-type]


def _peer(title: str, make: str, module: str, claims: Claims = _LEASED, **more: object) -> Entry:
    return Entry(title, f"exam.adapters.peers:{make}", claims, module=module, **more)  # type: ignore[arg-type]


def _article(title: str, make: str, claims: Claims = _LEASED, most: int = 1) -> Entry:
    return Entry(title, f"exam.adapters.articles:{make}", claims, most=most)


ENTRIES: dict[str, Entry] = {
    "lock": _ours("Lock, Semaphore", "Ours", most=1000),
    "async": _ours("… in async code", "OursAsync", most=1000, asynchronous=True),
    "quorum": _ours(
        "… by a quorum", "OursQuorum", replace(_OURS, fair=False, fenced=False), needs="quorum"
    ),
    "requests": _ours(
        "… of requests",
        "Request",
        replace(_OURS, told=False, fenced=False),
        most=1000,
        cannot={"crowd-killed": "a process lets some of its requests wait, and refuses others"},
    ),
    "redis-py": _peer("redis-py Lock", "RedisPy", "redis", asynchronous=True),
    "python-redis-lock": _peer(
        "python-redis-lock",
        "PythonRedisLock",
        "redis_lock",
        replace(_LEASED, renewed=True),
        package="python-redis-lock",
    ),
    "pottery": _peer("pottery", "Pottery", "pottery"),
    "redis-semaphore": _peer(
        "redis-semaphore", "RedisSemaphore", "redis_semaphore", most=1000, package="redis-semaphore"
    ),
    "async-redis-rate-limiters": _peer(
        "async-redis-rate-limiters",
        "AsyncRedisRateLimiters",
        "async_redis_rate_limiters",
        replace(_LEASED, punctual=False),
        most=1000,
        asynchronous=True,
        package="async-redis-rate-limiters",
    ),
    "steindamm": _peer("steindamm", "Steindamm", "steindamm", most=1000, asynchronous=True),
    "django-smart-ratelimit": _peer(
        "django-smart-ratelimit",
        "DjangoSmartRatelimit",
        _SMART,
        replace(_LEASED, punctual=False),
        most=1000,
        package="django-smart-ratelimit",
    ),
    "postgres": _peer(
        "PostgreSQL advisory lock",
        "PostgresAdvisory",
        "psycopg",
        Claims(lease=0, punctual=True),
        needs="postgres",
        cannot={"crowd-killed": "a thousand who wait are a thousand processes of the server"},
    ),
    "cache-add": _peer("cache.add", "CacheAdd", "django", replace(_LEASED, punctual=False)),
    "setnx": _article("SETNX, EXPIRE", "SetnxExpire"),
    "set-nx-ex": _article("SET NX EX", "SetNxEx"),
    "zset": _article("sorted set, unfair", "UnfairSortedSet", most=1000),
    "zset-fair": _article("sorted set, fair", "FairSortedSet", most=1000),
    "incr": _article("INCR", "IncrLock", most=1000),
}

# The judge is judged by these

CORRECT = {
    "multiprocessing": Entry(
        "multiprocessing's semaphore",
        "exam.adapters.correct:MultiprocessingLock",
        Claims(punctual=True),
        needs="",
        prepare="exam.adapters.correct:share",
    ),
    "file": Entry(
        "flock(2)", "exam.adapters.correct:FileLock", Claims(lease=0, punctual=True), needs=""
    ),
    "serial": Entry(
        "a serial server",
        "exam.adapters.correct:SerialLock",
        Claims(lease=LEASE, fair=True, fenced=True, told=True, punctual=True, dead_waiter=0),
        needs="",
        most=1000,
        prepare="exam.adapters.serial:serve",
    ),
}

_SERIAL = CORRECT["serial"]
PLANTED = {
    defect: Entry(
        f"planted: {defect}", make, _SERIAL.claims, needs="", most=1000, prepare=_SERIAL.prepare
    )
    for defect, make in {
        **{defect: partial(SerialLock, defect=defect) for defect in planted.OF_THE_SERVER},
        **planted.OF_THE_CLIENT,
    }.items()
}


def find(key: str) -> Entry:
    """An entry by its key; a key with a colon is an entry of one's own, "module:ENTRY"."""
    if ":" in key:
        module, _, name = key.partition(":")
        found: Entry = getattr(importlib.import_module(module), name)
        return found
    return {**ENTRIES, **CORRECT, **PLANTED}[key]
