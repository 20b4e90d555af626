"""Admission of requests: the order of limits, waiting, counted outcomes, and interruptions."""

import gc
import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from types import SimpleNamespace

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_redis_sync import Semaphore, SemaphoreRequiredMixin, semaphore_required
from django_redis_sync.limits import semaphore
from django_redis_sync.signals import acquire_rejected
from tests.behaviour.both import eventually
from tests.request_site.project import (
    BOTH,
    EVERYWHERE,
    OBEYING,
    arespond_ok,
    async_view,
    call,
    in_use,
    key_in,
    outcomes,
    reasons,
    respond_ok,
    status_of,
    waiting,
)
from tests.support.commands import locks
from tests.support.interrupting import (
    ADMISSION,
    fast_collections,  # noqa: F401 - a fixture
    interruptions,
    run_async,  # noqa: F401 - a fixture
)

# Several limits on one view: a request takes the permits in a fixed order, and within one timeout


def body(request):
    time.sleep(0.02)
    return HttpResponse()


class Report(View):
    get = staticmethod(body)


def functions(first, second, **options):
    return semaphore_required(first, **options)(semaphore_required(second, **options)(body))


def async_functions(first, second, **options):
    inner = semaphore_required(second, **options)(async_view(body))
    return semaphore_required(first, **options)(inner)


def methods(first, second, **options):
    both = [semaphore_required(name, **options) for name in (first, second)]
    return method_decorator(both, name="dispatch")(type("Both", (Report,), {})).as_view()


def with_mixin(second, **options):
    attributes = {f"semaphore_{option}": value for option, value in options.items()}
    return type("Mixed", (SemaphoreRequiredMixin, Report), attributes | {"semaphore_name": second})


def mixin_inside(first, second, **options):
    decorate = method_decorator(semaphore_required(first, **options), name="dispatch")
    return decorate(with_mixin(second, **options)).as_view()


def mixin_in_urls(first, second, **options):
    return semaphore_required(first, **options)(with_mixin(second, **options).as_view())


def keyed(first, second, **options):
    """Return a view with two limits of the name "a", which differ in their keys. `first`: the key
    of the outer limit. `second`: the key of the inner limit. "a": no key. "b": the key "7"."""
    keys = {"a": {}, "b": {"key": lambda request: "7"}}
    outer, inner = (semaphore_required("a", **keys[one], **options) for one in (first, second))
    return outer(inner(body))


@pytest.mark.promise(21)
@pytest.mark.parametrize(
    "declare", [functions, async_functions, methods, mixin_inside, mixin_in_urls, keyed]
)
def test_views_with_limits_in_opposite_order_do_not_deadlock(declare, project):
    project.configure(REQUESTS={"max_waiting_threads": None})
    options = {"limit": 1, "blocking_timeout": 20}
    views = [declare("a", "b", **options), declare("b", "a", **options)]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(8):
            assert [200, 200] == [*threads.map(status_of, views)]
    for full, other in ("ab", "ba"):  # the request takes both permits or neither
        with Semaphore(full, 1):
            status = 200 if (declare, full) == (keyed, "b") else 503
            assert (status, 0) == (status_of(declare("b", "a", limit=1)), in_use(other))
    assert (0, 0) == (in_use("a"), in_use("b"))


@pytest.mark.promise(21)
@pytest.mark.parametrize("copy", [wraps, lambda view: lambda outer: outer], ids=["wraps", "plain"])
def test_decorator_between_two_limits_runs_before_the_inner_limit_is_applied(copy, project):
    """In the run "wraps", functools.wraps copies the attributes that declare the limit "a" to
    `checks`. Even then, `checks` must run before the request takes a permit of "a"."""
    seen, inner = [], semaphore_required("a", 1)(body)

    @semaphore_required("z", 1)
    @copy(inner)
    def checks(request):
        seen.extend([in_use("a"), in_use("z")])
        return inner(request)

    assert 200 == status_of(checks)
    assert [0, 1] == seen


