"""The rooms: those inside a process are counted, however they come and go."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from devtools.servers import free_port
from django_redis_sync.engine.keeper import keeper
from django_redis_sync.limits.decorator import semaphore_required
from django_redis_sync.limits.policy import Place
from django_redis_sync.limits.rooms import Rooms, Turn, rooms
from tests.support.interrupting import Interrupted, inside_ours, interruptions

REQUESTS = RequestFactory()
PLACE = Place("default", "x", None)


class Someone:
    """In the place of a request's hold."""


@pytest.fixture
def no_server(settings) -> None:
    """Nobody listens where Redis should be."""
    url = f"redis://127.0.0.1:{free_port()}"
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url}}


def test_a_room_is_forgotten_when_nobody_is_inside() -> None:
    mine, one, other = Rooms(), Someone(), Someone()
    mine.enter(PLACE, one)
    assert mine.ask(PLACE, other, 1, 0, 0) is False
    mine.leave(PLACE, one)
    assert {} == mine._rooms
    assert (0, 0) == (mine.inside(PLACE), mine.waiting(PLACE))


def test_to_leave_twice_is_to_leave_once() -> None:
    mine, one, other = Rooms(), Someone(), Someone()
    mine.enter(PLACE, one)
    mine.enter(PLACE, other)
    mine.leave(PLACE, one)
    mine.leave(PLACE, one)
    assert 1 == mine.inside(PLACE)


def test_a_fork_knows_nobody_of_its_parent(monkeypatch) -> None:
    one = Someone()
    rooms().enter(PLACE, one)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)  # as a child sees what its parent left
        assert 0 == rooms().inside(PLACE)
        rooms().leave(PLACE, one)
    rooms().leave(PLACE, one)


# Those that Redis let in


def test_a_room_is_made_when_somebody_asks_here_and_knows_whom_redis_let_in() -> None:
    mine, one, elsewhere, other = Rooms(), Someone(), Someone(), Someone()
    mine.came(PLACE, one)
    mine.came(PLACE._replace(name="y"), elsewhere)
    assert (1, False) == (mine.inside(PLACE), mine.has_room(PLACE))
    assert mine.ask(PLACE, other, 1, 0, 0) is False
    assert mine.has_room(PLACE) and not mine.alone(PLACE)
    mine.went(PLACE, one)
    assert (0, False) == (mine.inside(PLACE), mine.has_room(PLACE))
    assert mine.ask(PLACE, other, 1, 0, 0) is True


def test_whom_redis_let_in_while_there_was_a_room_lets_the_next_in() -> None:
    mine, alone, one, patient = Rooms(), Someone(), Someone(), Someone()
    mine.enter(PLACE, alone, alone=True)
    mine.came(PLACE, one)
    assert 2 == mine.inside(PLACE)
    turn = mine.ask(PLACE, patient, 2, 1, 5)
    assert isinstance(turn, Turn)
    mine.went(PLACE, one)
    assert turn.do()
    for who in (alone, patient):
        mine.came(PLACE, one)
        assert mine.alone(PLACE)
        mine.leave(PLACE, who)
    assert not mine.alone(PLACE) and mine.has_room(PLACE)


def test_whom_redis_let_in_and_who_is_gone_is_forgotten() -> None:
    mine, one = Rooms(), Someone()
    mine.came(PLACE, one)
    del one
    assert (0, {}) == (mine.inside(PLACE), mine._known)


# Those that are gone


def test_whoever_is_gone_is_not_inside() -> None:
    mine, one, other = Rooms(), Someone(), Someone()
    assert mine.ask(PLACE, one, 1, 0, 0) is True
    del one
    assert mine.ask(PLACE, other, 1, 0, 0) is True
    assert 1 == mine.inside(PLACE)


def test_whoever_is_gone_while_it_waited_holds_nobody_up() -> None:
    mine, inside, gone, patient = Rooms(), Someone(), Someone(), Someone()
    mine.enter(PLACE, inside)
    lost = mine.ask(PLACE, gone, 1, 2, 5)
    turn = mine.ask(PLACE, patient, 1, 2, 5)
    assert isinstance(turn, Turn)
    del lost, gone
    assert 1 == mine.waiting(PLACE)
    mine.leave(PLACE, inside)
    assert turn.do()
    assert (1, 0) == (mine.inside(PLACE), mine.waiting(PLACE))


def test_the_places_in_the_queue_of_those_that_are_gone_are_free() -> None:
    mine, inside = Rooms(), Someone()
    mine.enter(PLACE, inside)
    for _ in range(3):
        waits = Someone()
        assert isinstance(mine.ask(PLACE, waits, 1, 1, 5), Turn)
    waits = Someone()
    turns = [mine.ask(PLACE, waits, 1, 1, 5)]
    assert mine.ask(PLACE, Someone(), 1, 1, 5) is False
    assert 1 == len(turns) == mine.waiting(PLACE)


def test_as_many_are_let_in_as_places_came_free() -> None:
    mine, inside = Rooms(), [Someone() for _ in range(5)]
    for one in inside[:2]:
        mine.enter(PLACE, one)
    turns = [mine.ask(PLACE, one, 2, 9, 0) for one in inside[2:]]
    for one, waiting in zip(inside, (2, 1, 0), strict=False):
        mine.leave(PLACE, one)
        assert (2, waiting) == (mine.inside(PLACE), mine.waiting(PLACE))
        assert mine.alone(PLACE)  # Redis knows of none that waited here
        assert [True] == [rung for turn in turns if (rung := turn._bell.wait(0))]  # type: ignore[union-attr]


