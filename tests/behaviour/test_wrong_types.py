"""Each parameter of the public API rejects values of wrong types, and says what it takes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

import django_redis_sync
from django_redis_sync import (
    Lease,
    Lock,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
    clear,
    semaphore_required,
    single_flight,
    synchronized,
)
from django_redis_sync.defaults import ENTRY, SEMAPHORE

from .both import both

pytestmark = pytest.mark.promise(29)

THING = object()
NUMBERS = ["10", True, [], math.nan, -1, Decimal(5), timedelta(seconds=5), b"5", THING]
FLAGS = ["no", "", 0, 1, 5, 0.5, [], math.nan, THING]
PERMITS = ["2", True, 2.0, 0, -1, [], THING]
TEXTS = [5, 0.5, True, [], b"x", THING]

#: Wrong values of each parameter in the public API, by the parameter's name.
WRONG: dict[str, list[Any]] = {
    **dict.fromkeys(("timeout", "blocking_timeout", "max_hold", "min_hold", "sleep"), NUMBERS),
    "additional_time": [*NUMBERS, None],
    "seconds": [*NUMBERS, None],
    "rate": [
        *TEXTS,
        "",
        "5",
        "5/",
        "/m",
        "5/w",
        "0/m",
        "5/0s",
        "5 / m",
        "5/m ",
        "-5/m",
        "5/32d",
        "1.5/s",
    ],
    **dict.fromkeys(("blocking", "renew", "fair", "thread_local"), FLAGS),
    **dict.fromkeys(("raise_on_release_error", "replace_ttl"), FLAGS),
    **dict.fromkeys(("limit", "permits", "share_limit"), PERMITS),
    "name": [*TEXTS, None],
    "handle": [*TEXTS, None],
    **dict.fromkeys(("label", "key"), TEXTS),
    "using": [5, True, b"x", {"a"}, THING],
    "by": TEXTS,
    "reason": [*TEXTS, None],
    "on_lost": [5, "no", [], True, THING],
    "on_full": [5, "no", None, True, THING],
    "release_on_commit": [5, 0, None, [], b"x", THING],
    "on_outage": [5, "no", None, True, THING],
    **dict.fromkeys(("ttl", "stale"), NUMBERS),
    "cache": [*TEXTS, None],
    "ignore": [5, 0.5, True, b"x", [5], None, THING],
    "share": [0.5, True, [], b"x", THING],
    "semaphores": [5, None, "x", "", [5], [(Lock("x"),)], [(Lock("x"), 1, 1)], [(Lock("x"), "1")]],
}
#: What an error says instead of the parameter's name.
SAID = {"semaphores": "acquire_all|permits", "name": "name", "handle": "handle"}


def _parameters(called: Callable[..., Any]) -> list[str]:
    """Return the parameters that a caller may give to a function or a class."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(called).parameters.values()
    return [one.name for one in parameters if one.kind in named and one.name != "self"]


#: The classes and functions that take options, each with its parameters.
MAKERS: list[tuple[Any, list[str]]] = [
    *((kind, ["name", *SEMAPHORE]) for kind in (Lock, RLock, ReadWriteLock)),
    *((maker, _parameters(maker)) for maker in (Semaphore, acquire_all, clear)),
    (synchronized, [*_parameters(synchronized), *SEMAPHORE]),
    (single_flight, _parameters(single_flight)),
]
FIRST: dict[Any, dict[str, Any]] = {Semaphore: {"limit": 9}, synchronized: {"limit": 9}}


@pytest.mark.parametrize(
    ("maker", "parameter"), [(maker, name) for maker, names in MAKERS for name in names]
)
def test_classes_and_decorators_reject_wrong_types(maker: Any, parameter: str) -> None:
    first = {"semaphores": [Lock("x")]} if maker is acquire_all else {"name": "x"}
    for value in WRONG[parameter]:
        options = {**first, **FIRST.get(maker, {}), parameter: value}
        with pytest.raises((TypeError, ValueError, ImproperlyConfigured)) as caught:
            maker(**options)
        assert _says(caught, parameter), (value, caught.value)


def _says(caught: Any, parameter: str) -> bool:
    """Return True if the error names the parameter."""
    words = SAID.get(parameter, parameter).split("|")
    return any(word in str(caught.value) for word in words)


#: The methods that take arguments, and what they are called on.
METHODS = [
    (kind, method)
    for kind in (Semaphore, Lease, ReadWriteLock, acquire_all)
    for method, function in inspect.getmembers(kind, callable)
    if not method.startswith(("_", "a" + "_")) and _parameters(function)
]


