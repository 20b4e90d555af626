"""The leases that a caller took through an object: which it gives back, which it forgets."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_redis_sync import Lock, Semaphore
from django_redis_sync.exceptions import NotAcquired
from django_redis_sync.locks import callers
from django_redis_sync.locks.callers import Block, PerCaller, _Taken
from django_redis_sync.testing import without_redis


class Paper:
    """In the place of a lease. `looks`: how often any was looked at."""

    looks = 0

    def __init__(self, held: bool = True, ended: bool = False) -> None:
        self._held, self.ended = held, ended

    @property
    def held(self) -> bool:
        Paper.looks += 1
        return self._held


def taken(count: int, **said: Any) -> tuple[_Taken, list[Any]]:
    mine, leases = _Taken(), [Paper(**said) for _ in range(count)]
    for lease in leases:
        mine.add(lease, False)  # type: ignore[arg-type]
    return mine, leases


def test_leases_given_back_by_their_own_release_do_not_pile_up() -> None:
    mine, _ = taken(10_000, held=False, ended=True)
    assert len(mine.leases) <= 3 * callers._MOST_OVER


def test_of_the_lost_the_newest_are_still_known() -> None:
    mine, leases = taken(10_000, held=False)
    assert callers._MOST_OVER <= len(mine.leases) <= 5 * callers._MOST_OVER
    assert leases[-callers._MOST_OVER :] == [*mine.leases][-callers._MOST_OVER :]
    assert leases[-1] is mine.newest(take=False)


def test_those_that_are_held_are_all_known_and_looked_through_seldom() -> None:
    Paper.looks = 0
    mine, leases = taken(10_000)
    assert leases == [*mine.leases]
    assert Paper.looks < 5 * 10_000


def test_whoever_releases_takes_the_newest_lease_out_and_others_take_the_next() -> None:
    with without_redis():
        made = Semaphore("several", 2)
        first, second = made.acquire(), made.acquire()
        assert second is made.newest(keep=True)
        assert [second, first] == [made.newest(), made.newest()]
        with pytest.raises(NotAcquired):
            made.newest()


def test_ends_that_were_loaded_for_no_block_do_not_pile_up() -> None:
    lock = Lock("loaded")
    for _ in range(100):
        _ = lock.__exit__
    assert len(callers._loaded.blocks) <= 2


def test_an_end_that_was_loaded_belongs_to_no_block_of_another_object() -> None:
    with without_redis():
        lock, other = Lock("loaded"), Lock("other")
        ends = lock.__exit__
        other.__enter__()
        other.__exit__(None, None, None)
        with lock as lease:
            assert not other.owned() and lease.owned()
        with pytest.raises(NotAcquired):
            ends(None, None, None)


def test_the_newest_goes_first_and_each_once() -> None:
    mine, leases = taken(3)
    assert [leases[2], leases[1], leases[0], None] == [mine.newest(take=True) for _ in range(4)]


@pytest.mark.parametrize("looks", [True, False], ids=["looked at before", "taken at once"])
def test_what_was_given_back_by_itself_is_passed_over(looks: bool) -> None:
    mine, leases = taken(3)
    leases[2].ended = True
    if looks:
        assert leases[1] is mine.newest(take=False)
    assert leases[1] is mine.newest(take=True)


def test_a_block_that_was_left_is_not_left_again() -> None:
    mine, block = PerCaller(), Block("_leave", None)
    mine.hold(block, "a stack")
    assert "a stack" == mine.end(block)
    with pytest.raises(NotAcquired, match="left before"):
        mine.end(block)


def test_a_block_that_was_entered_by_hand_is_left_once_by_whichever_thread() -> None:
    mine = PerCaller()
    mine.hold(Block.by_call(), "a stack")
    assert "a stack" == elsewhere(lambda: mine.end(Block.by_call()))
    with pytest.raises(NotAcquired, match="holds nothing"):
        mine.end(Block.by_call())
    mine.hold(Block.by_call(), "another")
    assert "another" == mine.end(Block.by_call())
    with pytest.raises(NotAcquired):
        elsewhere(lambda: mine.end(Block.by_call()))


def test_a_block_that_was_interrupted_while_it_began_is_no_block_to_leave() -> None:
    mine, block = PerCaller(), Block.by_call()
    mine.hold(block, "a stack")
    mine.drop(block)
    for leaves in (elsewhere, lambda leave: leave()):
        with pytest.raises(NotAcquired):
            leaves(lambda: mine.end(Block.by_call()))


def test_what_a_thread_left_goes_with_the_thread() -> None:
    with without_redis():
        lock, mine = Lock("a"), Lock("b").acquire()
        gone = elsewhere(lambda: weakref.ref(lock.acquire()))
        assert gone() is None and mine
        assert {} == lock._held._found


def test_what_a_task_left_goes_with_the_task() -> None:
    async def take(lock: Lock) -> Any:
        return weakref.ref(await lock.aacquire())  # type: ignore[arg-type]

    async def main(lock: Lock) -> None:
        gone = await asyncio.create_task(take(lock))
        await asyncio.sleep(0)
        assert gone() is None

    with without_redis():
        asyncio.run(main(lock := Lock("a")))
        assert {} == lock._held._found


def elsewhere(work: Callable[[], Any]) -> Any:
    """The result in another thread, or its exception."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


def test_what_a_block_gave_back_is_remembered_no_more() -> None:
    with without_redis():
        lock = Lock("a")
        for _ in range(3):
            with lock:
                assert 1 == len(lock._held.mine().leases)
        assert ({}, []) == (lock._held.mine().leases, lock._held.mine().by_hand)
