"""Options of locks and leases, wrong calls, handles, and lost leases."""

from __future__ import annotations

import base64
import copy  # noqa: F401 - for `eval`
import gc
import json
import math
import pickle
import re
import threading
import weakref
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory, override_settings

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    Unavailable,
    acquire_all,
    semaphore_required,
    synchronized,
)
from django_redis_sync.exceptions import ForeignValue, UpgradeRefused
from django_redis_sync.signals import lease_lost
from django_redis_sync.testing import filled
from tests.behaviour.both import both, queued, until
from tests.behaviour.watching import View
from tests.support.operators import OTHER
from tests.support.relays import CUT, Relay

pytestmark = pytest.mark.usefixtures("clean_redis")


def contents(handle: str) -> Any:
    """Return the values in a handle. They include the options of the lease."""
    return json.loads(base64.urlsafe_b64decode(handle))


def options_of(semaphore: Semaphore) -> dict[str, Any]:
    lease = semaphore.acquire()
    assert lease is not None
    # Read `remaining` before `detach`, because `detach` renews the lease for `timeout`.
    remaining, values = lease.remaining, contents(lease.detach())
    assert values[6] - 2 < remaining <= values[6], "the lease has another duration than its handle"
    values[8] = round(values[8], -1)  # the rest of max_hold, which shrinks with time
    return dict(zip(("timeout", "renew", "max_hold", "min_hold"), values[6:10], strict=True))


OWN = {"timeout": 60, "max_hold": 600, "min_hold": 6}
NAMED = {"timeout": 50, "max_hold": 500, "min_hold": 5}


@pytest.mark.promise(30)
@pytest.mark.parametrize(
    ("given", "entry", "expected"),
    [
        ({}, {}, {"timeout": 40, "renew": True, "max_hold": 400, "min_hold": 0}),
        ({}, NAMED, {**NAMED, "renew": False}),
        (OWN, NAMED, {**OWN, "renew": False}),
        ({}, {"min_hold": 5}, {"timeout": 40, "renew": True, "max_hold": 400, "min_hold": 5}),
        ({"renew": False}, {}, {"timeout": 40, "renew": False}),
        ({"timeout": 10}, {}, {"timeout": 10, "renew": False}),
        ({"timeout": 10, "renew": True}, {}, {"timeout": 10, "renew": True}),
        # A default timeout above max_hold is shortened to max_hold.
        ({"max_hold": 10}, {}, {"timeout": 10, "max_hold": 10, "renew": True}),
    ],
    ids=str,
)
def test_options_come_from_arguments_then_semaphores_setting_then_defaults(
    settings: Any, given: Any, entry: Any, expected: Any
) -> None:
    entry, general = {"limit": 5, **entry}, {"TIMEOUT": 40, "MAX_HOLD": 400}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **general, "SEMAPHORES": {"x": entry}}
    found = options_of(Semaphore("x", **given))
    assert expected == {option: found[option] for option in expected}
    for limit, semaphore in ((5, Semaphore("x")), (6, Semaphore("x", 6, **given))):
        with pytest.raises(ValueError, match=f"7 permits can never fit a limit of {limit}"):
            semaphore.acquire(permits=7)


@pytest.mark.parametrize("seconds", [0, 0.0, 1e30, threading.TIMEOUT_MAX, math.inf])
@both
async def test_blocking_timeout_of_a_call_or_object_overrides_the_settings(
    io, settings, view, seconds: float
) -> None:
    """If another timeout applied, the caller would wait for days or not at all."""
    other = 0 if seconds else 1e6
    entries = {"x": {"blocking_timeout": other}, "y": {"blocking_timeout": seconds}}
    general = {"BLOCKING_TIMEOUT": other, "SEMAPHORES": entries}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **general}
    for lock, arguments in (
        (Lock("x", blocking_timeout=seconds), ()),
        (Lock("x", blocking_timeout=other), (None, seconds)),
        (Lock("x", blocking=False, blocking_timeout=seconds), (True,)),
        (Lock("y"), ()),
    ):
        lease = await io.do(lock, "acquire")
        assert await io.do(lock, "acquire", False) is await io.do(lock, "acquire", None, 0) is None
        waiting = io.start(io.do(lock, "acquire", *arguments))
        if seconds:
            await until(io, lambda: view(lock.name).waiting)  # noqa: B023
        else:
            assert await io.result(waiting) is None
        await io.do(lease, "release")
        if seconds:
            await io.do(await io.result(waiting), "release")


