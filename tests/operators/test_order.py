"""The order of lists: a name with waiters comes before all names without, whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
from django.conf import settings
from django.test import Client
from prometheus_client import CollectorRegistry

from django_redis_sync import Lock, Semaphore, metrics
from tests.behaviour.both import eventually
from tests.behaviour.child import Child
from tests.support.operators import locks
from tests.support.pages import get
from tests.support.screens import by_name

#: The registry of the names used lately.
REGISTRY = f"{settings.PREFIX}:names"


def skip(name: str) -> None:
    """Try to take a held lock, and leave it."""
    with Lock(name):
        assert Semaphore(name, 1).acquire(blocking=False) is None


def first(*words: str) -> str:
    return next(iter(by_name(locks("status", *words))))


@pytest.fixture
def waiting(raw: redis.Redis) -> Iterator[Callable[[], None]]:
    """Start two processes that do nothing but wait for `stuck`. Return a function that releases the
    lock, and waits until both have had it."""
    with ExitStack() as stack:
        lease = Lock("stuck").acquire()
        children = [stack.enter_context(Child("crowd", "stuck", 1)) for _ in range(2)]
        eventually(lambda: Lock("stuck").status().waiting == 2)

        def let_go() -> None:
            lease.release()
            for child in children:
                child.ended()

        yield let_go
        if lease.held:
            let_go()


@pytest.mark.parametrize("others", [60, 5000])
@pytest.mark.usefixtures("waiting")
@pytest.mark.django_db
def test_name_with_waiters_comes_first_in_all_lists_whoever_waits(
    others: int, raw: redis.Redis, admin_client: Client
) -> None:
    if others < 100:
        for n in range(others):
            skip(f"job{n}")
    else:
        now = raw.time()[0] * 1000
        raw.zadd(REGISTRY, {f"job{n}": now + 60_000 - n for n in range(others)})
    eventually(lambda: first() == "stuck")
    assert "stuck" == first("--sort", "waiting")
    assert "2" == by_name(locks("status"))["stuck"]["WAITING"]
    eventually(lambda: next(iter(get(admin_client).cells)) == "row-stuck")


@pytest.mark.usefixtures("waiting")
def test_metrics_count_the_waiters_of_processes_that_only_wait() -> None:
    registry = CollectorRegistry()
    metrics.register(registry=registry)
    value = registry.get_sample_value
    eventually(lambda: value("redis_sync_all_waiting") == 2)
    assert 2 == value("redis_sync_waiting", {"name": "stuck"})


def test_name_is_no_longer_first_when_nobody_waits_for_it(waiting: Callable[[], None]) -> None:
    with Lock("late"):
        assert Semaphore("late", 1).acquire(blocking_timeout=0.01) is None
    eventually(lambda: ["stuck", "late"] == [*by_name(locks("status"))])
    waiting()
    eventually(lambda: ["late", "stuck"] == [*by_name(locks("status"))])
