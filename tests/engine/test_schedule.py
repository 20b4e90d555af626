"""The schedule stores the times at which tokens of leases and waiters are due."""

import math
import random
import sys
from itertools import takewhile

from django_redis_sync.engine.schedule import Schedule


def taken(schedule: Schedule, now: float) -> list[str]:
    return list(schedule.take(now))


def test_token_schedule_frees_the_memory_of_dropped_tokens() -> None:
    schedule = Schedule()
    schedule.put("live", 1.0, 1.0)  # stays at the top of the heap, above the dropped tokens
    before = sys.getallocatedblocks()
    for number in range(10_000):
        schedule.put(str(number), 1e9, 1e9)
        schedule.drop(str(number))
    assert sys.getallocatedblocks() < before + 5_000
    schedule.put("last", 3.0, 3.0)
    assert ["live", "last"] == taken(schedule, 4.0)


def test_token_schedule_agrees_with_a_simple_dict_after_random_operations() -> None:
    """A token has a due time, and an earlier time from which it may be taken. If no token is due,
    `take()` yields none. Otherwise, it yields tokens in the order of their due times, and stops
    before a token that may not be taken yet."""
    chance, schedule, plain = random.Random(5), Schedule(), dict[str, tuple[float, float]]()
    now = 0.0
    for _ in range(20_000):
        token, what = str(chance.randrange(50)), chance.random()
        if what < 0.5:
            at = now + chance.random()
            plain[token] = at, at - chance.random() / 10
            schedule.put(token, *plain[token])
        elif what < 0.8:
            schedule.drop(token)
            plain.pop(token, None)
        elif what < 0.801:
            schedule.clear()
            plain.clear()
        else:
            now += chance.random() / 10
            by_time = sorted(plain, key=plain.__getitem__)
            early = takewhile(lambda token, now=now: plain[token][1] <= now, by_time)
            due = [*early] if by_time and plain[by_time[0]][0] <= now else []
            assert due == taken(schedule, now)
            for token in due:
                schedule.drop(token)
                del plain[token]
        assert min((at for at, _ in plain.values()), default=math.inf) == schedule.earliest()
