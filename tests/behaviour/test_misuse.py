"""A wrong argument raises one clear error before a command is sent."""

from __future__ import annotations

import base64
import inspect
import json
import math
from typing import Any, get_args, get_type_hints

import pytest
from django.core.exceptions import ImproperlyConfigured

import django_redis_sync
from django_redis_sync import Lease, LeaseLost, Lock, Semaphore
from django_redis_sync.defaults import Option, SemaphoreOptions, Share

from .both import both

pytestmark = pytest.mark.promise(10, 29)

NAN = float("nan")


UNUSABLE = ["", "nul\0", "line\nfeed", "\x1b[31mred", "surrogate\ud800", "turned\u202ename"]
BAD_NAMES = [(name, ValueError) for name in [*UNUSABLE, "x" * 201, "é" * 101]]
BAD_NAMES += [(name, TypeError) for name in (None, 7, b"bytes")]


@pytest.mark.parametrize(("name", "error"), BAD_NAMES, ids=lambda value: ascii(value)[:20])
def test_unusable_name_or_key_raises_an_error(nothing_sent, name: Any, error: Any) -> None:
    for make in (Lock, lambda name: Semaphore(name, 3), lambda key: Lock("x", key=key)):
        if name is not None or make is Lock:  # skip `key=None`, which is valid
            with pytest.raises(error) as caught:
                make(name)
            assert error is type(caught.value)


#: Valid names, all different. The last two, added below, differ only in the form of their é.
GOOD_NAMES = ["{", "}", "a{b}c", "{}", ":", "a:leases", "a b", "日本語", "a@b", "a%40b", "%7B"]
GOOD_NAMES += ["x" * 200, "caf\u00e9", "cafe\u0301"]


@both
async def test_each_unusual_but_valid_name_identifies_a_different_lock(io, clean_redis) -> None:
    leases = [await io.do(Lock(name, blocking=False), "acquire") for name in GOOD_NAMES]
    assert GOOD_NAMES == [lease.name for lease in leases]
    assert len(GOOD_NAMES) == len({lease.token for lease in leases})
    for name in GOOD_NAMES:
        assert await io.do(Lock(name, blocking=False), "acquire") is None


SECONDS = [(0, ValueError), (-1, ValueError), (NAN, ValueError), (1e30, ValueError)]
SECONDS += [("5", TypeError), (True, TypeError), ([], TypeError), (-math.inf, ValueError)]


WAITS = [(seconds, error) for seconds, error in SECONDS if seconds not in (0, 1e30)]
WRONG: list[Any] = [
    *(({"limit": n}, ValueError) for n in (0, -1, 2**31)),
    *(({"limit": n}, TypeError) for n in (2.0, NAN, True, "3")),
    *(({d: n}, error) for d in ("timeout", "max_hold", "min_hold") for n, error in SECONDS),
    *(({"blocking_timeout": n}, error) for n, error in [*WAITS, (False, TypeError)]),
    *(({"using": using}, ImproperlyConfigured) for using in (("a", "b"), ["default"], 7)),
    ({"label": 7}, TypeError),
]


@pytest.mark.parametrize(("options", "error"), WRONG, ids=str)
def test_invalid_option_raises_an_error_that_names_it(nothing_sent, options, error) -> None:
    (name,) = options
    with pytest.raises(error, match=name):
        Semaphore("x", **{"limit": 3, **options})


WRONG_CALLS: list[Any] = [
    *(({"permits": n}, ValueError, "permits") for n in (0, -1)),
    *(({"permits": n}, TypeError, "permits") for n in (1.0, True)),
    ({"permits": 6}, ValueError, "never fit"),
    ({"token": "mine"}, TypeError, "token"),
    *(({"blocking_timeout": n}, error, "blocking_timeout") for n, error in WAITS),
]


@pytest.mark.parametrize(("options", "error", "words"), WRONG_CALLS, ids=str)
@both
async def test_invalid_argument_of_acquire_raises_an_error(io, nothing_sent, options, error, words):
    with pytest.raises(error, match=words):
        await io.do(Semaphore("x", 5), "acquire", **options)


@both
async def test_forged_handle_cannot_be_adopted(io, clean_redis) -> None:
    lease = await io.do(Lock("forged"), "acquire")
    genuine = json.loads(base64.urlsafe_b64decode(await io.do(lease, "detach")))
    for place, value in ((3, "0" * 32), (4, str(lease.fence + 1))):
        wrong = [*genuine[:place], value, *genuine[place + 1 :]]
        handle = base64.urlsafe_b64encode(json.dumps(wrong).encode()).decode()
        with pytest.raises(LeaseLost):
            await io.do(Lease, "from_handle", handle)
    assert await io.do(lease, "locked")


@pytest.mark.parametrize("seconds", [0, -1, NAN, 1e30, math.inf])
@both
async def test_invalid_extension_raises_value_error(io, clean_redis, seconds: float) -> None:
    lease = await io.do(Lock("extension"), "acquire")
    before = lease.remaining
    with pytest.raises(ValueError, match="additional_time"):
        await io.do(lease, "extend", seconds)
    if seconds != math.inf:
        with pytest.raises(ValueError, match="timeout"):
            await io.do(lease, "renew", seconds)
    assert 0 < lease.remaining <= before and await io.do(lease, "owned")


def test_constructor_of_semaphore_has_the_options_of_the_semaphore_options_type() -> None:
    """Type checkers read the options of Lock and other classes from SemaphoreOptions, but the
    options of Semaphore from its own signature. Both must have the same options."""
    takes = inspect.signature(Semaphore).parameters
    named = {name for name, parameter in takes.items() if parameter.kind is parameter.KEYWORD_ONLY}
    table = get_type_hints(SemaphoreOptions, include_extras=True)
    assert set(table) == named
    hints = get_type_hints(Semaphore.__init__, localns={"Lease": Any, "Share": Share})
    for name, kind in table.items():
        (option,) = (extra for extra in get_args(kind) if isinstance(extra, Option))
        assert option.default == takes[name].default, name
        assert name == "on_lost" or get_args(kind)[0] == hints[name], name


#: Methods without an async version, because they send no command or work only in sync transactions.
LOCAL = {"check", "atomic", "alias", "release_later"}


@pytest.mark.parametrize("kind", ["Semaphore", "Lock", "Lease", "RLock", "ReadWriteLock"])
def test_each_method_has_an_async_version_with_the_same_signature(kind: str) -> None:
    methods = dict(inspect.getmembers(getattr(django_redis_sync, kind), callable))
    public = {name: method for name, method in methods.items() if not name.startswith("_")}
    twins = {name for name in public if name[0] == "a" and name[1:] in public}
    for name in public.keys() - twins - LOCAL:
        assert "a" + name in public, f"{kind}.{name} has no async version"
        method, async_version = public[name], public["a" + name]
        assert inspect.signature(method) == inspect.signature(async_version), name
        assert inspect.iscoroutinefunction(async_version)
        assert not inspect.iscoroutinefunction(method)
