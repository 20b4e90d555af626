"""The workers of an examination: `python -m exam.worker ENTRY SOCKET`.

One process loads what a lock needs and then forks a worker for each connection to SOCKET, which
takes milliseconds; it has started no thread by then. A worker reads commands, a JSON line each,
does them on its main thread, and answers with a line. Everything that it does with its lock it
tells the witness.
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

from . import entries
from .adapter import Adapter, Entry, Lost, Place
from .witness import Seat

#: Seconds between two looks of a holder at its lock.
OFTEN = 0.02


class Worker:
    """One worker: a lock, a seat at the witness, and the grant that it holds."""

    def __init__(self, entry: Entry, setting: dict[str, Any]) -> None:
        self.entry, self.setting = entry, setting
        self.place = Place(**setting["place"])
        self.seat = Seat(setting["witness"], setting["who"])
        self._locks: dict[str, Adapter] = {}
        self.grant: Any = None
        self.last: Any = None
        self.lock = self._lock_of(self.place.name)

    def _lock_of(self, name: str) -> Adapter:
        if name not in self._locks:
            place = Place(**{**self.setting["place"], "name": name})
            self._locks[name] = self.entry.adapter(place)
        return self._locks[name]

    # Commands

    def warm(self) -> str:
        """A turn on another name, so that connections and scripts are there."""
        lock = self._lock_of(f"warm-{os.getpid()}")
        grant = lock.acquire(10)
        lock.release(grant)
        return "warm" if grant is not None else "no"

    def take(self, wait: float = 10, name: str = "", permits: int = 1) -> str:
        self.lock = self._lock_of(name or self.place.name)
        self.seat.ask(name or self.place.name, permits, wait)
        try:
            self.grant = self.lock.acquire(wait)
        except Exception as error:
            self.seat.error(error)
            return f"error {type(error).__name__}"
        if self.grant is None:
            self.seat.gave_up()
            return "no"
        self.seat.enter(self.lock.fence(self.grant))
        return "got"

    def keep(self, seconds: float) -> str:
        """Stay inside, looking often whether it is still held."""
        if self.grant is None:
            return "nothing"
        end = time.monotonic() + seconds
        while True:
            if not self.seat.still(lambda: self.lock.held(self.grant)):
                return self._ends("lost")
            if time.monotonic() >= end:
                return "kept"
            time.sleep(OFTEN)

    def _ends(self, how: str) -> str:
        """After a loss was told: it is given back for form's sake, as a `with` would."""
        with contextlib.suppress(Exception):
            self.lock.release(self.grant)
        self.last, self.grant = self.grant, None
        return how

    def give(self) -> str:
        if self.grant is None:
            return "nothing"
        grant, self.grant = self.grant, None
        self.last = grant
        self.seat.leave()
        return self._release(grant)

    def _release(self, grant: Any) -> str:
        try:
            self.lock.release(grant)
        except Lost:
            self.seat.refused()
            return "refused"
        except Exception as error:
            self.seat.error(error)
            return f"error {type(error).__name__}: {error}"[:200]
        self.seat.back()
        return "back"

    def again(self) -> str:
        """Give back once more what was given back; whatever it says."""
        try:
            self.lock.release(self.last)
        except Exception as error:
            return f"refused {type(error).__name__}"
        return "back"

    def storm(self, seconds: float, hold: float = 0.01, wait: float = 10) -> str:
        """Turns, with holds and pauses by chance."""
        chance, end, turns = random.Random(self.setting["who"]), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            if self.take(wait) == "got":
                self.keep(chance.random() * hold)
                self.give()
                turns += 1
            time.sleep(chance.random() * hold / 2)
        return f"turns {turns}"

    def turn(self, wait: float = 10, hold: float = 0.3, name: str = "") -> str:
        """One whole visit. After an error it asks again, as those do who have work to do."""
        end = time.monotonic() + wait
        said = self.take(wait, name)
        while said.startswith("error") and time.monotonic() < end:
            time.sleep(0.1)
            said = self.take(max(0.0, end - time.monotonic()), name)
        return said if said != "got" else self.keep(hold) and self.give()

    def crowd(self, count: int, wait: float) -> str:
        """So many wait, each on a thread of its own; one word to the witness for them all."""
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
        )
        threading.stack_size(256 * 1024)
        self.seat.ask(self.place.name, 1, wait)
        if self.entry.asynchronous:
            threading.Thread(target=self._tasks, args=(count, wait), daemon=True).start()
        else:
            for _ in range(count):
                threading.Thread(target=self._wait, args=(wait,), daemon=True).start()
        return "waiting"

    def _wait(self, wait: float) -> None:
        with contextlib.suppress(Exception):
            self.entry.adapter(self.place).acquire(wait)

    def _tasks(self, count: int, wait: float) -> None:
        async def everybody() -> None:
            lock = self.entry.adapter(self.place)
            await asyncio.gather(
                *[lock.aacquire(wait) for _ in range(count)], return_exceptions=True
            )

        asyncio.run(everybody())

    def fork_and_give(self) -> str:
        """A child leaves the block too; the parent goes on inside."""
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                signal.alarm(5)
                self.lock.release(self.grant)
            os._exit(0)
        os.waitpid(pid, 0)
        return "forked"

    def fork_and_stay(self, seconds: float) -> str:
        """A child that does nothing outlives its parent."""
        if os.fork() == 0:
            time.sleep(seconds)
            os._exit(0)
        return "forked"

    def threadless(self, seconds: float) -> str:
        """Takes while no thread can be started, and keeps it for a while."""
        with no_threads():
            said = self.take(5)
            self.keep(seconds)
        return said

    def alarmed(self, times: int) -> str:
        """Asks again and again, and is thrown out by an exception from a signal."""

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
                self.seat.enter(self.lock.fence(grant))
                self.give()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return f"alarms {seen}"

    def loop_ended(self) -> str:
        """Loops that are closed in the middle: one task has it or waits, nobody is cancelled."""
        self.seat.ask(self.place.name, 1, 5)
        other = Seat(self.setting["witness"], "a task that waits")

        async def take() -> None:
            lock = self.entry.adapter(self.place)
            got = await asyncio.wait_for(lock.aacquire(5), 5)
            if got is not None:
                self.seat.enter(lock.fence(got))
            other.ask(self.place.name, 1, 5)
            task = asyncio.ensure_future(lock.aacquire(5))
            await asyncio.sleep(0.3)
            self.setting["kept"] = task  # nobody collects it

        loop = asyncio.new_event_loop()
        start = time.monotonic()
        loop.run_until_complete(take())
        loop.close()
        for seat in (self.seat, other):  # they have nothing more to say
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
def no_threads() -> Iterator[None]:
    """As at a limit of processes, which would also hold for root."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")

    names = [n for n in ("_start_new_thread", "_start_joinable_thread") if hasattr(threading, n)]
    kept: dict[str, Callable[..., Any]] = {name: getattr(threading, name) for name in names}
    for name in names:
        setattr(threading, name, refuse)
    try:
        yield
    finally:
        for name in names:
            setattr(threading, name, kept[name])


# The process that forks them


def nursery(entry: Entry, path: str) -> None:
    entry.prepared()
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
                    children.add(_birth(entry, door))
                children -= set(_buried())
        finally:
            if os.getpid() != _child:
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)


def _pack_numbers_as_text() -> None:
    """hiredis reads through a null pointer where a handler raises while it packs a number, and the
    process ends; no lock is to blame for that."""
    with contextlib.suppress(ImportError):
        import hiredis

        pack = hiredis.pack_command

        def of_text(words: tuple[Any, ...]) -> bytes:
            return pack(tuple(repr(one) if type(one) in (int, float) else one for one in words))

        hiredis.pack_command = of_text


_child = 0


def _buried() -> Iterator[int]:
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
            yield pid


def _birth(entry: Entry, door: socket.socket) -> int:
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
        Worker(entry, setting).serve(connection)
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
    nursery(entries.find(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
