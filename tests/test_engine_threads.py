"""Threads are there when they are needed, whatever happened to the one before, or to a caller."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import queue
import random
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from django.db import connections

from django_redis_sync import LeaseLost, Lock, Semaphore
from django_redis_sync.engine import threads
from django_redis_sync.engine.quorum import server as loop
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
    """Work for a worker: what is put on it is done."""

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


def stop(of_quorum: Any) -> None:
    """End the thread of a quorum's event loop."""
    of_quorum.loop.call_soon_threadsafe(of_quorum.loop.stop)
    of_quorum._thread.join(10)


@pytest.fixture(autouse=True)
def soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has started ends with it, about."""
    monkeypatch.setattr(threads, "IDLE_TIMEOUT", 0.5)


# The bell


def test_a_bell_that_was_rung_before_ends_the_next_wait_and_no_other() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(10)
    began = time.monotonic()
    assert not any(bell.wait(seconds) for seconds in (0, -1, 0.01, 0.01, 0.01))
    assert time.monotonic() - began < 4


# The worker


def test_many_callers_at_once_get_one_thread() -> None:
    desk = Desk("redis-sync-test-many")
    callers = [threading.Thread(target=desk.put, args=(n,)) for n in range(50)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    eventually(lambda: sorted(desk.done) == list(range(50)))
    assert desk.most == 1
    eventually(lambda: [t.name for t in threading.enumerate()].count("redis-sync-test-many") <= 1)


def test_a_thread_without_work_ends_and_the_next_work_starts_another() -> None:
    desk = Desk()
    for number in range(3):
        desk.put(number)
        eventually(lambda number=number: len(desk.done) == number + 1)
        eventually(lambda: not desk.worker.runs)
    assert len(set(desk.by)) == 3


def test_what_comes_in_a_threads_last_moment_is_done_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()

    class Unheard(Bell):
        """Work comes when the first wait is over, and just before the thread says that it ends."""

        def wait(self, seconds: float) -> bool:
            if desk.done != ["first"]:
                return super().wait(seconds)
            desk.put("last")
            return False

    monkeypatch.setattr(desk.worker, "_bell", Unheard())
    desk.put("first")
    eventually(lambda: desk.done == ["first", "last"])
    assert 2 == len(set(desk.by))


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_replaced_by_the_next_work(error: BaseException) -> None:
    desk = Desk()
    desk.put(error)
    eventually(lambda: desk.by and not desk.worker.runs)
    desk.by[0].join(30)  # what it ends with is told within this test
    desk.put("on")
    eventually(lambda: desk.done == ["on"])


def test_a_thread_that_could_not_start_is_started_by_the_next_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    with NoThreads(monkeypatch) as none:
        for number in range(5):
            assert not desk.put(number)
        assert none.tried == 5
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    why = "the next use tries again: can't start new thread"
    assert [f"redis-sync-test could not start, {why}"] == [one.getMessage() for one in said]
    assert desk.put(5)
    eventually(lambda: desk.done == list(range(6)))


# Callers that are interrupted, at any bytecode


def test_a_caller_interrupted_at_any_bytecode_leaves_nothing_that_others_wait_for() -> None:
    desks = [Desk()]
    for _ in interruptions(lambda: desks[-1].put("mine"), "engine/threads.py", where=at_any_step):
        # The thread was not started, or was, or is about to: another caller's work is done.
        began, desk = time.monotonic(), desks[-1]
        desk.put("other's")
        eventually(lambda desk=desk: "other's" in desk.done, 5)
        assert time.monotonic() - began < 2
        desks.append(Desk())
    assert len(desks) > 20


def test_a_executor_interrupted_at_any_bytecode_still_delivers() -> None:
    couriers, told = [CallbackExecutor()], list[int]()
    tries = interruptions(
        lambda: couriers[-1].submit(lambda: None), "engine/threads.py", where=at_any_step
    )
    for nth, _ in enumerate(tries):
        couriers[-1].submit(lambda nth=nth: told.append(nth))
        eventually(lambda nth=nth: told[-1:] == [nth], 5)
        couriers.append(CallbackExecutor())
    assert len(couriers) > 10


# Destructors


def test_a_destructor_may_send_what_its_own_thread_is_just_sending() -> None:
    """The garbage collector may run one at any bytecode, and inside the call that it repeats."""
    desk, callbacks, told = Desk(), CallbackExecutor(), list[str]()
    inside: list[str] = []

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith("engine/threads.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            sys.settrace(None)
            desk.put("destructor's")
            callbacks.submit(lambda: told.append("destructor's"))
            inside.append(event)
            sys.settrace(trace)
        return trace

    def both() -> None:
        sys.settrace(trace)
        try:
            desk.put("mine")
            callbacks.submit(lambda: told.append("mine"))
        finally:
            sys.settrace(None)

    caller = threading.Thread(target=both, daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive()
    expected = sorted(["mine", *["destructor's"] * len(inside)])
    eventually(lambda: sorted(desk.done) == sorted(told) == expected)
    assert len(inside) > 20


# Receivers


def test_calls_sent_together_run_in_their_order_whatever_becomes_of_each(
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


def test_the_databases_of_a_receiver_are_closed_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[tuple[str, int]] = []

    def here(what: str) -> None:
        happened.append((what, threading.get_ident()))

    monkeypatch.setattr(connections, "close_all", lambda: here("closed"))
    CallbackExecutor().submit(lambda: here("one"), lambda: here("another"))
    eventually(lambda: len(happened) == 3)
    assert ["one", "another", "closed"] == [what for what, _ in happened]
    assert 1 == len({thread for _, thread in happened} - {threading.get_ident()})


def test_a_fork_has_a_executor_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, ran = CallbackExecutor(), list[int]()
    parents.pid, parents._idle = -1, [object()]  # a thread that waits, in the parent
    monkeypatch.setattr(threads, "_executor", parents)
    threads.run_callbacks(lambda: ran.append(1))
    eventually(lambda: ran)


def test_receivers_without_a_thread_are_looked_after_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(threads, "_executor", CallbackExecutor())
    assert math.inf == threads.look_after_callbacks(100.0)
    with NoThreads(monkeypatch):
        threads.run_callbacks(lambda: ran.append(1))
        assert 100.0 + threads.RETRY == threads.look_after_callbacks(100.0)
    assert math.inf == threads.look_after_callbacks(101.0)
    eventually(lambda: ran)


def test_receivers_take_no_more_threads_than_they_may() -> None:
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


def test_receivers_that_got_no_thread_run_when_one_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    callbacks, ran = CallbackExecutor(), list[str]()
    with NoThreads(monkeypatch):
        callbacks.submit(lambda: ran.append("first"))
        assert callbacks.stuck and callbacks.look_after()
    said = "callbacks wait for a thread, which could not start: can't start new thread"
    assert [said] * 2 == caplog.messages
    assert not callbacks.look_after()
    eventually(lambda: ran == ["first"])
    with NoThreads(monkeypatch):
        callbacks.submit(lambda: ran.append("second"))  # the thread of before is there
    callbacks.submit(lambda: ran.append("third"))
    eventually(lambda: sorted(ran) == ["first", "second", "third"])


# All of them


@pytest.mark.parametrize("what", ["worker", "callbacks", "quorum"])
def test_a_thread_of_ours_has_our_name_and_keeps_no_process_alive(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(loop, "_loop", None)
    told: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

    def run_callbacks() -> float:
        told.put(threading.current_thread())
        return math.inf

    async def on_the_loop() -> None:
        run_callbacks()

    if what == "worker":
        Worker("redis-sync-worker", run_callbacks, lambda: math.inf).rouse()
    elif what == "callbacks":
        CallbackExecutor().submit(run_callbacks)
    else:
        loop.on_our_loop(on_the_loop())
        assert loop._loop is not None
        stop(loop._loop)
        loop._loop.loop.close()
    thread = told.get(timeout=20)
    assert (f"redis-sync-{what}", True) == (thread.name, thread.daemon)


# The loop of a quorum


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_step_on_the_quorums_loop_holds_up_no_other() -> None:
    async def nothing() -> int:
        await asyncio.sleep(0)
        return 1

    count = 0
    tries = interruptions(
        lambda: loop.on_our_loop(nothing()), "quorum/server.py", where=at_any_step
    )
    for _ in tries:
        count += 1
        done: list[int] = []
        other = threading.Thread(target=lambda done=done: done.append(loop.on_our_loop(nothing())))
        other.start()
        other.join(10)
        assert done == [1], count
    assert count > 10


def test_a_quorums_loop_that_got_no_thread_is_a_failure_and_the_next_step_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing() -> int:
        return 1

    monkeypatch.setattr(loop, "_loop", None)
    with NoThreads(monkeypatch), pytest.raises(Failure) as caught:
        loop.on_our_loop(nothing())
    assert "unreachable" == caught.value.why  # nothing was sent
    assert loop.on_our_loop(nothing()) == 1
    mine = loop._loop
    assert mine is not None
    stop(mine)
    mine.loop.close()


def test_an_interrupted_step_on_the_quorums_loop_is_cancelled(
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

    monkeypatch.setattr(loop, "queue", SimpleNamespace(SimpleQueue=Interrupting))
    with pytest.raises(Interrupted):
        loop.on_our_loop(lasting())
    assert cancelled.wait(20)


def test_a_fork_has_a_quorums_loop_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def running() -> Any:
        return asyncio.get_running_loop()

    parents = loop.on_our_loop(running())
    with monkeypatch.context() as patched:
        patched.setattr(loop, "_loop", loop._loop)  # put back afterwards
        patched.setattr(loop._loop, "pid", -1)
        assert parents is not loop.on_our_loop(running())
        mine = loop._loop
        assert mine is not None
        stop(mine)
        mine.loop.close()
    assert parents is loop.on_our_loop(running())


# A thread that waits, interrupted


def test_a_waiter_interrupted_at_any_line_of_ours_hangs_no_other(
    raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a soft time limit or Ctrl-C, at the worst moment: whoever waits next is served, within
    its time, and what the interrupted one had is back within a lease."""
    package = Path(threads.__file__).parents[1].as_posix()

    def contend() -> None:
        held = Lock("x", timeout=0.1, renew=False).acquire(blocking_timeout=15)
        assert held is not None
        lock = Lock("x", timeout=0.3, renew=True)
        assert lock.acquire(blocking_timeout=15) is not None
        with contextlib.suppress(LeaseLost):  # so short a lease may be, on a busy machine
            lock.release()

    # Every line is thousands of runs: a sample of them, drawn anew in each run of the tests.
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
    faulthandler.dump_traceback_later(80, exit=True)  # a thread that hangs is shown where it does
    import django
    django.setup()
    import redis.connection
    from django_redis_sync import Lock, Semaphore
    from django_redis_sync.exceptions import LeaseLost, SyncError

    # hiredis reads through a null pointer where a handler raises while it packs a number, as in
    # redis-py's greeting (docs/failure-modes.md). What is ours holds none for it.
    redis.connection.HIREDIS_AVAILABLE = False

    class Limit(BaseException):
        pass

    def soft_limit(number, frame):
        raise Limit

    signal.signal(signal.SIGALRM, soft_limit)
    # Python's own import lock stays taken when an import is interrupted: the imports come first.
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
            except LeaseLost:  # so short a lease may be, on a busy machine
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


def test_a_storm_of_signals_leaves_nobody_hanging(raw: Any) -> None:
    done = worker_processes.run("-c", STORM, timeout=90)
    said = done.stdout.split("\n")[0]
    assert ("True True 0 []", 0) == (said, done.returncode), done.stderr
    # What was granted to an interrupted caller is nobody's, and back within its lease.
    assert Lock("y").acquire(blocking_timeout=20)
    lease = Semaphore("storm", 2).acquire(blocking_timeout=10)
    assert lease
    lease.release()


class Slow:
    """Takes its time to be made."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        time.sleep(0.05)


def test_threads_that_come_first_at_once_get_the_same() -> None:
    found: dict[str, Slow] = {}
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: made_once(found, "default", Slow), range(8)))
    assert 1 == len({id(one) for one in got})


def test_a_fork_starts_with_none() -> None:
    found: dict[str, Slow] = forgotten_in_forks({})
    mine = made_once(found, "default", Slow)
    child = os.fork()
    if child == 0:
        os._exit(len(found) or made_once(found, "default", Slow).pid != os.getpid())
    assert 0 == os.waitpid(child, 0)[1]
    assert mine is made_once(found, "default", Slow)
