"""Wrong arguments: one clear error each, before anything is sent."""

from __future__ import annotations

import inspect
import math
import select
import socket
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redis_sync import Lease, LeaseLost, Lock, Semaphore
from django_redis_sync.defaults import Option, SemaphoreOptions, Share

from .both import both

pytestmark = pytest.mark.promise(10, 29)

NAN = float("nan")


@pytest.fixture
def nothing_sent(settings: Any) -> Iterator[None]:
    """Fails when somebody connected to the server of the test's own alias, or so much as tried."""
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
def test_a_name_that_cannot_be_shown_or_stored(nothing_sent, make, name, error) -> None:
    with pytest.raises(error) as caught:
        make(name)
    assert error is type(caught.value)
    if name is not None:  # else it has none
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
async def test_names_of_all_sorts_work_and_do_not_meet(io, raw) -> None:
    lost = []
    for name in GOOD_NAMES:
        lost.append(await io.do(Lock(name, blocking=False), "acquire"))
    assert all(lost)
    assert len(GOOD_NAMES) == len({lease.token for lease in lost})
    for name in GOOD_NAMES:
        assert await io.do(Lock(name, blocking=False), "acquire") is None
    assert [lease.name for lease in lost] == GOOD_NAMES


@both
async def test_forms_of_one_letter_are_two_names(io, clean_redis) -> None:
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
def test_a_limit_that_is_no_count(nothing_sent, limit: Any, error: type) -> None:
    with pytest.raises(error, match="limit"):
        Semaphore("x", limit)


SECONDS = [(0, ValueError), (-1, ValueError), (NAN, ValueError), (1e30, ValueError)]
SECONDS += [("5", TypeError), (True, TypeError), ([], TypeError), (-math.inf, ValueError)]


@pytest.mark.parametrize("option", ["timeout", "max_hold", "min_hold"])
@pytest.mark.parametrize(("seconds", "error"), SECONDS)
def test_seconds_that_are_none(nothing_sent, option: str, seconds: Any, error: type) -> None:
    with pytest.raises(error, match=option):
        Lock("x", **{option: seconds})


@pytest.mark.parametrize(("seconds", "error"), [row for row in SECONDS if row[0] not in (0, 1e30)])
@both
async def test_a_wait_of_no_seconds(io, nothing_sent, seconds: Any, error: type) -> None:
    with pytest.raises(error, match="blocking_timeout"):
        Lock("x", blocking_timeout=seconds)
    with pytest.raises(error, match="blocking_timeout"):
        await io.do(Lock("x"), "acquire", blocking_timeout=seconds)


@both
async def test_a_wait_of_zero_tries_once(io, clean_redis) -> None:
    lock = Lock("zero", blocking_timeout=0)
    assert await io.do(lock, "acquire")
    assert await io.do(lock, "acquire") is None
    assert await io.do(Lock("zero"), "acquire", blocking_timeout=0.0) is None
    with pytest.raises(TypeError):
        Lock("zero", blocking_timeout=False)


@both
async def test_an_endless_wait_can_be_said(io, clean_redis) -> None:
    assert await io.do(Lock("endless", blocking_timeout=math.inf), "acquire")


@pytest.mark.parametrize(
    ("permits", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)]
)
@both
async def test_permits_that_are_no_count(io, nothing_sent, permits: Any, error: type) -> None:
    with pytest.raises(error, match="permits"):
        await io.do(Semaphore("x", 5), "acquire", permits=permits)


@both
async def test_more_permits_than_there_can_be(io, nothing_sent) -> None:
    with pytest.raises(ValueError, match="never fit"):
        await io.do(Semaphore("x", 5), "acquire", permits=6)
    with pytest.raises(ValueError, match="never fit"):
        await io.do(Lock("x"), "acquire", permits=2)


@both
async def test_a_token_of_the_callers_own_is_refused(io, nothing_sent) -> None:
    with pytest.raises(TypeError, match="token"):
        await io.do(Lock("x"), "acquire", token="mine")


