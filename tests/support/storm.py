"""A storm of exceptions: the signal handler of a process interrupts its main thread many times,
at random moments of acquires, releases, renewals, and limited requests, also in outages.

`python -m tests.support.storm EXCEPTIONS` prints what is broken afterwards as JSON: nothing, if all
is well. Its first server always runs. Its second one is killed and started again every few seconds.

hiredis is not used, because its C code crashes if a signal handler raises in it. The handler raises
nothing inside of packages whose own locks would stay taken, and no lock that is renewed is kept for
longer than a call, because nobody would release its lease: see docs/failure-modes.md.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import django
import redis.connection
from django.conf import settings
from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings

from devtools.servers import RedisServer
from django_redis_sync import Lock, Semaphore, SyncError, semaphore_required
from django_redis_sync.engine.mutex import Mutex
from django_redis_sync.engine.threads import Worker
from django_redis_sync.limits.breaker import breaker

#: Seconds without a further exception after which the process counts as hung.
HANGS = 90
#: Packages with locks that an exception leaves taken.
OTHERS = ("asgiref", "importlib", "logging")


class Interrupted(BaseException):
    pass


class Storm:
    """The main thread's work, and the timer that interrupts it."""

    def __init__(self, falling: RedisServer) -> None:
        self.hits = self.rounds = 0
        self.broken: list[str] = []
        self.falling, self.over = falling, threading.Event()
        self.request: Callable[..., HttpRequest] = RequestFactory().get
        self.views = {
            alias: semaphore_required(f"view-{alias}", limit=1, using=alias)(self.respond)
            for alias in ("default", "falling")
        }
        self.semaphore = Semaphore("semaphore", 2, timeout=2)

    @staticmethod
    def respond(request: HttpRequest) -> HttpResponse:
        return HttpResponse("")

    # Work of the main thread

    @staticmethod
    def take() -> None:
        # A lock that outlives the interrupted function would keep the lease: see the module's text.
        if lease := Lock("lock", timeout=3, renew=True).acquire(blocking=False):
            lease.release()

    def wait(self) -> None:
        if lease := self.semaphore.acquire(blocking_timeout=0.002):
            lease.renew()
            lease.release()

    def block(self) -> None:
        with Semaphore("blocks", 50, timeout=2):
            pass

    def visit(self) -> None:
        self.views["default"](self.request("/"))

    def visit_falling(self) -> None:
        self.views["falling"](self.request("/"))

    def blow(self, exceptions: int) -> None:
        """Do random work until so many exceptions were raised."""
        work = [self.take, self.wait, self.block, self.visit, self.visit_falling]
        signal.signal(signal.SIGALRM, self.interrupt)
        while self.hits < exceptions:
            if self.rounds % 256 == 0:
                faulthandler.dump_traceback_later(HANGS, exit=True)
            self.rounds += 1
            call = random.choice(work)
            try:
                signal.setitimer(signal.ITIMER_REAL, 10 ** random.uniform(-5, -3))
                try:
                    for _ in range(3):
                        call()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                self.hits += 1
            except SyncError:
                pass  # the lease of an interrupted call is still there, or the server is down
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def interrupt(self, number: int, frame: Any) -> None:
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith(OTHERS):
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                return
            frame = frame.f_back
        raise Interrupted

    # Threads beside it

    def serve(self) -> None:
        """Take and release on another thread. Each call must end."""
        semaphore = Semaphore("semaphore", 2, timeout=2)
        while not self.over.is_set():
            began = time.monotonic()
            with contextlib.suppress(SyncError):
                if lease := semaphore.acquire(blocking_timeout=1):
                    lease.release()
                self.visit()
                self.visit_falling()
            if time.monotonic() - began > HANGS / 2:
                self.broken.append(f"a thread waited for {time.monotonic() - began:.0f} s")
            time.sleep(0.01)

    def fall(self) -> None:
        """Kill the second server and start it again, until the storm is over."""
        while not self.over.wait(random.uniform(1, 3)):
            self.falling.kill()
            self.over.wait(random.uniform(0.5, 2))
            self.falling.restart()

    # Afterwards

    def check(self) -> None:
        """Find out what is broken. Everything is tried on the main thread and on another one."""
        for alias in self.views:
            self.eventually(f"requests of {alias} are served", partial(self.is_served, alias))
        for name, limit in (("lock", 1), ("semaphore", 2), ("blocks", 50)):
            self.eventually(f"{name} is free", partial(self.is_free, Semaphore(name, limit)))
        lease = Lock("renewed", timeout=3, renew=True).acquire(blocking_timeout=5)
        assert lease
        seen = [lease.remaining]

        def is_renewed() -> bool:
            seen.append(lease.remaining)
            return seen[-1] > seen[-2]

        self.eventually("leases are renewed", is_renewed)
        lease.release()
        found = gc.get_objects()
        # The threads of workers have this lock for as long as they run.
        theirs = [one._runs for one in found if isinstance(one, Worker)]
        for mutex in [one for one in found if isinstance(one, Mutex) and one not in theirs]:
            free = self.elsewhere(partial(mutex.run_within, 5, lambda: True))
            self.expect("a lock of the package is free", free)
        self.expect("threads start and end", self.elsewhere(lambda: True))

    def is_served(self, alias: str) -> bool:
        """Return True if the view of the alias is served by Redis, on this thread and another."""
        mine, other = self.status(alias), self.elsewhere(partial(self.status, alias))
        return (200, 200, False) == (mine, other, breaker(alias).down)

    def status(self, alias: str) -> int:
        code: int = self.views[alias](self.request("/")).status_code
        return code

    @staticmethod
    def is_free(semaphore: Semaphore) -> bool:
        return semaphore.status().in_use == 0

    def eventually(self, what: str, call: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not call():
            if time.monotonic() > end:
                self.broken.append(f"not so: {what}")
                return
            time.sleep(0.1)

    def expect(self, what: str, is_so: object) -> None:
        if not is_so:
            self.broken.append(f"not so: {what}")

    def elsewhere(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call()` on another thread, or None if it takes longer than 20 s."""
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(call()), daemon=True)
        thread.start()
        thread.join(20)
        return got[0] if got else None


def main(exceptions: int) -> int:
    faulthandler.enable()
    django.setup()
    redis.connection.HIREDIS_AVAILABLE = False
    with RedisServer() as falling:
        second = {**settings.CACHES["default"], "LOCATION": falling.url}
        with override_settings(CACHES={**settings.CACHES, "falling": second}):
            storm = Storm(falling)
            storm.take()
            storm.visit()
            beside = [threading.Thread(target=storm.serve, daemon=True) for _ in range(3)]
            beside.append(threading.Thread(target=storm.fall, daemon=True))
            for thread in beside:
                thread.start()
            began = time.monotonic()
            storm.blow(exceptions)
            took = time.monotonic() - began
            storm.over.set()
            for thread in beside:
                thread.join(60)
                storm.expect("the threads beside it end", not thread.is_alive())
            faulthandler.dump_traceback_later(300, exit=True)
            storm.check()
            pool = caches["default"].client.get_client().connection_pool
            print(json.dumps(storm.broken), storm.hits, storm.rounds, took, pool, flush=True)
    return bool(storm.broken)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
