"""Seats: how many requests of a process wait at a time, and that no seat stays taken."""

import asyncio
import os
import threading
import time

import pytest

from django_redis_sync.limits.seats import LOOK, SETTLES, Seated, Seats, tasks, threads


@pytest.fixture
def seats(settings) -> Seats:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": {"max_waiting_threads": 2}}
    return Seats("max_waiting_threads")


def test_so_many_seats_and_no_more(seats: Seats) -> None:
    taken = [seats.take(), seats.take()]
    assert all(taken)
    assert seats.take() is None
    seats.leave(taken[0])
    assert seats.take() is not None


def test_a_seat_whose_wait_is_gone_is_free(seats: Seats) -> None:
    """As when a signal's exception comes between taking it and the block that gives it back."""
    for _ in range(5):
        taken = [seats.take(), seats.take()]
        assert all(taken)
        del taken


def test_those_who_wait_in_the_parent_take_no_seats_of_a_fork(seats: Seats, monkeypatch) -> None:
    taken = [seats.take(), seats.take()]
    assert all(taken) and seats.take() is None
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as a child sees what its parent left
    assert seats.take() is not None


def test_none_is_any_number_and_nought_none(settings) -> None:
    for most, expected in ((None, 50), (0, 0)):
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": {"max_waiting_tasks": most}}
        found = [tasks.take() for _ in range(50)]
        assert expected == sum(seat is not None for seat in found)


class Step:
    """Waits for its turn; `peak`: how many waited at a time."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.now, self.peak, self.turn = fails, 0, 0, threading.Event()

    def do(self) -> str:
        self.now += 1
        self.peak = max(self.peak, self.now)
        self.turn.wait(10)
        self.now -= 1
        if self.fails:
            raise ValueError("the wait failed")
        return "came"

    async def ado(self) -> str:
        return await asyncio.to_thread(self.do)


def test_a_wait_is_not_begun_without_a_seat_and_gives_it_back_whatever_happens(seats) -> None:
    step, failing = Step(), Step(fails=True)
    waiting = [threading.Thread(target=Seated(step).do) for _ in range(2)]
    for thread in waiting:
        thread.start()
    while step.now < 2:
        time.sleep(0.01)
    assert Seated(step).do() is None
    step.turn.set()
    for thread in waiting:
        thread.join()
    assert 2 == step.peak
    failing.turn.set()
    for _ in range(5):
        with pytest.raises(ValueError, match="failed"):
            Seated(failing).do()
        with pytest.raises(ValueError, match="failed"):
            asyncio.run(Seated(failing).ado())
    assert ["came", "came"] == [Seated(step).do(), asyncio.run(Seated(step).ado())]
    assert threads.take() is not None


class Asks:
    """A step that is let in at once."""

    def __init__(self) -> None:
        self.entered = threading.Event()

    def do(self) -> str:
        self.entered.set()
        time.sleep(0.03)
        return "in"

    async def ado(self) -> str:
        return await asyncio.to_thread(self.do)


@pytest.mark.parametrize("how", ["do", "ado"])
def test_a_patient_request_gets_the_seat_of_another_that_did_not_have_to_wait(
    how: str, settings
) -> None:
    one = {"max_waiting_threads": 1, "max_waiting_tasks": 1}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": one}

    def done(step: Asks, patient: bool = False) -> object:
        came = getattr(Seated(step, patient), how)()
        return asyncio.run(came) if how == "ado" else came

    asks, said = Asks(), []
    first = threading.Thread(target=lambda: said.append(done(asks)))
    first.start()
    assert asks.entered.wait(10)
    assert done(Asks()) is None
    assert "in" == done(Asks(), patient=True)
    first.join(10)
    assert ["in"] == said


@pytest.mark.parametrize("how", ["do", "ado"])
def test_who_looks_for_a_seat_again_rests_meanwhile(how: str, settings, monkeypatch) -> None:
    one = {"max_waiting_threads": 1, "max_waiting_tasks": 1}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": one}
    taken, looks, take = [threads.take(), tasks.take()], list[float](), Seats.take
    assert all(taken)
    monkeypatch.setattr(Seats, "take", lambda self: looks.append(0) or take(self))
    patient = getattr(Seated(Asks(), patient=True), how)()
    assert (asyncio.run(patient) if how == "ado" else patient) is None
    assert 1 <= len(looks) <= 2 + SETTLES / LOOK


def test_patience_ends_where_others_really_wait(seats: Seats, monkeypatch) -> None:
    monkeypatch.setattr("django_redis_sync.limits.seats.SETTLES", 0.02)
    taken = [seats.take(), seats.take()]
    time.sleep(0.03)
    assert all(taken)
    assert [] == list(seats.looks(patient=True))
