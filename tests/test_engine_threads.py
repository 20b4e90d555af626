"""Worker threads, the callback executor, and the quorum's loop: starts, interruptions, forks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import queue
import random
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from django.db import connections

from django_redis_sync import LeaseLost, Lock, Semaphore
from django_redis_sync.engine import threads
from django_redis_sync.engine.quorum import server as quorum_server
from django_redis_sync.engine.threads import (
    Bell,
    CallbackExecutor,
    Worker,
    forgotten_in_forks,
    made_once,
)
from django_redis_sync.protocol.plans import Failure
from tests.behaviour.both import eventually
from tests.support import worker_processes
from tests.support.interrupting import Interrupted, at_any_step, interruptions
from tests.support.no_threads import NoThreads


class Desk:
    """A worker, and the work that its thread moves from `todo` to `done`."""

    def __init__(self, name: str = "redis-sync-test") -> None:
        self.todo: deque[Any] = deque()
        self.done: list[Any] = []
        self.by: list[threading.Thread] = []
        self.at_once = self.most = 0
        self.worker = Worker(name, self.turn, self.earliest)

    def earliest(self) -> float:
        return -math.inf if self.todo else math.inf

    def turn(self) -> float:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.by.append(threading.current_thread())
        while self.todo:
            what = self.todo.popleft()
            if isinstance(what, BaseException):
                self.at_once -= 1
                raise what
            self.done.append(what)
        self.at_once -= 1
        return math.inf

    def put(self, what: Any) -> bool:
        self.todo.append(what)
        return self.worker.expect(-math.inf)


def child_returns_true(body: Callable[[], bool]) -> bool:
    """Run `body` in a forked child. Return True if it returned True within 20 seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads run (Python 3.12)
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        is_true = False
        with contextlib.suppress(BaseException):
            is_true = body()
        os._exit(not is_true)
    return os.waitpid(child, 0)[1] == 0