def test_lock_objects_with_similar_arguments_have_separate_labels_and_callbacks() -> None:
    locks = Lock("a", label="mine", on_lost=print), Lock("a"), Lock("b"), Lock("a", key="k")
    for lock, name, label in zip(locks, ("a", "a", "b", "a@k"), ("mine", *[None] * 3), strict=True):
        with lock as lease:
            assert (name, label) == (lease.name, lock.status().holders[0].label.get("label"))
    assert [print, None, None, None] == [lock.on_lost for lock in locks]


def test_changed_attribute_of_a_lock_affects_no_other_lock() -> None:
    class Hard(Lock):
        def __init__(self, name: str, seconds: float) -> None:
            super().__init__(name)
            self.timeout = seconds

    used = Lock("used")
    made = [Hard("a", 5), Hard("b", 6), used]
    assert [5, 6, 30] == [options_of(each)["timeout"] for each in made]
    used.timeout, used.key = 7, "k"
    assert 7 == options_of(used)["timeout"]


def test_on_lost_callback_is_garbage_collected_with_its_lock() -> None:
    lock = Lock("a", on_lost=lambda lease: None)
    reference = weakref.ref(lock.on_lost)
    with lock:
        pass
    del lock
    gc.collect()
    assert reference() is None


def test_locks_with_thousands_of_names_use_bounded_memory() -> None:
    class Name(str):
        """A str that supports weak references."""

    def used(name: Name) -> weakref.ref[Name]:
        Lock(name)
        return weakref.ref(name)

    references = [used(Name(f"name {number}")) for number in range(2000)]
    assert sum(ref() is not None for ref in references) <= 600


# Mistakes


KINDS = ("Lock", "RLock", "ReadWriteLock", "Semaphore")


@pytest.mark.promise(29)
@pytest.mark.parametrize(
    ("code", "text"),
    [
        *((f"{kind}(object(), 'x')", f"{kind}() .*using='") for kind in KINDS),
        *((f"{kind}('x', 3, object())", f"{kind}() .*using='") for kind in KINDS),
        *((f"{kind}('x', expire=6)", f"{kind}() .* expire (write timeout)") for kind in KINDS),
        *((f"{kind}('x', timout=6)", f"{kind}() .* timout (did you mean") for kind in KINDS),
        ("RLock('x', thread_local=False)", "thread_local can't be False"),
        ("Lock('x', auto_renewal=True)", "auto_renewal (write renew)"),
        ("Lock('x', client=object())", "client (write using)"),
        ("Lock('x').acquire(timeout=5)", "Lock.acquire() .* timeout (write blocking_timeout)"),
        ("Lock('x').aacquire(block=5).send(None)", "Lock.aacquire() .* block (write blocking)"),
        ("ReadWriteLock('x').read.acquire(block=5)", "ReadWriteLock.acquire() .* block (write"),
        # These wrong values are equal to valid values. For example, True == 1.
        ("Semaphore('x', True)", "limit must be an int, not True"),
        ("Semaphore('x', 1.0)", "limit must be an int, not 1.0"),
        ("Semaphore('x', 1, timeout=True)", "timeout must be a number of seconds, not True"),
        ("Semaphore('x', 1, release_on_commit=1)", "release_on_commit must be a bool or"),
        ("pickle.dumps(Lock('x'))", "pass the name, or a lease's handle"),
        ("pickle.dumps(Lock('x').acquire())", "pass the handle that detach() returns"),
    ],
)
def test_error_of_a_wrong_call_shows_the_class_and_the_correct_call(code: str, text: str) -> None:
    with Semaphore("x", 1, timeout=1, release_on_commit=True):
        pass
    with pytest.raises((TypeError, ValueError), match=re.sub("[()]", r"\\\g<0>", text)) as caught:
        eval(code)
    assert "__init__" not in str(caught.value)


@pytest.mark.promise(29)
def test_missing_limit_or_misspelled_semaphore_name_is_reported_immediately(settings: Any) -> None:
    message = r"Semaphore\('exports', limit\).*SEMAPHORES.*exports"
    with pytest.raises(ImproperlyConfigured, match=message):
        Semaphore("exports")
    with override_settings(REDIS_SYNC={"SEMAPHORES": {"exports": {"limit": 2}}}):
        made = Semaphore("exports")
        with pytest.raises(AssertionError, match="did you mean 'exports'"):
            filled("exprots", 3).__enter__()
    with pytest.raises(ImproperlyConfigured, match=message):
        made.acquire()


