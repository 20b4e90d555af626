"""Decorator, mixin, and middleware: the views and requests that they limit, and default names."""

import asyncio
import functools
import gc
import logging
import re
import threading
import weakref
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import AsyncClient, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.views import APIView

from django_redis_sync import (
    LeaseLost,
    Lock,
    Semaphore,
    SemaphoreRequiredMixin,
    Unavailable,
    semaphore_required,
)
from django_redis_sync.limits import identity, semaphore
from django_redis_sync.limits.routes import Route, limits_of
from tests.behaviour.both import MAX_WAIT, eventually
from tests.behaviour.watching import counted
from tests.request_site import drf
from tests.request_site.project import (
    BOTH,
    CLIENTS,
    EVERYWHERE,
    OBEYING,
    ONE,
    arespond_ok,
    call,
    in_use,
    outcomes,
    respond_ok,
    site,
    status_of,
)

pytestmark = [pytest.mark.promise(18), pytest.mark.usefixtures("clean_redis")]
REQUESTS = RequestFactory()
LIMIT = semaphore_required("one", limit=1)


@BOTH
def test_waiting_request_closes_the_connections_of_the_thread_that_runs_its_sync_code(
    project, monkeypatch
):
    threads, holder = [], Semaphore("one", 1).acquire()

    def note(*_):
        threads.append(threading.get_ident())
        return True

    # Django would not close the tests' database in memory.
    facts = {"in_atomic_block": False, "autocommit": True, "allow_thread_sharing": False}
    opened = SimpleNamespace(
        connection=True, close=lambda: note() and holder.release_later(), **facts
    )
    of_thread = SimpleNamespace(all=lambda **_: [opened])
    monkeypatch.setattr("django_redis_sync.limits.connections.connections", of_thread)
    project.limit(when=note, close_connections=True, blocking_timeout=MAX_WAIT)
    assert 200 == project.status()
    of_request, of_close = threads
    assert of_request == of_close, "the connections of another thread were closed"


@pytest.fixture
def atomic_requests(monkeypatch, db):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture(params=["", "atomic_requests"])
def maybe_atomic(request):
    """Run the test twice: with ATOMIC_REQUESTS and without."""
    if request.param:
        request.getfixturevalue("atomic_requests")


class Plain(View):
    get = staticmethod(respond_ok)


class PlainAsync(View):
    get = staticmethod(arespond_ok)


class Limited(SemaphoreRequiredMixin, Plain):
    semaphore_name, semaphore_limit = "one", 1


def another(view):
    """Wrap a view without changing it, as a decorator of a project may do."""

    @functools.wraps(view)
    def passed(*args, **kwargs):
        return view(*args, **kwargs)

    return passed


def decorated(name, base, *decorators):
    made = type(name, (base,), {"__module__": __name__})
    return method_decorator(decorators, name="dispatch")(made)


# Every kind of view


class Methods(View):
    @semaphore_required
    def dispatch(self, request):
        return super().dispatch(request)

    @semaphore_required
    def get(self, request):
        return HttpResponse()


class AsyncMethods(View):
    @semaphore_required
    def dispatch(self, request):
        return super().dispatch(request)

    @semaphore_required
    async def get(self, request):
        return HttpResponse()


Report = decorated("Report", Plain, semaphore_required)
MIXED = type("Mixed", (SemaphoreRequiredMixin, Plain), {"__module__": __name__})
#: ATOMIC and OTHERS contain views with the names of their limits. The test serves ATOMIC under
#: WSGI, with and without ATOMIC_REQUESTS. It serves OTHERS under WSGI and ASGI, but never with
#: ATOMIC_REQUESTS, because Django then rejects async views.
ATOMIC = [
    (semaphore_required(Plain.as_view()), "Plain"),
    (Report.as_view(), "Report"),
    (type("Daily", (Report,), {"__module__": __name__}).as_view(), "Daily"),
    (decorated("Around", Plain, semaphore_required, another).as_view(), "Around"),
    (Methods.as_view(), "Methods", "Methods.get"),
    (MIXED.as_view(), "Mixed"),
    (semaphore_required(drf.function), "tests.request_site.drf.function"),
]
OTHERS = [
    (semaphore_required(respond_ok), "tests.request_site.project.respond_ok"),
    (semaphore_required()(arespond_ok), "tests.request_site.project.arespond_ok"),
    (decorated("AsyncReport", PlainAsync, semaphore_required, another).as_view(), "AsyncReport"),
    (AsyncMethods.as_view(), "AsyncMethods", "AsyncMethods.get"),
]