@pytest.mark.parametrize(
    ("kind", "method"), [(k, m) for k, m in METHODS if not (m[0] == "a" and hasattr(k, m[1:]))]
)
@both
async def test_methods_reject_wrong_types(io, clean_redis, kind: Any, method: str) -> None:
    semaphore = Semaphore("x", 9)
    lease = await io.do(semaphore, "acquire")
    of: Any = {Semaphore: semaphore, Lease: lease}[kind]
    names = _parameters(getattr(of, method))
    right = {"additional_time": 1.0, "handle": "x"}
    for name in names:
        for value in WRONG[name]:
            arguments = {**{n: right[n] for n in names if n in right}, name: value}
            with pytest.raises((TypeError, ValueError, ImproperlyConfigured)) as caught:
                if method == "atomic":
                    with semaphore.atomic(**arguments):
                        raise AssertionError("the block ran")
                await io.do(of, method, **arguments)
            assert _says(caught, name), (value, caught.value)
    assert lease.held and await io.do(lease, "owned")


def test_every_public_class_and_function_is_tested_or_has_no_options() -> None:
    public = {getattr(django_redis_sync, name) for name in django_redis_sync.__all__}
    without = {one for one in public if inspect.isclass(one) and issubclass(one, Exception)}
    without |= {semaphore_required, django_redis_sync.SemaphoreRequiredMixin}  # test_defaults.py
    without |= {django_redis_sync.aclear}  # it calls clear
    assert public == without | {Lease, *(maker for maker, _ in MAKERS)}


@pytest.mark.parametrize("value", [5, 0.5, "no"])
@both
async def test_acquire_names_the_option_that_is_meant(io, nothing_sent, value: Any) -> None:
    for make in (
        lambda: Lock("x", blocking=value),
        lambda: acquire_all([Lock("x")], blocking=value),
    ):
        with pytest.raises(TypeError, match=r"blocking must be True or False.* blocking_timeout"):
            make()
    with pytest.raises(TypeError, match=r"blocking must be True or False.* blocking_timeout"):
        await io.do(Lock("x"), "acquire", value)


@pytest.mark.parametrize("option", sorted(SEMAPHORE.keys() - {"using", "thread_local", "sleep"}))
def test_attribute_rejects_wrong_types(option: str) -> None:
    semaphore = Semaphore("x", 9)
    before = getattr(semaphore, option)
    for value in WRONG[option]:
        with pytest.raises((TypeError, ValueError)) as caught:
            setattr(semaphore, option, value)
        assert _says(caught, option), (value, caught.value)
    assert before == getattr(semaphore, option)


@pytest.mark.parametrize(("kind", "name"), [(Lock, "Lock"), (ReadWriteLock, "ReadWriteLock")])
def test_lock_with_a_limit_raises_an_error_that_names_semaphore(kind: Any, name: str) -> None:
    with pytest.raises(TypeError, match=r"limit \(it belongs in Semaphore\(name, limit\)\)"):
        kind("x", limit=3)
    with pytest.raises(TypeError, match=r"value \(write limit\)"):
        Semaphore("x", value=3)
    with pytest.raises(TypeError, match=r"Of a ReadWriteLock, give its read or its write side"):
        acquire_all([ReadWriteLock("x")])


@pytest.mark.parametrize("value", [*PERMITS, None])
def test_decorator_of_views_rejects_a_wrong_name_or_limit(value: Any) -> None:
    if value is not None:
        with pytest.raises((TypeError, ValueError), match="limit"):
            semaphore_required("x", value)
    if not (value is None or isinstance(value, str)):
        with pytest.raises(TypeError, match="name"):
            semaphore_required(value, 1)


@both
async def test_options_with_right_types_are_accepted(io, clean_redis) -> None:
    right: dict[str, Any] = {
        "timeout": 10, "blocking": True, "blocking_timeout": 0.5, "renew": True, "fair": True,
        "max_hold": 60.0, "min_hold": 0.001, "using": "default", "label": "a", "on_lost": print,
        "thread_local": True, "raise_on_release_error": False, "release_on_commit": False,
        "sleep": 0.1, "key": None, "share": "a", "share_limit": 2, "rate": "50/s",
    }  # fmt: skip
    assert right.keys() == SEMAPHORE.keys()
    for blocking in (True, False, None):
        semaphore = Semaphore(f"right-{blocking}", 3, **right)  # min_hold keeps the former permits
        options = {"blocking": blocking, "blocking_timeout": 1, "permits": 2, "sleep": 0.1}
        lease = await io.do(semaphore, "acquire", **options)
        assert lease is not None and await io.do(lease, "extend", 5, replace_ttl=True)
        await io.do(semaphore, "release")
    assert ENTRY.keys() >= {"limit", "share_limit"}