def test_a_waiter_that_gives_up_lets_those_behind_it_in_that_fit() -> None:
    mine, inside, large, small = Rooms(), Someone(), Someone(), Someone()
    mine.enter(PLACE, inside)
    narrow, wide = mine.ask(PLACE, large, 1, 2, 0.01), mine.ask(PLACE, small, 2, 2, 5)
    assert isinstance(narrow, Turn) and isinstance(wide, Turn)
    assert not narrow.do()
    assert wide.do()
    assert (2, 0) == (mine.inside(PLACE), mine.waiting(PLACE))


@pytest.mark.parametrize("early", [True, False], ids=["before it waits", "while it waits"])
def test_a_task_is_woken_by_another_thread(early: bool) -> None:
    mine, inside, patient = Rooms(), Someone(), Someone()
    mine.enter(PLACE, inside)
    turn = mine.ask(PLACE, patient, 1, 1, 20)
    assert isinstance(turn, Turn)

    async def wait() -> bool:
        leaver = threading.Timer(0 if early else 0.2, lambda: mine.leave(PLACE, inside))
        leaver.start()
        if early:
            leaver.join()
        return await asyncio.wait_for(turn.ado(), 10)

    assert asyncio.run(wait())
    assert 1 == mine.inside(PLACE)


def test_a_task_that_waits_does_not_stop_its_loop() -> None:
    mine, inside, patient = Rooms(), Someone(), Someone()
    mine.enter(PLACE, inside)
    turn = mine.ask(PLACE, patient, 1, 1, 0.01)
    assert isinstance(turn, Turn)
    waited: list[float] = []
    turn._bell.wait = waited.append  # type: ignore[assignment]
    assert not asyncio.run(turn.ado())
    assert [0] == waited


def test_a_turn_of_a_loop_that_is_over_stops_nobody() -> None:
    mine, inside, patient = Rooms(), Someone(), Someone()
    mine.enter(PLACE, inside)
    turn = mine.ask(PLACE, patient, 1, 1, 20)
    assert isinstance(turn, Turn)
    waiting = turn.ado()

    async def leave_it() -> None:
        waiting.send(None)

    asyncio.run(leave_it())
    mine.leave(PLACE, inside)
    assert 1 == mine.inside(PLACE)
    waiting.close()
    del turn, patient
    assert 0 == mine.inside(PLACE)


# Interrupted


def heard(frame: FrameType, event: str) -> bool:
    """Without a line it is the interpreter's own tidying up, which hears no signal."""
    return frame.f_lineno is not None and inside_ours(frame, event)


@semaphore_required("x", limit=1)
def view(request: Any) -> HttpResponse:
    return HttpResponse()


@semaphore_required("x", limit=1)
async def aview(request: Any) -> HttpResponse:
    return HttpResponse()


def visits() -> None:
    view(REQUESTS.get("/"))


def avisits() -> None:
    asyncio.run(aview(REQUESTS.get("/")))


def test_a_wait_that_is_interrupted_keeps_no_place_however_long_its_request_is_kept() -> None:
    """As by those who report errors, with all that was there."""

    def interrupted(seconds: float) -> bool:
        raise Interrupted

    mine, inside, patient = Rooms(), Someone(), Someone()
    mine.enter(PLACE, inside)
    turn = mine.ask(PLACE, patient, 1, 1, 20)
    assert isinstance(turn, Turn)
    turn._bell.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        turn.do()
    assert 0 == mine.waiting(PLACE)


def test_a_task_that_is_cancelled_keeps_no_place_however_long_its_request_is_kept() -> None:
    mine, inside, patient = Rooms(), Someone(), Someone()
    mine.enter(PLACE, inside)
    turn = mine.ask(PLACE, patient, 1, 1, 20)
    assert isinstance(turn, Turn)

    async def main() -> None:
        task = asyncio.ensure_future(turn.ado())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert 0 == mine.waiting(PLACE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("visit", [visits, avisits], ids=["sync", "async"])
@pytest.mark.parametrize("down", [False, True], ids=["redis", "no redis"])
def test_a_request_that_is_interrupted_is_inside_no_more(
    down: bool, visit: Callable[[], None], request, clean_redis
) -> None:
    if down:
        request.getfixturevalue("no_server")
    visit()
    where = ""
    for where in interruptions(visit, "limits/enforcement.py", where=heard):
        gc.collect(1)
        if rooms().inside(PLACE) or keeper("default")._held():
            gc.collect()  # a collection meanwhile has made it old
        assert 0 == rooms().inside(PLACE), where
        if not down:
            assert [] == keeper("default")._held(), where
    assert where


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_storm_of_signals_leaves_the_rooms_open_and_empty() -> None:
    """The exceptions come as CPython delivers them: not everywhere, but at no place of ours."""
    mine, heard = Rooms(), 0

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    def comes_and_goes() -> None:
        one = Someone()
        if isinstance(turn := mine.ask(PLACE, one, 1, 1, 0.0001), Turn):
            turn.do()
        mine.leave(PLACE, one)

    before = signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + 2
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00005)
                # One that comes in a weakref's callback is told nobody, and no other would come.
                late = time.monotonic() + 0.05
                while time.monotonic() < late:
                    comes_and_goes()
            except Interrupted:
                heard += 1
            assert not mine._lock.locked()
            assert 0 == mine.inside(PLACE) == mine.waiting(PLACE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard > 100
    one = Someone()
    assert mine.ask(PLACE, one, 1, 0, 0) is True