@pytest.mark.parametrize("error", [NotAcquired("no more", "full", "a"), LeaseLost("no more", "a")])
def test_error_shows_its_message_and_can_be_pickled(error: Any) -> None:
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert f"[{type(error).__name__}('no more')]" == str([each])
        assert ("no more", error.args, "a") == (str(each), each.args, each.lock_name)
        assert "no more" == each.args[0]
        assert getattr(error, "reason", None) == getattr(each, "reason", None)
    assert "Unavailable('no more')" == repr(Unavailable("no more"))


@pytest.mark.parametrize("code", ["Semaphore('a', 3)", *(f"{kind}('a')" for kind in KINDS[:3])])
def test_repr_is_the_constructor_expression(code: str) -> None:
    assert code == repr(eval(code))
    assert "ReadWriteLock('a').read" == repr(ReadWriteLock("a").read)


# Leases


@both
async def test_repr_of_a_lease_shows_the_time_left_or_how_it_ended(io) -> None:
    lease = await io.do(Lock("a", timeout=12), "acquire")
    head = f"<Lease 'a' {lease.token[:8]}"
    assert re.fullmatch(rf"{head} 1[0-2]\.\d s left>", repr(lease)), lease
    assert datetime.fromtimestamp(lease.fence / 1e6, tz=timezone.utc) == lease.acquired_at
    await io.do(lease, "release")
    assert f"{head} released>" == repr(lease)


@both
async def test_on_lost_callback_and_signal_receivers_are_called_once_for_a_lost_lease(
    io, view, caplog
) -> None:
    former, called, received = list[Any](), list[Any](), list[Any]()

    def receive(sender: Any, lease: Lease, reason: str, **_: Any) -> None:
        received.append((sender, lease, reason))

    detached = await io.do(Lock("a", on_lost=former.append), "acquire")
    handle = await io.do(detached, "detach")
    lease = await io.do(Lease, "from_handle", handle, on_lost=called.append)
    view("a").clear()
    lease_lost.connect(receive)
    try:
        for _ in range(2):
            with pytest.raises(LeaseLost):
                await io.do(lease, "renew")
        await until(io, lambda: called and received)
    finally:
        lease_lost.disconnect(receive)
    reason = "Redis no longer has the lease"
    assert ([], [lease], [(Lease, lease, reason)]) == (former, called, received)
    assert 1 == caplog.text.count("lost a lease of 'a'")
    assert f"<Lease 'a' {lease.token[:8]} {reason}>" == repr(lease)


@both
async def test_write_lease_becomes_a_read_lease_if_downgrade_is_retried_after_an_error(
    io, view
) -> None:
    lock, leases = ReadWriteLock("rows"), view("rows").keys.leases
    lease = await io.do(lock.write, "acquire")
    view("rows").client.rename(leases, f"{leases}:away")
    view("rows").client.set(leases, "another program's value")
    with pytest.raises(ForeignValue):
        await io.do(lock, "downgrade")
    view("rows").client.rename(f"{leases}:away", leases)
    assert lease is await io.do(lock, "downgrade")
    with pytest.raises(NotAcquired):
        await io.do(lock.write, "release")
    adopted = await io.do(Lease, "from_handle", await io.do(lease, "detach"))
    assert 1 == adopted.permits
    with pytest.raises(TypeError, match="only a writer's"):
        await io.do(adopted, "downgrade")
    await io.do(adopted, "release")


# Handles


def test_lease_with_the_longest_allowed_name_can_be_restored_from_its_handle() -> None:
    longest = "%" * 200
    semaphore = Semaphore(
        longest, 9, key=longest, timeout=12.5, renew=True, max_hold=60, min_hold=7
    )
    lease = semaphore.acquire(permits=3)
    assert lease is not None
    handle = lease.detach()
    adopted = Lease.from_handle(handle)
    for name in ("name", "token", "fence", "permits"):
        assert getattr(lease, name) == getattr(adopted, name), name
    again = contents(adopted.detach())
    assert contents(handle)[:8] == again[:8]
    assert 7 == again[9] and 55 < again[8] < 60


