"""The workers of a trial: `python -m exam.worker ADAPTER SOCKET`.

This process imports the adapter, and then forks a worker for each connection to SOCKET. That takes
milliseconds, and there are no threads before. A worker reads commands as lines of JSON, executes
them on its main thread, and answers each with a line. It reports all uses of its lock to the
observer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import random
import resource
import selectors
import signal
import socket
import sys
import threading
import time
from typing import IO, Any, NoReturn
from unittest import mock

from .adapter import Adapter, Lost, Place, find
from .observer import Seat

#: Seconds between two checks of a holder.
OFTEN = 0.02


class Worker:
    """A worker: its lock, its connection to the observer, and its current grant."""

    def __init__(self, kind: type[Adapter], setting: dict[str, Any], who: str = "") -> None:
        self.kind, self.setting, self.who = kind, setting, who or setting["who"]
        self.place = Place(**setting["place"])
        self.seat = Seat(setting["observer"], self.who)
        self._locks: dict[str, Adapter] = {}
        self.grant: Any = None
        self.last: Any = None
        self._crowd: list[Any] = []
        self.lock = self._lock_of(self.place.name)

    def _lock_of(self, name: str) -> Adapter:
        if name not in self._locks:
            self._locks[name] = self.kind(Place(**{**self.setting["place"], "name": name}))
        return self._locks[name]

    # Commands

    def warm(self, name: str = "") -> str:
        """Acquire and release a name once without reports, to load scripts and to connect."""
        lock = self._lock_of(name or f"warm-{os.getpid()}")
        grant = lock.acquire(10)
        if grant is None:
            return "no"
        lock.release(grant)
        return "warm"

    def clock(self) -> str:
        """Return the time of the worker's wall clock."""
        return repr(time.time())

    def take(self, wait: float = 10, name: str = "") -> str:
        """Acquire the lock."""
        name = name or self.place.name
        self.lock = self._lock_of(name)
        self.seat.ask(name, 1, wait)
        try:
            self.grant = self.lock.acquire(wait)
        except Exception as error:
            self.seat.error(error)
            return f"error {type(error).__name__}"
        return self._enter()

    def _enter(self) -> str:
        if self.grant is None:
            self.seat.gave_up()
            return "no"
        self.seat.enter(self.lock.fence(self.grant) if self.kind.claims.fenced else None)
        return "got"

    def keep(self, seconds: float, doze: float = 0.0) -> str:
        """Hold the lock for `seconds`, and check it often. Before that, sleep for `doze` seconds
        without a check."""
        if self.grant is None:
            return "nothing"
        time.sleep(doze)
        end = time.monotonic() + seconds
        tells = self.kind.claims.told
        while self.seat.still(lambda: not tells or self.lock.held(self.grant)):
            if time.monotonic() >= end:
                return "kept"
            time.sleep(OFTEN)
        self.last, self.grant = self.grant, None
        self.again()  # as a `with` block does
        return "lost"

    def give(self) -> str:
        """Release the lock."""
        if self.grant is None:
            return "nothing"
        self.last, self.grant = self.grant, None
        self.seat.leave()
        try:
            self.lock.release(self.last)
        except Lost:
            self.seat.refused()
            return "refused"
        except Exception as error:
            self.seat.error(error)
            return f"error {type(error).__name__}: {error}"[:200]
        self.seat.released()
        return "released"

    def again(self) -> str:
        """Release the last grant once more, and ignore errors."""
        with contextlib.suppress(Exception):
            self.lock.release(self.last)
        return "again"

    def storm(self, seconds: float, hold: float = 0.01, wait: float = 10) -> str:
        """Acquire and release the lock repeatedly for `seconds`, with random holds and pauses."""
        chance, end = random.Random(self.who), time.monotonic() + seconds
        while time.monotonic() < end:
            if self.take(wait) == "got":
                self.keep(chance.random() * hold)
                self.give()
            time.sleep(chance.random() * hold / 2)
        return "stormed"

    def turn(self, wait: float = 10, hold: float = 0.3, name: str = "") -> str:
        """Acquire, hold, and release the lock once. Retry after an error."""
        end = time.monotonic() + wait
        outcome = self.take(wait, name)
        while outcome.startswith("error") and time.monotonic() < end:
            time.sleep(0.1)
            outcome = self.take(max(0.0, end - time.monotonic()), name)
        if outcome == "got":
            self.keep(hold)
            self.give()
        return outcome

    def crowd(self, count: int, wait: float) -> str:
        """Let `count` threads or tasks wait, and report one of them."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        threading.stack_size(256 * 1024)
        self.seat.ask(self.place.name, 1, wait)

        async def tasks() -> None:
            lock = self.kind(self.place)
            self._crowd += [lock] * count
            waits = [lock.aacquire(wait) for _ in range(count)]
            await asyncio.gather(*waits, return_exceptions=True)

        def alone() -> None:
            with contextlib.suppress(Exception):
                self._crowd.append(lock := self.kind(self.place))
                lock.acquire(wait)
                self._crowd.remove(lock)

        if self.kind.is_async():
            threading.Thread(target=asyncio.run, args=(tasks(),), daemon=True).start()
        else:
            for _ in range(count):
                threading.Thread(target=alone, daemon=True).start()
        return "waiting"

    def crowded(self) -> str:
        """Return the number of threads or tasks of the crowd that wait."""
        return str(len(self._crowd))

    def in_one_process(self) -> str:
        """Let two threads acquire the lock in turn. The first one releases it once more while the
        second one holds it."""
        second = Worker(self.kind, self.setting, f"{self.who}, second thread")
        if self.kind.shared:
            second._locks = self._locks
        thread = threading.Thread(target=lambda: (second.take(8), second.keep(1.5), second.give()))
        first = self.take(5)
        thread.start()
        self.keep(1.2)
        self.give()
        end = time.monotonic() + 8
        while second.grant is None and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.1)
        if "second-release" not in self.kind.cannot:
            self.again()
        thread.join(12)
        return first

    def fork_and_give(self) -> str:
        """Fork a child that releases the lock. The parent still holds it."""
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                signal.alarm(5)
                self.lock.release(self.grant)
            os._exit(0)
        os.waitpid(pid, 0)
        return "forked"

    def fork_and_stay(self, seconds: float) -> str:
        """Fork a child that does nothing and outlives its parent."""
        if os.fork() == 0:
            time.sleep(seconds)
            os._exit(0)
        return "forked"

    def threadless(self, seconds: float) -> str:
        """Acquire and hold the lock while no thread can be started. Return the outcome and the
        number of threads that were denied."""
        denied = mock.Mock(side_effect=RuntimeError("can't start new thread"))
        with contextlib.ExitStack() as patches:
            for name in ("_start_new_thread", "_start_joinable_thread"):
                if hasattr(threading, name):
                    patches.enter_context(mock.patch.object(threading, name, denied))
            outcome = self.take(5)
            self.keep(seconds)
        return f"{outcome.partition(' ')[0]} {denied.call_count}"

    def alarmed(self, times: int) -> str:
        """Acquire repeatedly, interrupted by exceptions from a signal handler."""

        class Alarm(Exception):
            pass

        _pack_numbers_as_text()

        def ring(*_: Any) -> None:
            raise Alarm

        chance = random.Random(7)
        signal.signal(signal.SIGALRM, ring)
        for _ in range(times):
            self.seat.ask(self.place.name, 1, 5)
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 10 ** chance.uniform(-3.7, -1.5))
                    self.grant = self.lock.acquire(5)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Exception as error:
                self.seat.error(error)
            else:
                self._enter()
                self.give()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return "alarmed"

    def loop_ended(self) -> str:
        """Close an event loop with a task that holds and a task that waits, without cancelling
        them."""
        self.seat.ask(self.place.name, 1, 5)
        other = Seat(self.setting["observer"], "waiting task")

        async def take() -> None:
            lock = self.kind(self.place)
            got = await asyncio.wait_for(lock.aacquire(5), 5)
            if got is not None:
                self.seat.enter(lock.fence(got) if self.kind.claims.fenced else None)
            other.ask(self.place.name, 1, 5)
            task = asyncio.ensure_future(lock.aacquire(5))
            await asyncio.sleep(0.3)
            self.setting["kept"] = task  # so that the task is not garbage-collected

        loop = asyncio.new_event_loop()
        loop.run_until_complete(take())
        loop.close()
        for seat in (self.seat, other):  # their tasks have ended
            seat.close()
        return "ended"

    def serve(self, lines: IO[str]) -> None:
        """Execute commands, and answer each."""
        for line in lines:
            what, *words = json.loads(line)
            try:
                answer = getattr(self, what)(*words)
            except Exception as error:
                answer = f"failed {type(error).__name__}: {error}"
            _answer(lines, answer)


def _answer(lines: IO[str], answer: Any) -> None:
    lines.write(json.dumps(answer) + "\n")
    lines.flush()


# The process that forks them


def _pack_numbers_as_text() -> None:
    """Prevent a crash of hiredis: it dereferences a null pointer if a signal handler raises while
    it packs a number."""
    with contextlib.suppress(ImportError):
        import hiredis

        pack = hiredis.pack_command

        def of_text(words: tuple[Any, ...]) -> bytes:
            return pack(tuple(repr(one) if type(one) in (int, float) else one for one in words))

        hiredis.pack_command = of_text


def fork_workers(kind: type[Adapter], path: str) -> None:
    """Fork a worker for each connection, until the input ends. Then the kernel kills them."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that there are no zombies
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as selector:
        door.bind(path)
        door.listen(64)
        print("ready", flush=True)
        selector.register(door, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                connection, _ = door.accept()
                if os.fork() == 0:
                    door.close()
                    _work(kind, connection)
                connection.close()


def _work(kind: type[Adapter], connection: socket.socket) -> NoReturn:
    """Run a worker, in a process group of its own, until the connection ends."""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with connection.makefile("rw") as lines:
            try:
                worker = Worker(kind, json.loads(lines.readline())[0])
            except Exception as error:
                _answer(lines, f"failed {type(error).__name__}: {error}")
            else:
                _answer(lines, os.getpid())
                worker.serve(lines)
    finally:
        os._exit(0)


if __name__ == "__main__":
    fork_workers(find(sys.argv[1]), sys.argv[2])