@pytest.mark.promise(21)
def test_total_wait_for_all_limits_of_a_view_is_at_most_the_longest_timeout(project):
    def apart(first, second, **options):
        inner = semaphore_required(second, **options)(body)
        return semaphore_required(first, **options)(lambda request: inner(request))

    def waits(declare):
        first, second = f"a-{declare}", f"b-{declare}"
        view = declare(first, second, limit=1, blocking_timeout=8)
        timer = threading.Timer(7, Semaphore(first, 1).acquire().release)
        with Semaphore(second, 1):
            timer.start()
            start = time.monotonic()
            assert 503 == status_of(view), declare
            took = time.monotonic() - start
            assert 7.5 < took < 14.5, f"{declare}: the waits share no timeout: {took} s"
        timer.join()
        assert (0, 0) == (in_use(first), in_use(second)), declare

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(waits, (functions, async_functions, apart)))


@pytest.mark.promise(21)
@BOTH
def test_waits_for_earlier_limits_count_toward_the_longest_timeout(
    project, rejections, monkeypatch
):
    """By the clock of this test, each wait takes 12 s. The second limit has the longest timeout."""
    now = itertools.count(step=12)
    monkeypatch.setattr(semaphore, "clock", lambda: time.monotonic() + next(now))
    view = respond_ok
    for name, seconds in (("c", 10), ("b", 20), ("a", 10)):
        view = semaphore_required(name, limit=1, blocking_timeout=seconds)(view)
    project.serve(home=view)
    leases = {name: Semaphore(name, 1).acquire() for name in "abc"}
    visit = project.visit()
    for name in "ab":
        eventually(lambda name=name: waiting(name) == 1)
        leases[name].release()
    assert 503 == visit.status
    assert ["full"] == reasons(rejections), "after 24 s, the request waited again"
    assert [0, 0, 1] == [in_use(name) for name in "abc"]
    leases["c"].release()
    assert 200 == project.status()


# Waiting


@pytest.mark.promise(19)
@pytest.mark.parametrize(
    ("view", "asgi", "given", "waiters"),
    [
        *(("sync", False, given, expected) for given, expected in ((None, 4), (0, 0), (3, 3))),
        ("sync", False, "auto", 2),
        ("sync", True, "auto", 20),  # each request has its own thread
        *(("async", True, given, expected) for given, expected in ((None, 4), (0, 0), (3, 3))),
    ],
)
def test_number_of_waiting_requests_of_a_process_is_bounded(
    project, rejections, caplog, view, asgi, given, waiters
):
    gc.collect()  # free the wait slots of interrupted waits of earlier tests
    option = "max_waiting_tasks" if view == "async" else "max_waiting_threads"
    project.configure(REQUESTS={option: given})
    project.asgi = view == "async"
    for name in ("one", "two"):  # the maximum is for the waiting requests of both limits together
        project.limit(name, name=name, blocking_timeout=60)
    project.asgi = asgi
    with Semaphore("one", 1), caplog.at_level(logging.INFO, "django_redis_sync"):
        visits = []
        for _ in range(waiters + (given is not None)):
            visits.append(project.visit("one"))
            eventually(lambda: waiting() == sum(not visit.ended for visit in visits))
        # Wait until the request without a wait slot has left the queue.
        eventually(lambda: waiters == waiting() == sum(not visit.ended for visit in visits))
        assert 200 == project.status("two"), "a free permit needs no wait slot"
        if given is not None:
            with Semaphore("two", 1):
                assert 503 == project.status("two")
            text = f"all permits are in use, and this process has reached {option}"
            assert f"rejected /two/: {text} (limit 'two')" == caplog.messages[-1]
            assert [option] * 2 == reasons(rejections)
    assert waiters == [visit.end() for visit in visits].count(200)


