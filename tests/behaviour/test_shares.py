"""Shares of a name: each has a limit, and waiters of different shares take turns."""

from __future__ import annotations

import enum
from datetime import date
from typing import Any
from uuid import UUID

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redis_sync import (
    Lease,
    Lock,
    NotAcquired,
    ReadWriteLock,
    Semaphore,
    acquire_all,
    synchronized,
)
from django_redis_sync.operators import actions
from django_redis_sync.protocol.plans import Rejection

from .both import both, until

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(1)]


def exports(share: Any, share_limit: int | None = 2, limit: int = 3, **options: Any) -> Semaphore:
    return Semaphore("exports", limit, share=share, share_limit=share_limit, **options)


async def tried(io: Any, semaphore: Semaphore, permits: int = 1) -> Lease | None:
    return await io.do(semaphore, "acquire", False, None, permits)


async def why(io: Any, semaphore: Semaphore) -> Rejection:
    """Return the rejection of an acquire that doesn't wait."""
    take = "_take" if repr(io) == "sync" else "atake"
    got = await io.do(semaphore, take, False) if take == "_take" else await semaphore._atake(False)
    assert isinstance(got, Rejection)
    return got


@both
async def test_acquire_respects_the_share_limit_and_the_total_limit(io, view) -> None:
    a, b = exports("a"), exports("b")
    assert await tried(io, a) and await tried(io, a)
    assert "share" == (await why(io, a)).reason
    assert await tried(io, b)
    assert "full" == (await why(io, exports("c"))).reason
    assert 3 == view("exports").holding


@both
async def test_rejection_by_the_share_limit_reports_the_share(io) -> None:
    a = exports("a")
    assert await tried(io, a) and await tried(io, a)
    rejected = await why(io, a)
    assert (rejected.limit, rejected.waiting) == (2, 0)
    assert "all permits of the share are in use" == str(rejected)
    with pytest.raises(NotAcquired, match="all permits of the share") as caught:
        async with io.entered(exports("a", blocking=False)):
            pass
    assert "share" == caught.value.reason


@both
async def test_not_acquired_names_the_limit_that_the_waiter_waited_for(io) -> None:
    async def waited(share: str, share_limit: int) -> str:
        with pytest.raises(NotAcquired) as caught:
            async with io.entered(exports(share, share_limit, blocking_timeout=0.2)):
                pass
        return caught.value.reason

    assert await tried(io, exports("a")) and await tried(io, exports("a"))
    assert "share" == await waited("a", 2)
    assert await tried(io, exports("b"))
    assert ["share", "timeout", "timeout"] == [
        await waited(share, limit) for share, limit in (("a", 2), ("a", 3), ("b", 2))
    ]


@both
async def test_shares_take_turns_and_each_is_first_in_first_out(io, view) -> None:
    first = await tried(io, exports("a", None, 1))
    got: list[str] = []

    async def one(share: str, number: int) -> None:
        lease = await io.do(exports(share, None, 1), "acquire")
        got.append(f"{share}{number}")
        await io.do(lease, "release")

    waiting = []
    for share, number in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("b", 2)):
        waiting.append(io.start(one(share, number)))
        count = len(waiting)
        await until(io, lambda count=count: view("exports").waiting == count)
    await io.do(first, "release")
    for one_of in waiting:
        await io.result(one_of)
    assert ["a1", "b1", "c1", "a2", "b2", "a3"] == got


@both
async def test_share_at_its_limit_waits_while_other_shares_are_granted(io, view) -> None:
    mine = await tried(io, exports("a", 1))
    second = io.start(io.do(exports("a", 1), "acquire"))
    await until(io, lambda: view("exports").waiting == 1)
    other = await tried(io, exports("b", 1))
    assert other
    await io.do(mine, "release")
    lease = await io.result(second)
    assert lease.held


@both
async def test_callers_without_a_share_are_one_share(io) -> None:
    assert await tried(io, exports(None))
    assert await tried(io, exports(None))
    assert "share" == (await why(io, exports(None))).reason
    assert await tried(io, exports("a"))


@both
async def test_share_limit_counts_permits(io) -> None:
    assert await tried(io, exports("a", 3, 5), 2)
    assert not await tried(io, exports("a", 3, 5), 2)
    assert await tried(io, exports("a", 3, 5), 1)
    with pytest.raises(ValueError, match="4 permits can never fit a share_limit of 3"):
        await tried(io, exports("a", 3, 5), 4)


@both
async def test_share_limit_above_the_total_limit_has_no_effect(io) -> None:
    for _ in range(3):
        assert await tried(io, exports("a", 9))
    assert "full" == (await why(io, exports("a", 9))).reason


@both
async def test_acquire_uses_the_callers_share_limit(io) -> None:
    assert await tried(io, exports("a", 1))
    assert not await tried(io, exports("a", 1))
    assert await tried(io, exports("a", 2))
    assert not await tried(io, exports("a", 2))


