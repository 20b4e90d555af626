"""The workers of a trial: `python -m exam.worker ADAPTER SOCKET`.

This process imports the adapter, and then forks a worker for each connection to SOCKET. A fork
takes only milliseconds, and is safe because this process has no threads. A worker receives
commands, executes them on its main thread, and answers each command. To the observer, the worker
reports what it does with the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection, Listener
from typing import Any
from unittest import mock

from .adapter import Adapter, Lost, Place, find
from .observer import Reporter, die_with_parent

#: A holder checks every OFTEN seconds whether it still holds the lock.
OFTEN = 0.02


class Worker:
    """A worker: its lock, its connection to the observer, and its current grant."""

    def __init__(self, kind: type[Adapter], place: Place, who: str, observer: str) -> None:
        self.kind, self.place, self.who, self.observer = kind, place, who, observer
        self.reporter = Reporter(observer, who)
        self.locks: dict[str, Adapter] = {}
        self.lock = self.lock_of(place.name)
        self.grant: Any = None
        self.last: Any = None  # the grant that was released last
        self.waiting: list[Any] = []  # the futures of the acquires that `crowd()` starts

    def lock_of(self, name: str) -> Adapter:
        if name not in self.locks:
            self.locks[name] = self.kind(replace(self.place, name=name))
        return self.locks[name]

    # Commands

    def warm(self, name: str = "") -> str:
        """Acquire and release the lock `name`, so that later acquires need not connect or load
        scripts. Report nothing to the observer."""
        lock = self.lock_of(name or f"warm-{os.getpid()}")
        if (grant := lock.acquire(10)) is None:
            return "no"
        lock.release(grant)
        return "warm"

    def clock(self) -> float:
        """Return the time of the worker's wall clock."""
        return time.time()

    def take(self, wait: float = 10, name: str = "") -> str:
        """Acquire the lock `name`, by default that of the trial. Return what `report()` returns."""
        self.lock = self.lock_of(name or self.place.name)
        self.reporter.ask(self.lock.place.name, wait)
        try:
            self.grant = self.lock.acquire(wait)
        except Exception as error:
            return self.report(error)
        return self.report()

    def report(self, error: Exception | None = None) -> str:
        """Report the result of an acquire, or the error of an acquire or release. Return "got" if
        the worker has a grant, "no" if not, or a text that begins with "error"."""
        if error is not None:
            self.reporter.error(error)
            return f"error {type(error).__name__}: {error}"[:200]
        if self.grant is None:
            self.reporter.gave_up()
            return "no"
        self.reporter.enter(self.lock.fence(self.grant) if self.kind.promises.fenced else None)
        return "got"

    def keep(self, seconds: float, doze: float = 0.0) -> str:
        """Hold the lock. First sleep for `doze` seconds. Then check repeatedly, for `seconds`,
        whether the lock is still held. If the lock is lost, stop."""
        if self.grant is None:
            return "nothing"
        time.sleep(doze)
        end, reports_loss = time.monotonic() + seconds, self.kind.promises.reports_loss
        while self.reporter.still(lambda: not reports_loss or self.lock.held(self.grant)):
            if time.monotonic() >= end:
                return "kept"
            time.sleep(OFTEN)
        self.last, self.grant = self.grant, None
        with contextlib.suppress(Exception):
            # Release the lost lock, as the end of a `with` block would.
            self.lock.release(self.last)
        return "lost"

    def give(self) -> str:
        """Release the lock."""
        if self.grant is None:
            return "nothing"
        self.last, self.grant = self.grant, None
        self.reporter.leave()
        try:
            self.lock.release(self.last)
        except Lost:
            self.reporter.refused()
            return "refused"
        except Exception as error:
            return self.report(error)
        self.reporter.released()
        return "released"

    def again(self) -> str:
        """Release the grant in `last` a second time, if the lock allows this. Ignore errors."""
        with contextlib.suppress(Exception):
            if "second-release" not in self.kind.cannot:
                self.lock.release(self.last)
        return "again"

    def turn(self, wait: float = 10, hold: float = 0.3, name: str = "") -> str:
        """Acquire the lock, hold it for `hold` seconds, and release it. If the acquire raises an
        error, try again until `wait` seconds have passed."""
        end = time.monotonic() + wait
        while (outcome := self.take(wait, name)).startswith("error") and time.monotonic() < end:
            time.sleep(0.1)
            wait = max(0.0, end - time.monotonic())
        if outcome == "got":
            self.keep(hold)
            self.give()
        return outcome

    def storm(self, seconds: float, hold: float = 0.01, wait: float = 10) -> str:
        """Acquire, hold, and release the lock repeatedly for `seconds`, with random pauses."""
        chance, end = random.Random(self.who), time.monotonic() + seconds
        while time.monotonic() < end:
            if self.take(wait) == "got":
                self.keep(chance.random() * hold)
                self.give()
            time.sleep(chance.random() * hold / 2)
        return "stormed"

    def crowd(self, count: float, wait: float) -> str:
        """Let `count` threads or tasks wait for the lock, up to `wait` seconds. Report all of them
        to the observer as a single waiter."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        threading.stack_size(256 * 1024)
        self.reporter.ask(self.place.name, wait)

        async def tasks() -> None:
            lock = self.kind(self.place)
            self.waiting = [asyncio.ensure_future(lock.aacquire(wait)) for _ in range(int(count))]
            await asyncio.wait(self.waiting)

        if self.kind.aacquire is not Adapter.aacquire:
            threading.Thread(target=lambda: asyncio.run(tasks()), daemon=True).start()
        else:
            pool = ThreadPoolExecutor(int(count))
            for _ in range(int(count)):
                self.waiting.append(pool.submit(lambda: self.kind(self.place).acquire(wait)))
        return "waiting"

    def crowded(self) -> int:
        """Return how many threads or tasks of `crowd()` still wait or got an error."""
        return sum(not one.done() or one.exception() is not None for one in self.waiting)

    def beside(self, wait: float, hold: float) -> str:
        """Let a second thread acquire the lock, hold it, and release it, in the background."""
        second = Worker(self.kind, self.place, f"{self.who}'s second thread", self.observer)
        if self.kind.shared:
            second.locks = self.locks
        threading.Thread(target=second.turn, args=(wait, hold), daemon=True).start()
        return "started"

    def fork(self, gives: bool = False) -> str:
        """Fork a child. If `gives` is true, the child releases the lock that its parent still
        holds. Otherwise, the child only sleeps for 20 s, even if its parent is killed."""
        if (pid := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                signal.alarm(5 if gives else 20)
                self.lock.release(self.grant) if gives else time.sleep(20)
            os._exit(0)
        if gives:
            os.waitpid(pid, 0)
        return "forked"

    def threadless(self, seconds: float, wait: float) -> int:
        """Acquire and hold the lock while this process can't start threads. If this acquire fails,
        repeat it afterwards. Return how many starts of a thread failed."""
        denied = mock.Mock(side_effect=RuntimeError("can't start new thread"))
        names = {"_start_new_thread", "_start_joinable_thread"} & {*vars(threading)}
        patch = mock.patch.multiple(threading, **dict.fromkeys(names, denied))
        with self.reporter.fault("no thread can be started", self.who), patch:
            outcome = self.take(5)
            self.keep(seconds)
        if outcome != "got":
            self.take(wait)
        return denied.call_count

    def alarmed(self, times: float) -> str:
        """Acquire and release the lock repeatedly. A signal handler interrupts each acquire."""

        class Alarm(Exception):
            pass

        def ring(number: int, frame: Any) -> None:
            # Interrupt only acquire and other code that `alarmed` calls, but not `alarmed` itself.
            if frame.f_code is not Worker.alarmed.__code__:
                raise Alarm

        _pack_numbers_as_text()
        chance = random.Random(7)
        signal.signal(signal.SIGALRM, ring)
        for _ in range(int(times)):
            failure = None
            self.reporter.ask(self.place.name, 5)
            signal.setitimer(signal.ITIMER_REAL, 10 ** chance.uniform(-3.7, -1.5))
            try:
                self.grant = self.lock.acquire(5)
            except Exception as error:
                failure = error
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.report(failure)
            self.give()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return "alarmed"

    def close_loop(self) -> str:
        """Acquire the lock on a new event loop, and let a task on this loop wait for the lock. Then
        close the event loop, without a release, and without cancelling the task."""
        self.lock, self.loop = self.kind(self.place), asyncio.new_event_loop()
        self.reporter.ask(self.place.name, 5)
        self.grant = self.loop.run_until_complete(asyncio.wait_for(self.lock.aacquire(5), 5))
        self.report()
        other = Reporter(self.observer, "waiting task")
        other.ask(self.place.name, 5)
        # Keep a reference to the task, so that it is not garbage-collected.
        self.last = self.loop.create_task(self.lock.aacquire(5))
        self.loop.run_until_complete(asyncio.sleep(0.3))
        self.loop.close()
        self.grant = None
        for each in (self.reporter, other):  # report the end here: the closed loop runs no code
            each.close()
        return "closed"


def _pack_numbers_as_text() -> None:
    """Let hiredis pack numbers as text. Otherwise, hiredis crashes if a signal handler raises an
    exception while hiredis packs a number."""
    with contextlib.suppress(ImportError):
        import hiredis

        pack = hiredis.pack_command
        hiredis.pack_command = lambda words: pack(
            tuple(repr(one) if type(one) in (int, float) else one for one in words)
        )


# The process that forks workers


def _work(kind: type[Adapter], line: Connection) -> None:
    """Make this process a worker, in a new process group: execute commands, and answer each."""
    try:
        os.setpgid(0, 0)
        die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        worker: Any = Worker(kind, *line.recv())
        answer: Any = os.getpid()
        while True:
            line.send(answer)
            what, *words = line.recv()
            try:
                answer = getattr(worker, what)(*words)
            except Exception as error:
                answer = f"failed {type(error).__name__}: {error}"
    except Exception as error:
        with contextlib.suppress(OSError):
            line.send(f"failed {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def main(key: str, path: str) -> None:
    """Fork a worker for each connection to the socket `path`. `key`: see `adapter.find`."""
    die_with_parent()
    kind = find(key)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes workers that have ended
    with Listener(path, "AF_UNIX", backlog=64) as door:
        print("ready", flush=True)
        while True:
            line = door.accept()
            if os.fork() == 0:
                _work(kind, line)
            line.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
