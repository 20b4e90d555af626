"""The schedule of the leases and waiters that are due."""

import math
import random
import sys

from django_redis_sync.engine.schedule import Schedule


def taken(schedule: Schedule, now: float) -> list[str]:
    return list(schedule.take(now))


def test_take_returns_due_and_early_tokens_in_the_order_of_their_due_times() -> None:
    schedule = Schedule()
    for token, at, early in [("c", 3.0, 3.0), ("a", 1.0, 0.9), ("d", 3.1, 2.9), ("b", 2.0, 2.0)]:
        schedule.put(token, at, early)
    assert 1.0 == schedule.earliest()
    assert [] == taken(schedule, 0.99)
    assert ["a", "b", "c", "d"] == taken(schedule, 3.0)
    assert math.inf == schedule.earliest()


def test_stale_entries_do_not_pile_up_in_memory() -> None:
    schedule = Schedule()
    schedule.put("live", 1.0, 1.0)  # stays at the top of the heap, so stale entries are below it
    before = sys.getallocatedblocks()
    for number in range(10_000):
        schedule.put(str(number), 1e9, 1e9)
        schedule.drop(str(number))
    assert sys.getallocatedblocks() < before + 5_000
    schedule.put("last", 3.0, 3.0)
    assert ["live", "last"] == taken(schedule, 4.0)


def test_schedule_agrees_with_a_dict_after_random_operations() -> None:
    chance, schedule, plain = random.Random(5), Schedule(), dict[str, float]()
    now = 0.0
    for _ in range(20_000):
        token, what = str(chance.randrange(50)), chance.random()
        if what < 0.5:
            plain[token] = now + chance.random()
            schedule.put(token, plain[token], plain[token])
        elif what < 0.8:
            schedule.drop(token)
            plain.pop(token, None)
        elif what < 0.801:
            schedule.clear()
            plain.clear()
        else:
            now += chance.random() / 10
            due = sorted(token for token, at in plain.items() if at <= now)
            assert due == sorted(taken(schedule, now))
            for token in due:
                schedule.drop(token)
                del plain[token]
        assert min(plain.values(), default=math.inf) == schedule.earliest()