@both
async def test_permits_retained_by_min_hold_count_for_the_share(io) -> None:
    lease = await tried(io, exports("a", 1, min_hold=30))
    await io.do(lease, "release")
    assert "share" == (await why(io, exports("a", 1))).reason
    assert await tried(io, exports("b", 1))


@both
async def test_adopted_lease_keeps_its_share(io) -> None:
    lease = await tried(io, exports("a", 1))
    handle = await io.do(lease, "detach")
    adopted = await io.do(Lease, "from_handle", handle)
    assert "share" == (await why(io, exports("a", 1))).reason
    await io.do(adopted, "release")
    assert await tried(io, exports("a", 1))


@both
async def test_expired_lease_frees_a_permit_of_its_share(io, view) -> None:
    assert await tried(io, exports("a", 1, timeout=1, renew=False))
    waiter = await io.do(exports("a", 1), "acquire", True, 20)
    assert waiter.held


@both
async def test_resize_pause_and_resume_work_for_a_name_with_shares(io, view) -> None:
    first = await tried(io, exports("a", 1, 1))
    waiting = [io.start(io.do(exports(share, 1, 1), "acquire")) for share in ("a", "b")]
    await until(io, lambda: view("exports").waiting == 2)
    actions.resize("exports", None, 3)
    assert (await io.result(waiting[1])).held
    actions.pause("exports")
    await io.do(first, "release")
    assert 1 == view("exports").waiting
    assert "paused" == (await why(io, exports("c"))).reason
    actions.resume("exports")
    assert (await io.result(waiting[0])).held


@both
async def test_acquire_all_accepts_semaphores_with_shares(io) -> None:
    both_of = acquire_all([Lock("report"), exports("a", 1)], blocking=False)
    assert await io.do(both_of, "acquire")
    assert not await io.do(acquire_all([exports("a", 1)], blocking=False), "acquire")
    await io.do(both_of, "release")
    assert await tried(io, exports("a", 1))


@both
async def test_unused_share_leaves_no_fields(io, raw, view) -> None:
    lease, info = await tried(io, exports("a b%20", 1)), view("exports").keys.info
    assert b"/a%20b%2520" in raw.hkeys(info)
    await io.do(lease, "release")
    assert not [field for field in raw.hkeys(info) if field.startswith(b"/")]
    plain = await tried(io, Semaphore("exports", 3))
    assert not raw.hkeys(info), "the name is not in compact state again"
    await io.do(plain, "release")


@both
async def test_synchronized_formats_the_share_of_each_call(io) -> None:
    refused: list[Any] = []

    @synchronized("exports", 3, share="{tenant}", share_limit=1, blocking=False)
    def export(tenant: Any, inner: Any = None) -> str:
        if inner is not None:
            try:
                export(inner)
            except NotAcquired as error:
                refused.append(error.reason)
        return "done"

    if repr(io) == "sync":
        assert "done" == export("a:b", "a:b") == export("a", "b")
        assert "done" == export(None, None) == export(7, "7")
        assert ["share", "share"] == refused
        with exports("a:b", 1), pytest.raises(NotAcquired):
            export("a:b")


class Tier(enum.Enum):
    GOLD = 1


@pytest.mark.promise(29)
@pytest.mark.parametrize(
    ("share", "text"),
    [
        ("a", "a"),
        (7, "7"),
        (Tier.GOLD, "GOLD"),
        (date(2026, 1, 2), "2026-01-02"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_share_is_converted_to_text(share: Any, text: str) -> None:
    assert text == exports(share).share


@pytest.mark.promise(29)
def test_invalid_shares_and_combinations_raise_an_error() -> None:
    for wrong in (1.5, True, b"a", ["a"]):
        with pytest.raises(TypeError, match="share must be a str, int, UUID, date or Enum"):
            exports(wrong)
    for text in ("", "é" * 101, "a\n"):
        with pytest.raises(ValueError, match="a share must not"):
            exports(text)
    assert exports("é" * 100).share
    with pytest.raises(ValueError, match="share_limit must be from 1"):
        exports("a", 0)
    with pytest.raises(ValueError, match="shares take turns, which needs fair=True"):
        exports("a", fair=False)
    with pytest.raises(ValueError, match="a read/write lock can't have shares"):
        ReadWriteLock("exports", share="a")
    with pytest.raises(ImproperlyConfigured, match="several servers can't have shares"):
        Lock("exports", share="a", using=["default", "second", "third"])
    with pytest.raises(ValueError, match="share_limit needs a share"):
        synchronized("exports", 3, share_limit=1)
    with pytest.raises(TypeError, match="share must be a template"):
        synchronized("exports", 3, share=7)
    with pytest.raises(ValueError, match="has no argument tenant"):
        synchronized("exports", 3, share="{tenant}")(lambda pk: None)
