"""Rates and cool-downs: at most N grants in any period, in order, and none lost."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

from django_redis_sync import NotAcquired, RLock, Semaphore, acquire_all, synchronized
from django_redis_sync.operators.actions import Change
from django_redis_sync.testing import filled, without_redis
from tests.behaviour.both import both, eventually
from tests.support.commands import locks

pytestmark = pytest.mark.promise(35)


def came_or_waits(before: Any, now: Any) -> bool:
    return now.fence > before.fence or now.waiting > before.waiting


def grants(semaphore: Semaphore, count: int) -> int:
    """Return how many of `count` quick acquires get a permit at once."""
    got = 0
    for _ in range(count):
        if semaphore.acquire(blocking=False) is not None:
            semaphore.release()
            got += 1
    return got


def test_rate_grants_no_more_than_its_permits_in_a_period(raw) -> None:
    assert grants(Semaphore("mails", 10, rate="5/m"), 12) == 5
    assert grants(Semaphore("bulk", rate="150/m"), 200) == 150, "also without a limit"


def test_rejected_caller_learns_when_to_retry(raw) -> None:
    mails = Semaphore("mails", rate="1/30s")
    mails.acquire()
    mails.release()
    with pytest.raises(NotAcquired) as caught, Semaphore("mails", rate="1/30s", blocking=False):
        pass
    assert caught.value.reason == "rate"
    assert 25 < caught.value.retry_after <= 30


def test_waiters_come_in_order_when_the_rate_opens(raw) -> None:
    mails, came = Semaphore("mails", rate="4/s"), []

    def send(n: int) -> None:
        with mails as lease:
            came.append((lease.fence, n))

    for _ in range(4):
        send(-1)
    threads = [threading.Thread(target=send, args=(n,)) for n in range(9)]
    for thread in threads:
        before = mails.status()
        thread.start()
        eventually(lambda of=before: came_or_waits(of, mails.status()))
    for thread in threads:
        thread.join(30)
    assert [n for _, n in sorted(came)] == [-1] * 4 + list(range(9))
    times = [fence for fence, _ in sorted(came)]
    assert all(later - first >= 1_000_000 for first, later in zip(times, times[4:], strict=False))


def test_a_cool_down_ends_by_itself(raw) -> None:
    mails = Semaphore("mails", 3)
    now, micros = raw.time()
    mails.cool_down(0.3)
    with mails as lease:
        assert lease.fence >= now * 1_000_000 + micros + 299_000
    mails.cool_down(300)
    with pytest.raises(NotAcquired) as caught, Semaphore("mails", 3, blocking=False):
        pass
    assert caught.value.reason == "rate" and 200 < caught.value.retry_after <= 300
    cool = mails.status().cool_down
    assert cool is not None and (cool.until - cool.since).total_seconds() == 300
    assert cool.label["pid"] == os.getpid(), "operators see who began it"


def test_a_cool_down_of_0_s_changes_nothing(raw) -> None:
    """As after a response with "Retry-After: 0"."""
    mails = Semaphore("mails", 2, blocking=False)
    mails.cool_down(0)
    asyncio.run(mails.acool_down(0.0))
    assert mails.status().cool_down is None
    assert grants(mails, 1) == 1
    mails.cool_down(300)
    mails.cool_down(0)
    assert grants(mails, 1) == 0
    for wrong in (-1, math.inf, math.nan):
        with pytest.raises(ValueError, match="seconds"):
            mails.cool_down(wrong)


@pytest.mark.parametrize("server", [nullcontext, without_redis], ids=["redis", "without redis"])
def test_the_cool_down_that_ends_last_counts_in_either_order(raw, server) -> None:
    with server():
        for name, seconds in (("falling", (300, 30)), ("rising", (30, 300))):
            mails = Semaphore(name, 3, blocking=False)
            for each in seconds:
                mails.cool_down(each)
            with pytest.raises(NotAcquired) as caught, mails:
                pass
            left = caught.value.retry_after
            assert left is not None and 200 < left <= 300, f"{name}: {left} s are left"
            cool = mails.status().cool_down
            assert cool is not None and (cool.until - cool.since).total_seconds() == 300
            assert cool.label["pid"] == os.getpid()
        with Semaphore("others", 3, blocking=False) as lease:
            assert lease.held


@both
async def test_status_says_what_is_used_and_when_the_next_permit_comes(io, raw) -> None:
    mails = Semaphore("mails", rate="2/10s")
    for _ in range(2):
        await io.do(mails, "acquire")
        await io.do(mails, "release")
    status = await io.do(mails, "status")
    rate = status.rate
    assert (rate.permits, rate.seconds, rate.used, rate.by_operator) == (2, 10.0, 2, False)
    assert 0 < rate.opens_in <= 10 and status.limit is None
    assert await io.do(mails, "acquire", blocking=False) is None
    await io.do(mails, "cool_down", 5)
    assert (await io.do(mails, "status")).cool_down is not None


def test_a_second_acquire_of_an_rlock_spends_nothing(raw) -> None:
    lock = RLock("mails", rate="2/m")
    with lock, lock, lock:
        pass
    assert lock.status().rate.used == 1


def test_shares_use_the_rate_of_the_name_together(raw) -> None:
    asked = [Semaphore("mails", rate="3/m", share=share, blocking=False) for share in "abab"]
    assert [one.acquire() is not None for one in asked] == [True, True, True, False]


def test_waiting_shares_take_turns_when_the_rate_opens(raw) -> None:
    mails, came = Semaphore("mails", rate="2/2s"), list[tuple[int, str]]()

    def send(share: str) -> None:
        with Semaphore("mails", rate="2/2s", share=share) as lease:
            came.append((lease.fence, share))

    Change("mails", None).pause()
    threads = [threading.Thread(target=send, args=(share,)) for share in "aaab"]
    for count, thread in enumerate(threads, 1):
        thread.start()
        eventually(lambda count=count: mails.status().waiting == count)
    Change("mails", None).resume()
    for thread in threads:
        thread.join(30)
    assert [*"abaa"] == [share for _, share in sorted(came)], "b waited for all of a"
    times = [fence for fence, _ in sorted(came)]
    assert all(later - first >= 2_000_000 for first, later in zip(times, times[2:], strict=False))


@both
async def test_rate_of_an_operator_applies_to_each_key_of_a_policy(io, raw) -> None:
    Change("api", None).resize(rate="2/h")
    for key in ("a", "b"):
        api = Semaphore("api", 9, key=key, rate="3/h")
        tried = [await io.do(api, "acquire", blocking=False) for _ in range(3)]
        assert [True, True, False] == [lease is not None for lease in tried]
        assert 2 == (await io.do(api, "status")).rate.used
    Change("api", None).reset()
    assert await io.do(api, "acquire", blocking=False) is not None


def test_synchronized_with_a_rate_runs_one_call_at_a_time_unless_the_limit_is_none(raw) -> None:
    ran = []

    @synchronized("one {n}", rate="3/h", on_full="skip")
    def one(n):
        ran.append(n)
        one(n)

    @synchronized("any", None, rate="3/h", on_full="skip")
    def any_number(n):
        ran.append(n)
        any_number(n + 1)

    one("a")
    any_number(1)
    assert ["a", 1, 2, 3] == ran
    with pytest.raises(TypeError, match="limit must be an int"):
        synchronized("none", None)


def test_min_hold_spends_one_permit(raw) -> None:
    mails = Semaphore("mails", 5, rate="3/m", min_hold=0.2)
    assert grants(mails, 4) == 3


@both
async def test_acquire_all_gives_back_what_it_could_not_use(io, raw) -> None:
    mails = Semaphore("a mail", rate="2/m")
    with filled("b full", 1):
        for _ in range(3):
            both_names = acquire_all([mails, Semaphore("b full", 1)], blocking_timeout=0)
            assert await io.do(both_names, "acquire") is None
    assert (await io.do(mails, "status")).rate.used == 0
    for left in (True, True, False):
        assert (await io.do(mails, "acquire", blocking=False) is not None) == left


def test_an_operator_can_end_a_cool_down(raw) -> None:
    mails = Semaphore("mails", 3)
    mails.cool_down(300)
    assert Change("mails", None).resume() == ["mails"]
    assert mails.acquire(blocking=False) is not None
    assert Change("mails", None).resume() == [], "there is nothing to end"


def test_a_cool_down_does_not_end_a_pause(raw) -> None:
    mails = Semaphore("mails", 3)
    Change("mails", None).pause()
    mails.cool_down(0.01)
    time.sleep(0.02)
    assert mails.status().paused and mails.acquire(blocking=False) is None


@pytest.mark.parametrize("limit", [None, 9])
def test_waits_for_a_rate_suggest_no_limit(limit, raw) -> None:
    mails = Semaphore("mails", limit, rate="3/h")
    leases = [mails.acquire() for _ in range(3)]
    with ThreadPoolExecutor(1) as threads:
        last = threads.submit(Semaphore("mails", limit, rate="3/h").acquire)
        eventually(lambda: mails.status().waiting)
        Change("mails", None).resize(rate="4/h")
        for lease in (last.result(30), *leases):
            lease.release()
    shown = locks("status", "mails")
    assert "1 of these after a wait" in shown and "limit of" not in shown, shown
    (found,) = json.loads(locks("status", "mails", "--format", "json"))["names"]
    assert found["suggested_limit"] is None
    assert json.loads(locks("history", "mails", "--format", "json"))["suggested_limit"] is None


def test_status_shows_the_rate_in_the_settings_and_that_of_each_key(raw, settings) -> None:
    semaphores = {"mails": {"rate": "100/h"}, "wrong": {"rate": "100"}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": semaphores}
    rate = Semaphore("mails").status().rate
    assert (100, 3600, 0, False) == (rate.permits, rate.seconds, rate.used, rate.by_operator)
    assert "Rate: 0 of 100 used in the last 1 h." in locks("status", "mails")
    assert "Rate" not in locks("status", "wrong"), "the checks report it"
    assert Semaphore("other", 1).status().rate is None
    for key in ("a", "b"):
        with Semaphore("api", 5, key=key):
            pass
    eventually(lambda: "2 keys" in locks("status", "api", "--top", "5"))
    Change("api", None).resize(rate="30/m")
    shown = locks("status", "api")
    assert "Rate of each key: 30 in any 1 min. An operator set this rate." in shown
    assert "Rate: 0 of 30 used in the last 1 min. An operator set this rate." in shown


def test_status_command_shows_the_rate_and_the_cool_down(raw) -> None:
    mails = Semaphore("mails", rate="1/h", label="digest")
    with mails:
        pass
    mails.cool_down(30)
    (found,) = json.loads(locks("status", "mails", "--format", "json"))["names"]
    rate, cool = found["rate"], found["cool_down"]
    assert 3500 < rate.pop("opens_in_seconds") <= 3600
    assert {"permits": 1, "seconds": 3600, "used": 1, "by_operator": False} == rate
    assert (os.getpid(), "digest") == (cool["pid"], cool["label"]) and cool["since"] < cool["until"]
    shown = " ".join(locks("status", "mails").split())
    assert "Rate: next in" in shown and "1 of 1 used in the last 1 h." in shown
    assert "Cool-down until" in shown
