"""Other processes, to race with, to kill and to pause: `python -m tests.behaviour.child ROLE ARGS`.

Roles print what they do, one line each. A child has the test's settings, server and journal. One
that stands for several forks before it has any thread, which is faster than starting several.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.support import worker_processes

#: That it is started with.
SETTINGS = "tests.settings"


class Child:
    """A child process, seen from the test. Also a context manager that ends it."""

    module = __name__

    def __init__(self, role: str, *args: object, **environment: str) -> None:
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS, **environment}
        self.process = worker_processes.Process("-m", self.module, role, *args, env=env)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        # It stands in a group of its own: what it forked ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self) -> list[str]:
        """The words of the next line that it prints; AssertionError when it ended."""
        return self.process.line().split()

    def run_callbacks(self, text: str = "") -> None:
        """Let it go on: a role that asks waits for a line."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ended(self, seconds: float = 60) -> list[list[str]]:
        """The words of all lines that it printed until it ended well."""
        out, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, out
        return [line.split() for line in out.splitlines()]


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # whole, whoever else writes


def forked(count: int, work: Callable[[int], None]) -> list[int]:
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(number)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    return pids


def reap(pids: list[int]) -> None:
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit(f"a forked child ended with {status}")


# Roles


def storm(name: str, limit: int, processes: int, threads: int, enough: int) -> None:
    """Threads of several processes take turns until each process has made enough cycles; says how
    many it made."""
    from django_redis_sync import Semaphore

    def process(number: int) -> None:
        cycles = [0] * threads

        def thread(mine: int) -> None:
            chance = random.Random(number * 1000 + mine)
            sem = Semaphore(name, limit, timeout=6, renew=True)
            while sum(cycles) < enough:
                patience = chance.choice([None, None, None, 0, 0.05, 1])
                lease = sem.acquire(blocking_timeout=patience)
                if lease:
                    assert lease.held
                    time.sleep(chance.random() / 500)
                    sem.release()
                    cycles[mine] += 1

        crowd = [threading.Thread(target=thread, args=(n,)) for n in range(threads)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join()
        say("cycles", sum(cycles))

    reap(forked(processes, process))


def queue(name: str, mode: str, count: int) -> None:
    """Processes that wait in line for a lock of ten minutes, and say when they have it."""
    from django_redis_sync import Lock

    lock = Lock(name, timeout=600)

    def sync_waiter(number: int) -> None:
        say("got", number, lock.acquire().fence)
        time.sleep(600)

    def async_waiter(number: int) -> None:
        async def main() -> None:
            say("got", number, (await lock.aacquire()).fence)
            await asyncio.sleep(600)

        asyncio.run(main())

    for pid in forked(count, sync_waiter if mode == "sync" else async_waiter):
        say("pid", pid)
    signal.pause()


def hold(name: str, seconds: float, renew: str) -> None:
    """Holds until it is killed."""
    from django_redis_sync import Lock

    lock = Lock(name, timeout=seconds, renew=renew == "renew")
    lease = lock.acquire()
    say("fence", lease.fence)
    sys.stdin.readline()
    say("held", lease.held)
    say("exists", lease.token)


def adopt() -> None:
    """Adopts a handle, and gives the lease back when told."""
    from django_redis_sync import Lease

    lease = Lease.from_handle(sys.stdin.readline().strip())
    say("fence", lease.fence)
    sys.stdin.readline()
    lease.release()
    say("released")


def brief(name: str, count: int) -> None:
    """Takes and gives back a few names, and ends at once."""
    from django_redis_sync import Lock

    for number in range(count):
        with Lock(f"{name}-{number}"):
            pass


def once(name: str, processes: int) -> None:
    """The same periodic job on several hosts."""
    from django_redis_sync import Lock

    def host(number: int) -> None:
        lock = Lock(name, min_hold=60, blocking=False)
        if lock.acquire():
            say("ran", number)
            lock.release()

    reap(forked(processes, host))


def fork_holding(name: str) -> None:
    """Forks while it holds. The child tries all it can, and then outlives its parent's lease."""
    from django_redis_sync import LeaseLost, Lock, Semaphore

    lock = Lock(name, timeout=3, renew=True)
    sem = Semaphore(f"{name}-more", 2)
    own = sem.acquire()
    with lock as lease:
        pid = os.fork()
        if pid == 0:
            tries = {"release": lease.release, "renew": lease.renew, "detach": lease.detach}
            tries |= {"check": lease.check, "lock": lock.release, "sem": sem.release}
            for word, method in tries.items():
                try:
                    method()
                except LeaseLost:
                    say("lost", word)
                else:
                    say("WORKED", word)
            say("held", lease.held, own.held)
            with Semaphore(f"{name}-more", 2, timeout=3, renew=True, blocking=False) as mine:
                say("mine", mine.held)
                time.sleep(4)
                say("mine", mine.held)
        # Both leave the block: only the parent may give it back.
        else:
            os.waitpid(pid, 0)
            say("parent", lease.held, own.held, lease.owned(), own.owned())
    if pid:
        say("left", lease.held, lock.locked())
        own.release()


def keyed(name: str, key: str) -> None:
    """Holds the only permit of a child, waits for it again, and releases when told to."""
    from django_redis_sync import Semaphore

    lease = Semaphore(name, 1, key=key).acquire()
    assert lease is not None

    def wait() -> None:
        second = Semaphore(name, 1, key=key).acquire()
        assert second is not None
        say("in")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not Semaphore(name, 1, key=key).status().waiting:
        time.sleep(0.01)
    say("waits")
    if sys.stdin.readline():
        lease.release()
        say("released")
    thread.join(20)


def brief_children(name: str, count: int) -> None:
    """Takes and gives back a permit of so many children, and ends."""
    from django_redis_sync import Semaphore

    for key in range(count):
        with Semaphore(name, 1, key=str(key)):
            pass
    say("done")


_ROLES = (storm, queue, hold, adopt, brief, once, fork_holding, keyed, brief_children)
ROLES: dict[str, Any] = {role.__name__: role for role in _ROLES}


def main() -> None:
    import django

    django.setup()

    from tests.support import journal

    journal.install_from_env()
    role, *words = sys.argv[1:]
    ROLES[role](*map(_value, words))


def _value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return math.inf if word == "inf" else word


if __name__ == "__main__":
    main()
