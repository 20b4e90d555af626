"""Admission of requests: the order of limits, waiting, counted outcomes, and rejections."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_redis_sync import Semaphore, SemaphoreRequiredMixin, semaphore_required
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.limits import identity
from django_redis_sync.limits.local import local_limiter
from django_redis_sync.limits.policy import SemaphoreKey
from django_redis_sync.limits.response import Hold
from django_redis_sync.limits.routes import Route, admissions_of, marks_of, name_of
from django_redis_sync.limits.semaphore import WaitSlots, tasks, threads
from django_redis_sync.middleware import ConcurrencyLimitMiddleware, is_atomic, policies_of
from django_redis_sync.operators.actions import pause, resume
from django_redis_sync.operators.history import histories
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.signals import acquire_rejected
from tests.behaviour.both import eventually
from tests.settings import PREFIX
from tests.support.interrupting import ADMISSION, handles_signals, interruptions

pytestmark = pytest.mark.usefixtures("clean_redis")
REQUESTS = RequestFactory()
BOTH = pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])


def request_of(**meta: Any) -> Any:
    return REQUESTS.get("/", **meta)


def limited(
    *decorators: Callable[[Any], Any],
    asgi: bool = False,
    body: Callable[[], Any] = lambda: None,
) -> Callable[[Any], HttpResponse]:
    """Return a view with `decorators`, outermost first. Sync code calls it, also with `asgi`."""

    def view(request: Any) -> HttpResponse:
        body()
        return HttpResponse()

    async def aview(request: Any) -> HttpResponse:
        return await asyncio.to_thread(view, request)

    decorated: Any = aview if asgi else view
    for decorate in reversed(decorators):
        decorated = decorate(decorated)
    return (lambda request: asyncio.run(decorated(request))) if asgi else decorated


def in_use(name: str, limit: int = 1) -> int:
    return Semaphore(name, limit).status().in_use


def configure(settings: Any, **requests: Any) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "REQUESTS": requests}


@contextmanager
def occupied(name: str, seconds: float) -> Iterator[None]:
    """Hold a permit, and release it in another thread after `seconds`."""
    lease = Semaphore(name, 1).acquire()
    assert lease
    timer = threading.Timer(seconds, lease.release)
    timer.start()
    yield
    timer.join()


# Several limits on one view: one order, one time limit for all waits


def functions(first: str, second: str, **options: Any) -> Any:
    return limited(
        semaphore_required(first, **options),
        semaphore_required(second, **options),
        body=lambda: time.sleep(0.02),
    )


class Report(View):
    def get(self, request: Any) -> HttpResponse:
        time.sleep(0.02)
        return HttpResponse()


def methods(first: str, second: str, **options: Any) -> Any:
    both = [semaphore_required(first, **options), semaphore_required(second, **options)]
    return method_decorator(both, name="dispatch")(type("Both", (Report,), {})).as_view()


def with_mixin(second: str, **options: Any) -> Any:
    attributes = {f"semaphore_{option}": value for option, value in options.items()}
    attributes["semaphore_name"] = second
    return type("Mixed", (SemaphoreRequiredMixin, Report), attributes)


def mixin_inside(first: str, second: str, **options: Any) -> Any:
    decorate = method_decorator(semaphore_required(first, **options), name="dispatch")
    return decorate(with_mixin(second, **options)).as_view()


def mixin_in_urls(first: str, second: str, **options: Any) -> Any:
    return semaphore_required(first, **options)(with_mixin(second, **options).as_view())


def keyed(first: str, second: str, **options: Any) -> Any:
    """Two limits with the same semaphore name. `a` has a key."""
    stack = {
        "a": semaphore_required("x", key=lambda request: "7", **options),
        "b": semaphore_required("x", **options),
    }
    return limited(stack[first], stack[second], body=lambda: time.sleep(0.02))


DECLARATIONS = [functions, methods, mixin_inside, mixin_in_urls, keyed]


@pytest.mark.promise(21)
@pytest.mark.parametrize("declare", DECLARATIONS)
def test_views_with_limits_in_opposite_order_do_not_deadlock(declare: Any, settings: Any) -> None:
    configure(settings, max_waiting_threads=None)
    options = {"limit": 1, "blocking_timeout": 20}
    views = [declare("a", "b", **options), declare("b", "a", **options)]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(8):
            answers = threads.map(lambda view: view(request_of()).status_code, views)
            assert [200, 200] == [*answers]
    assert (0, 0) == (in_use("a"), in_use("b"))


@pytest.mark.promise(21)
@BOTH
def test_admission_takes_no_permit_when_one_of_two_stacked_limits_is_full(asgi: bool) -> None:
    inside: list[int] = []
    view = limited(
        semaphore_required("b", 1),
        semaphore_required("a", 1),
        asgi=asgi,
        body=lambda: inside.extend([in_use("a"), in_use("b")]),
    )
    assert 200 == view(request_of()).status_code
    with Semaphore("b", 1):
        assert 503 == view(request_of()).status_code
        assert 0 == in_use("a")
    assert [1, 1] == inside
    assert (0, 0) == (in_use("a"), in_use("b"))


@pytest.mark.promise(21)
@pytest.mark.parametrize("copy", [wraps, lambda view: lambda outer: outer], ids=["wraps", "plain"])
def test_inner_limit_is_taken_after_a_decorator_between_two_limits(copy: Any) -> None:
    """functools.wraps copies the attributes of a view, which declare its limits."""
    seen: list[int] = []

    def login(view: Any) -> Any:
        @copy(view)
        def checks(request: Any) -> HttpResponse:
            seen.extend([in_use("a"), in_use("z")])
            return view(request)

        return checks

    view = limited(semaphore_required("z", 1), login, semaphore_required("a", 1))
    assert 200 == view(request_of()).status_code
    assert [0, 1] == seen


@pytest.mark.promise(21)
def test_limits_of_a_view_together_wait_at_most_the_longest_timeout() -> None:
    def waits(case: str, separate: bool, asgi: bool) -> None:
        first, second = f"a-{case}", f"b-{case}"
        between = [lambda view: lambda request: view(request)] if separate else []
        options: Any = {"limit": 1, "blocking_timeout": 4}
        outer, inner = (semaphore_required(name, **options) for name in (first, second))
        view = limited(outer, *between, inner, asgi=asgi)
        with Semaphore(second, 1), occupied(first, 2.5):
            start = time.monotonic()
            assert 503 == view(request_of()).status_code, case
            assert 3.5 < time.monotonic() - start < 6.4, case  # less than 2.5 + 4
        assert (0, 0) == (in_use(first), in_use(second)), case

    # (name, with code between the decorators, asgi)
    cases = [("wsgi", False, False), ("separate", True, False), ("asgi", False, True)]
    with ThreadPoolExecutor(len(cases)) as threads:
        list(threads.map(waits, *zip(*cases, strict=True)))


@pytest.mark.promise(21)
def test_limit_waits_at_most_its_own_timeout() -> None:
    view = limited(
        semaphore_required("a", limit=1, blocking_timeout=0.1),
        semaphore_required("b", limit=1, blocking_timeout=30),
    )
    with Semaphore("a", 1):
        start = time.monotonic()
        assert 503 == view(request_of()).status_code
        assert time.monotonic() - start < 10
    with occupied("b", 1):
        assert 200 == view(request_of()).status_code


@pytest.mark.promise(21)
def test_admissions_of_a_route_group_limits_that_are_taken_together(settings: Any) -> None:
    """The system check compares these groups, to find views that take limits in opposite order."""
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"v": {"name": "e", "limit": 1}}}

    def passes(view: Any) -> Any:
        return lambda request: view(request)

    def names(view: Any, atomic: bool = False) -> list[list[list[str]]]:
        ways = admissions_of(Route("v", view), atomic=atomic)
        return [[[policy.name for policy in group] for group in way] for way in ways]

    a, b = semaphore_required("a", limit=1), semaphore_required("b", limit=1)
    plain = limited()
    assert [[["e"]]] == names(plain)
    assert [[["e"], ["a", "b"]]] == names(b(a(plain)))
    apart = passes(a(plain))
    apart.__wrapped__ = a(plain)
    assert [[["e"], ["b"], ["a"]]] == names(b(apart))
    assert [[["a", "b", "e"]]] == names(b(apart), atomic=True)
    options = {"limit": 1}
    for declare in (mixin_inside, mixin_in_urls):
        assert [[["e"], ["a", "b"]]] == names(declare("b", "a", **options)), declare

    class Pages(View):
        @method_decorator(a)
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse()

        post = a(b(get))

    ways = names(b(Pages.as_view()))
    assert [["e"], ["b"], ["a"]] in ways and [["e"], ["b"], ["a", "b"], ["a"]] in ways


# One request, one outcome


def outcomes(name: str, key: str | None = None) -> dict[str, int]:
    """Return how many requests Redis has counted with each outcome."""
    (history,) = histories([(name, key)])
    kinds = ("granted", "waited", "rejected", "timed_out", "shadow_rejected")
    return {kind: n for kind in kinds if (n := getattr(history.total, kind))}


@pytest.mark.promise(22)
@BOTH
def test_each_request_is_counted_with_one_outcome(asgi: bool, settings: Any) -> None:
    configure(settings, max_waiting_threads=1, max_waiting_tasks=1)
    short = limited(semaphore_required("one", limit=1, blocking_timeout=0.2), asgi=asgi)
    patient = limited(semaphore_required("one", limit=1, blocking_timeout=20), asgi=asgi)
    at_once = limited(semaphore_required("one", limit=1), asgi=asgi)
    assert 200 == patient(request_of()).status_code  # granted
    with ThreadPoolExecutor(1) as pool:
        with Semaphore("one", 1):  # granted
            assert 503 == at_once(request_of()).status_code  # rejected
            for _ in range(3):  # timed out, then rejected: the process remembers the slow queue
                assert 503 == short(request_of()).status_code
            waiting = pool.submit(patient, request_of())  # waited
            slots = tasks if asgi else threads
            eventually(lambda: slots.full(request_of()))
            for _ in range(2):  # rejected: this process has no wait slot left
                assert 503 == patient(request_of()).status_code
        assert 200 == waiting.result().status_code
    found = outcomes("one")
    assert (2, 1) == (found.pop("granted"), found.pop("waited"))
    assert 6 == sum(found.values()) and {"rejected", "timed_out"} == found.keys()


@pytest.mark.promise(22)
@BOTH
def test_shadow_mode_counts_each_request_once(asgi: bool, rejections: list[Any]) -> None:
    view = limited(semaphore_required("one", limit=1, enforce=False, blocking_timeout=9), asgi=asgi)
    assert 200 == view(request_of()).status_code
    with Semaphore("one", 1):
        assert 200 == view(request_of()).status_code
    assert {"granted": 2, "shadow_rejected": 1} == outcomes("one")
    assert [("full", False)] == [(one["rejection"].reason, one["enforced"]) for one in rejections]


@pytest.mark.promise(22)
def test_request_that_waits_and_is_admitted_is_not_counted_as_rejected(settings: Any) -> None:
    configure(settings, max_waiting_threads=None)
    view = limited(
        semaphore_required("one", limit=2, blocking_timeout=60), body=lambda: time.sleep(0.01)
    )
    with ThreadPoolExecutor(12) as pool:
        assert {200} == set(pool.map(lambda _: view(request_of()).status_code, range(60)))
    found = outcomes("one")
    assert {"granted", "waited"} >= found.keys() and 60 == sum(found.values())


@pytest.mark.promise(19)
@pytest.mark.parametrize("options", [{}, {"blocking_timeout": 0.3}], ids=str)
@pytest.mark.parametrize("key", [None, "7"])
@BOTH
def test_paused_limit_answers_503_with_reason_paused(
    key: str | None, options: Any, asgi: bool, rejections: list[Any]
) -> None:
    by_key = {} if key is None else {"key": lambda request: key}
    view = limited(semaphore_required("one", limit=1, **by_key, **options), asgi=asgi)
    assert 200 == view(request_of()).status_code
    pause("one")
    for _ in range(2):
        assert 503 == view(request_of()).status_code
    assert ["paused"] * 2 == [one["rejection"].reason for one in rejections]
    resume("one")
    assert 200 == view(request_of()).status_code
    digest = None if key is None else identity.of_value(key)
    assert {"granted": 2, "rejected": 2} == outcomes("one", digest)


@pytest.mark.promise(19)
def test_rejection_reason_is_paused_when_no_thread_may_wait(
    rejections: list[Any], settings: Any
) -> None:
    configure(settings, max_waiting_threads=0)
    view = limited(semaphore_required("one", limit=1, blocking_timeout=9))
    assert 200 == view(request_of()).status_code
    pause("one")
    assert 503 == view(request_of()).status_code
    assert ["paused"] == [one["rejection"].reason for one in rejections]


@pytest.mark.promise(19)
@BOTH
def test_rejection_names_the_setting_that_limits_waiting_in_the_process(
    asgi: bool, rejections: list[Any], settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    option = "max_waiting_tasks" if asgi else "max_waiting_threads"
    configure(settings, **{option: 0})
    view = limited(semaphore_required("exports", limit=1, blocking_timeout=30), asgi=asgi)
    with caplog.at_level(logging.INFO, "django_redis_sync"), Semaphore("exports", 1):
        assert 503 == view(REQUESTS.get("/export/")).status_code
    assert [option] == [one["rejection"].reason for one in rejections]
    text = f"all permits are in use, and this process has reached {option}"
    assert [f"rejected /export/: {text} (limit 'exports')"] == caplog.messages


def test_wait_ends_at_once_when_another_request_took_the_last_slot(
    rejections: list[Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests find the last slot free before either waits."""
    configure(settings, max_waiting_threads=0)
    monkeypatch.setattr(threads, "full", lambda request: False)
    view = limited(semaphore_required("one", limit=1, blocking_timeout=30))
    with Semaphore("one", 1):
        start = time.monotonic()
        assert 503 == view(request_of()).status_code
        assert time.monotonic() - start < 15
        assert 0 == Semaphore("one", 1).status().waiting
    assert ["max_waiting_threads"] == [one["rejection"].reason for one in rejections]
    assert {"granted": 1, "timed_out": 1} == outcomes("one")