def test_request_does_not_wait_if_another_request_took_the_last_free_wait_slot(
    project, rejections, monkeypatch
):
    """At first, `full()` reports a free wait slot. Then another request takes the last slot."""
    project.configure(REQUESTS={"max_waiting_threads": 0})
    monkeypatch.setattr(semaphore.threads, "full", lambda request: False)
    project.limit(blocking_timeout=30)
    with Semaphore("one", 1):
        assert (503, 0) == (project.status(), waiting())
    assert ["max_waiting_threads"] == reasons(rejections)
    assert {"granted": 1, "rejected": 1} == outcomes(), "a request that did not wait timed out"


@BOTH
def test_request_is_rejected_if_the_number_of_waiters_has_reached_max_waiters(project, rejections):
    project.limit(blocking_timeout=30, max_waiters=1)
    visits = [project.visit().entered(), project.visit()]
    eventually(lambda: waiting() == 1)
    assert 503 == project.status()
    assert [("full", 1)] == [(s["rejection"].reason, s["rejection"].waiting) for s in rejections]
    assert [200, 200] == [visit.end() for visit in visits]


# One request, one outcome


@pytest.mark.promise(22)
@EVERYWHERE
def test_each_request_is_counted_under_exactly_one_outcome(project, rejections):
    project.configure(REQUESTS={"max_waiting_threads": 1, "max_waiting_tasks": 1})
    project.limit("hasty", blocking_timeout=0.2)
    project.limit("patient", blocking_timeout=30)
    project.limit("at_once")
    first = project.visit("patient").entered()  # granted
    assert 503 == project.status("at_once")  # rejected
    for _ in range(3):  # timed out
        assert 503 == project.status("hasty")
    assert ["full", *["timeout"] * 3] == reasons(rejections)
    patient = project.visit("patient")  # waits
    # Redis knows the waiter a moment before the process counts it. Wait for both.
    counted = [slots.full for slots in (semaphore.threads, semaphore.tasks)]
    eventually(lambda: waiting() == 1 and any(full(RequestFactory().get("/")) for full in counted))
    assert 503 == project.status("patient")  # the only wait slot is in use
    assert [200, 200] == [first.end(), patient.end()]
    found = outcomes()
    assert (1, 1) == (found.pop("granted"), found.pop("waited"))
    assert 5 == sum(found.values()) and {"rejected", "timed_out"} == found.keys(), found


@pytest.mark.promise(22)
@EVERYWHERE
def test_shadow_mode_admits_all_requests_and_counts_each_request_once(project, rejections, caplog):
    project.limit(enforce=False, blocking_timeout=30)
    with caplog.at_level(logging.INFO, "django_redis_sync"):
        visits = [project.visit().entered() for _ in range(3)]
        assert 3 == in_use()
    assert [200] * 3 == [visit.end() for visit in visits]
    assert {"granted": 1, "shadow_rejected": 2} == outcomes()
    assert [("full", False)] * 2 == [(s["rejection"].reason, s["enforced"]) for s in rejections]
    line = "would have rejected /home/: all permits are in use (limit 'one')"
    assert [line] * 2 == caplog.messages


@pytest.mark.promise(19, 22)
@pytest.mark.parametrize("slots", [0, 9])
@pytest.mark.parametrize("options", [{}, {"blocking_timeout": 0.3}], ids=str)
@BOTH
def test_rejection_by_a_paused_limit_has_the_reason_paused(project, options, slots, rejections):
    project.configure(REQUESTS={"max_waiting_threads": slots, "max_waiting_tasks": slots})
    project.limit(key=lambda request: "7", **options)
    locks("pause", "one", "--create")
    assert [503, 503] == [project.status() for _ in range(2)]
    assert ["paused"] * 2 == reasons(rejections)
    locks("resume", "one")
    eventually(lambda: project.status() == 200)
    eventually(lambda: outcomes().get("rejected") == len(rejections))


# Callables in options, and receivers of signals