@pytest.fixture(autouse=True)
def short_idle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have threads end soon after a test."""
    monkeypatch.setattr(threads, "IDLE_TIMEOUT", 0.5)


# The bell


def test_bell_that_rang_before_ends_only_the_next_wait() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(10)
    began = time.monotonic()
    assert not any(bell.wait(seconds) for seconds in (0, -1, 0.01, 0.01, 0.01))
    assert time.monotonic() - began < 4


# The worker


def test_worker_starts_one_thread_for_concurrent_callers() -> None:
    desk = Desk("redis-sync-test-many")
    callers = [threading.Thread(target=desk.put, args=(n,)) for n in range(50)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    eventually(lambda: sorted(desk.done) == list(range(50)))
    assert desk.most == 1
    eventually(lambda: [t.name for t in threading.enumerate()].count("redis-sync-test-many") <= 1)


def test_worker_thread_ends_when_idle_and_restarts_with_new_work() -> None:
    desk = Desk()
    for number in range(3):
        desk.put(number)
        eventually(lambda number=number: len(desk.done) == number + 1)
        eventually(lambda: not desk.worker.runs)
    assert len(set(desk.by)) == 3


def test_work_that_arrives_while_the_thread_ends_is_done_by_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unheard(Bell):
        """Have work arrive after the first wait, just before the thread ends."""

        def wait(self, seconds: float) -> bool:
            if desk.done != ["first"]:
                return super().wait(seconds)
            desk.put("last")
            return False

    monkeypatch.setattr(threads, "Bell", Unheard)
    desk = Desk()
    desk.put("first")
    eventually(lambda: desk.done == ["first", "last"])
    assert 2 == len(set(desk.by))


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_worker_replaces_a_thread_that_died(error: BaseException) -> None:
    desk = Desk()
    desk.put(error)
    eventually(lambda: desk.by and not desk.worker.runs)
    desk.by[0].join(30)  # so that the warning about its exception falls into this test
    desk.put("on")
    eventually(lambda: desk.done == ["on"])


def test_worker_retries_a_failed_thread_start_with_the_next_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    with NoThreads(monkeypatch) as none:
        for number in range(5):
            assert not desk.put(number)
        assert none.tried == 5
    logged = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    why = "the next use tries again: can't start new thread"
    assert [f"redis-sync-test could not start, {why}"] == logged
    assert desk.put(5)
    eventually(lambda: desk.done == list(range(6)))


# Callers that are interrupted, at any bytecode


def test_caller_interrupted_at_any_bytecode_does_not_block_the_worker() -> None:
    desks = [Desk()]
    for _ in interruptions(lambda: desks[-1].put("mine"), "engine/threads.py", where=at_any_step):
        # Wherever the caller was interrupted, the work of another caller is done.
        began, desk = time.monotonic(), desks[-1]
        desk.put("other's")
        eventually(lambda desk=desk: "other's" in desk.done, 5)
        assert time.monotonic() - began < 2
        desks.append(Desk())
    assert len(desks) > 20


def test_caller_interrupted_at_any_bytecode_does_not_block_the_executor() -> None:
    executors, ran = [CallbackExecutor()], list[int]()
    tries = interruptions(
        lambda: executors[-1].submit(lambda: None), "engine/threads.py", where=at_any_step
    )
    for nth, _ in enumerate(tries):
        executors[-1].submit(lambda nth=nth: ran.append(nth))
        eventually(lambda nth=nth: ran[-1:] == [nth], 5)
        executors.append(CallbackExecutor())
    assert len(executors) > 10


# Destructors


def test_destructor_may_submit_inside_a_submit_of_its_own_thread() -> None:
    """The garbage collector may run a destructor at any bytecode, also inside the same call."""
    desk, callbacks, ran = Desk(), CallbackExecutor(), list[str]()
    inside: list[str] = []

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith("engine/threads.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            sys.settrace(None)
            desk.put("destructor's")
            callbacks.submit(lambda: ran.append("destructor's"))
            inside.append(event)
            sys.settrace(trace)
        return trace

    def both() -> None:
        sys.settrace(trace)
        try:
            desk.put("mine")
            callbacks.submit(lambda: ran.append("mine"))
        finally:
            sys.settrace(None)

    caller = threading.Thread(target=both, daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive()
    expected = sorted(["mine", *["destructor's"] * len(inside)])
    eventually(lambda: sorted(desk.done) == sorted(ran) == expected)
    assert len(inside) > 20


# Callbacks


def test_callbacks_submitted_together_run_in_order_when_one_raises_system_exit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    callbacks, ran = CallbackExecutor(), list[str]()

    def end() -> None:
        ran.append("ends")
        raise SystemExit

    callbacks.submit(lambda: ran.append("first"), end, lambda: ran.append("last"))
    eventually(lambda: ran == ["first", "ends", "last"])
    assert ["a callback or receiver failed"] == caplog.messages
    assert "SystemExit" in caplog.text


def test_executor_closes_database_connections_after_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[tuple[str, int]] = []

    def here(what: str) -> None:
        happened.append((what, threading.get_ident()))

    monkeypatch.setattr(connections, "close_all", lambda: here("closed"))
    CallbackExecutor().submit(lambda: here("one"), lambda: here("another"))
    eventually(lambda: len(happened) == 3)
    assert ["one", "another", "closed"] == [what for what, _ in happened]
    assert 1 == len({thread for _, thread in happened} - {threading.get_ident()})


def test_forked_child_has_its_own_callback_executor() -> None:
    def runs_a_callback() -> bool:
        ran = threading.Event()
        threads.run_callbacks(ran.set)
        return ran.wait(20)

    assert runs_a_callback()  # from now on the executor has an idle thread, which no child has
    assert child_returns_true(runs_a_callback)


def test_callbacks_without_a_thread_are_looked_after_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(threads, "_executor", CallbackExecutor())
    assert math.inf == threads.look_after_callbacks(100.0)
    with NoThreads(monkeypatch):
        threads.run_callbacks(lambda: ran.append(1))
        assert 100.0 + threads.RETRY == threads.look_after_callbacks(100.0)
    assert math.inf == threads.look_after_callbacks(101.0)
    eventually(lambda: ran)


def test_executor_limits_its_threads() -> None:
    def threads_now() -> int:
        return [one.name for one in threading.enumerate()].count("redis-sync-callbacks")

    callbacks, go, before = CallbackExecutor(), threading.Event(), threads_now()
    for _ in range(100):
        callbacks.submit(lambda: go.wait(20))
    assert threads_now() - before <= 12
    go.set()
    ran: list[int] = []
    callbacks.submit(lambda: ran.append(1))
    eventually(lambda: ran)


def test_callbacks_that_got_no_thread_run_when_one_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    callbacks, ran = CallbackExecutor(), list[str]()
    with NoThreads(monkeypatch):
        callbacks.submit(lambda: ran.append("first"))
        assert callbacks.stuck and callbacks.look_after()
    warning = "callbacks wait for a thread, which could not start: can't start new thread"
    assert [warning] * 2 == caplog.messages
    assert not callbacks.look_after()
    eventually(lambda: ran == ["first"])
    with NoThreads(monkeypatch):
        callbacks.submit(lambda: ran.append("second"))  # the idle thread runs it
    callbacks.submit(lambda: ran.append("third"))
    eventually(lambda: sorted(ran) == ["first", "second", "third"])


# All threads


@pytest.fixture
def new_quorum_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the next step start a thread and a loop. End them after the test."""
    monkeypatch.setattr(quorum_server, "_loop", None)
    yield
    running, thread = quorum_server.on_our_loop(loop_and_thread())
    running.call_soon_threadsafe(running.stop)
    thread.join(10)
    running.close()


