"""`synchronized` limits concurrent calls of a function, in total or per value of an argument."""

from __future__ import annotations

import asyncio
import enum
import functools
import importlib.util
import inspect
import operator
import re
import sys
from contextlib import asynccontextmanager, contextmanager
from datetime import date, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync, markcoroutinefunction
from django.utils.decorators import method_decorator

from django_redis_sync import LeaseLost, NotAcquired, Semaphore, single_flight, synchronized
from tests.behaviour.both import both, until
from tests.behaviour.watching import sent

pytestmark = pytest.mark.usefixtures("clean_redis")


class Color(enum.Enum):
    RED = "#f00"


async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def synchronize(io: Any, name: str, limit: int = 1, **options: Any) -> Any:
    """Return a decorator of coroutine functions. If `io` is sync, decorated functions are sync."""

    def decorate(body: Any) -> Any:
        @functools.wraps(body)
        def plain(*args: Any, **kwargs: Any) -> Any:
            return io.run(body(*args, **kwargs))

        return synchronized(name, limit, **options)(plain if repr(io) == "sync" else body)

    return decorate


@both
async def test_decorated_call_raises_or_waits_or_is_skipped_if_no_permit_is_free(io, view) -> None:
    async def work() -> str:
        return "ran"

    raises = synchronize(io, "full", 2, blocking=False)(work)
    skips = synchronize(io, "full", 2, on_full="skip")(work)
    waits = synchronize(io, "full", 2, on_full="skip", blocking_timeout=20)(work)
    async with io.entered(Semaphore("full", 2)):
        assert "ran" == await call(raises)
        lease = await io.do(Semaphore("full", 2), "acquire")
        with pytest.raises(NotAcquired, match="'full'") as caught:
            await call(raises)
        assert "full" == caught.value.reason
        assert await call(skips) is None
        waiting = io.start(call(waits))
        await until(io, lambda: view("full").waiting == 1)
        await io.do(lease, "release")
    assert ["ran"] * 3 == [await io.result(waiting), await call(raises), await call(skips)]


async def of_account(account: Any) -> None:
    pytest.fail("the function ran")


# The name