@pytest.mark.parametrize(
    ("view", "names", "asgi", "atomic"),
    [
        *((view, names, False, atomic) for view, *names in ATOMIC for atomic in (False, True)),
        *((view, names, asgi, False) for view, *names in OTHERS for asgi in (False, True)),
    ],
)
def test_unnamed_semaphore_is_named_after_its_view(project, request, view, names, asgi, atomic):
    if atomic:
        request.getfixturevalue("atomic_requests")
    names = [name if name.startswith("tests.") else f"{__name__}.{name}" for name in names]
    project.asgi = asgi
    project.with_middleware()
    project.serve(home=view)
    for missing in names:
        with pytest.raises(ImproperlyConfigured, match=f"The limit of {missing!r} is missing"):
            project.get()
        known = project.settings.REDIS_SYNC.get("SEMAPHORES", {})
        project.configure(SEMAPHORES={**known, missing: {"limit": 1}})
    assert 200 == project.status()
    for name in names:
        with Semaphore(name, 1):
            rejected = project.get()
        assert 503 == rejected.status_code and 1 <= int(rejected["Retry-After"]) <= 120
    assert [0] * len(names) == [in_use(name) for name in names]


# The mixin


class Tenant(SemaphoreRequiredMixin, View):
    semaphore_methods = ("GET",)
    semaphore_limit = lambda request: int(request.GET.get("limit", 1))  # noqa: E731

    def get_semaphore_name(self):
        return f"tenant-{self.kwargs['tenant']}"

    def get(self, request, tenant):
        return HttpResponse()

    post = get


def test_mixin_reads_its_options_from_attributes_from_methods_and_from_as_view():
    view, limit_2 = Tenant.as_view(), Tenant.as_view(semaphore_limit=2, semaphore_status=500)
    with Semaphore("tenant-1", 3):
        assert 503 == status_of(view, tenant=1)
        assert 200 == status_of(view, REQUESTS.get("/?limit=2"), tenant=1)
        assert 200 == status_of(view, tenant=2)
        assert 200 == status_of(view, REQUESTS.post("/"), tenant=1)
        assert 200 == status_of(limit_2, tenant=1)
        with Semaphore("tenant-1", 3):
            assert 500 == status_of(limit_2, tenant=1)


@pytest.mark.parametrize("base", [Plain, PlainAsync])
@pytest.mark.parametrize(
    "option",
    [
        lambda view: lambda request: view.request.path,
        lambda view: view.key,
        lambda view: lambda request, view=view: view.request.path,
    ],
    ids=["closure", "method", "default argument"],
)
def test_callables_of_a_mixin_do_not_keep_requests_alive(option, base):
    class Keyed(SemaphoreRequiredMixin, base):
        semaphore_name, semaphore_limit = "keyed", 1
        get_semaphore_key = get_semaphore_when = option

        def key(self, request):
            return self.request.path

    request = REQUESTS.get("/x/")
    assert 200 == status_of(Keyed.as_view(), request)
    reference = weakref.ref(request)
    del request
    gc.collect()  # Django's views are in reference cycles
    assert reference() is None


