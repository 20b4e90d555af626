"""Threads of the library: how they start and end, interruptions, and processes without threads."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import redis

from django_redis_sync import Lock, Semaphore
from django_redis_sync.engine import threads
from tests.behaviour.both import eventually
from tests.behaviour.watching import View
from tests.support import worker_processes
from tests.support.interrupting import at_any_step, interruptions
from tests.support.no_threads import NoThreads
from tests.support.renewers import fresh_renewer  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def short_idle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make idle threads end after 0.5 s, so that few of them run during the next test."""
    monkeypatch.setattr(threads, "IDLE_TIMEOUT", 0.5)


class Desk:
    """A worker whose thread moves each item of work from `todo` to `done`."""

    def __init__(self, name: str = "redis-sync-test") -> None:
        self.todo, self.done = deque[Any](), list[Any]()
        self.by: list[threading.Thread] = []
        self.at_once = self.most = 0
        self.worker = threads.Worker(name, self.turn, lambda: -math.inf if self.todo else math.inf)

    def turn(self) -> float:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.by.append(threading.current_thread())
        try:
            while self.todo:
                self.done.append(self.todo.popleft())
        finally:
            self.at_once -= 1
        return math.inf

    def put(self, what: Any) -> bool:
        self.todo.append(what)
        return self.worker.expect(-math.inf)


# The worker


def test_worker_starts_one_thread_for_concurrent_callers() -> None:
    desk = Desk("redis-sync-test-many")
    callers = [threading.Thread(target=desk.put, args=(n,)) for n in range(50)]
    for caller in callers:
        caller.start()
    eventually(lambda: sorted(desk.done) == list(range(50)))
    assert desk.most == 1
    eventually(lambda: [t.name for t in threading.enumerate()].count("redis-sync-test-many") <= 1)
    assert all(thread.daemon for thread in desk.by)


def test_worker_thread_ends_when_idle_and_restarts_with_new_work() -> None:
    desk = Desk()
    for number in range(3):
        desk.put(number)
        eventually(lambda number=number: len(desk.done) == number + 1)
        eventually(lambda: not desk.by[-1].is_alive())
    assert 3 == len(set(desk.by))


def test_new_worker_thread_waits_until_the_old_one_has_ended() -> None:
    """Before an idle thread ends, it looks for work a last time. In this test, that takes 0.3 s."""
    desk, looks, ends, turns = Desk(), [math.inf], threading.Event(), list[int]()

    def earliest() -> float:
        looks.append(time.monotonic())
        # If the thread was idle for over 0.4 s, this is its last look for work.
        if looks[-1] - looks[-2] > 0.4 and not turns:
            before = len(desk.by)
            ends.set()
            time.sleep(0.3)
            turns.append(len(desk.by) - before)
        return -math.inf if desk.todo else math.inf

    desk.worker = threads.Worker("redis-sync-test", desk.turn, earliest)
    desk.put("first")
    assert ends.wait(20), "the idle thread did not end"
    desk.put("second")
    eventually(lambda: turns and desk.done == ["first", "second"])
    assert [0] == turns, "two threads ran the functions of one worker at the same time"


def test_worker_thread_wakes_up_earlier_if_new_work_is_due_earlier() -> None:
    desk, began = Desk(), time.monotonic()
    due = [math.inf]
    desk.worker = threads.Worker("redis-sync-test", lambda: desk.turn() and due[0], lambda: due[0])
    for seconds in (60.0, 0.3):
        due[0] = threads.clock() + seconds
        desk.worker.expect(due[0])
        eventually(lambda: desk.by)
        desk.by.clear()
    eventually(lambda: desk.by)
    assert time.monotonic() - began >= 0.3
    due[0] = math.inf


def test_worker_tries_again_to_start_its_thread_when_new_work_arrives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    with NoThreads(monkeypatch) as none:
        assert [False] * 5 == [desk.put(number) for number in range(5)]
        assert 5 == none.tried
    logged = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    why = "can't start new thread. Its next use tries again"
    assert [f"thread redis-sync-test could not start: {why}"] == logged
    assert desk.put(5)
    eventually(lambda: desk.done == list(range(6)))


# Interruptions and destructors while a caller submits work


@pytest.mark.parametrize("what", ["worker", "callbacks"])
def test_caller_interrupted_at_any_bytecode_does_not_block_other_callers(what: str) -> None:
    desks, count = [Desk()], 0

    def put(mine: str) -> None:
        if what == "worker":
            desks[-1].put(mine)
        else:
            desk = desks[-1]
            threads.run_callbacks(lambda: desk.done.append(mine))

    for _ in interruptions(lambda: put("mine"), "engine/threads.py", where=at_any_step):
        # After each interruption, the worker must do the work that another caller submits.
        put("other's")
        eventually(lambda: "other's" in desks[-1].done, 5)
        desks.append(Desk())
        count += 1
    assert count > 10