class FakeWaiter:
    """Stands for a waiting request. The wait slots reference waiters weakly."""


def test_more_threads_may_wait_in_sync_views_under_asgi(settings: Any) -> None:
    configure(settings)
    slots = WaitSlots("max_waiting_threads")
    wsgi, asgi = request_of(), AsyncRequestFactory().get("/")
    assert isinstance(asgi, ASGIRequest)
    waiters = [FakeWaiter() for _ in range(30)]
    assert 2 == sum(slots.take(one, wsgi) for one in waiters)
    assert 18 == sum(slots.take(one, asgi) for one in waiters[2:])


@pytest.mark.parametrize(("given", "expected"), [(None, 30), (0, 0), (3, 3), ("auto", 2)])
def test_max_waiting_threads_is_a_number_none_or_auto(
    given: Any, expected: int, settings: Any
) -> None:
    configure(settings, max_waiting_threads=given)
    slots = WaitSlots("max_waiting_threads")
    waiters = [FakeWaiter() for _ in range(30)]
    assert expected == sum(slots.take(one, request_of()) for one in waiters)
    del waiters  # the slots of waiters that no longer exist are free
    assert expected == 0 or slots.take(FakeWaiter(), request_of())


# Callables and receivers of the project


@BOTH
def test_callables_of_a_policy_can_be_async_and_get_the_views_request(asgi: bool) -> None:
    requests: list[Any] = []

    def returns(value: Any) -> Any:
        async def later(request: Any) -> Any:
            requests.append(request)
            return value

        return later if asgi else lambda request: later(request)

    view = limited(
        semaphore_required("x", limit=returns(3), key=returns("k"), when=returns(True)), asgi=asgi
    )
    seen = SimpleNamespace(_request=request_of())  # Django REST framework wraps requests like this
    assert 200 == view(seen).status_code
    assert [seen] * 3 == requests
    assert {"granted": 1} == outcomes("x", identity.of_value("k"))


