"""Locks and starts of threads that an exception of a signal handler can't leave halfway.

A signal handler may raise an exception on the main thread, for example at Celery's soft time limit,
at a timeout of gunicorn, or at Ctrl-C. CPython calls the handler after a call, at a jump backwards,
or when a function begins.

So `with lock:` is not safe. Since Python 3.14, CPython calls `__enter__` there as any other method.
If the handler raises after this call, the block has not begun, and nothing releases the lock. The
code of `threading` has such blocks: in Condition, Event, Semaphore, Thread.start, and Queue. The
modules of this package use `Mutex` and `start_thread` instead. Bare locks whose methods are only
called without a block, as in `Bell`, are safe, too.
"""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Mutex:
    """A lock with which one thread at a time runs a function. A forked child has a lock of its own.

    The lock is reentrant, because the garbage collector or a signal handler may call the package in
    the middle of the function.
    """

    def __init__(self) -> None:
        self._locks: dict[int, Any] = {}  # by process ID

    def run(self, function: Callable[[], T]) -> T:
        """Return the result of `function()`."""
        return cast(T, self.run_within(-1, function))

    def run_within(self, seconds: float, function: Callable[[], T]) -> T | None:
        """Return the result of `function()`. If another thread still has the lock after `seconds`,
        return None without a call of `function`. If `seconds` is -1, wait without a limit."""
        pid = os.getpid()
        lock = self._locks.get(pid) or self._locks.setdefault(pid, threading.RLock())
        # `extend` acquires the lock and records this in `held`. It is C code, in which CPython
        # can't call a signal handler between the two. It also calls none after `if held`.
        held: list[bool] = []
        try:
            held.extend(filter(None, map(lock.acquire, (True,), (seconds,))))
            return function() if held else None
        finally:
            if held:
                lock.release()


def caller(lock: object) -> Callable[..., Any]:
    """Return a function `call(method, *args)`, which returns the result of `method(*args)`.

    `method` belongs to a library that uses `with lock:` in it, as redis-py's pools do. If the
    method is interrupted so that the lock stays locked, `call` releases it. This is only possible
    for a reentrant lock: another lock may be that of another thread.
    """
    if not isinstance(lock, type(threading.RLock())):
        return lambda method, *args: method(*args)
    release = lock.release

    def call(method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except BaseException:
            # Don't use `suppress`: CPython could call a signal handler before `release`.
            try:  # noqa: SIM105
                release()
            except RuntimeError:  # this thread does not have the lock
                pass
            raise

    return call


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread and return it. Raise RuntimeError if it can't be started.

    The main thread starts it from another thread, because a signal handler's exception inside of
    `Thread.start` would stop the new thread or all later ones. If a signal handler raises while
    the main thread waits for the start, the thread starts nevertheless.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    if threading.get_ident() != threading.main_thread().ident:
        thread.start()
        return thread
    # Like `Bell`: a lock that is only acquired and released, never in a `with`.
    started, errors = threading.Lock(), list[BaseException]()
    started.acquire()

    def start() -> None:
        try:
            thread.start()
        except BaseException as error:
            errors.append(error)
        finally:
            started.release()

    _thread.start_new_thread(start, ())
    started.acquire()
    if errors:
        raise errors.pop()  # `errors` must not keep it, because its traceback keeps `errors`
    return thread
