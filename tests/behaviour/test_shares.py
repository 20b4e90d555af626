"""Limits of shares. A share is a part of the callers of a name, for example one tenant."""

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
from tests.support.operators import locks

from .both import both, eventually, queued

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(1)]


def exports(share: Any, share_limit: int | None = 2, limit: int = 3, **options: Any) -> Semaphore:
    return Semaphore("exports", limit, share=share, share_limit=share_limit, **options)


async def tried(io: Any, semaphore: Semaphore, permits: int = 1) -> Lease | None:
    return await io.do(semaphore, "acquire", False, None, permits)


async def why(io: Any, **options: Any) -> str:
    """Return the reason why a semaphore with `options` rejects a call. Fail if it succeeds."""
    with pytest.raises(NotAcquired) as caught:
        async with io.entered(exports(**{"blocking": False, **options})):
            pytest.fail("granted")
    return caught.value.reason


@pytest.mark.parametrize(
    ("share_limit", "limit", "tries"),
    # Each word of `tries` is a request: a share, then `*PERMITS` if it needs several permits, then
    # `:REASON` if it should be rejected for this reason.
    [
        (2, 3, "a a a:share b c:full"),
        (2, 3, "- - -:share a"),  # `-`: a request without a share
        (3, 5, "a*2 a*2:share a a:share"),
        (9, 3, "a a a a:full"),
    ],
)
@both
async def test_acquire_respects_the_share_limit_and_the_total_limit(
    io, view, share_limit: int, limit: int, tries: str
) -> None:
    for word in tries.split():
        of, _, reason = word.partition(":")
        share, _, permits = of.partition("*")
        options: Any = {"share_limit": share_limit, "limit": limit}
        options["share"] = None if share == "-" else share
        lease = await tried(io, exports(**options), int(permits or 1))
        assert bool(lease) == (not reason), word
        assert not reason or permits or reason == await why(io, **options)
    assert sum(":" not in word for word in tries.split()) == view("exports").holding


@both
async def test_acquire_obeys_its_own_share_limit_if_callers_set_different_share_limits(io) -> None:
    for limit, granted in ((1, True), (1, False), (2, True), (2, False)):
        assert granted == bool(await tried(io, exports("a", limit)))


@both
async def test_rejection_reason_is_share_if_the_share_limit_is_reached(io) -> None:
    """If a caller's wait ends at its timeout, and the share is then at its limit, the reason is
    "share". Otherwise, the reason is "timeout"."""
    assert await tried(io, exports("a")) and await tried(io, exports("a"))
    with pytest.raises(NotAcquired, match="all permits of the share are in use"):
        async with io.entered(exports("a", blocking=False)):
            pass
    with pytest.raises(ValueError, match="4 permits can never fit a share_limit of 3"):
        await tried(io, exports("a", 3, 5), 4)
    assert "share" == await why(io, share="a", blocking=True, blocking_timeout=0.2)
    assert await tried(io, exports("b"))
    waited = [("a", 2, "share"), ("a", 3, "timeout"), ("b", 2, "timeout")]
    for share, limit, reason in waited:
        options = {"share": share, "share_limit": limit}
        assert reason == await why(io, **options, blocking=True, blocking_timeout=0.2)


@both
async def test_waiter_of_a_full_share_does_not_block_callers_of_other_shares(io, view) -> None:
    mine = await tried(io, exports("a", 1))
    second = await queued(io, exports("a", 1), view("exports"))
    assert await tried(io, exports("b", 1))
    await io.do(mine, "release")
    assert (await io.result(second)).held


@both
async def test_adopted_and_retained_permits_count_for_their_share_until_expiry(io) -> None:
    lease = await tried(io, exports("a", 1, timeout=1, renew=False))
    adopted = await io.do(Lease, "from_handle", await io.do(lease, "detach"))
    assert "share" == await why(io, share="a", share_limit=1)
    waiter = await io.do(exports("a", 1, min_hold=30), "acquire", True, 20)
    assert waiter.held and not adopted.held  # the adopted lease has expired
    await io.do(waiter, "release")
    assert "share" == await why(io, share="a", share_limit=1)
    assert await tried(io, exports("b", 1))