@BOTH
def test_key_user_uses_the_address_of_anonymous_users(asgi: bool) -> None:
    """A middleware of the project may set `user`, but not `auser`."""
    view = limited(semaphore_required("x", limit=1, key="user"), asgi=asgi)
    request = request_of(REMOTE_ADDR="10.0.0.1")
    for pk, key in ((None, identity.digest("ip", "10.0.0.1")), (42, "42")):
        request.user = SimpleNamespace(pk=pk)
        assert 200 == view(request).status_code
        assert {"granted": 1} == outcomes("x", key)


def test_async_view_reads_the_user_with_auser() -> None:
    async def auser() -> User:
        return User(pk=8)

    request = request_of()
    request.auser = auser
    view = limited(semaphore_required("x", limit=1, key="user"), asgi=True)
    assert 200 == view(request).status_code
    assert {"granted": 1} == outcomes("x", "8")


def test_key_user_without_authentication_middleware_raises_improperly_configured() -> None:
    view = limited(semaphore_required("x", limit=1, key="user"))
    with pytest.raises(ImproperlyConfigured, match="AuthenticationMiddleware"):
        view(request_of())


def test_label_contains_view_user_and_request_id() -> None:
    labels: list[Any] = []
    view = limited(
        semaphore_required("x", limit=1),
        body=lambda: labels.extend(one.label for one in Semaphore("x", 1).status().holders),
    )
    request = request_of(HTTP_X_REQUEST_ID="r-1")
    view(request)
    request = request_of(HTTP_X_REQUEST_ID="r-2")
    request._cached_user = SimpleNamespace(pk=42)
    request.resolver_match = SimpleNamespace(view_name="reports:export")
    view(request)
    parts = [(one.get("label"), one.get("user"), one.get("request")) for one in labels]
    assert [("/", None, "r-1"), ("reports:export", "42", "r-2")] == parts