NAMES = [
    ("{x}", "a b", "a b"),
    ("{x}", 7, "7"),
    ("{x}", UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    ("{x}", datetime(2026, 1, 2, 3, 4), "2026-01-02 03%3A04%3A00"),
    ("{x:%Y-%m}", date(2026, 1, 2), "2026-01"),
    ("{x:05d}", 7, "00007"),
    ("{x}", Color.RED, "RED"),
    ("{x.pk}", SimpleNamespace(pk=3), "3"),
    ("{x[1]}", ["a", "b"], "b"),
    ("{x}", "1:2%", "1%3A2%25"),
    ("a{{b}}:{x}", "c", "a{b}:c"),
    ("a{{b}}", 1, "a{b}"),
]


@pytest.mark.parametrize(("template", "value", "name"), NAMES)
@both
async def test_lock_name_of_a_decorated_call_contains_its_arguments(
    io, view, template, value, name
) -> None:
    @synchronize(io, template)
    async def work(x: Any) -> int:
        return view(name).holding

    assert 1 == await call(work, value) == await call(work, x=value)


@both
async def test_lock_name_can_contain_keyword_arguments_and_defaults(io, view) -> None:
    @synchronize(io, "kw:{tenant}:{pk}")
    async def work(pk: int = 1, **kwargs: Any) -> int:
        return view(f"kw:{kwargs['tenant']}:{pk}").holding

    assert 1 == await call(work, tenant="t") == await call(work, 2, tenant="t")
    with pytest.raises(TypeError, match="this call has no argument tenant"):
        await call(work)

    @synchronize(io, "both:{kwargs[tenant]}:{tenant}:{args[0]}")
    async def job(*args: Any, **kwargs: Any) -> int:
        return view("both:t:t:3").holding

    assert 1 == await call(job, 3, tenant="t")

    @synchronize(io, "positional:{pk}")
    async def pay(pk: int, /, **more: int) -> list[bool]:
        return [view(f"positional:{n}").empty for n in (1, 2)]

    assert [False, True] == await call(pay, 1, pk=2)
    with pytest.raises(TypeError, match="pk"):  # the same error as without the decorator
        await call(pay)


@pytest.mark.parametrize(
    ("template", "one", "other"),
    [
        ("{a}", ("1",), ("2",)),
        ("{a}:{b}", ("1:2", "3"), ("1", "2:3")),
        ("{a}-{b}", ("1-2", "3"), ("1", "2-3")),
        ("{a} to {b}", ("1 to 2", "3"), ("1", "2 to 3")),
        ("{a}/{b}", ("1%2F2", "3"), ("1/2", "3")),
        ("{a}:{b}/{c}", ("1", "2/3", "4"), ("1", "2", "3/4")),
        ("{a}-{b}/{c}", ("1-2", "3", "4"), ("1", "2-3", "4")),
        # In UTF-8, both arrows begin with the same bytes.
        ("{a}→{b}←{c}", ("→", "b", "c"), ("←", "b", "c")),
    ],
)
def test_calls_with_different_arguments_get_different_names(template, one, other) -> None:
    @synchronized(template, blocking=False)
    def work(a: str, b: str = "", c: str = "", then: Any = None) -> Any:
        return work(*then) if then else "ran"

    assert "ran" == work(*one, then=other)
    with pytest.raises(NotAcquired):
        work(*one, then=one)


@pytest.mark.parametrize("value", [None, 1.5, b"b", object(), ["a"], ("a",), SimpleNamespace(pk=1)])
@both
async def test_name_template_rejects_an_argument_of_an_unsupported_type(io, value: Any) -> None:
    work = synchronize(io, "account:{account}")(of_account)
    message = rf"{type(value).__name__} .* use str, int, UUID, .*{{account\.pk}}"
    with sent() as seen, pytest.raises(TypeError, match=message):
        await call(work, value)
    assert {} == seen.by_name


# Decorating


def of_pk(pk: int) -> None: ...
def nightly() -> None: ...


async def asyncgen(pk: int) -> Any:
    yield pk


BETWEEN = "put a ':' between the arguments"
POSITION = "use argument names in"
METHOD = "below @staticmethod and @classmethod"


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("order.pk", 7, "AttributeError: 'int' object has no attribute 'pk'"),
        ("order[pk]", {}, "KeyError: 'pk'"),
        ("order[0]", [], "IndexError: list index out of range"),
        ("order[0]", None, "TypeError: 'NoneType' object is not subscriptable"),
    ],
)
def test_call_without_a_part_of_the_name_raises_an_error_that_names_the_part(
    field: str, value: Any, error: str
) -> None:
    work = synchronized(f"order:{{{field}}}")(lambda order: pytest.fail("the function ran"))
    expected = f"this call has no {field} for the name 'order:{{{field}}}': {error}"
    with pytest.raises(TypeError, match=re.escape(expected)):
        work(value)
    with pytest.raises(TypeError, match=r"a call with the name 'order:.*: missing .* 'order'"):
        work()


def test_wrong_formats_and_templates_raise_errors_that_name_the_template() -> None:
    work = synchronized("day:{day:%Y}")(lambda day: pytest.fail("the function ran"))
    with pytest.raises(ValueError, match=r"^7 in the name 'day:\{day:%Y\}': Invalid format"):
        work(7)
    with pytest.raises(ValueError, match=r"^'day:\{day' is not a template of a name: expected '}'"):
        synchronized("day:{day")


def test_key_with_an_argument_is_refused_because_it_is_not_a_template(clean_redis: None) -> None:
    with pytest.raises(ValueError, match=r'such as "exports:\{tenant\}", or use share='):
        synchronized("exports", limit=3, key="{tenant}")
    acme = Semaphore("exports", 3, key="acme")
    assert 1 == synchronized("exports", 3, key="acme")(lambda: acme.status().in_use)()


def test_exception_of_a_property_in_the_name_reaches_the_caller() -> None:
    class DoesNotExist(AttributeError):
        """As the exception of a Django model without a related object."""

    class Order:
        @property
        def customer(self) -> Any:
            raise DoesNotExist

    work = synchronized("order:{order.customer}")(lambda order: pytest.fail("the function ran"))
    with pytest.raises(DoesNotExist):
        work(Order())