@pytest.mark.promise(29)
@pytest.mark.parametrize(
    ("bases", "attributes", "message"),
    [
        ((View, SemaphoreRequiredMixin), {}, "before View"),
        ((Plain, SemaphoreRequiredMixin), {}, "before View"),
        ((SemaphoreRequiredMixin, View), {"semaphore_limits": 3}, "did you mean semaphore_limit?"),
        ((SemaphoreRequiredMixin,), {"semaphore_maximum": 3}, "not options: semaphore_maximum"),
        ((Limited,), {"get_semaphore_keys": print}, "did you mean get_semaphore_key?"),
    ],
)
def test_mixin_class_that_would_limit_nothing_raises_type_error(bases, attributes, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        type("Wrong", bases, attributes)


class ByProperty(SemaphoreRequiredMixin, View):
    semaphore_name = "property"

    @property
    def semaphore_limit(self):
        return int(self.request.GET["limit"])

    @functools.cached_property
    def semaphore_key(self):
        return lambda request: self.kwargs["team"]

    def get(self, request, team):
        return HttpResponse()


def test_attribute_of_the_mixin_may_be_a_property():
    view = ByProperty.as_view()
    with Semaphore("property", 2, key=identity.of_value("red")):
        found = [view(REQUESTS.get("/", {"limit": n}), team=t) for n, t in [(2, "red"), (1, "red")]]
        assert [200, 429] == [one.status_code for one in found]
        assert 200 == view(REQUESTS.get("/", {"limit": 1}), team="blue").status_code
    route = Route("by-property", view)
    assert ([], []) == limits_of(route), "the checks read no property, because they have no request"


class AsyncOption(SemaphoreRequiredMixin, View):
    semaphore_name = "async option"

    async def get_semaphore_limit(self):
        return 1

    async def get(self, request):
        return HttpResponse()


class OptionReturnsAsync(AsyncOption):
    def get_semaphore_limit(self):
        async def limit(request):
            return 1

        return limit


def test_async_option_of_the_mixin_is_an_async_function_that_is_returned():
    def status(view):
        return asyncio.run(view.as_view()(REQUESTS.get("/"))).status_code

    with pytest.raises(TypeError, match="get_semaphore_limit of AsyncOption must not be async"):
        status(AsyncOption)
    assert 200 == status(OptionReturnsAsync)
    with Semaphore("async option", 1):
        assert 503 == status(OptionReturnsAsync)


class Resource:
    """Has its request at another place than a view, as the resources of django-tastypie."""

    @semaphore_required("resource", limit=1)
    def dispatch(self, kind, detail, request):
        return HttpResponse(kind)


def test_request_may_be_any_argument_of_a_method():
    assert 200 == Resource().dispatch("list", None, REQUESTS.get("/")).status_code
    with Semaphore("resource", 1):
        assert 503 == Resource().dispatch("list", None, REQUESTS.get("/")).status_code
    with pytest.raises(TypeError, match="got no request"):
        Resource().dispatch("list", None, None)


# Mistakes


@pytest.mark.promise(29)
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LIMIT(View), TypeError, "method_decorator"),
        (lambda: semaphore_required(3), TypeError, "must be a name"),
        (lambda: semaphore_required(print, limit=3), TypeError, "must be a name"),
        (lambda: LIMIT(3), TypeError, "not for a int"),
        (lambda: LIMIT(len)(3), TypeError, "len got no request"),
        (lambda: LIMIT(lambda _: arespond_ok(_))(REQUESTS.get("/")), TypeError, "'async def'"),
        (lambda: semaphore_required("x", limits=1), TypeError, "limits (did you mean limit?)"),
        (lambda: semaphore_required("x", wait=1), TypeError, "wait (write blocking_timeout)"),
        (lambda: semaphore_required("x", limit=0), ValueError, "limit"),
        (lambda: semaphore_required("x", key="users"), ValueError, "key"),
        *(
            (lambda name=name: semaphore_required(name, limit=1), ValueError, "name")
            for name in ("", "a\nb", "x" * 201)
        ),
    ],
)
def test_decorator_on_anything_but_a_view_raises_type_error(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
    assert 0 == in_use()


class Prepared(APIView):
    @LIMIT
    def initial(self, request):
        super().initial(request)

    def get(self, request):
        return HttpResponse()


class SetUp(Plain):
    @method_decorator(LIMIT)
    def setup(self, request):
        super().setup(request)


class Helped(View):
    async def get(self, request):
        await self.look(request)
        return HttpResponse()

    @LIMIT
    async def look(self, request):
        """Return None, as a helper method that only checks something."""


class Forgetful(Plain):
    @LIMIT
    def get(self, request):
        """Return None. Django reports this mistake itself."""


@pytest.mark.promise(29)
@pytest.mark.parametrize("view", [Prepared, SetUp, Helped, Forgetful])
def test_method_whose_result_django_ignores_raises_type_error(view):
    """Otherwise, the limit would reject no request, and nobody would know."""
    answer = functools.partial(view.as_view(), REQUESTS.get("/"))
    if view is Forgetful:
        assert answer() is None
    else:
        with pytest.raises(TypeError, match=r"returned None, .* put semaphore_required on"):
            asyncio.run(answer()) if view is Helped else answer()
    assert 0 == in_use(), "the permit of the failed request is still in use"


# The requests to which a limit applies


@pytest.mark.parametrize(
    ("options", "method", "query", "counts"),
    [
        *(({}, method, {}, True) for method in ("GET", "HEAD", "POST")),
        *(({"methods": ["get"]}, method, {}, method != "POST") for method in ("HEAD", "POST")),
        *(({"methods": ["post"]}, method, {}, method == "POST") for method in ("GET", "POST")),
        *(({"methods": ["OPTIONS"]}, m, {}, m == "OPTIONS") for m in ("GET", "OPTIONS")),
        ({"when": lambda request: "big" in request.GET}, "GET", {"big": "1"}, True),
        ({"when": lambda request: "big" in request.GET}, "GET", {}, False),
        ({"limit": lambda request: int(request.GET["limit"])}, "GET", {"limit": "1"}, True),
        ({"limit": lambda request: int(request.GET["limit"])}, "GET", {"limit": "2"}, False),
    ],
)
@EVERYWHERE
def test_options_decide_to_which_requests_a_limit_applies(project, options, method, query, counts):
    project.limit(**options)
    assert 200 == project.status(method=method, **query)
    with Semaphore("one", 1):
        assert (503 if counts else 200) == project.status(method=method, **query)


class HasOptions(Limited):
    options = staticmethod(respond_ok)


class HasDispatch(Plain):
    def dispatch(self, request):
        return super().dispatch(request)


class NoView:
    show = LIMIT(lambda self, request: HttpResponse())


@pytest.mark.parametrize("endpoint", [False, True], ids=["", "with middleware"])
@pytest.mark.parametrize(
    ("view", "status"),
    [
        (Limited.as_view(), 200),
        (decorated("Dispatch", Plain, LIMIT).as_view(), 200),
        *((LIMIT(view.as_view()), 200) for view in (Plain, PlainAsync, drf.Open)),
        *((view.as_view(), 200) for view in (Plain, PlainAsync)),
        (HasOptions.as_view(), 503),
        (LIMIT(HasDispatch.as_view()), 503),
        *((view, 503) for view in (LIMIT(respond_ok), LIMIT(arespond_ok), NoView().show)),
    ],
)
def test_OPTIONS_request_is_limited_unless_the_framework_answers_it(
    project, view, status, endpoint
):
    if endpoint:
        project.with_middleware(ENDPOINTS={"home": ONE})
    project.serve(home=view)
    with Semaphore("one", 1):
        for project.asgi in (False, True):
            assert status == project.status(method="OPTIONS")
            if endpoint:
                assert 503 == project.status() == project.status(method="HEAD")


@EVERYWHERE
def test_no_request_is_limited_when_enabled_is_false(project):
    project.limit(key="user")  # reading the key would fail, because there is no user
    project.configure(ENABLED=False)
    with Semaphore("one", 1):
        assert 200 == project.status()


@site
def test_request_redirected_to_the_login_takes_no_permit(project, raw):
    project.settings.MIDDLEWARE = [OBEYING]
    project.with_middleware(ENDPOINTS={"members": ONE})
    assert 302 == call("/members/").status_code
    assert [] == [key for key in raw.scan_iter() if b"{one}" in key]


# The middleware together with other limits of the view


def test_request_takes_one_permit_if_several_limits_use_the_same_semaphore(project, maybe_atomic):
    project.with_middleware(SEMAPHORES={"one": {"limit": 1}}, ENDPOINTS={"*": "one"})
    for view in (LIMIT(respond_ok), LIMIT(LIMIT(respond_ok)), LIMIT(Limited.as_view())):
        project.serve(home=view)
        assert 200 == project.status()
        assert 0 == in_use()


def test_request_takes_two_permits_if_limits_on_two_caches_have_the_same_name(project):
    settings = project.settings
    settings.CACHES = {**settings.CACHES, "other": settings.CACHES["default"]}
    project.with_middleware(ENDPOINTS={"home": {**ONE, "using": "other"}})
    for using, status in (("other", 200), ("default", 503)):
        project.serve(home=semaphore_required("one", limit=1, using=using)(respond_ok))
        assert status == project.status()  # both caches are the same server, so they share "one"


@pytest.mark.parametrize(("non_atomic", "taken"), [((), 1), (("default",), 0), (("other",), 1)])
def test_middleware_takes_the_permits_of_a_view_before_its_transaction_begins(
    project, atomic_requests, non_atomic, taken
):
    before = []

    @functools.wraps(LIMIT(respond_ok))
    def view(request):
        before.append(in_use())
        return LIMIT(respond_ok)(request)

    for alias in non_atomic:
        transaction.non_atomic_requests(using=alias)(view)
    project.with_middleware()
    project.serve(home=view)
    assert 200 == project.status()
    assert [taken] == before


def test_middleware_releases_its_permits_when_a_later_limit_rejects_the_request(
    project, maybe_atomic
):
    project.with_middleware(ENDPOINTS={"home": {"name": "another", "limit": 1}})
    project.serve(home=LIMIT(respond_ok))
    gc.disable()
    try:
        with Semaphore("one", 1):
            assert (503, 0) == (project.status(), in_use("another"))
    finally:
        gc.enable()
    assert 200 == project.status()


@CLIENTS
def test_mixin_methods_can_read_the_database_and_the_url_arguments(project, atomic_requests, asgi):
    class Queries(Tenant):
        def get_semaphore_limit(self):
            return 1 + User.objects.count()

    project.with_middleware()
    project.settings.ROOT_URLCONF = (path("<int:tenant>/", Queries.as_view()),)
    with Semaphore("tenant-7", 1):
        assert [503, 200] == [call(f"/{tenant}/", asgi).status_code for tenant in (7, 8)]


@CLIENTS
def test_callables_when_and_key_are_called_once_per_request(project, maybe_atomic, asgi):
    calls = []

    def when(request):
        calls.append("when")
        return len(calls) == 1  # True only in the first call

    def key(request):
        calls.append("key")
        return "k"

    project.with_middleware()
    project.serve(home=semaphore_required("keyed", limit=1, when=when, key=key)(respond_ok))
    assert 200 == call("/home/", asgi).status_code
    assert ["when", "key"] == calls
    eventually(lambda: outcomes("keyed") == {"granted": 1})


@pytest.mark.promise(31)
def test_unlimited_request_sends_0_commands_and_a_limited_request_sends_2(project, raw):
    project.with_middleware(ENDPOINTS={"home": ONE})
    project.serve(home=respond_ok, free=respond_ok)
    for project.asgi in (False, True):
        for at, expected in (("free", 0), ("home", 2)):
            assert 200 == project.status(at)
            sent = []
            for _ in range(5):
                with counted(raw) as commands:
                    project.status(at)
                sent.append(commands["evalsha"])
            assert expected == min(sent), "threads of earlier tests may send commands, too"


# Options that a policy passes to its semaphore


def test_options_timeout_max_hold_and_min_hold_of_a_policy_take_effect(project):
    project.limit("short", timeout=7)
    visit = project.visit("short").entered()
    (holder,) = Semaphore("one", 1).status().holders
    assert 4 < holder.ends_in <= 7
    assert 200 == visit.end()
    project.limit("hangs", lambda _: eventually(lambda: not in_use()) and respond_ok(_), max_hold=1)
    assert 200 == project.status("hangs")
    project.limit("retained", min_hold=1.5)
    assert [200, 503] == [project.status("retained") for _ in range(2)]
    eventually(lambda: project.status("retained") == 200)


def test_process_writes_statistics_for_a_bounded_number_of_keys(project, raw, monkeypatch):
    monkeypatch.setattr(semaphore, "counted_keys", semaphore.CountedKeys())
    monkeypatch.setattr(semaphore.CountedKeys, "MAX", 3)
    project.limit(key=lambda request: request.GET["key"])
    for key in "abcdefab":
        assert 200 == project.status(key=key)
    assert 3 == len([*raw.scan_iter(match="*:stats")])
    assert 6 == len([*raw.scan_iter(match="*:leases")])
    later = semaphore.clock() + semaphore.CountedKeys.HOUR
    monkeypatch.setattr(semaphore, "clock", lambda: later)
    for key in "ghij":
        assert 200 == project.status(key=key)
    assert 6 == len([*raw.scan_iter(match="*:stats")]), "each hour, other keys are counted"


# Errors of locks inside a view


def contended(request):
    with Lock("stock", blocking=False):
        return HttpResponse()


async def acontended(request):
    async with Lock("stock", blocking=False):
        return HttpResponse()


def down(request):
    raise Unavailable("Redis is down")


class ContendedApi(APIView):
    get = staticmethod(contended)


@pytest.mark.promise(19)
@CLIENTS
@pytest.mark.parametrize("view", [contended, acontended, down, ContendedApi.as_view()])
def test_middleware_answers_503_when_a_lock_inside_the_view_fails(project, view, asgi, caplog):
    project.with_middleware()
    project.serve(x=view)
    with Lock("stock"):
        response = call("/x/", asgi)
    assert (503, 503) == (response.status_code, response.json().get("status", 503))
    assert 2 <= int(response["Retry-After"]) <= 3
    error = "Unavailable" if view is down else "NotAcquired"
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert line.startswith(f"503 for /x/: {error}: ")


@pytest.mark.parametrize(
    ("error", "sync"),
    [
        (KeyError("other"), {}),
        (LeaseLost("lost"), {}),
        (Unavailable("down"), {"ERROR_RESPONSES": False}),
    ],
)
def test_middleware_does_not_catch_an_error_for_which_it_has_no_response(project, error, sync):
    def view(request):
        raise error

    project.with_middleware(**sync)
    project.serve(home=view)
    with pytest.raises(type(error)):
        project.get()


# Cancelled requests


async def acall(path):
    return await AsyncClient().get(path)


@pytest.mark.promise(6)
@site
@pytest.mark.parametrize("path", ["/alimited/", "/adispatch/", "/amixed/", "/reports/aexport/"])
def test_request_cancelled_at_any_await_leaves_no_permit(project, path):
    project.with_middleware(ENDPOINTS={"reports:*": ONE})

    async def cancel_after(steps):
        """Cancel a request after `steps` iterations of the event loop. Check that no permit is in
        use. Return True if the request ended before it was cancelled."""
        request = asyncio.create_task(acall(path))
        for _ in range(steps):
            await asyncio.sleep(0)
        ended = request.done()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert 0 == (await Semaphore("one", 1).astatus()).in_use, steps
        return ended

    async def main():
        await acall(path)
        for steps in range(0, 400, 3):
            if await cancel_after(steps):
                return
        await acall(path)

    asyncio.run(main())