@both
async def test_operators_can_resize_pause_and_resume_a_name_with_shares(io, view) -> None:
    first = await tried(io, exports("a", 1, 1))
    waiting = [
        await queued(io, exports(share, 1, 1), view("exports"), n)
        for n, share in enumerate("ab", 1)
    ]
    locks("resize", "exports", "3")
    assert (await io.result(waiting[1])).held
    locks("pause", "exports")
    await io.do(first, "release")
    assert 1 == view("exports").waiting
    assert "paused" == await why(io, share="c")
    locks("resume", "exports")
    assert (await io.result(waiting[0])).held


@both
async def test_acquire_all_accepts_semaphores_with_shares(io) -> None:
    both_of = acquire_all([Lock("report"), exports("a", 1)], blocking=False)
    assert await io.do(both_of, "acquire")
    assert not await io.do(acquire_all([exports("a", 1)], blocking=False), "acquire")
    await io.do(both_of, "release")
    assert await tried(io, exports("a", 1))


@both
async def test_share_is_shown_as_given_and_leaves_no_fields_when_unused(io, raw, view) -> None:
    lease, info = await tried(io, exports("a b%20", 1)), view("exports").keys.info
    assert b"/a%20b%2520" in raw.hkeys(info)
    status = await io.do(exports("a b%20", 1), "status")
    shown = [one.name for one in status.shares], [one.share for one in status.holders]
    assert (["a b%20"], ["a b%20"]) == shown, "operators don't see the text of the share"
    await io.do(lease, "release")
    assert not [field for field in raw.hkeys(info) if field.startswith(b"/")]
    plain = await tried(io, Semaphore("exports", 3))
    assert not raw.hkeys(info), "the name is not in compact state again"
    await io.do(plain, "release")


@pytest.mark.parametrize(
    ("tenant", "inner", "refused"),
    [("a:b", "a:b", True), ("a", "b", False), (None, None, True), (7, "7", True)],
)
def test_synchronized_decorator_fills_in_the_share_from_the_arguments_of_each_call(
    tenant, inner, refused
) -> None:
    @synchronized("exports", 3, share="{tenant}", share_limit=1, blocking=False)
    def export(tenant: Any, inner: Any = 0) -> str:
        return "" if inner == 0 else export(inner)

    if refused:
        with pytest.raises(NotAcquired) as caught:
            export(tenant, inner)
        assert "share" == caught.value.reason
    else:
        assert "" == export(tenant, inner)
    with exports(tenant, 1), pytest.raises(NotAcquired):
        export(tenant)


class Tier(enum.Enum):
    GOLD = 1


@pytest.mark.promise(29)
def test_share_is_converted_to_text_or_raises_an_error() -> None:
    shares = {"a": "a", 7: "7", Tier.GOLD: "GOLD", date(2026, 1, 2): "2026-01-02"}
    shares |= {UUID(int=1): "00000000-0000-0000-0000-000000000001", "é" * 100: "é" * 100}
    assert [*shares.values()] == [exports(share).share for share in shares]
    for wrong in (1.5, True, b"a", ["a"]):
        with pytest.raises(TypeError, match="share must be a str, int, UUID, date or Enum"):
            exports(wrong)
    for text in ("", "é" * 101, "a\n"):
        with pytest.raises(ValueError, match="a share must not"):
            exports(text)
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


@pytest.mark.promise(25)
def test_expired_lease_is_not_counted_in_the_status_of_its_share() -> None:
    """Redis stores an expired lease until the next caller's script removes it."""
    assert exports("dead", timeout=0.3).acquire() and exports("live").acquire()
    eventually(lambda: 1 == exports("any").status().in_use)
    assert [("live", 1)] == [(s.name, s.in_use) for s in exports("any").status().shares]
