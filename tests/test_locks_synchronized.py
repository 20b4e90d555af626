"""`synchronized`: a limit on the calls of any function, by its arguments."""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import threading
from datetime import date, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import markcoroutinefunction
from django.db import transaction

from django_redis_sync import LeaseLost, Lock, NotAcquired, Semaphore, synchronized

from .behaviour.both import both, until
from .behaviour.watching import View, sent

pytestmark = pytest.mark.usefixtures("clean_redis")


@pytest.fixture
def view(raw: Any) -> Any:
    return lambda name: View(raw, name)


class Color(enum.Enum):
    RED = "#f00"


def function_of(io: Any, body: Any) -> Any:
    """Return `body` as a sync or as an async function, depending on `io`."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        return io.run(body(*args, **kwargs))

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return await body(*args, **kwargs)

    return functools.wraps(body)(plain if repr(io) == "sync" else coroutine)


async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def synchronize(io: Any, name: str, limit: int = 1, **options: Any) -> Any:
    """Return `synchronized(...)` for a coroutine function, which becomes sync if `io` is sync."""
    return lambda body: synchronized(name, limit, **options)(function_of(io, body))


@both
async def test_synchronized_runs_at_most_limit_calls_at_once(io, view) -> None:
    inside, maximum = [0], [0]

    @synchronize(io, "few", 3)
    async def work(number: int) -> int:
        inside[0] += 1
        maximum[0] = max(maximum[0], inside[0])
        await io.sleep(0.005)
        inside[0] -= 1
        return number

    async def call_work(number: int) -> int:
        return await call(work, number)

    assert list(range(12)) == await io.gather(*[call_work(number) for number in range(12)])
    assert 2 <= maximum[0] <= 3
    assert view("few").empty


@both
async def test_synchronized_separates_calls_with_different_arguments(io) -> None:
    seen = []

    @synchronize(io, "invoice:{pk}", on_full="skip")
    async def pay(pk: int, again: tuple[int, ...] = ()) -> str:
        for other in again:
            seen.append(await call(pay, other))
        return f"paid {pk}"

    assert "paid 1" == await call(pay, 1, again=(1, 2))
    assert [None, "paid 2"] == seen


def test_name_uses_a_positional_only_argument_before_a_keyword_of_its_name(view) -> None:
    @synchronized("invoice:{pk}")
    def pay(pk: int, /, **more: int) -> list[bool]:
        return [view(f"invoice:{n}").empty for n in (1, 2)]

    assert [False, True] == pay(1, pk=2)


@both
async def test_full_call_raises_or_is_skipped(io) -> None:
    @synchronize(io, "full", blocking=False)
    async def raises() -> str:
        return "ran"

    @synchronize(io, "full", on_full="skip")
    async def skips() -> str:
        return "ran"

    async with io.entered(Lock("full")):
        with pytest.raises(NotAcquired, match="'full'") as caught:
            await call(raises)
        assert "full" == caught.value.reason
        assert await call(skips) is None
    assert ["ran", "ran"] == [await call(raises), await call(skips)]


@both
async def test_on_full_skip_waits_when_blocking_timeout_is_set(io, view) -> None:
    @synchronize(io, "later", on_full="skip", blocking_timeout=20)
    async def later() -> str:
        return "ran"

    lease = await io.do(Lock("later"), "acquire")

    async def call_later() -> Any:
        return await call(later)

    waiting = io.start(call_later())
    await until(io, lambda: view("later").waiting == 1)
    await io.do(lease, "release")
    assert "ran" == await io.result(waiting)


NAMES = [
    ("{x}", "a b", "a b"),
    ("{x}", 7, "7"),
    ("{x}", "7", "7"),
    ("{x}", UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    ("{x}", date(2026, 1, 2), "2026-01-02"),
    ("{x}", datetime(2026, 1, 2, 3, 4), "2026-01-02 03%3A04%3A00"),
    ("{x:%Y-%m}", date(2026, 1, 2), "2026-01"),
    ("{x:05d}", 7, "00007"),
    ("{x}", Color.RED, "RED"),
    ("{x.pk}", SimpleNamespace(pk=3), "3"),
    ("{x[1]}", ["a", "b"], "b"),
    ("{x}", "1:2%", "1%3A2%25"),
    ("a{{b}}:{x}", "c", "a{b}:c"),
]


@pytest.mark.parametrize(("template", "value", "name"), NAMES)
@both
async def test_name_contains_the_formatted_arguments(io, view, template, value, name) -> None:
    @synchronize(io, template)
    async def work(x: Any) -> int:
        return view(name).holding

    assert 1 == await call(work, value) == await call(work, x=value)


@both
async def test_name_without_arguments_unescapes_braces(io, view) -> None:
    @synchronize(io, "a{{b}}")
    async def work() -> int:
        return view("a{b}").holding

    assert 1 == await call(work)


PAIRS = [
    ("{a}:{b}", ("1:2", "3"), ("1", "2:3")),
    ("{a}-{b}", ("1-2", "3"), ("1", "2-3")),
    ("{a} to {b}", ("1 to 2", "3"), ("1", "2 to 3")),
    ("{a}/{b}", ("1%2F2", "3"), ("1/2", "3")),
    ("{a}→{b}", ("1→2", "3"), ("1", "2→3")),
    ("{a}:{b}/{c}", ("1", "2/3", "4"), ("1", "2", "3/4")),
    ("{a}→{b}←{c}", ("→", "b", "c"), ("←", "b", "c")),  # equal first bytes in UTF-8
]


@pytest.mark.parametrize(("template", "one", "other"), PAIRS)
def test_calls_with_different_arguments_get_different_names(
    template: str, one: Any, other: Any
) -> None:
    @synchronized(template, blocking=False)
    def work(a: str, b: str, c: str = "", then: Any = None) -> Any:
        return work(*then) if then else "ran"

    assert "ran" == work(*one, then=other)
    with pytest.raises(NotAcquired):
        work(*one, then=one)


@pytest.mark.parametrize("template", ["{a}{b}", "{a}x{b}", "x:{a}%{b}", "{a}:{b}{c}"])
def test_template_without_a_separator_between_arguments_is_rejected(template: str) -> None:
    with pytest.raises(ValueError, match="put a ':' between"):
        synchronized(template)


BAD_VALUES = [None, 1.5, b"bytes", object(), ["a"], ("a",), SimpleNamespace(pk=1)]


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: type(value).__name__)
@both
async def test_value_of_an_unsupported_type_is_rejected(io, value: Any) -> None:
    @synchronize(io, "account:{account}")
    async def work(account: Any) -> None:
        pytest.fail("it ran")

    raises = pytest.raises(TypeError, match=r"use str, int, UUID, .*{account\.pk}")
    with sent() as seen, raises as caught:
        await call(work, value)
    assert type(value).__name__ in str(caught.value)
    assert {} == seen.by_name


def function_of_pk(pk: int) -> None: ...


WRONG = [
    ("x:{other}", {}, ValueError, "has no argument other"),
    ("x:{}", {}, ValueError, "name the arguments"),
    ("x:{0}", {}, ValueError, "name the arguments"),
    ("x:{pk!r}", {}, ValueError, "conversions"),
    ("x:{pk:{pk}}", {}, ValueError, "fields in formats"),
    ("x:{pk", {}, ValueError, "expected '}'"),
    ("", {}, ValueError, "empty"),
    ("x", {"limit": 0}, ValueError, "limit"),
    ("x", {"timeout": "5"}, TypeError, "timeout"),
    ("x", {"on_full": "wait"}, ValueError, "on_full"),
    ("x", {"unknown": 1}, TypeError, "unknown"),
]


@pytest.mark.parametrize(("name", "options", "error", "message"), WRONG)
def test_synchronized_rejects_bad_arguments_when_it_decorates(
    name, options, error, message
) -> None:
    with pytest.raises(error, match=message):
        synchronized(name, **options)(function_of_pk)


@pytest.mark.parametrize("name", ["x:{}", "x:{0}"])
def test_synchronized_rejects_positions_for_functions_with_kwargs(name: str) -> None:
    with pytest.raises(ValueError, match="name the arguments"):
        synchronized(name)(lambda **options: None)


def test_synchronized_rejects_generators_and_classes() -> None:
    def generator() -> Any:
        yield 1

    async def asyncgen() -> Any:
        yield 1

    class Klass:
        pass

    for wrong, message in (
        (generator, "generator"),
        (asyncgen, "generator"),
        (Klass, "functions and methods"),
        (7, "functions and methods"),
        (classmethod(function_of_pk), "below @staticmethod and @classmethod"),
        (staticmethod(function_of_pk), "below @staticmethod and @classmethod"),
    ):
        with pytest.raises(TypeError, match=message):
            synchronized("x")(wrong)


def test_synchronized_without_parentheses_suggests_the_call_to_write() -> None:
    def send(pk): ...

    def nightly(): ...

    start = r'needs a name: write @synchronized\("send"\) for all calls of it, or '
    with pytest.raises(TypeError, match=start + r'@synchronized\("send:{pk}"\) for each pk$'):
        synchronized(send)
    with pytest.raises(TypeError, match=r'"nightly"\) for all calls of it$'):
        synchronized(nightly)

    class Mail:
        def post(self, pk): ...

    with pytest.raises(TypeError, match=r'"post:{pk}"\) for each pk$'):
        synchronized(Mail.post)
    with pytest.raises(TypeError, match=r'"min"\) for all calls of it$'):
        synchronized(min)  # a built-in without a signature


@both
async def test_synchronized_decorates_every_kind_of_method(io, view) -> None:
    class Account:
        pk = 9

        @synchronized("method:{self.pk}")
        def sync_method(self) -> int:
            return view("method:9").holding

        @synchronized("method:{self.pk}")
        async def async_method(self) -> int:
            return view("method:9").holding

        @classmethod
        @synchronized("class:{cls.pk}")
        def of_class(cls) -> int:
            return view("class:9").holding

        @staticmethod
        @synchronized("static:{pk}")
        def of_none(pk: int) -> int:
            return view(f"static:{pk}").holding

    account = Account()
    if repr(io) == "sync":
        assert [1, 1, 1] == [account.sync_method(), Account.of_class(), account.of_none(3)]
    else:
        assert 1 == await account.async_method()
        assert 1 == await asyncio.to_thread(Account.of_class)


@both
async def test_synchronized_decorates_any_callable(io, view) -> None:
    class Job:
        def __call__(self, pk: int) -> int:
            return view(f"job:{pk}").holding

    class AsyncJob:
        async def __call__(self, pk: int) -> int:
            await asyncio.sleep(0)
            return view(f"job:{pk}").holding

    async def later(pk: int) -> int:
        await asyncio.sleep(0)
        return view(f"job:{pk}").holding

    if repr(io) == "sync":
        jobs: list[Any] = [Job(), functools.partial(Job()), functools.partial(Job(), pk=4)]
    else:
        # A function that returns an awaitable has to be marked as a coroutine function.
        marked = markcoroutinefunction(lambda pk: later(pk))
        jobs = [AsyncJob(), functools.partial(later), marked]
    for job in jobs:
        assert 1 == await call(synchronized("job:{pk}")(job), pk=4)
        assert view("job:4").empty


@both
async def test_name_can_contain_keyword_arguments(io, view) -> None:
    @synchronize(io, "kw:{tenant}:{pk}")
    async def work(pk: int = 1, **kwargs: Any) -> int:
        return view(f"kw:{kwargs['tenant']}:{pk}").holding

    assert 1 == await call(work, tenant="t") == await call(work, 2, tenant="t")
    with pytest.raises(TypeError, match="this call has no argument tenant"):
        await call(work)


@both
async def test_call_with_wrong_arguments_raises_the_error_of_the_function(io) -> None:
    @synchronize(io, "x:{pk}")
    async def work(pk: int) -> None: ...

    with pytest.raises(TypeError, match="pk"):
        await call(work)


def test_decorated_function_keeps_module_name_and_signature() -> None:
    """Django's task decorator requires a function that is defined in a module."""
    decorated = synchronized("x:{pk}")(function_of_pk)
    assert inspect.isfunction(decorated)
    assert (function_of_pk.__module__, "function_of_pk") == (
        decorated.__module__,
        decorated.__qualname__,
    )
    assert inspect.signature(function_of_pk) == inspect.signature(decorated)
    assert decorated.__wrapped__ is function_of_pk


