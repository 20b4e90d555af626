"""At exit a process writes what is pending, starts no thread, and logs no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.statistics import statistics_of
from tests.behaviour.watching import View
from tests.support import worker_processes

#: Python 3.12 and later start no thread while the interpreter shuts down. The handler has the same
#: effect on earlier versions.
PROGRAM = """if True:
    import atexit, sys, threading, time
    import django
    from django.conf import settings
    django.setup()
    for number, url in enumerate({urls}):
        settings.CACHES[f"q{{number}}"] = {{**settings.CACHES["default"], "LOCATION": url}}
    from django.core.management import call_command
    from django_redis_sync import Lock, Semaphore, conf
    from django_redis_sync.engine.renewal import renewer
    from django_redis_sync.protocol.keys import keys_of
    from django_redis_sync.protocol.plans import undoing

    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def handler():
        if sys.version_info < (3, 12):
            threading.Thread.start = refuse
        {at_exit}

    atexit.register(handler)
    {body}
"""


def errors_of(body: str = "", at_exit: str = "", urls: tuple[str, ...] = ()) -> str:
    """Return the standard error of a process that runs `body`, and `at_exit` in an exit handler."""
    program = PROGRAM.format(body=body or "pass", at_exit=at_exit or "pass", urls=urls)
    done = worker_processes.run("-c", program)
    assert 0 == done.returncode, done.stderr
    return done.stderr


@pytest.mark.parametrize("at", ["body", "at_exit"])
def test_process_writes_names_and_statistics_before_it_exits(raw: redis.Redis, at: str) -> None:
    logged = errors_of(**{at: "Lock('x').acquire().release()"})
    (site,) = statistics_of([""])
    assert ("", [("x", None)]) == (logged, list(names_in_use()))
    assert (1, 0) == (site.history.total.granted, site.in_use)


@pytest.mark.parametrize("command", ["'pause', 'x'", "'status'"])
def test_command_logs_no_error_at_exit(raw: redis.Redis, command: str) -> None:
    body = "Lock('x').acquire().release()"
    assert "" == errors_of(body, f"call_command('locks', {command})")


def test_pending_cleanup_is_sent_at_exit(raw: redis.Redis) -> None:
    undo = "undoing(keys_of(conf.current().prefix('default'), 'x'), lease.token)"
    assert "" == errors_of("lease = Lock('x').acquire()", f"renewer('default').later({undo})")
    assert 0 == View(raw, "x").holding


def test_quorum_lock_works_in_an_exit_handler(
    raw: redis.Redis, new_server: Callable[..., Any]
) -> None:
    urls = tuple(new_server().url for _ in range(3))
    lock = "Lock('x', using=['q0', 'q1', 'q2'])"
    cycle = f"{lock}.acquire().release()"
    assert "" == errors_of(cycle, cycle, urls)
