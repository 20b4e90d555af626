"""Rows of Django's pool of database connections."""

from typing import Any

from tests.field.row import Row

TITLE = "Django's pool of psycopg"
PACKAGES = ["psycopg", "psycopg-pool"]
#: The pool is as small as that of a site with several processes.
SETTINGS = {
    "DATABASE_OPTIONS": {"pool": {"min_size": 1, "max_size": 4, "timeout": 5}},
    "ATOMIC_REQUESTS": False,
}


def _of(closes: bool) -> dict[str, Any]:
    policy = {"name": "till", "limit": 1, "key": "user", "blocking_timeout": 60}
    endpoints = {name: {**policy, "close_connections": closes} for name in ("wait", "await")}
    requests = {"max_waiting_threads": 100}
    return {"settings": {"REDIS_SYNC": {"ENDPOINTS": endpoints, "REQUESTS": requests}}}


_GIVES_BACK = {"proof": "waiters_leave_the_pool_to_others", "user": "session", **_of(True)}
_KEEPS = {"proof": "waiters_occupy_the_pool", "user": "session", **_of(False)}
ROWS = [
    Row("function, `close_connections=True`", path="wait/", **_GIVES_BACK),
    Row("function, `close_connections=True`", path="wait/", server="ASGI", **_GIVES_BACK),
    Row("async function, `close_connections=True`", path="await/", server="ASGI", **_GIVES_BACK),
    Row("function", path="wait/", **_KEEPS),
    Row("async function", path="await/", server="ASGI", **_KEEPS),
]