@synchronized("task:{pk}", on_full="skip")
def a_task(pk: int) -> str:
    return f"did {pk}"


@synchronized("task:{pk}", on_full="skip")
async def an_async_task(pk: int) -> str:
    return f"did {pk}"


@both
async def test_task_decorator_of_django_accepts_a_decorated_function(io, settings) -> None:
    tasks = pytest.importorskip("django.tasks", reason="Django 6 has the task framework")
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    task = tasks.task(a_task if repr(io) == "sync" else an_async_task)
    result = await (task.aenqueue(3) if repr(io) == "async" else _now(task.enqueue, 3))
    assert "did 3" == result.return_value


async def _now(function: Any, *args: Any) -> Any:
    return function(*args)


@both
async def test_exception_of_the_function_replaces_lease_lost(io, view) -> None:
    @synchronize(io, "fails")
    async def fails() -> None:
        view("fails").clear()  # without the error below, the call would raise LeaseLost
        raise ZeroDivisionError

    @synchronize(io, "loses")
    async def loses() -> None:
        view("loses").clear()

    with pytest.raises(ZeroDivisionError):
        await call(fails)
    with pytest.raises(LeaseLost):
        await call(loses)


@both
async def test_synchronized_passes_options_to_the_semaphore(io, view) -> None:
    @synchronize(io, "options", raise_on_release_error=False, timeout=20)
    async def work() -> float:
        left = view("options").ends_in
        view("options").clear()
        return left

    assert 15 < await call(work) <= 20