@BOTH
def test_receivers_get_the_rejection_and_cannot_prevent_it(
    asgi: bool, rejections: list[Any]
) -> None:
    def fails(**arguments: Any) -> None:
        raise KeyError("the receiver's own")

    view = limited(semaphore_required("x", limit=1, key=lambda _: "k"), asgi=asgi)
    request = request_of()
    acquire_rejected.connect(fails)
    try:
        with Semaphore("x", 1, key=identity.of_value("k")):
            assert 429 == view(request).status_code
    finally:
        acquire_rejected.disconnect(fails)
    (sent,) = rejections
    assert ("full", 1) == (sent["rejection"].reason, sent["rejection"].limit)
    assert (request, True) == (sent["request"], sent["enforced"])
    assert (identity.of_value("k"), "x") == (sent["key"], sent["policy"].name)


@pytest.mark.parametrize(("enforce", "word"), [(True, "rejected"), (False, "would have rejected")])
def test_log_names_the_path_the_cause_and_the_limit(
    enforce: bool, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    view = limited(semaphore_required("x", limit=1, enforce=enforce))
    with caplog.at_level(logging.INFO, "django_redis_sync"), Semaphore("x", 1):
        view(REQUESTS.get("/reports/"))
    assert [f"{word} /reports/: all permits are in use (limit 'x')"] == caplog.messages


# Interruptions


@pytest.mark.promise(6)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@BOTH
def test_interrupted_admission_holds_no_permit(asgi: bool) -> None:
    """The interruption comes at each bytecode of the plan, with two limits."""

    def renewed() -> list[Any]:
        keys = [keys_of(PREFIX, name) for name in "ab"]
        return [lease for each in keys for lease in renewer("default").newest(each, 99)]

    view = limited(semaphore_required("a", limit=1), semaphore_required("b", limit=1), asgi=asgi)
    view(request_of())
    places = interruptions(lambda: view(request_of()), *ADMISSION, where=handles_signals)
    lines = set()
    for line in places:
        lines.add(line)
        if renewed():
            gc.collect()
        assert [] == renewed(), line
        for name in "ab":
            assert not local_limiter.is_tracked(SemaphoreKey("default", name, None)), line
    assert len(lines) > 30


@pytest.mark.promise(6)
def test_request_cancelled_between_two_limits_releases_the_first_permit() -> None:
    asked = threading.Event()

    async def never(request: Any) -> bool:
        asked.set()
        await asyncio.sleep(60)
        return True

    async def main() -> None:
        async def body(request: Any) -> HttpResponse:
            return HttpResponse()

        inner = semaphore_required("b", limit=1, when=never)(body)

        async def between(request: Any) -> HttpResponse:
            return await inner(request)

        task = asyncio.ensure_future(semaphore_required("a", limit=1)(between)(request_of()))
        while not asked.is_set():
            await asyncio.sleep(0.01)
        assert 1 == (await Semaphore("a", 1).astatus()).in_use
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    eventually(lambda: in_use("a") == 0)


@pytest.mark.promise(6)
@BOTH
@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_interrupted_view_releases_its_permit_while_the_error_is_referenced(
    error: type[BaseException], asgi: bool
) -> None:
    """A debugger or an error reporter may keep an error, and so the frames that hold the permit."""

    def body() -> None:
        raise error

    async def abody(request: Any) -> HttpResponse:
        raise error

    decorate = semaphore_required("x", limit=1)
    view: Any = decorate(abody) if asgi else limited(decorate, body=body)
    with pytest.raises(error) as reference:
        response = view(request_of())
        if asgi:
            asyncio.run(response)
    eventually(lambda: in_use("x") == 0)
    assert reference


@pytest.mark.promise(6)
@BOTH
def test_request_interrupted_right_after_a_grant_releases_its_permit(
    asgi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error references the frames that hold the permit."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Hold, "add", interrupted)
    view = limited(semaphore_required("x", limit=1, timeout=300), asgi=asgi)
    with pytest.raises(KeyboardInterrupt) as reference:
        view(request_of())
    eventually(lambda: in_use("x") == 0)
    assert reference


# The decorator, the mixin, and the middleware


def test_name_of_an_unnamed_semaphore_can_be_read_from_the_view() -> None:
    class Pages(View):
        @semaphore_required(limit=3)
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse()

    page = Pages()
    for method in ("GET", None):
        ((_, name),) = marks_of(Pages.as_view(), method)
        assert name == name_of(page.get, (page,)) and name.endswith(".Pages.get")


def test_view_takes_the_request_as_a_keyword_argument() -> None:
    view: Any = limited(semaphore_required("x", limit=1))
    assert 200 == view(request=request_of()).status_code
    with pytest.raises(TypeError, match="got no request"):
        view(7)


@pytest.mark.parametrize(
    ("atomic", "skipped", "found"),
    [(True, (), True), (False, (), False), (True, ("default",), False), (True, ("other",), True)],
)
def test_is_atomic_is_true_when_django_wraps_the_view_in_a_transaction(
    atomic: bool, skipped: tuple[str, ...], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = {"default": {"ATOMIC_REQUESTS": atomic}, "other": {"ATOMIC_REQUESTS": False}}
    monkeypatch.setattr(
        "django_redis_sync.middleware.connections", SimpleNamespace(settings=databases)
    )

    def view(request: Any) -> None: ...

    if skipped:
        view._non_atomic_requests = set(skipped)  # type: ignore[attr-defined]
    assert found == is_atomic(view)


@pytest.mark.parametrize(
    ("drf", "options", "taken"),
    [(False, {}, 1), (False, {"key": "user"}, 1), (True, {}, 1), (True, {"key": "user"}, 0)],
)
def test_middleware_takes_limits_of_atomic_views_except_by_user_of_drf(
    drf: bool, options: Any, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, result in (("is_atomic", True), ("is_drf", drf)):
        monkeypatch.setattr(f"django_redis_sync.middleware.{name}", lambda view, is_=result: is_)
    for name in ("exports", None):
        view = semaphore_required(name, limit=1, **options)(is_atomic)
        named = name or "django_redis_sync.middleware.is_atomic"
        assert [named] * taken == [one.name for one in policies_of(request_of(), view, (), {})]


def test_middleware_takes_a_limit_when_the_view_names_it_in_another_cache(settings: Any) -> None:
    entry = {"name": "exports", "limit": 1, "using": "other"}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"x": entry}}
    request = request_of()
    request.resolver_match = SimpleNamespace(view_name="x")
    for using, taken in (("other", []), ("default", ["other"])):
        view = semaphore_required("exports", limit=1, using=using)(lambda request: HttpResponse())
        assert taken == [policy.using for policy in policies_of(request, view, (), {})]


def test_options_request_counts_when_the_class_is_not_a_view() -> None:
    class Pages:
        @semaphore_required("exports", limit=1)
        def show(self, request: Any) -> HttpResponse:
            return HttpResponse(f"{Semaphore('exports', 1).status().in_use} in")

    assert b"1 in" == Pages().show(RequestFactory().options("/")).content


class Limited(SemaphoreRequiredMixin, View):
    semaphore_name = "exports"
    semaphore_limit = 3

    def semaphore_key(request: Any) -> str:
        return "k"


def test_function_in_a_class_with_the_mixin_is_not_bound() -> None:
    assert Limited.__dict__["semaphore_key"] is Limited().get_semaphore_key()  # type: ignore[attr-defined]


def test_mixin_passes_class_arguments_to_other_bases() -> None:
    class TakesNumber:
        number = 0

        def __init_subclass__(cls, number: int = 0, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.number = number

    class Both(SemaphoreRequiredMixin, TakesNumber, View, number=7):
        semaphore_limit = 3

    assert 7 == Both.number


@BOTH
def test_middleware_raises_for_invalid_endpoints_except_on_views_of_the_admin(
    asgi: bool, settings: Any
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"x": {"limit": 0}}}
    request = request_of()
    request.resolver_match = SimpleNamespace(view_name="x")

    async def inner(request: Any) -> Any: ...

    middleware = ConcurrencyLimitMiddleware(inner if asgi else limited())

    def process(view: Any) -> Any:
        processed = middleware.process_view(request, view, (), {})
        return asyncio.run(processed) if asgi else processed

    with pytest.raises(ImproperlyConfigured, match="limit must be"):
        process(limited())
    for attribute in ("admin_site", "model_admin"):
        assert process(SimpleNamespace(**{attribute: None})) is None
    assert process(admin.site.login) is None
