"""Locks of the package, and starts of threads, under exceptions of signal handlers."""

from __future__ import annotations

import ast
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import django_redis_sync
from django_redis_sync.engine.mutex import Mutex
from tests.support import worker_processes
from tests.support.interrupting import after_calls, interruptions


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """A function that runs a callable on another thread, and returns its result."""
    calls, results = SimpleQueue[Any](), SimpleQueue[Any]()

    def work() -> None:
        while (call := calls.get()) is not None:
            results.put(call())

    def run(call: Callable[[], Any]) -> Any:
        calls.put(call)
        return results.get(timeout=20)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield run
    calls.put(None)
    thread.join()


def test_mutex_is_free_after_an_interruption_at_any_call(elsewhere) -> None:
    mutex, places = Mutex(), 0

    def work() -> None:
        pass

    for place in interruptions(lambda: mutex.run(work), "engine/mutex.py", where=after_calls):
        assert elsewhere(lambda: mutex.run_within(10, lambda: True)), f"it stays locked: {place}"
        places += 1
    assert places >= 5


def test_nested_use_of_a_mutex_keeps_it_locked_after_an_interruption(elsewhere) -> None:
    mutex = Mutex()

    def outer() -> None:
        for place in interruptions(
            lambda: mutex.run(lambda: None), "engine/mutex.py", where=after_calls
        ):
            assert elsewhere(lambda: mutex.run_within(0, lambda: True)) is None, place

    mutex.run(outer)
    assert elsewhere(lambda: mutex.run_within(10, lambda: True))


def test_mutex_lets_one_thread_at_a_time_run() -> None:
    mutex, inside, most = Mutex(), list[int](), list[int]()

    def work() -> None:
        inside.append(1)
        time.sleep(0.0005)
        most.append(len(inside))
        inside.pop()

    threads = [
        threading.Thread(target=lambda: [mutex.run(work) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [1] * 200 == most


def test_mutex_that_another_thread_has_is_refused_after_the_time_limit(elsewhere) -> None:
    mutex = Mutex()
    assert mutex.run(lambda: elsewhere(lambda: mutex.run_within(0.01, lambda: True))) is None
    assert elsewhere(lambda: mutex.run_within(0, lambda: True))


def test_mutex_is_free_in_a_forked_child_of_a_process_that_uses_it() -> None:
    mutex, go, taken = Mutex(), threading.Event(), threading.Event()
    holder = threading.Thread(target=lambda: mutex.run(lambda: taken.set() or go.wait(20)))
    holder.start()
    assert taken.wait(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        child = os.fork()
    if child == 0:
        os._exit(0 if mutex.run_within(5, lambda: True) else 1)
    go.set()
    holder.join()
    assert 0 == os.waitpid(child, 0)[1]


STARTS = """if True:
    import faulthandler, random, signal, threading, time
    faulthandler.dump_traceback_later(60, exit=True)  # shows where a thread hangs
    from django_redis_sync.engine.mutex import start_thread

    class Interrupted(BaseException):
        pass

    def interrupt(number, frame):
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    starts, hits, ran, end = 0, 0, [], time.monotonic() + 30
    while hits < 150 and time.monotonic() < end:
        starts += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0003))
            try:
                start_thread(lambda: ran.append(1), "started")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            hits += 1
        other = threading.Thread(target=ran.append, args=(2,))
        other.start()
        other.join()
    while any(one.name == "started" for one in threading.enumerate()):
        time.sleep(0.01)  # a thread that does not get past its start stays forever
    print(hits > 20, ran.count(2) == starts, ran.count(1) + hits >= starts)
"""


def test_starts_of_threads_that_are_interrupted_block_no_other_start() -> None:
    done = worker_processes.run("-c", STARTS, timeout=90)
    assert ("True True True\n", 0) == (done.stdout, done.returncode), done.stderr


def test_only_one_module_uses_what_a_signal_handler_can_leave_halfway() -> None:
    """Condition, Event, Thread.start, and others of the standard library use `with` on a lock."""
    package = Path(django_redis_sync.__file__).parent
    unsafe = {"Barrier", "BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore"}
    unsafe |= {"Thread", "Timer", "Queue", "LifoQueue", "PriorityQueue"}
    found = {
        f"{path.relative_to(package)}: {call.func.value.id}.{call.func.attr}"
        for path in package.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if isinstance(call.func.value, ast.Name) and call.func.attr in unsafe
        if call.func.value.id in ("threading", "queue")
    }
    allowed = {f"engine/mutex.py: threading.{name}" for name in ("Lock", "RLock", "Thread")}
    assert {*allowed, "engine/threads.py: threading.Lock"} == found  # of `Bell`, without `with`