@BOTH
def test_async_callables_of_a_policy_get_the_request_of_the_view(project):
    requests = []

    class Returns:
        def __init__(self, value):
            self.value = value

        async def __call__(self, request):
            requests.append(request)
            return self.value

    async def limit(request):
        return await Returns(3)(request)

    options = {"limit": limit, "key": Returns("k"), "when": Returns(True)}
    view = semaphore_required("x", **options)(arespond_ok if project.asgi else respond_ok)
    seen = SimpleNamespace(_request=RequestFactory().get("/"))  # DRF wraps requests like this
    assert 200 == status_of(view, seen)
    assert [seen] * 3 == requests
    assert key_in("x").startswith("key-")


@pytest.mark.promise(29)
@EVERYWHERE
def test_key_user_raises_improperly_configured_without_authentication_middleware(project):
    project.limit(key="user")
    with pytest.raises(ImproperlyConfigured, match="AuthenticationMiddleware"):
        project.get()


def test_label_of_a_holder_contains_the_view_the_user_and_the_request_id(project):
    project.settings.MIDDLEWARE = [OBEYING]
    labels = []

    def note(request):
        labels.extend(holder.label for holder in Semaphore("one", 1).status().holders)
        return HttpResponse()

    project.limit("reports:export", note)
    assert 200 == call("/reports:export/?user=42", headers={"X-Request-ID": "r-1"}).status_code
    assert 200 == status_of(semaphore_required("one", limit=1)(note))
    assert {"label": "reports:export", "user": "42", "request": "r-1"}.items() <= labels[0].items()
    assert ("/", None, None) == tuple(labels[1].get(part) for part in ("label", "user", "request"))
    request = RequestFactory().get("/")
    request.user = SimpleNamespace(pk=0)
    assert 200 == status_of(semaphore_required("one", limit=1)(note), request)
    assert "0" == labels[2]["user"]


@BOTH
def test_signal_receiver_that_fails_does_not_prevent_the_rejection(project, rejections):
    def fails(**arguments):
        raise KeyError("the receiver's own")

    project.limit(key=lambda request: "k")
    visit = project.visit().entered()
    acquire_rejected.connect(fails)
    try:
        assert 429 == project.status()
    finally:
        acquire_rejected.disconnect(fails)
    (sent,) = rejections
    rejection = sent["rejection"]
    assert ("full", 1, True) == (rejection.reason, rejection.limit, sent["enforced"])
    assert ("/home/", "one", None) == (sent["request"].path, sent["policy"].name, sent["share"])
    assert sent["key"] == key_in("one")
    assert 200 == visit.end()


# Interruptions


@pytest.mark.promise(6, 24)
@pytest.mark.usefixtures("fast_collections")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("down", [False, True], ids=["redis", "no redis"])
@BOTH
def test_request_interrupted_during_its_admission_holds_no_permit(project, down, run_async):  # noqa: F811
    """A request with two limits is interrupted at each bytecode where Python handles signals."""
    if down:
        project.lose_redis()
    outer, inner = (semaphore_required(name, limit=1, timeout=0.1) for name in "ab")
    view = outer(inner(arespond_ok if project.asgi else respond_ok))
    visit = partial(status_of, view, run=run_async)
    assert 200 == visit()
    lines = set()
    for line in interruptions(visit, *ADMISSION):
        lines.add(line)
        eventually(lambda: visit() == 200 or gc.collect() < 0)
    gc.collect()  # until it is freed, the last interrupted request counts in later tests
    assert len(lines) > 30


@pytest.mark.promise(6)
@BOTH
def test_request_interrupted_right_after_a_grant_releases_its_permit(project, monkeypatch):
    """Garbage collection can't free the permit, because the error keeps the frames that hold it."""

    def interrupted(*_):
        raise KeyboardInterrupt

    project.limit(timeout=300)
    with monkeypatch.context() as patch:
        patch.setattr("django_redis_sync.limits.response.Hold.add", interrupted)
        with pytest.raises(KeyboardInterrupt) as reference:
            project.get()
    eventually(lambda: in_use() == 0)
    assert reference
