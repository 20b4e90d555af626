"""Error messages of wrong calls: they name the class and what to write instead."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redis_sync import (
    Lock,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
    semaphore_required,
    synchronized,
)
from django_redis_sync.testing import filled

client: Any = object()
KINDS: list[Any] = [Lock, RLock, ReadWriteLock]


def message(call: Callable[[], Any], error: type[Exception] = TypeError) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("kind", [*KINDS, Semaphore])
def test_constructor_names_using_when_it_gets_a_client(kind: Any) -> None:
    text = message(lambda: kind(client, "x"))
    assert kind.__name__ in text and "using=" in text, text
    assert "__init__" not in text, text


@pytest.mark.parametrize("kind", [*KINDS, Semaphore])
@pytest.mark.parametrize(
    ("option", "instead"),
    [("expire", "timeout"), ("auto_renewal", "renew"), ("client", "using"), ("timout", "timeout")],
)
def test_constructor_names_the_option_to_write_instead(
    kind: Any, option: str, instead: str
) -> None:
    text = message(lambda: kind("x", **{option: 60}))
    assert kind.__name__ in text and option in text and instead in text, text
    assert "__init__" not in text, text


@pytest.mark.parametrize("method", ["acquire", "aacquire"])
@pytest.mark.parametrize("kind", [Lock, RLock, lambda name: ReadWriteLock(name).read])
@pytest.mark.parametrize(
    ("option", "instead"), [("timeout", "blocking_timeout"), ("block", "blocking")]
)
def test_acquire_names_the_argument_to_write_instead(
    kind: Any, method: str, option: str, instead: str
) -> None:
    lock = kind("x")

    def call() -> None:
        got = getattr(lock, method)(**{option: 5})
        if method == "aacquire":
            got.send(None)

    text = message(call)
    assert repr(lock).split("(")[0] in text and method in text, text
    assert f"{option} (write {instead})" in text, text


def test_acquire_all_names_the_list_to_write_instead() -> None:
    for call in (lambda: acquire_all(Lock("a"), Lock("b")), lambda: acquire_all(Lock("a"))):  # type: ignore
        text = message(call)
        assert "acquire_all([" in text, text


@pytest.mark.parametrize("option", ["wait", "expire"])
def test_semaphore_required_names_the_option_to_write_instead(option: str) -> None:
    text = message(lambda: semaphore_required("x", 3, **{option: 2}))  # type: ignore[call-overload]
    instead = {"wait": "blocking_timeout", "expire": "timeout"}[option]
    assert "semaphore_required" in text and f"{option} (write {instead})" in text, text


def test_synchronized_names_the_option_to_write_instead() -> None:
    text = message(lambda: synchronized("x", expire=2))  # type: ignore[call-overload]
    assert "synchronized" in text and "expire (write timeout)" in text, text


def test_synchronized_above_a_task_decorator_says_to_put_it_below() -> None:
    class Task:
        def __call__(self) -> None: ...

        def delay(self) -> None: ...

    text = message(lambda: synchronized("x")(Task()))
    assert "below" in text, text


def test_semaphore_without_a_limit_raises_when_it_is_made() -> None:
    text = message(lambda: Semaphore("nowhere"), ImproperlyConfigured)
    assert "Semaphore('nowhere', limit)" in text and "SEMAPHORES" in text, text
    with override_settings(REDIS_SYNC={"SEMAPHORES": {"nowhere": {"limit": 2}}}):
        made = Semaphore("nowhere")
    text = message(made.acquire, ImproperlyConfigured)
    assert "SEMAPHORES" in text, text


def test_filled_rejects_a_name_that_looks_misspelled() -> None:
    semaphores = {"exports": {"limit": 2}}
    with override_settings(REDIS_SYNC={"SEMAPHORES": semaphores}):
        text = message(lambda: filled("exprots", 3).__enter__(), AssertionError)
        assert "did you mean 'exports'" in text, text


@pytest.mark.parametrize("seconds", [threading.TIMEOUT_MAX, 1e30, 10**12, 0, 0.0, math.inf])
def test_blocking_timeout_accepts_any_number_from_zero(seconds: float, clean_redis: None) -> None:
    with Lock("x", blocking_timeout=seconds):
        assert Lock("x").acquire(blocking_timeout=0) is None
    lease = Lock("x").acquire(blocking_timeout=seconds)
    assert lease is not None
    waiter = threading.Thread(target=lambda: Lock("x").acquire(blocking_timeout=seconds))
    if seconds:
        waiter.start()
        lease.release()
        waiter.join(20)
        assert not waiter.is_alive()


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, -math.inf])
def test_blocking_timeout_error_states_the_accepted_values(seconds: float) -> None:
    for call in (
        lambda: Lock("x", blocking_timeout=seconds),
        lambda: Lock("x").acquire(blocking_timeout=seconds),
        lambda: acquire_all([Lock("x")], blocking_timeout=seconds),
    ):
        text = message(call, ValueError)
        assert "0 or more seconds, or math.inf" in text and repr(seconds) in text, text