@pytest.mark.promise(5)
def test_late_copy_of_an_acquire_is_refused_after_its_adopted_lease_was_released(
    relay: Relay,
) -> None:
    relay.answer("acquire", lambda command, forward: forward() and CUT, times=1)
    lease = Lock("x", using=relay.alias).acquire()
    assert lease is not None
    Lease.from_handle(lease.detach()).release()
    unanswered = next(one for one in relay.received if one.verb == "acquire")
    assert b"dead" == relay.raw.execute_command(*unanswered)
    assert 0 == relay.view().holding


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((0, 2), (1, 7), (2, None), (3, "a b"), (3, "a" * 65), (4, "x"), (5, "3")),
        *((6, -1), (6, "3"), (8, "3"), (9, -1), (9, "3"), (11, "9")),
    ],
)
def test_handle_with_a_wrong_value_is_rejected(place: int, value: Any) -> None:
    lease = Lock("a").acquire()
    assert lease is not None
    values = contents(lease.detach())
    values[place] = value
    with pytest.raises(ValueError, match="not the handle of a lease"):
        Lease.from_handle(base64.urlsafe_b64encode(json.dumps(values).encode()).decode())


@both
async def test_keys_of_every_public_class_have_the_prefix_of_the_cache_alias(
    io, second, raw: redis.Redis
) -> None:
    def make(kind: Any, *limit: int, **options: Any) -> Any:
        return kind("aliased", *limit, **options, **OTHER)

    client = caches["other"].client.get_client()  # type: ignore[attr-defined]
    async with io.entered(make(Lock)) as lease:
        with pytest.raises(NotAcquired, match=r"\(this (thread|task) holds the lock"):
            await io.entered(make(Lock, blocking=False)).__aenter__()
        assert await io.do(lease, "owned") and await io.do(make(Lock), "locked")
        assert not await io.do(Lock("aliased"), "locked")
        waiting = await queued(io, make(Lock), View(client, "aliased", "second:sync"))
    adopted = await io.do(Lease, "from_handle", await io.do(await io.result(waiting), "detach"))
    await io.do(adopted, "release")
    async with io.entered(make(RLock)), io.entered(make(RLock, blocking_timeout=1)):
        assert await io.do(make(RLock), "owned")
    async with io.entered(make(ReadWriteLock).write) as lease:
        await io.do(lease, "downgrade")
        assert await io.do(make(ReadWriteLock).write, "acquire", blocking=False) is None
        with pytest.raises(UpgradeRefused):
            await io.do(make(ReadWriteLock).write, "acquire")
    async with io.entered(acquire_all([make(Lock), make(Semaphore, 2, key="7")])):
        assert 1 == (await io.do(make(Semaphore, 2, key="7"), "status")).in_use
        assert not await io.do(Semaphore("aliased", 2, key="7"), "locked")
    if repr(io) == "sync":
        make(synchronized)(lambda: None)()
        limited = make(semaphore_required, limit=2)
        view = limited(lambda request: HttpResponse(make(Semaphore, 2).status().in_use))
        assert b"1" == view(RequestFactory().get("/")).content
    found = [key.decode() for key in client.scan_iter()]
    assert found and all(key.startswith("second:sync:") for key in found), found
    assert [] == [key for key in raw.scan_iter() if b"aliased" in key]


@both
async def test_error_of_a_lost_lease_says_that_max_hold_has_passed(io, caplog) -> None:
    lease = await io.do(Lock("n", max_hold=2), "acquire")
    await until(io, lambda: not lease.held)
    await until(io, lambda: "max_hold has passed" in caplog.text)
    with pytest.raises(LeaseLost, match="max_hold has passed"):
        lease.check()


@both
async def test_extension_right_after_a_handoff_adds_to_the_full_lease_duration(
    io, raw: redis.Redis
) -> None:
    """A handoff grants a lease of a few seconds. The new holder extends it to the full duration."""
    first = await io.do(Lock("n"), "acquire")
    waiting = await queued(io, Lock("n", timeout=60), View(raw, "n"))
    await io.do(first, "release")
    lease = await io.result(waiting)
    await io.do(lease, "extend", 30)
    assert 70 < lease.remaining <= 90
    assert 70 < View(raw, "n").ends_in <= 91
