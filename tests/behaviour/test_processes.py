"""Leases across processes: forks, handles, and processes that stop or die."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from .both import eventually
from .child import Child

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(3, 10)]


def test_forked_child_cannot_renew_or_release_its_parents_leases(view) -> None:
    with Child("fork_holding", "forked") as child:
        lines = child.ended()
    assert lines == [
        ["held", "False", "False"],
        ["mine", "True"],
        ["mine", "True"],  # the child has renewed the lease meanwhile
        ["parent", "True", "True", "True", "True"],
        ["left", "False", "False"],
    ]
    assert view("forked").empty and view("forked-more").empty


# Waiters that die or stop delay the rest of the queue by a few seconds in total.

#: Seconds by which all victims together may delay the next waiter. A lease lasts ten minutes.
MOST = 10
VICTIMS = 3


@pytest.mark.promise(4)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=lambda what: what.name)
def test_dead_or_paused_waiters_delay_the_next_waiter_only_for_seconds(view, mode, what) -> None:
    name = view("x")
    with contextlib.ExitStack() as stack:

        def start(place: int) -> Child:
            child = stack.enter_context(Child("hold", "x", 600, "hard", mode))
            eventually(lambda: (name.holding, name.waiting) == (1, place))
            return child

        holder, *victims, last = [start(place) for place in range(VICTIMS + 2)]
        fence = int(holder.line()[1])
        os.kill(holder.process.pid, signal.SIGKILL)
        for victim in victims:
            os.kill(victim.process.pid, what)
        name.clear()  # end the holder's lease of ten minutes
        cleared = name.now()
        granted = int(last.line()[1])
        assert granted > fence and granted / 1000 - cleared < MOST * 1000
        if what == signal.SIGSTOP:
            for victim in victims:
                os.kill(victim.process.pid, signal.SIGCONT)
            # The victims wait again, and hold nothing.
            eventually(lambda: name.waiting == VICTIMS)
        assert name.holding == 1
