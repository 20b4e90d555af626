"""A wrong argument raises one clear error before a command is sent."""

from __future__ import annotations

import base64
import inspect
import json
import math
import select
import socket
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redis_sync import Lease, LeaseLost, Lock, NotAcquired, Semaphore
from django_redis_sync.defaults import Option, SemaphoreOptions, Share

from .both import both

pytestmark = pytest.mark.promise(10, 29)

NAN = float("nan")


@pytest.fixture
def nothing_sent(settings: Any) -> Iterator[None]:
    """Fail if the test opens a connection to the server of its cache alias."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        location = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        unasked = {**settings.CACHES["default"], "LOCATION": location}
        settings.CACHES = {**settings.CACHES, "unasked": unasked}
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "CACHE": "unasked"}
        yield
        assert ([], [], []) == select.select([listener], [], [], 0)


BAD_NAMES = [
    ("", ValueError),
    (None, TypeError),
    (7, TypeError),
    (b"bytes", TypeError),
    ("nul\0", ValueError),
    ("line\nfeed", ValueError),
    ("\x1b[31mred", ValueError),
    ("surrogate\ud800", ValueError),
    ("turned\u202ename", ValueError),
    ("x" * 201, ValueError),
    ("é" * 101, ValueError),
]


@pytest.mark.parametrize(("name", "error"), BAD_NAMES, ids=lambda value: ascii(value)[:20])
@pytest.mark.parametrize("make", [Lock, lambda name: Semaphore(name, 3)], ids=["lock", "semaphore"])
def test_unusable_name_or_key_raises_an_error(nothing_sent, make, name, error) -> None:
    with pytest.raises(error) as caught:
        make(name)
    assert error is type(caught.value)
    if name is not None:  # None means no key
        with pytest.raises(error):
            Lock("x", key=name)


GOOD_NAMES = [
    "{",
    "}",
    "a{b}c",
    "{}",
    ":",
    "a:leases",
    "a b",
    "日本語",
    "a@b",
    "a%40b",
    "%7B",
    "x" * 200,
]


@both
async def test_unusual_names_work_and_are_different_locks(io, raw) -> None:
    lost = []
    for name in GOOD_NAMES:
        lost.append(await io.do(Lock(name, blocking=False), "acquire"))
    assert all(lost)
    assert len(GOOD_NAMES) == len({lease.token for lease in lost})
    for name in GOOD_NAMES:
        assert await io.do(Lock(name, blocking=False), "acquire") is None
    assert [lease.name for lease in lost] == GOOD_NAMES


@both
async def test_composed_and_decomposed_letters_are_different_names(io, clean_redis) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert await io.do(Lock(composed, blocking=False), "acquire")
    assert await io.do(Lock(decomposed, blocking=False), "acquire")


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (2**31, ValueError),
        (2.0, TypeError),
        (NAN, TypeError),
        (True, TypeError),
        ("3", TypeError),
    ],
)
def test_invalid_limit_raises_an_error(nothing_sent, limit: Any, error: type) -> None:
    with pytest.raises(error, match="limit"):
        Semaphore("x", limit)


SECONDS = [(0, ValueError), (-1, ValueError), (NAN, ValueError), (1e30, ValueError)]
SECONDS += [("5", TypeError), (True, TypeError), ([], TypeError), (-math.inf, ValueError)]


@pytest.mark.parametrize("option", ["timeout", "max_hold", "min_hold"])
@pytest.mark.parametrize(("seconds", "error"), SECONDS)
def test_invalid_duration_raises_an_error(
    nothing_sent, option: str, seconds: Any, error: type
) -> None:
    with pytest.raises(error, match=option):
        Lock("x", **{option: seconds})


@pytest.mark.parametrize(("seconds", "error"), [row for row in SECONDS if row[0] not in (0, 1e30)])
@both
async def test_invalid_blocking_timeout_raises_an_error(
    io, nothing_sent, seconds: Any, error: type
) -> None:
    with pytest.raises(error, match="blocking_timeout"):
        Lock("x", blocking_timeout=seconds)
    with pytest.raises(error, match="blocking_timeout"):
        await io.do(Lock("x"), "acquire", blocking_timeout=seconds)


@both
async def test_blocking_timeout_zero_tries_once(io, clean_redis) -> None:
    lock = Lock("zero", blocking_timeout=0)
    assert await io.do(lock, "acquire")
    assert await io.do(lock, "acquire") is None
    assert await io.do(Lock("zero"), "acquire", blocking_timeout=0.0) is None
    with pytest.raises(TypeError):
        Lock("zero", blocking_timeout=False)


@both
async def test_blocking_timeout_can_be_infinite(io, clean_redis) -> None:
    assert await io.do(Lock("endless", blocking_timeout=math.inf), "acquire")


@pytest.mark.parametrize(
    ("permits", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)]
)
@both
async def test_invalid_permits_raise_an_error(io, nothing_sent, permits: Any, error: type) -> None:
    with pytest.raises(error, match="permits"):
        await io.do(Semaphore("x", 5), "acquire", permits=permits)


@both
async def test_more_permits_than_the_limit_raise_value_error(io, nothing_sent) -> None:
    with pytest.raises(ValueError, match="never fit"):
        await io.do(Semaphore("x", 5), "acquire", permits=6)
    with pytest.raises(ValueError, match="never fit"):
        await io.do(Lock("x"), "acquire", permits=2)


@both
async def test_acquire_rejects_a_token_argument(io, nothing_sent) -> None:
    with pytest.raises(TypeError, match="token"):
        await io.do(Lock("x"), "acquire", token="mine")


@both
async def test_acquire_raises_improperly_configured_when_the_semaphore_has_no_limit(
    io, nothing_sent
) -> None:
    with pytest.raises(ImproperlyConfigured, match="has no limit"):
        await io.do(Semaphore("unknown"), "acquire")


@pytest.mark.parametrize("using", [("a", "b"), ["default"], 7], ids=str)
def test_semaphore_rejects_using_that_is_not_one_alias(nothing_sent, using: Any) -> None:
    with pytest.raises((ImproperlyConfigured, TypeError)):
        Semaphore("x", 3, using=using)


def test_label_must_be_a_string(nothing_sent) -> None:
    with pytest.raises(TypeError, match="label"):
        Lock("x", label=7)


@pytest.mark.parametrize("handle", ["", "x", "e30=", "W10=", "ü", "a" * 5000, "WzEsMiwzXQ=="])
@both
async def test_invalid_handle_raises_value_error(io, nothing_sent, handle: str) -> None:
    with pytest.raises(ValueError, match="not the handle of a lease"):
        await io.do(Lease, "from_handle", handle)


@both
async def test_handle_that_is_not_a_string_raises_type_error(io, nothing_sent) -> None:
    with pytest.raises(TypeError, match="handle"):
        await io.do(Lease, "from_handle", b"bytes")


@both
async def test_forged_handle_cannot_be_adopted(io, clean_redis) -> None:
    """A handle with a guessed token or a wrong fence raises LeaseLost."""
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


@both
async def test_release_without_a_lease_raises_not_acquired(io, nothing_sent) -> None:
    with pytest.raises(NotAcquired, match="holds nothing"):
        await io.do(Lock("x"), "release")


# The table of options


def test_semaphore_options_match_the_table_of_options() -> None:
    """Lock and other classes type their options by the table, Semaphore by its signature."""
    takes = inspect.signature(Semaphore).parameters
    named = {name for name, parameter in takes.items() if parameter.kind is parameter.KEYWORD_ONLY}
    table = get_type_hints(SemaphoreOptions, include_extras=True)
    assert set(table) == named
    for name, kind in table.items():
        (option,) = (extra for extra in get_args(kind) if isinstance(extra, Option))
        assert option.default == takes[name].default, name
    hints = get_type_hints(Semaphore.__init__, localns={"Lease": Any, "Share": Share})
    for name in named - {"on_lost"}:
        assert get_args(table[name])[0] == hints[name], name


# Async versions


def sync_methods(kind: type) -> list[str]:
    """Return the public methods that must have an async version."""
    # These send no command, or work only in Django's sync transactions.
    local = {"check", "atomic", "alias", "release_later"}
    public = [name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")]
    return [name for name in public if name not in local and not _is_async_version(name, public)]


def _is_async_version(name: str, public: list[str]) -> bool:
    return name.startswith("a") and name[1:] in public


def every_kind() -> list[type]:
    import django_redis_sync

    names = ("Semaphore", "Lock", "Lease", "RLock", "ReadWriteLock")
    kinds = [getattr(django_redis_sync, name, None) for name in names]
    return [kind for kind in kinds if kind is not None]


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
def test_each_method_has_an_async_version_with_the_same_signature(kind: type) -> None:
    for name in sync_methods(kind):
        assert hasattr(kind, "a" + name), f"{kind.__name__}.{name} has no async version"
        method, async_version = getattr(kind, name), getattr(kind, "a" + name)
        assert inspect.signature(method) == inspect.signature(async_version), name
        assert inspect.iscoroutinefunction(async_version)
        assert not inspect.iscoroutinefunction(method)
