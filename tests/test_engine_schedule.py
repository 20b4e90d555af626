"""The schedule of the leases and waiters that are due."""

import math
import random

from django_redis_sync.engine.schedule import Schedule


def taken(schedule: Schedule, now: float) -> list[str]:
    return list(schedule.take(now))


def test_take_returns_due_tokens_most_urgent_first() -> None:
    schedule = Schedule()
    for token, at in [("c", 3.0), ("a", 1.0), ("d", 4.0), ("b", 2.0)]:
        schedule.put(token, at, at)
    assert schedule.earliest() == 1.0
    assert ["a", "b", "c"] == taken(schedule, 3.0)
    assert schedule.earliest() == 4.0


def test_take_includes_tokens_that_may_be_early() -> None:
    schedule = Schedule()
    schedule.put("due", 1.0, 0.9)
    schedule.put("soon", 1.1, 0.99)
    schedule.put("later", 1.2, 1.08)
    assert schedule.earliest() == 1.0
    assert [] == taken(schedule, 0.99)
    assert ["due", "soon"] == taken(schedule, 1.0)


def test_put_replaces_the_time_of_a_token() -> None:
    schedule = Schedule()
    schedule.put("a", 1.0, 1.0)
    assert schedule.earliest() == 1.0
    schedule.put("a", 5.0, 5.0)
    assert [] == taken(schedule, 4.0)
    schedule.put("a", 2.0, 2.0)
    assert ["a"] == taken(schedule, 4.0)
    assert [] == taken(schedule, 9.0)


def test_dropped_token_is_never_due() -> None:
    schedule = Schedule()
    for token in "ab":
        schedule.put(token, 1.0, 1.0)
    schedule.drop("a")
    assert schedule.earliest() == 1.0
    schedule.drop("b")
    schedule.drop("none such")
    assert schedule.earliest() == math.inf
    assert [] == taken(schedule, 9.0)


def test_token_dropped_before_the_owner_looks_never_enters_the_heap() -> None:
    schedule = Schedule()
    for number in range(10_000):
        schedule.put(str(number), 10.0, 9.0)
        schedule.drop(str(number))
    assert schedule.earliest() == math.inf
    assert schedule.entries == len(schedule) == 0


def test_stale_entries_do_not_pile_up_in_the_heap() -> None:
    schedule = Schedule()
    schedule.put("live", 1.0, 1.0)  # at the top of the heap
    for number in range(10_000):
        schedule.put(str(number), 1e9, 1e9)
        schedule.earliest()  # moves the token into the heap
        schedule.drop(str(number))
        assert schedule.entries < 200
    schedule.put("last", 3.0, 3.0)
    assert ["live", "last"] == taken(schedule, 4.0)


def test_schedule_agrees_with_a_dict_after_random_operations() -> None:
    chance, schedule, plain = random.Random(5), Schedule(), dict[str, float]()
    now = 0.0
    for _ in range(20_000):
        token = str(chance.randrange(50))
        what = chance.random()
        if what < 0.5:
            at = now + chance.random()
            schedule.put(token, at, at)
            plain[token] = at
        elif what < 0.8:
            schedule.drop(token)
            plain.pop(token, None)
        else:
            now += chance.random() / 10
            due = sorted(token for token, at in plain.items() if at <= now)
            assert due == sorted(taken(schedule, now))
            for token in due:
                schedule.drop(token)
                del plain[token]
        assert min(plain.values(), default=math.inf) == schedule.earliest()


def test_cleared_schedule_is_empty() -> None:
    schedule = Schedule()
    schedule.put("seen", 1.0, 1.0)
    assert 1.0 == schedule.earliest()
    schedule.put("fresh", 2.0, 2.0)
    schedule.clear()
    assert (0, math.inf, []) == (len(schedule), schedule.earliest(), taken(schedule, 9.0))