@pytest.mark.promise(7)
def test_worker_wakes_up_for_later_work_after_an_interrupted_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interrupted caller announces work that is due earlier than that of another caller."""
    monkeypatch.setattr(threads, "IDLE_TIMEOUT", 60.0)
    desks = list[Desk]()

    def make_desk() -> None:
        desks.append(Desk())
        desks[-1].put("first")
        eventually(lambda: desks[-1].done)
        time.sleep(0.02)  # the thread finds no work, and sleeps

    def announce() -> None:
        desks[-1].worker.expect(threads.clock())

    make_desk()
    for _ in interruptions(announce, "engine/threads.py", where=at_any_step):
        desks[-1].todo.append("other's")
        desks[-1].worker.expect(threads.clock() + 0.01)
        eventually(lambda: len(desks[-1].done) == 2, 20)
        make_desk()
    assert len(desks) > 10
    monkeypatch.setattr(threads, "IDLE_TIMEOUT", 0.01)
    for desk in desks:
        desk.worker.rouse()


def test_destructor_can_submit_work_during_a_submit_of_the_same_thread() -> None:
    """While a thread submits work, garbage collection can run a destructor that submits work."""
    desk, ran, inside = Desk(), list[str](), list[str]()

    def submit(whose: str) -> None:
        desk.put(whose)
        threads.run_callbacks(lambda: ran.append(whose))

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith("engine/threads.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            sys.settrace(None)
            submit("destructor's")
            inside.append(event)
            sys.settrace(trace)
        return trace

    def traced() -> None:
        sys.settrace(trace)
        try:
            submit("mine")
        finally:
            sys.settrace(None)

    caller = threading.Thread(target=traced, daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive(), "the submit hangs"
    expected = sorted(["mine", *["destructor's"] * len(inside)])
    eventually(lambda: sorted(desk.done) == sorted(ran) == expected)
    assert len(inside) > 20


# Callbacks


def test_slow_callbacks_run_on_a_limited_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def running() -> int:
        return [one.name for one in threading.enumerate()].count("redis-sync-callbacks")

    run = threading.Thread.run
    monkeypatch.setattr(threading.Thread, "run", lambda one: time.sleep(0.1) or run(one))
    go, ran = threading.Event(), list[int]()
    for _ in range(100):
        threads.run_callbacks(lambda: go.wait(20))
    assert 2 <= running() <= 12
    go.set()
    threads.run_callbacks(lambda: ran.append(1))
    eventually(lambda: ran)


def test_callback_waits_until_a_thread_can_be_started(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_executor", None)
    ran: list[int] = []
    with Lock("x", timeout=3, renew=True):  # the renewal thread starts the callback thread later
        with NoThreads(monkeypatch):
            threads.run_callbacks(lambda: ran.append(1))
        assert not ran
        eventually(lambda: ran)
    what = "callbacks wait, because no thread could be started"
    assert f"{what}: can't start new thread" in caplog.messages


def child_returns_true(body: Callable[[], bool]) -> bool:
    """Run `body` in a forked child. Return True if `body` returned True in the child within 20
    seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        is_true = False
        with contextlib.suppress(BaseException):
            is_true = body()
        os._exit(not is_true)
    return os.waitpid(child, 0)[1] == 0


def test_forked_child_runs_callbacks_on_threads_of_its_own() -> None:
    def runs_a_callback() -> bool:
        ran = threading.Event()
        threads.run_callbacks(ran.set)
        return ran.wait(20)

    assert runs_a_callback()  # leaves an idle thread, which a forked child does not have
    assert child_returns_true(runs_a_callback)


# Processes that can start no thread


@pytest.mark.usefixtures("fresh_renewer")
def test_lease_expires_locally_if_no_thread_can_be_started_to_renew_it(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Any] = []
    with NoThreads(monkeypatch):
        lease = Lock("x", timeout=0.8, renew=True, on_lost=lost.append).acquire()
        eventually(lambda: not lease.held)
        assert lost == []
    # The next acquire starts a thread, which calls the pending `on_lost`.
    assert Lock("other", timeout=5).acquire()
    eventually(lambda: lost == [lease])


@pytest.mark.usefixtures("fresh_renewer")
@pytest.mark.parametrize("when", ["acquired", "renewed"])
def test_lease_is_renewed_after_a_renewal_thread_could_not_start(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """If `when` is "acquired", the renewal thread could not start. Then `check()` starts it.

    If `when` is "renewed", the renewal thread runs, but could not start a thread that sends
    renewals. The renewal thread then sends the renewals itself."""
    lock = Lock("x", timeout=3, renew=True)
    if when == "renewed":
        lease = lock.acquire()
    with NoThreads(monkeypatch) as none:
        if when == "acquired":
            lease = lock.acquire()
        else:
            eventually(View(raw, "x").renewals())
        assert none.tried
    renewed = View(raw, "x").renewals()
    lease.check()
    eventually(renewed)
    assert lease.held and lease.owned()
    lease.release()


# Waiters that are interrupted


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
        # Before Python 3.13, logging's lock stays taken if it is interrupted: see
        # docs/failure-modes.md. redis-py takes it on each connect.
        while frame:
            if frame.f_globals.get("__name__") == "logging":
                return
            frame = frame.f_back
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
    if hung:
        faulthandler.dump_traceback()
    print(rounds > 20, hits > 20, hung, late, flush=True)
"""


def test_exceptions_raised_by_signal_handlers_block_no_thread(raw: Any) -> None:
    done = worker_processes.run("-c", STORM, timeout=90)
    line = done.stdout.split("\n")[0]
    assert ("True True 0 []", 0) == (line, done.returncode), done.stderr
    # If an interrupted caller kept a permit, the permit becomes free when its lease expires.
    assert Lock("y").acquire(blocking_timeout=20)
    Semaphore("storm", 2).acquire(blocking_timeout=10).release()


# Warnings about processes in which threads cannot run


def test_one_warning_per_cause_is_logged_if_the_process_can_not_run_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_warned", set())
    for options in ({b"master": b"1", b"enable-threads": b"1"}, {"threads": "2"}):
        monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options))
        threads.warn_about_this_process()
    assert "" == caplog.text
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt={b"master": b"1"}))
    # gevent also replaces get_ident.
    monkeypatch.setattr(threading, "get_ident", lambda get_ident=threading.get_ident: get_ident())
    for _ in range(2):
        threads.warn_about_this_process()
    monkeypatch.undo()
    assert 1 == caplog.text.count("--enable-threads")
    assert 1 == caplog.text.count("gevent patched")
