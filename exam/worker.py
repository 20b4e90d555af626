"""The workers of a trial: `python -m exam.worker ADAPTER SOCKET`.

One process loads what a lock needs, and then forks a worker for each connection to SOCKET, which
takes milliseconds; it has started no thread by then. A worker reads commands, a JSON line each,
executes them on its main thread, and answers with a line. It reports to the observer everything
that it does with its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from collections.abc import Callable, Iterator
from typing import Any

from .adapter import Adapter, Lost, Place, find
from .observer import Seat

#: Seconds between two looks of a holder at its lock.
OFTEN = 0.02


class Worker:
    """One worker: a lock, a seat at the observer, and the grant that it holds."""

    def __init__(self, kind: type[Adapter], setting: dict[str, Any], who: str = "") -> None:
        self.kind, self.setting, self.who = kind, setting, who or setting["who"]
        self.place = Place(**setting["place"])
        self.seat = Seat(setting["observer"], self.who)
        self._locks: dict[str, Adapter] = {}
        self.grant: Any = None
        self.last: Any = None
        self._crowd: set[Any] = set()
        self.lock = self._lock_of(self.place.name)

    def _lock_of(self, name: str) -> Adapter:
        if name not in self._locks:
            self._locks[name] = self.kind(Place(**{**self.setting["place"], "name": name}))
        return self._locks[name]

    # Commands

    def warm(self, name: str = "") -> str:
        """Take an unobserved turn on a name, so that connections and scripts are there."""
        lock = self._lock_of(name or f"warm-{os.getpid()}")
        grant = lock.acquire(10)
        if grant is None:
            return "no"
        lock.release(grant)
        return "warm"

    def clock(self) -> str:
        """Return its wall clock."""
        return repr(time.time())

    def take(self, wait: float = 10, name: str = "") -> str:
        name = name or self.place.name
        self.lock = self._lock_of(name)
        self.seat.ask(name, 1, wait)
        try:
            self.grant = self.lock.acquire(wait)
        except Exception as error:
            self.seat.error(error)
            return f"error {type(error).__name__}"
        if self.grant is None:
            self.seat.gave_up()
            return "no"
        self.seat.enter(self._fence())
        return "got"

    def _fence(self) -> float | None:
        return self.lock.fence(self.grant) if self.kind.claims.fenced else None

    def _held(self) -> bool:
        return self.lock.held(self.grant) if self.kind.claims.told else True

    def keep(self, seconds: float, doze: float = 0.0) -> str:
        """Stay inside and look often whether it is still held. First, `doze` without a look."""
        if self.grant is None:
            return "nothing"
        time.sleep(doze)
        end = time.monotonic() + seconds
        while True:
            if not self.seat.still(self._held):
                return self._end("lost")
            if time.monotonic() >= end:
                return "kept"
            time.sleep(OFTEN)

    def _end(self, how: str) -> str:
        """After a loss, release all the same, as a `with` block would."""
        with contextlib.suppress(Exception):
            self.lock.release(self.grant)
        self.last, self.grant = self.grant, None
        return how

    def give(self) -> str:
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
        """Release the last grant once more, whatever it says."""
        try:
            self.lock.release(self.last)
        except Exception as error:
            return f"refused {type(error).__name__}"
        return "released"

    def storm(self, seconds: float, hold: float = 0.01, wait: float = 10) -> str:
        """Take turns, with holds and pauses by chance."""
        chance, end, turns = random.Random(self.who), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            if self.take(wait) == "got":
                self.keep(chance.random() * hold)
                self.give()
                turns += 1
            time.sleep(chance.random() * hold / 2)
        return f"turns {turns}"

    def turn(self, wait: float = 10, hold: float = 0.3, name: str = "") -> str:
        """Make one visit. After an error ask again, as a program with work to do would."""
        end = time.monotonic() + wait
        said = self.take(wait, name)
        while said.startswith("error") and time.monotonic() < end:
            time.sleep(0.1)
            said = self.take(max(0.0, end - time.monotonic()), name)
        return said if said != "got" else self.keep(hold) and self.give()

    def crowd(self, count: int, wait: float) -> str:
        """Let `count` threads or tasks wait; the observer knows of one."""
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
        )
        threading.stack_size(256 * 1024)
        self.seat.ask(self.place.name, 1, wait)
        if self.kind.is_async():
            threading.Thread(target=self._tasks, args=(count, wait), daemon=True).start()
        else:
            for _ in range(count):
                threading.Thread(target=self._wait, args=(wait,), daemon=True).start()
        return "waiting"

    def crowded(self) -> str:
        """Return how many of a crowd wait."""
        return str(len(self._crowd))

    def _wait(self, wait: float) -> None:
        with contextlib.suppress(Exception):
            lock = self.kind(self.place)
            self._crowd.add(lock)
            lock.acquire(wait)
            self._crowd.discard(lock)

    def _tasks(self, count: int, wait: float) -> None:
        async def everybody() -> None:
            lock = self.kind(self.place)
            self._crowd.update(range(count))
            await asyncio.gather(
                *[lock.aacquire(wait) for _ in range(count)], return_exceptions=True
            )

        asyncio.run(everybody())

    def in_one_process(self) -> str:
        """Two threads of this process want it. The first releases once more under the second."""
        second = Worker(self.kind, self.setting, f"{self.who}, second thread")
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
        """Fork a child that leaves the block too; the parent stays inside."""
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
        """Take while no thread can be started, and keep it for a while."""
        with no_threads() as refused:
            said = self.take(5)
            self.keep(seconds)
        return f"{said.partition(' ')[0]} {len(refused)}"

    def alarmed(self, times: int) -> str:
        """Ask again and again, interrupted by exceptions from a signal handler."""

        class Alarm(Exception):
            pass

        _pack_numbers_as_text()

        def ring(*_: Any) -> None:
            raise Alarm

        chance, seen = random.Random(7), 0
        signal.signal(signal.SIGALRM, ring)
        for _ in range(times):
            grant = None
            self.seat.ask(self.place.name, 1, 5)
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005 + chance.random() * 0.03)
                    grant = self.lock.acquire(5)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Alarm as error:
                seen += 1
                self.seat.error(error)
                continue
            except Exception as error:
                self.seat.error(error)
                continue
            self.grant = grant
            if grant is None:
                self.seat.gave_up()
            else:
                self.seat.enter(self._fence())
                self.give()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return f"alarms {seen}"

    def loop_ended(self) -> str:
        """Close a loop in which one task holds and another waits; none is cancelled."""
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
            self.setting["kept"] = task  # no garbage collector takes it

        loop = asyncio.new_event_loop()
        start = time.monotonic()
        loop.run_until_complete(take())
        loop.close()
        for seat in (self.seat, other):  # their tasks have ended
            seat.close()
        return f"ended {time.monotonic() - start:.1f}"

    def serve(self, connection: socket.socket) -> None:
        with connection.makefile("rw") as lines:
            lines.write(json.dumps(os.getpid()) + "\n")
            lines.flush()
            for line in lines:
                what, *words = json.loads(line)
                try:
                    answer = getattr(self, what)(*words)
                except Exception as error:
                    answer = f"failed {type(error).__name__}: {error}"
                lines.write(json.dumps(answer) + "\n")
                lines.flush()


@contextlib.contextmanager
def no_threads() -> Iterator[list[str]]:
    """Let no thread start, as at a limit of processes, which root would not meet. Yield a list with
    an entry for each thread that was refused."""
    refused: list[str] = []

    def refuse(*_: Any, **__: Any) -> Any:
        refused.append("a thread")
        raise RuntimeError("can't start new thread")

    names = [n for n in ("_start_new_thread", "_start_joinable_thread") if hasattr(threading, n)]
    kept: dict[str, Callable[..., Any]] = {name: getattr(threading, name) for name in names}
    for name in names:
        setattr(threading, name, refuse)
    try:
        yield refused
    finally:
        for name in names:
            setattr(threading, name, kept[name])


# The process that forks them


def fork_workers(kind: type[Adapter], path: str) -> None:
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as selector:
        door.bind(path)
        door.listen(64)
        print("ready", flush=True)
        selector.register(door, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        children: set[int] = set()
        try:
            while True:
                for key, _ in selector.select(0.5):
                    if key.fileobj is sys.stdin:
                        return
                    children.add(_fork(kind, door))
                children -= set(_reaped())
        finally:
            if os.getpid() != _child:
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)


def _pack_numbers_as_text() -> None:
    """Keep hiredis from crashing: it reads through a null pointer if a signal handler raises while
    it packs a number. No lock is to blame for that."""
    with contextlib.suppress(ImportError):
        import hiredis

        pack = hiredis.pack_command

        def of_text(words: tuple[Any, ...]) -> bytes:
            return pack(tuple(repr(one) if type(one) in (int, float) else one for one in words))

        hiredis.pack_command = of_text


_child = 0


def _reaped() -> Iterator[int]:
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
            yield pid


def _fork(kind: type[Adapter], door: socket.socket) -> int:
    global _child
    connection, _ = door.accept()
    pid = os.fork()
    if pid:
        connection.close()
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid
    _child = os.getpid()
    door.close()
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    code = 1
    try:
        with connection.makefile("r") as lines:
            setting = json.loads(lines.readline())
        Worker(kind, setting).serve(connection)
        code = 0
    except (BrokenPipeError, ConnectionError):
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            connection.sendall(
                json.dumps(f"failed {type(error).__name__}: {error}").encode() + b"\n"
            )
    finally:
        os._exit(code)


def main() -> None:
    fork_workers(find(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