@pytest.mark.parametrize(
    ("name", "options", "function", "error", "message"),
    [
        ("x:{other}", {}, of_pk, ValueError, "of_pk has no argument other"),
        *((name, {}, of_pk, ValueError, POSITION) for name in ("x:{}", "x:{0}")),
        *((name, {}, lambda **_: None, ValueError, POSITION) for name in ("x:{}", "x:{0}")),
        *((name, {}, of_pk, ValueError, BETWEEN) for name in ("{a}{b}", "{a}x{b}")),
        *((name, {}, of_pk, ValueError, BETWEEN) for name in ("x:{a}%{b}", "{a}:{b}{c}")),
        ("x:{pk!r}", {}, of_pk, ValueError, "conversions"),
        ("x:{pk:{pk}}", {}, of_pk, ValueError, "fields in formats"),
        ("x:{pk", {}, of_pk, ValueError, "expected '}'"),
        ("", {}, of_pk, ValueError, "empty"),
        ("x", {"limit": 0}, of_pk, ValueError, "limit"),
        ("x", {"timeout": "5"}, of_pk, TypeError, "timeout"),
        ("x", {"on_full": "wait"}, of_pk, ValueError, "on_full must be 'raise', 'skip' or 'hold'"),
        ("x", {"expire": 1}, of_pk, TypeError, r"synchronized\(\) .* expire \(write timeout\)"),
        ("x", {"share": 7}, of_pk, TypeError, "share must be a template"),
        ("x", {"share_limit": 7}, of_pk, ValueError, "share_limit needs a share"),
        ("x", {}, lambda pk: (yield), TypeError, "generator"),
        ("x", {}, asyncgen, TypeError, "generator"),
        ("x", {}, contextmanager(lambda pk: (yield)), TypeError, "generator"),
        ("x", {}, asynccontextmanager(asyncgen), TypeError, "generator"),
        *(("x", {}, wrong, TypeError, "functions and methods") for wrong in (Color, 7)),
        *(("x", {}, kind(of_pk), TypeError, METHOD) for kind in (classmethod, staticmethod)),
        ("x", {}, SimpleNamespace(delay=print), TypeError, "below the decorator that turns"),
        # @synchronized without parentheses:
        (of_pk, {}, None, TypeError, r'needs a name: write @synchronized\("of_pk"\) for all calls'),
        (min, {}, None, TypeError, r'@synchronized\("min:{argument}"\) for each value'),
    ],
)
def test_synchronized_decorator_reports_mistakes_when_it_decorates_a_function(
    name: Any, options: Any, function: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        synchronized(name, **options)(function)


@both
async def test_synchronized_decorates_every_kind_of_callable(io, view) -> None:
    def holding(pk: int) -> int:
        return view(f"job:{pk}").holding

    async def later(pk: int) -> int:
        await asyncio.sleep(0)
        return holding(pk)

    async def later_of(job: Any) -> int:
        return await later(job.pk)

    is_sync = repr(io) == "sync"
    body, body_of = (holding, lambda job: holding(job.pk)) if is_sync else (later, later_of)

    class Job:
        pk = 4
        method = synchronized("job:{job.pk}")(body_of)
        of_class = classmethod(synchronized("job:{job.pk}")(body_of))
        static = staticmethod(synchronized("job:{pk}")(body))

        def __call__(self, pk: int) -> int:
            return holding(pk)

    class AsyncJob:
        async def __call__(self, pk: int) -> int:
            return await later(pk)

    job = Job() if is_sync else AsyncJob()
    # Without this mark, synchronized treats a function as sync, even if it returns an awaitable.
    marked = body if is_sync else markcoroutinefunction(lambda pk: later(pk))
    for function in (job, functools.partial(body), functools.partial(body, pk=4), body, marked):
        assert 1 == await call(synchronized("job:{pk}")(function), pk=4)
        assert view("job:4").empty
    methods = (Job().method, Job.of_class, functools.partial(Job.static, 4))
    assert [1, 1, 1] == [await call(method) for method in methods]


def test_permit_is_held_until_the_coroutine_of_a_sync_function_has_ended(view) -> None:
    async def body() -> int:
        return view("a").holding

    found = synchronized("a")(lambda: body())()
    assert 1 == view("a").holding

    async def main() -> int:
        return await found

    assert (1, 0) == (asyncio.run(main()), view("a").holding)


def test_decorated_function_keeps_module_name_and_signature() -> None:
    """Django's task decorator accepts a function only if its names show a module-level function."""
    decorated = synchronized("x:{pk}")(of_pk)
    assert inspect.isfunction(decorated)
    names = operator.attrgetter("__module__", "__qualname__")
    assert (__name__, "of_pk") == names(of_pk) == names(decorated)
    assert inspect.signature(of_pk) == inspect.signature(decorated)
    assert decorated.__wrapped__ is of_pk
    if importlib.util.find_spec("django.tasks"):  # Django 6
        assert decorated is importlib.import_module("django.tasks").task(decorated).func


# The permit


@both
async def test_decorated_call_raises_lease_lost_only_if_the_function_raised_no_error(
    io, view
) -> None:
    async def lose(name: str, error: Any = None) -> float:
        left = view(name).ends_in
        view(name).clear()
        if error is not None:
            raise error
        return left

    loses = synchronize(io, "{name}")(lose)
    with pytest.raises(LeaseLost):
        await call(loses, "loses")
    with pytest.raises(ZeroDivisionError):
        await call(loses, "fails", ZeroDivisionError)
    lenient = synchronize(io, "{name}", raise_on_release_error=False, timeout=20)(lose)
    assert 15 < await call(lenient, "options") <= 20


def test_each_function_of_a_shared_decorator_is_labeled_with_its_own_name() -> None:
    def one() -> Any:
        return Semaphore("several", 3).status().holders[0].label["label"]

    other, decorator = functools.wraps(nightly)(lambda: one()), synchronized("several", 3)
    labels = [decorator(function)() for function in (one, other)]
    assert [f"{__name__}.{one.__qualname__}", f"{__name__}.nightly"] == labels
    assert "mine" == synchronized("several", 3, label="mine")(one)()


@both
async def test_calls_that_raise_or_are_cancelled_release_their_permits(io, view) -> None:
    @synchronize(io, "raising", 2)
    async def work(error: Any = None) -> None:
        if error:
            raise error
        await io.sleep(60)

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await call(work, ZeroDivisionError)
    if repr(io) == "async":
        task = asyncio.create_task(work())
        await until(io, lambda: view("raising").holding)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert view("raising").empty


# Functions that other decorators have made


def double(pk: int) -> int:
    return pk * 2


async def adouble(pk: int) -> int:
    return pk * 2


@pytest.mark.parametrize(
    ("function", "of"),
    [(async_to_sync(adouble), adouble), (functools.partial(double), double)],
    ids=["async_to_sync", "partial"],
)
@pytest.mark.parametrize("decorator", [synchronized, single_flight])
def test_decorator_accepts_what_async_to_sync_and_partial_make(
    function: Any, of: Any, decorator: Any, view: Any
) -> None:
    work = decorator("double:{pk}")(function)
    assert 6 == work(3) == work(pk=3)
    assert ["pk"] == [*inspect.signature(work).parameters]
    assert (of.__name__, of.__module__) == (work.__name__, work.__module__)
    twice = synchronized("again:{pk}")(work)
    with Semaphore("again:3", 1), pytest.raises(NotAcquired):
        synchronized("again:{pk}", blocking=False)(twice)(3)
    assert 6 == twice(3)


class Cart:
    pk = 5

    @method_decorator(synchronized("cart:{item}", blocking=False))
    def add(self, item: int) -> tuple[int, int]:
        return self.pk, item


@method_decorator(synchronized("cart:{item}", blocking=False), name="add")
class DecoratedCart(Cart):
    def add(self, item: int) -> tuple[int, int]:
        return self.pk, item


@pytest.mark.parametrize("kind", [Cart, DecoratedCart])
def test_method_decorator_makes_the_name_from_the_arguments_without_self(kind: type[Cart]) -> None:
    assert (5, 2) == kind().add(2) == kind().add(item=2)
    with Semaphore("cart:2", 1):
        with pytest.raises(NotAcquired):
            kind().add(2)
        assert (5, 3) == kind().add(3)


#: Python 3.14 evaluates annotations when they are read. This module has the `__future__` import.
NOT_DEFINED_YET = """
class Account:
    pk = 7

    @synchronized("account:{self.pk}")
    def merge(self, other: Account, by: ForTypeCheckersOnly) -> Account:
        return other

    @single_flight("total:{self.pk}:{other.pk}")
    def total(self, other: Account) -> ForTypeCheckersOnly:
        return other.pk

def warn(lease: ForTypeCheckersOnly) -> None: ...

Semaphore("x", 1, on_lost=warn)
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python evaluates annotations at once")
def test_decorators_do_not_evaluate_annotations() -> None:
    found: dict[str, Any] = dict(globals())
    exec(compile(NOT_DEFINED_YET, "accounts.py", "exec", dont_inherit=True), found)
    account = found["Account"]()
    assert account is account.merge(account, 1) and 7 == account.total(account)
