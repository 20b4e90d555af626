"""`clear()` ends the leases of a name, and is recorded as an action of an operator."""

from __future__ import annotations

import math
from typing import Any

import pytest
import redis

import django_redis_sync
from django_redis_sync import LeaseLost, Lock, Semaphore
from django_redis_sync.operators.audit import acts, person
from tests.behaviour.both import both, queued
from tests.behaviour.watching import View

pytestmark = pytest.mark.promise(26)


@both
async def test_clear_ends_the_leases_of_a_name_and_is_recorded(io: Any, raw: redis.Redis) -> None:
    semaphore, other = Semaphore("stuck", 2, timeout=math.inf), Lock("other")
    leases = [await io.do(semaphore, "acquire") for _ in range(2)]
    untouched = await io.do(other, "acquire")
    waiting = await queued(io, Semaphore("stuck", 2, blocking_timeout=60), View(raw, "stuck"))
    assert 2 == await io.do(django_redis_sync, "clear", "stuck", reason="host is gone")
    assert (await io.result(waiting)).held and await io.do(untouched, "owned")
    for lease in leases:
        with pytest.raises(LeaseLost):
            await io.do(lease, "release")
    (act,) = acts("stuck")
    assert ("clear", person(), "host is gone", 2) == (act.what, act.by, act.reason, len(act.ids))


@both
async def test_clear_of_a_key_ends_only_its_leases(io: Any, raw: redis.Redis) -> None:
    one, two = [await io.do(Semaphore("api", 1, key=key), "acquire") for key in "ab"]
    assert 1 == await io.do(django_redis_sync, "clear", "api", key="a", by="ann")
    assert not await io.do(one, "owned") and await io.do(two, "owned")
    assert [("a", "ann")] == [(act.key, act.by) for act in acts()]


@both
async def test_clear_of_a_free_name_is_not_recorded(io: Any, raw: redis.Redis) -> None:
    assert 0 == await io.do(django_redis_sync, "clear", "free"), "a name without holders"
    assert [] == acts(), "recorded although nothing was cleared"
