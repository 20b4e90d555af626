"""The order of lists: a name with waiters comes before all names without, whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Thread
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client
from prometheus_client import CollectorRegistry

from django_redis_sync import Lock, Semaphore, metrics
from django_redis_sync.engine import statistics
from tests.behaviour.both import eventually
from tests.behaviour.child import Child
from tests.support.operators import as_json, locks
from tests.support.pages import get
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture
from tests.support.screens import by_name

pytestmark = pytest.mark.usefixtures("raw")

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


@pytest.mark.django_db
def test_each_name_is_on_one_of_the_pages_if_some_have_trouble(
    raw: redis.Redis, admin_client: Client
) -> None:
    idle = {f"idle{n:02}" for n in range(30)}
    raw.zadd(REGISTRY, dict.fromkeys(idle, raw.time()[0] * 1000))
    for name in ("late", "lost"):
        with Lock(name):
            assert Semaphore(name, 1).acquire(blocking_timeout=0.01) is None
    eventually(lambda: listed("late", "lost"))
    pages = [[*get(admin_client, f"?p={number}").cells] for number in (1, 2)]
    assert {"row-late", "row-lost"} == {*pages[0][:2]}
    assert sorted(f"row-{name}" for name in {*idle, "late", "lost"}) == sorted(pages[0] + pages[1])


def test_name_whose_share_is_full_comes_before_names_without_waiters(raw: redis.Redis) -> None:
    def acme() -> Semaphore:
        return Semaphore("exports", 9, share="acme", share_limit=1, blocking_timeout=60)

    with ExitStack() as stack:
        stack.enter_context(Lock("held"))
        for _ in range(20):
            assert Lock("held", blocking_timeout=0.001, thread_local=False).acquire() is None
        lease = acme().acquire()
        threads = [Thread(target=lambda: acme().acquire().release()) for _ in range(2)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(lease.release)
        eventually(lambda: acme().status().waiting == 2)
        eventually(lambda: listed("held", "exports"))
        eventually(lambda: first() == "exports")
        assert "2" == by_name(locks("status"))["exports"]["WAITING"]


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


def test_skipped_name_is_no_trouble_but_a_rejected_one_is() -> None:
    for name in ("skipped", "late"):
        with Lock(name):
            wait = {"blocking": False} if name == "skipped" else {"blocking_timeout": 0.01}
            assert Lock(name, thread_local=False).acquire(**wait) is None
    eventually(lambda: listed("skipped", "late"))
    found = by_name(locks("status"))
    assert "late" == first(), "a name with a rejection comes before one that was only skipped"
    assert ("1", "") == (found["skipped"]["SKIPPED"], found["skipped"].get("REJECTED", ""))
    assert ("", "1") == (found["late"]["SKIPPED"], found["late"]["REJECTED"])
    assert "skipped 1" in locks("status", "skipped")
    assert "Trouble" not in locks("status", "skipped")


@pytest.mark.usefixtures("fresh_renewer")
def test_rejections_of_all_keys_of_a_policy_decide_about_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "EVERY", 0.1)
    for name, key, times in (("api", "a", 3), ("late", None, 2), ("api", "b", 1)):
        with Semaphore(name, 1, key=key):
            for _ in range(times):
                assert Semaphore(name, 1, key=key).acquire(blocking_timeout=0.01) is None
    eventually(lambda: ["api", "late"] == [*by_name(locks("status"))])


# The advice


def crowd(calls: int, **options: Any) -> None:
    """Hold two permits of `exports`, and try in vain `calls` times to get a third."""
    with Semaphore("exports", 2, **options), Semaphore("exports", 2, **options):
        for _ in range(calls):
            assert Semaphore("exports", 2, **options).acquire(blocking_timeout=0.01) is None


def test_advice_names_share_limit_and_no_limit_if_only_share_limit_rejected() -> None:
    share = {"share": "acme", "share_limit": 3}
    held = [Semaphore("exports", 10, **share).acquire() for _ in range(3)]
    for _ in range(20):
        assert Semaphore("exports", 10, **share).acquire(blocking_timeout=0.01) is None
    text = locks("status", "exports")
    assert "Of 20 rejections, 20 were because of share_limit, not of the limit." in text
    assert "The busiest shares now: acme (3/3)." in text
    assert "a limit of" not in text and "large enough" not in text
    for lease in held:
        lease.release()


def test_advice_suggests_a_limit_only_until_the_limit_is_as_large() -> None:
    def suggested() -> int | None:
        (one,) = as_json("status", "exports")["names"]
        found: int | None = one["suggested_limit"]
        advised = "a limit of at least 3 was needed." in locks("status", "exports")
        assert advised == bool(found), f"JSON suggests {found}, the page {advised}"
        return found

    crowd(20)
    assert 3 == suggested()
    locks("resize", "exports", "3")
    assert suggested() is None, "the advice asks for what is there already"
    locks("resize", "exports", "2")
    assert 3 == suggested()


def test_rejections_while_paused_are_named_and_suggest_no_limit() -> None:
    crowd(1)
    locks("pause", "exports")
    for _ in range(30):
        assert Semaphore("exports", 2).acquire(blocking_timeout=0.01) is None
    locks("resume", "exports")
    text = locks("status", "exports")
    assert "30 of these because of a pause" in text