@both
async def test_a_semaphore_without_a_limit_anywhere(io, nothing_sent) -> None:
    with pytest.raises(ImproperlyConfigured, match="has no limit"):
        await io.do(Semaphore("unknown"), "acquire")


@pytest.mark.parametrize("using", [("a", "b"), ["default"], 7], ids=str)
def test_one_server_for_what_only_one_server_can_do(nothing_sent, using: Any) -> None:
    with pytest.raises((ImproperlyConfigured, TypeError)):
        Semaphore("x", 3, using=using)


def test_a_label_is_text(nothing_sent) -> None:
    with pytest.raises(TypeError, match="label"):
        Lock("x", label=7)


@pytest.mark.parametrize("handle", ["", "x", "e30=", "W10=", "ü", "a" * 5000, "WzEsMiwzXQ=="])
@both
async def test_a_handle_that_is_none(io, nothing_sent, handle: str) -> None:
    with pytest.raises(ValueError, match="not the handle of a lease"):
        await io.do(Lease, "from_handle", handle)


@both
async def test_a_handle_that_is_no_text(io, nothing_sent) -> None:
    with pytest.raises(TypeError, match="handle"):
        await io.do(Lease, "from_handle", b"bytes")


@both
async def test_a_forged_handle_gets_nothing(io, clean_redis) -> None:
    """Neither a guessed token nor a wrong fence is anybody's."""
    import base64
    import json

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
async def test_an_extension_that_is_none(io, clean_redis, seconds: float) -> None:
    lease = await io.do(Lock("extension"), "acquire")
    before = lease.remaining
    with pytest.raises(ValueError, match="additional_time"):
        await io.do(lease, "extend", seconds)
    if seconds != math.inf:
        with pytest.raises(ValueError, match="timeout"):
            await io.do(lease, "renew", seconds)
    assert 0 < lease.remaining <= before and await io.do(lease, "owned")


@both
async def test_releasing_what_was_never_taken(io, nothing_sent) -> None:
    from django_redis_sync import NotAcquired

    with pytest.raises(NotAcquired, match="holds nothing"):
        await io.do(Lock("x"), "release")


# The table of options


def test_a_semaphore_takes_the_options_that_the_table_has() -> None:
    """Lock and others take them by the table's types, Semaphore by its signature."""
    takes = inspect.signature(Semaphore).parameters
    named = {name for name, one in takes.items() if one.kind is one.KEYWORD_ONLY}
    table = get_type_hints(SemaphoreOptions, include_extras=True)
    assert set(table) == named
    for name, kind in table.items():
        (option,) = (extra for extra in get_args(kind) if isinstance(extra, Option))
        assert option.default == takes[name].default, name
    hints = get_type_hints(Semaphore.__init__, localns={"Lease": Any, "Share": Share})
    for name in named - {"on_lost"}:
        assert get_args(table[name])[0] == hints[name], name


# Twins


def twins(kind: type) -> list[str]:
    """Public methods that have, or seem to want, an a-twin."""
    # No round trip, or a block of Django's own.
    local = {"check", "atomic", "alias", "release_later"}
    public = [name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")]
    return [name for name in public if name not in local and not _is_twin(name, public)]


def _is_twin(name: str, public: list[str]) -> bool:
    return name.startswith("a") and name[1:] in public


def every_kind() -> list[type]:
    import django_redis_sync

    names = ("Semaphore", "Lock", "Lease", "RLock", "ReadWriteLock")
    kinds = [getattr(django_redis_sync, name, None) for name in names]
    return [kind for kind in kinds if kind is not None]


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
def test_every_method_has_a_twin_of_the_same_signature(kind: type) -> None:
    for name in twins(kind):
        assert hasattr(kind, "a" + name), f"{kind.__name__}.{name} has no a-twin"
        mine, twin = getattr(kind, name), getattr(kind, "a" + name)
        assert inspect.signature(mine) == inspect.signature(twin), name
        assert inspect.iscoroutinefunction(twin) and not inspect.iscoroutinefunction(mine)
