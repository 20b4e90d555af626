"""Waiters that die or stop delay the rest of the queue by a few seconds in total.

The scenarios mostly sleep, so they run at the same time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import redis

from .both import eventually
from .child import Child
from .watching import View

pytestmark = pytest.mark.promise(4)

#: Seconds by which all victims together may delay the next waiter. A lease lasts ten minutes.
MOST = 10
VICTIMS = 3


def survive(url: str, name: str, mode: str, what: signal.Signals) -> float:
    """Return the seconds until a live waiter behind some victims acquires the lock."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(redis.Redis.from_url(url))
        view = View(client, name)
        # Before the first acquire, because this would delete the queue.
        client.delete(*view.left() or ["-"])
        crowd = stack.enter_context(Child("queue", name, mode, VICTIMS + 1))
        lines = [crowd.line() for _ in range(VICTIMS + 2)]
        pids = [int(words[1]) for words in lines if words[0] == "pid"]
        (first,) = (int(words[1]) for words in lines if words[0] == "got")
        eventually(lambda: view.waiting == VICTIMS)
        # The live waiter at the end of the queue, behind the victims.
        with Child("queue", name, mode, 1) as last:
            last.line()
            eventually(lambda: view.waiting == VICTIMS + 1)
            victims = [pid for number, pid in enumerate(pids) if number != first]
            for pid in victims:
                os.kill(pid, what)
            os.kill(pids[first], signal.SIGKILL)
            view.clear()  # end the holder's lease of ten minutes
            start = time.monotonic()
            assert last.line()[0] == "got"
            took = time.monotonic() - start
            for pid in victims:
                os.kill(pid, signal.SIGCONT)
            if what == signal.SIGSTOP:
                # The victims wait again, and hold nothing.
                eventually(lambda: view.waiting == VICTIMS)
            assert view.holding == 1
            return took


SCENARIOS = {
    "sync waiters are killed": ("sync", signal.SIGKILL),
    "sync waiters are paused": ("sync", signal.SIGSTOP),
    "async waiters are killed": ("async", signal.SIGKILL),
    "async waiters are paused": ("async", signal.SIGSTOP),
}


@pytest.fixture(scope="module")
def outcomes(redis_url: str) -> Iterator[dict[str, Future[float]]]:
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {name: pool.submit(survive, redis_url, name, *how) for name, how in SCENARIOS.items()}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_dead_or_paused_waiters_delay_the_next_waiter_only_for_seconds(
    outcomes: dict[str, Future[float]], scenario: str
) -> None:
    assert outcomes[scenario].result(60) < MOST