def test_release_on_commit_releases_after_the_transaction(view, transactional_db) -> None:
    @synchronized("commit", release_on_commit=True)
    def work() -> int:
        return view("commit").holding

    with transaction.atomic():
        assert 1 == work() == view("commit").holding
    assert view("commit").empty


def test_one_decorator_labels_each_function_with_its_own_name(view) -> None:
    decorator = synchronized("several", 3)

    @decorator
    def one() -> str:
        return Semaphore("several", 3).status().holders[0].label["label"]

    @decorator
    def two() -> str:
        return Semaphore("several", 3).status().holders[0].label["label"]

    assert [f"{__name__}.{f.__qualname__}" for f in (one, two)] == [one(), two()]


@both
async def test_calls_that_raise_release_their_permits(io, view) -> None:
    @synchronize(io, "raising", 2)
    async def work() -> None:
        raise ZeroDivisionError

    async def call_work() -> None:
        with pytest.raises(ZeroDivisionError):
            await call(work)

    await io.gather(*[call_work() for _ in range(10)])
    assert view("raising").empty


def test_cancelled_call_releases_its_permit(view) -> None:
    @synchronized("cancelled")
    async def work() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(work())
        while not view("cancelled").holding:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert view("cancelled").empty

    asyncio.run(main())


@both
async def test_min_hold_runs_concurrent_calls_once_per_period(io, view) -> None:
    runs = []

    @synchronize(io, "nightly", on_full="skip", min_hold=60)
    async def nightly() -> bool:
        runs.append(threading.get_ident())
        return True

    async def call_nightly() -> Any:
        return await call(nightly)

    results = await io.gather(*[call_nightly() for _ in range(10)])
    assert 1 == len(runs) == results.count(True)
    assert 9 == results.count(None)
    assert 30 < view("nightly").ends_in <= 60
