"""Child processes for tests that race, kill, or pause them: `python -m tests.behaviour.child ROLE
ARGS`.

A role prints one line for each thing that it does. A child uses the settings, server, and journal
of the test. A role for several processes forks before it starts threads, which is faster than
starting each process.
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

#: The settings module of the child.
SETTINGS = "tests.settings"


class Child:
    """A child process, from the test's side: a context manager that kills it at the end."""

    module = __name__

    def __init__(self, role: str, *args: object, **environment: str) -> None:
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS, **environment}
        self.process = worker_processes.Process("-m", self.module, role, *args, env=env)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        # The child has its own process group, so its forks are killed too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self) -> list[str]:
        """Return the words of the next line that the child prints.

        Raise AssertionError if the child has ended."""
        return self.process.line().split()

    def send_line(self, text: str = "") -> None:
        """Send a line to the child's stdin, so that a role that waits for one continues."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ended(self, seconds: float = 60) -> list[list[str]]:
        """Wait for the child to exit with code 0, and return the words of its remaining lines."""
        out, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, out
        return [line.split() for line in out.splitlines()]


def say(*words: object) -> None:
    # A single write, so that lines of several processes don't mix.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


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
    """Acquire and release in threads of several processes until each process has made `enough`
    cycles. Print the number of cycles of each process."""
    from django_redis_sync import Semaphore

    def process(number: int) -> None:
        cycles = [0] * threads

        def thread(mine: int) -> None:
            chance = random.Random(number * 1000 + mine)
            sem = Semaphore(name, limit, timeout=6, renew=True)
            while sum(cycles) < enough:
                wait = chance.choice([None, None, None, 0, 0.05, 1])
                lease = sem.acquire(blocking_timeout=wait)
                if lease:
                    assert lease.held
                    time.sleep(chance.random() / 500)
                    sem.release()
                    cycles[mine] += 1

        crowd = [threading.Thread(target=thread, args=(n,)) for n in range(threads)]
        for worker in crowd:
            worker.start()
        for worker in crowd:
            worker.join()
        say("cycles", sum(cycles))

    reap(forked(processes, process))


def queue(name: str, mode: str, count: int) -> None:
    """Wait in several processes for a lock of ten minutes. Print when a process acquires it."""
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
    """Acquire a lock. After a line on stdin, print whether the lease is still held, and exit."""
    from django_redis_sync import Lock

    lock = Lock(name, timeout=seconds, renew=renew == "renew")
    lease = lock.acquire()
    say("fence", lease.fence)
    sys.stdin.readline()
    say("held", lease.held)
    say("exists", lease.token)


def adopt() -> None:
    """Adopt the handle that is read from stdin. Release the lease after a second line."""
    from django_redis_sync import Lease

    lease = Lease.from_handle(sys.stdin.readline().strip())
    say("fence", lease.fence)
    sys.stdin.readline()
    lease.release()
    say("released")


def brief(name: str, count: int) -> None:
    """Acquire and release the locks of a few names, and exit."""
    from django_redis_sync import Lock

    for number in range(count):
        with Lock(f"{name}-{number}"):
            pass


def once(name: str, processes: int) -> None:
    """Run the same periodic job in several processes. Print the number of the one that ran it."""
    from django_redis_sync import Lock

    def host(number: int) -> None:
        lock = Lock(name, min_hold=60, blocking=False)
        if lock.acquire():
            say("ran", number)
            lock.release()

    reap(forked(processes, host))


def fork_holding(name: str) -> None:
    """Fork while leases are held. In the child, try to use the parent's leases, and then hold a
    permit for longer than the duration of the parent's lease."""
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
        # Both processes leave the block. Only the parent may release the lease.
        else:
            os.waitpid(pid, 0)
            say("parent", lease.held, own.held, lease.owned(), own.owned())
    if pid:
        say("left", lease.held, lock.locked())
        own.release()


def keyed(name: str, key: str) -> None:
    """Acquire the only permit of a key, and wait for it in a thread. Release it after a line on
    stdin."""
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
    """Acquire and release a permit of each of `count` keys, and exit."""
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