async def loop_and_thread() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


@pytest.mark.parametrize("what", ["worker", "callbacks", "quorum"])
def test_threads_are_daemons_with_a_name_of_this_package(new_quorum_loop: None, what: str) -> None:
    used: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

    def turn() -> float:
        used.put(threading.current_thread())
        return math.inf

    if what == "worker":
        Worker("redis-sync-worker", turn, lambda: math.inf).rouse()
    elif what == "callbacks":
        CallbackExecutor().submit(turn)
    else:
        used.put(quorum_server.on_our_loop(loop_and_thread())[1])
    thread = used.get(timeout=20)
    assert (f"redis-sync-{what}", True) == (thread.name, thread.daemon)


# The loop of a quorum


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_step_on_the_quorum_loop_does_not_block_others() -> None:
    async def nothing() -> int:
        await asyncio.sleep(0)
        return 1

    count = 0
    tries = interruptions(
        lambda: quorum_server.on_our_loop(nothing()), "quorum/server.py", where=at_any_step
    )
    for _ in tries:
        count += 1
        done: list[int] = []
        other = threading.Thread(
            target=lambda done=done: done.append(quorum_server.on_our_loop(nothing()))
        )
        other.start()
        other.join(10)
        assert done == [1], count
    assert count > 10


def test_quorum_loop_without_a_thread_is_a_failure_and_the_next_step_starts_one(
    new_quorum_loop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NoThreads(monkeypatch), pytest.raises(Failure) as caught:
        quorum_server.on_our_loop(loop_and_thread())
    assert "unreachable" == caught.value.why
    assert quorum_server.on_our_loop(loop_and_thread())


def test_interrupted_step_on_the_quorum_loop_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, cancelled = threading.Event(), threading.Event()

    class Interrupting(queue.SimpleQueue[Any]):
        def get(self, *_: Any, **__: Any) -> Any:
            began.wait(20)
            raise Interrupted

    async def lasting() -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(quorum_server, "queue", SimpleNamespace(SimpleQueue=Interrupting))
    with pytest.raises(Interrupted):
        quorum_server.on_our_loop(lasting())
    assert cancelled.wait(20)


def test_forked_child_has_its_own_quorum_loop() -> None:
    async def process() -> int:
        return os.getpid()

    def runs_here() -> bool:
        return bool(quorum_server.on_our_loop(process()) == os.getpid())

    assert runs_here()
    assert child_returns_true(runs_here)
    assert runs_here()


# A thread that waits, interrupted


def test_waiter_interrupted_at_any_line_does_not_block_others(
    raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soft time limit or Ctrl-C can interrupt a waiter at any line. The next waiter gets the lock
    in time, at the latest when the lease of the interrupted caller has expired."""
    package = Path(threads.__file__).parents[1].as_posix()

    def contend() -> None:
        held = Lock("x", timeout=0.1, renew=False).acquire(blocking_timeout=15)
        assert held is not None
        lock = Lock("x", timeout=0.3, renew=True)
        assert lock.acquire(blocking_timeout=15) is not None
        with contextlib.suppress(LeaseLost):  # its short lease may expire on a busy machine
            lock.release()

    # All lines would take thousands of runs, so each run of this test draws 40 of them.
    chance = random.Random()
    for _ in range(40):
        left = [chance.randrange(1, 900)]

        def trace(frame: FrameType, event: str, arg: Any, left: list[int] = left) -> Any:
            if package not in frame.f_code.co_filename:
                return None
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    raise Interrupted
            return trace

        sys.settrace(trace)
        with contextlib.suppress(Interrupted):
            try:
                contend()
            finally:
                sys.settrace(None)
        gc.collect()
        other = list[Any]()
        began = time.monotonic()
        thread = threading.Thread(
            target=lambda other=other: other.append(Lock("x").acquire(blocking_timeout=10)),
            daemon=True,
        )
        thread.start()
        thread.join(20)
        assert not thread.is_alive() and other[0]
        assert time.monotonic() - began < 10
        other[0].release()


STORM = """if True:
    import faulthandler, itertools, random, signal, sys, threading, time
    faulthandler.enable()
    faulthandler.dump_traceback_later(80, exit=True)  # shows where a thread hangs
    import django
    django.setup()
    import redis.connection
    from django_redis_sync import Lock, Semaphore
    from django_redis_sync.exceptions import LeaseLost, SyncError

    # hiredis crashes if a signal handler raises while hiredis packs a number, as in the commands
    # that redis-py sends on connect (docs/failure-modes.md). This package gives it no numbers.
    redis.connection.HIREDIS_AVAILABLE = False

    class Limit(BaseException):
        pass

    def soft_limit(number, frame):
        raise Limit

    signal.signal(signal.SIGALRM, soft_limit)
    # If an import is interrupted, Python's import lock stays taken. So import everything first.
    Semaphore("storm", 2).acquire().release()
    done = threading.Event()
    late = []

    def other(n):
        while not done.is_set():
            began = time.monotonic()
            try:
                lease = Semaphore("storm", 2, timeout=1, renew=True).acquire(blocking_timeout=2)
                if lease:
                    time.sleep(0.001)
                    lease.release()
            except LeaseLost:  # its short lease may expire on a busy machine
                pass
            except SyncError as error:
                late.append(repr(error))
            took = time.monotonic() - began
            if took > 8:
                late.append(took)

    others = [threading.Thread(target=other, args=(n,), daemon=True) for n in range(6)]
    for thread in others:
        thread.start()
    hits = rounds = 0
    enough, end = time.monotonic() + 3, time.monotonic() + 40
    while time.monotonic() < (enough if hits > 20 < rounds else end):
        rounds += 1
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.01))
                lease = Semaphore("storm", 2, timeout=1).acquire(blocking_timeout=1)
                if lease:
                    lease.release()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Limit:
            hits += 1
        except LeaseLost:
            pass
        except SyncError as error:
            late.append(repr(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
    done.set()
    end = time.monotonic() + 30
    for thread in others:
        thread.join(max(0, end - time.monotonic()))
    hung = sum(thread.is_alive() for thread in others)
    print(rounds > 20, hits > 20, hung, late, flush=True)
"""


def test_storm_of_signals_blocks_no_thread(raw: Any) -> None:
    done = worker_processes.run("-c", STORM, timeout=90)
    line = done.stdout.split("\n")[0]
    assert ("True True 0 []", 0) == (line, done.returncode), done.stderr
    # A permit of an interrupted caller becomes available when its lease expires.
    assert Lock("y").acquire(blocking_timeout=20)
    lease = Semaphore("storm", 2).acquire(blocking_timeout=10)
    assert lease
    lease.release()


class Slow:
    """An object that takes 50 ms to create."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        time.sleep(0.05)


def test_made_once_returns_the_same_object_to_concurrent_callers() -> None:
    found: dict[str, Slow] = {}
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: made_once(found, "default", Slow), range(8)))
    assert 1 == len({id(one) for one in got})


def test_forked_child_starts_without_the_objects_of_its_parent() -> None:
    found: dict[str, Slow] = forgotten_in_forks({})
    mine = made_once(found, "default", Slow)
    assert child_returns_true(
        lambda: not found and made_once(found, "default", Slow).pid == os.getpid()
    )
    assert mine is made_once(found, "default", Slow)
