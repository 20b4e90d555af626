"""The system checks report each mistake, accept correct projects, and open no connection."""

import ast
import math
import re
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.checks import run_checks
from django.db import connections, transaction
from django.http import HttpResponse
from django.urls import clear_url_caches, include, path, resolve
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_redis_sync import SemaphoreRequiredMixin, conf, semaphore_required, synchronized
from django_redis_sync.limits import routes
from tests.request_site import drf
from tests.support.snapshots import as_written

pytestmark = pytest.mark.promise(29)

ROOT = Path(__file__).resolve().parent.parent
MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"


@pytest.fixture(autouse=True)
def nothing_connects(monkeypatch) -> None:
    own_thread, connect = threading.current_thread(), socket.socket.connect

    def refuse(*args):
        if threading.current_thread() is own_thread:
            raise AssertionError("a check opened a connection")
        return connect(*args)

    monkeypatch.setattr(socket.socket, "connect", refuse)


# Views


def view(request):
    return HttpResponse()


async def aview(request):
    return HttpResponse()


class Plain(View):
    def get(self, request):
        return HttpResponse()


class Mixed(SemaphoreRequiredMixin, Plain):
    semaphore_name = "nowhere"


class ByTenant(Mixed):
    def get_semaphore_limit(self):
        return len(self.request.path)


class NamedByTenant(Mixed):
    def get_semaphore_name(self):
        return self.kwargs["tenant"]


class OnGet(View):
    @semaphore_required("nowhere")
    def get(self, request):
        return HttpResponse()


class WithSelf(Mixed):
    semaphore_limit = 3

    def semaphore_when(self, request):
        return True


class Hides(Mixed):
    semaphore_limit = 3

    def dispatch(self, request):
        return HttpResponse()


class Delegates(Mixed):
    semaphore_limit = 3

    def dispatch(self, request):
        return super().dispatch(request)


class BeforeLogin(SemaphoreRequiredMixin, LoginRequiredMixin, Plain):
    semaphore_limit = 3


class AfterLogin(LoginRequiredMixin, SemaphoreRequiredMixin, Plain):
    semaphore_limit = 3


@synchronized("stock")
def races(request):
    return HttpResponse()


@synchronized("stock", release_on_commit=True)
def waits(request):
    return HttpResponse()


class Races(View):
    @synchronized("stock")
    def get(self, request):
        return HttpResponse()


def limit(name: str = "here", number: int = 3, **options):
    return semaphore_required(name, number, **options)


def mixed(**attributes):
    return type("Limited", (Mixed,), attributes).as_view()


def both(first: str, second: str, between=never_cache):
    """Return a view with two limits and another decorator in between."""
    return limit(first)(between(limit(second)(view)))


class OnDispatchAndGet(View):
    @limit("b")
    def get(self, request):
        return HttpResponse()


KEY = "user"
PROXY = {"REQUESTS": {"trusted_proxies": 1}}


class Case(NamedTuple):
    """A project: REDIS_SYNC, the views, the middleware, and other settings."""

    sync: dict[str, Any] = {}  # trusts one proxy unless it has REQUESTS
    views: Any = ()
    middleware: Any = (AUTHENTICATION, MIDDLEWARE)
    atomic: bool = False
    caches: dict[str, Any] = {}


def cache(**options) -> dict[str, Any]:
    location = options.pop("location", "redis://127.0.0.1:1/7")
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}


def endpoints(**entry):
    return {"ENDPOINTS": {"view0": entry}}


def semaphores(**entry):
    return {"SEMAPHORES": {"here": entry}}


SHARDED = cache(CLIENT_CLASS="django_redis.client.ShardClient", location=["redis://127.0.0.1:1"])
DJANGO_CACHE = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://h"}
SMALL = {"small": cache(location="redis://h", CONNECTION_POOL_KWARGS={"max_connections": 3})}

#: For each mistake, the ids of its messages and a project with it.
MISTAKES: dict[str, tuple[list[str], Case]] = {
    "an unknown key": (["E001"], Case({"CASHE": "default"})),
    "an unknown key of REQUESTS": (["E001"], Case({"REQUESTS": {"max_waiter": 3}})),
    "an impossible value": (["E001"], Case({"TIMEOUT": -1})),
    "an endpoint that is a number": (["E001"], Case({"ENDPOINTS": {"view0": 3}})),
    "an endpoint without a name": (["E001"], Case({"ENDPOINTS": {3: "exports"}})),
    "a missing alias": (["E002"], Case({"CACHE": "unknown"})),
    "a missing alias of an entry": (["E002"], Case(semaphores(limit=1, using="another"))),
    "Django's own cache": (["E003"], Case({"CACHE": "own"}, caches={"own": DJANGO_CACHE})),
    "a sharded cache": (["E004"], Case({"CACHE": "shards"}, caches={"shards": SHARDED})),
    "an endpoint with limit 0": (["E005"], Case(endpoints(limit=0), [view])),
    "a misspelled option": (["E005"], Case(endpoints(limt=1), [view])),
    "an endpoint without a limit": (["E005"], Case({"ENDPOINTS": {"view0": "there"}}, [view])),
    "a path to nowhere": (["E005"], Case(endpoints(limit=1, key="nowhere.at_all"), [view])),
    "a path to a str": (["E005"], Case(endpoints(limit=1, key=f"{__name__}.KEY"), [view])),
    "an impossible option": (["E005"], Case(endpoints(limit=2, max_hold=-1), [view])),
    "a semaphore with limit -1": (["E005"], Case(semaphores(limit=-1))),
    "a semaphore without a name": (["E005"], Case({"SEMAPHORES": {"": {"limit": 1}}})),
    "a semaphore that is a number": (["E005"], Case({"SEMAPHORES": {"here": 3}})),
    "a max_hold without end": (["E005"], Case(semaphores(max_hold=math.inf))),
    "a decorator without a limit": (["E013"], Case({}, [semaphore_required("there")(view)] * 7)),
    "a nameless decorator": (["E013"], Case({}, [semaphore_required(view)])),
    "a mixin without a limit": (["E013"], Case({}, [Mixed.as_view()])),
    "a method without a limit": (["E013"], Case({}, [OnGet.as_view()])),
    "a mixin with limit 0": (["E013"], Case({}, [mixed(semaphore_limit=0)])),
    "a mixin's key": (["E013"], Case({}, [mixed(semaphore_limit=3, semaphore_key="nobody")])),
    "one of two limits": (["E013"], Case({}, [semaphore_required("x")(limit()(view))])),
    "a path to no async client": (["E016"], Case({"ASYNC_CLIENT": "nowhere.at_all"})),
    "an async client that is a str": (["E016"], Case({"ASYNC_CLIENT": f"{__name__}.KEY"})),
    "a key without an argument": (["E017"], Case({}, [limit(key=lambda: "x")(view)] * 2)),
    "a share without an argument": (["E017"], Case({}, [limit(share=lambda: "x")(view)])),
    "a share_limit with two arguments": (
        ["E017"],
        Case({}, [limit(share="user", share_limit=lambda a, b: 3)(view)]),
    ),
    "an unknown share": (["E005"], Case(endpoints(limit=3, share="users"), [view])),
    "a share_limit of 0": (["E005"], Case(endpoints(limit=3, share="user", share_limit=0), [view])),
    "a share that is not fair": (
        ["E013"],
        Case({}, [mixed(semaphore_limit=3, semaphore_share="user", semaphore_fair=False)]),
    ),
    "a limit with two arguments": (["E017"], Case({}, [limit(number=lambda a, b: 3)(view)])),
    "a one-argument response": (["E017"], Case({}, [limit(response=lambda request: None)(view)])),
    "a method in place of a function": (["E017"], Case({}, [WithSelf.as_view()])),
    "an endpoint without a view": (["W006"], Case(endpoints(limit=1), [])),
    "endpoints without middleware": (["W007"], Case(endpoints(limit=1), [view], ())),
    "atomic without middleware": (["W008"], Case({}, [limit()(view)] * 7, (), True)),
    "an atomic method": (
        ["W008"],
        Case(
            {}, [method_decorator(limit(), name="get")(type("M", (Plain,), {})).as_view()], (), True
        ),
    ),
    "middleware too early": (["W009"], Case({}, [], (MIDDLEWARE, CSRF))),
    "middleware twice": (["W009"], Case({}, [], (MIDDLEWARE, MIDDLEWARE))),
    "a DRF view by user": (["W010"], Case(endpoints(limit=1, key="user"), [drf.Token.as_view()])),
    "a DRF view shared by user": (
        ["W010"],
        Case(endpoints(limit=1, share="user"), [drf.Token.as_view()]),
    ),
    "a small pool": (["W012"], Case({"CACHE": "small"}, caches=SMALL)),
    "a small pool of an entry": (["W012"], Case(semaphores(limit=1, using="small"), caches=SMALL)),
    "a small pool by its URL": (
        ["W012"],
        Case({"CACHE": "x"}, caches={"x": cache(location="redis://h/1?max_connections=2")}),
    ),
    "synchronized inside a transaction": (["W014"], Case({}, [races] * 7, atomic=True)),
    "synchronized below another decorator": (["W014"], Case({}, [never_cache(races)], atomic=True)),
    "a synchronized method": (["W014"], Case({}, [Races.as_view()], atomic=True)),
    "a misspelled method": (["W016"], Case({}, [limit(methods=["PSOT"])(view)])),
    "different limits of a name": (
        ["W018"],
        Case(
            {"ENDPOINTS": {f"view{n}": {"name": "x", "limit": n + 1} for n in (0, 1)}}, [view, view]
        ),
    ),
    "a user without authentication": (["W019"], Case({}, [limit(key="user")(view)], (MIDDLEWARE,))),
    "a share by user without authentication": (
        ["W019"],
        Case({}, [limit(share="user")(view)], (MIDDLEWARE,)),
    ),
    "a share_limit without a share": (["W024"], Case({}, [limit(share_limit=2)(view)])),
    "a share_limit of the settings without a share": (
        ["W024"],
        Case(semaphores(limit=3, share_limit=2), [semaphore_required("here")(view)]),
    ),
    "a share_limit above the limit": (
        ["W025"],
        Case({}, [limit(share="user", share_limit=4)(view)]),
    ),
    "a share_limit of code above the limit": (["W025"], Case(semaphores(limit=3, share_limit=4))),
    "a hidden dispatch": (["W020"], Case({}, [Hides.as_view()])),
    "a mixin before the login": (["W022"], Case({}, [BeforeLogin.as_view(semaphore_limit=3)])),
    "two orders": (["W023"], Case({}, [both("a", "b"), both("b", "a")])),
    "two orders of a class": (
        ["W023"],
        Case({}, [limit("a")(OnDispatchAndGet.as_view()), both("b", "a")]),
    ),
    "two orders with ENDPOINTS": (
        ["W023"],
        Case(
            {"ENDPOINTS": {"view0": {"name": "b", "limit": 1}}}, [limit("a")(view), both("a", "b")]
        ),
    ),
    # Reported by `check --deploy` only
    "a shared URL": (
        ["W011"],
        Case({"CACHE": "x"}, caches={"x": cache(), "pages": cache(location=[cache()["LOCATION"]])}),
    ),
    "an address without trusted proxies": (
        ["W015"],
        Case({"REQUESTS": {"trusted_proxies": 0}}, [limit(key="ip")(view)]),
    ),
    "a share by address without trusted proxies": (
        ["W015"],
        Case({"REQUESTS": {"trusted_proxies": 0}}, [limit(share="ip")(view)]),
    ),
    "a waiting view": (["W021"], Case({}, [limit(blocking_timeout=2)(view)])),
}

#: Projects without mistakes.
CORRECT = {
    "nothing": Case(),
    "settings": Case(
        {
            "SEMAPHORES": {
                "exports": {"limit": 3},
                "lock": {"timeout": 60},
                "patient": {"blocking_timeout": math.inf},
            },
            "ENDPOINTS": {"view*": "exports", "view1": {"limit": 1, "key": "user"}},
        },
        [view, view],
    ),
    "decorators": Case({}, [limit()(view), limit()(Plain.as_view()), limit()(aview)]),
    "a limit in SEMAPHORES": Case(semaphores(limit=3), [semaphore_required("here")(view)]),
    "a limit in ENDPOINTS": Case(endpoints(name="here", limit=3), [semaphore_required(view)]),
    "mixins": Case(
        {}, [Mixed.as_view(semaphore_limit=3), ByTenant.as_view(), NamedByTenant.as_view()]
    ),
    "a login first": Case({}, [AfterLogin.as_view(), Delegates.as_view()]),
    "atomic with middleware": Case({}, [limit()(view), waits], atomic=True),
    "not atomic": Case({}, [transaction.non_atomic_requests(lambda r: races(r))], atomic=True),
    "other middleware": Case({}, [], (MIDDLEWARE, "django.middleware.common.CommonMiddleware")),
    "middleware that Django reports": Case({}, [], ("no.such.Middleware", f"{__name__}.view")),
    "a DRF view by user": Case({}, [drf.Token.as_view()], (MIDDLEWARE,)),
    "a large pool": Case(
        {"CACHE": "x"}, caches={"x": cache(CONNECTION_POOL_KWARGS={"max_connections": 4})}
    ),
    "callables": Case({}, [limit(key=lambda r, *more: "x", when=bool, number=int)(view)]),
    "shares": Case({}, [limit(share="user", share_limit=3)(view), limit(share="user")(aview)]),
    "a share of one of two views": Case(
        semaphores(limit=3, share_limit=2),
        [semaphore_required("here")(view), semaphore_required("here", share="user")(view)],
    ),
    "a share_limit of code": Case(semaphores(limit=3, share_limit=2)),
    "a share_limit that is a function": Case({}, [limit(share="user", share_limit=int)(view)]),
    "decorators on each other": Case(
        {}, [limit("a")(limit("b")(view)), limit("b")(limit("a")(view)), both("a", "b")]
    ),
    "an async view that waits": Case({}, [limit(blocking_timeout=2)(aview)]),
    "proxies": Case(PROXY, [limit(key="ip")(view)]),
    "threads": Case({"REQUESTS": {"max_waiting_threads": 1}}, [limit(blocking_timeout=2)(view)]),
}
DEPLOYMENTS = {"W011", "W015", "W021"}


@pytest.fixture
def messages(settings, monkeypatch):
    """Return a function that returns the messages for a project."""
    own = settings.CACHES

    def of(case: Case, deploy: bool = True) -> list:
        settings.REDIS_SYNC = {**PROXY, **case.sync}
        settings.MIDDLEWARE, settings.CACHES = case.middleware, {**own, **case.caches}
        settings.ROOT_URLCONF = tuple(
            path(f"{n}/", one, name=f"view{n}") for n, one in enumerate(case.views)
        )
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", case.atomic)
        clear_url_caches()
        found = run_checks(tags=["redis_sync"], include_deployment_checks=deploy)
        assert all(message.hint for message in found)
        return found

    yield of
    clear_url_caches()


def ids(found: list) -> list[str]:
    return [message.id.removeprefix("redis_sync.") for message in found]


@pytest.mark.parametrize("name", MISTAKES)
def test_check_reports_each_mistake_and_no_other(name: str, messages) -> None:
    expected, case = MISTAKES[name]
    assert expected == ids(messages(case))
    assert [] == [one for one in ids(messages(case, deploy=False)) if one in DEPLOYMENTS]


@pytest.mark.parametrize("name", CORRECT)
def test_check_reports_nothing_in_a_correct_project(name: str, messages) -> None:
    assert [] == ids(messages(CORRECT[name]))


def test_check_messages_match_the_snapshot(messages) -> None:
    found = [one for _, case in MISTAKES.values() for one in messages(case)]
    lines = {f"{type(one).__name__} {one.id}: {one.msg} {one.hint}" for one in found}
    as_written("checks", sorted(lines))


def test_check_reports_all_mistakes_of_a_project(messages) -> None:
    case = Case({"CACHE": "unknown", "ENDPOINTS": {"nowhere": {"limit": 0}}}, [races], (), True)
    assert ["E002", "E005", "W007", "W006", "W014"] == ids(messages(case))


def test_check_reports_each_limit_of_a_view(messages) -> None:
    nested = semaphore_required("a")(semaphore_required("b")(view))
    found = messages(Case({}, [nested]))
    assert ["a", "b"] == [re.findall("limit of '(.*?)'", one.msg)[0] for one in found]


def test_policies_of_a_route_omit_those_with_a_mistake(settings) -> None:
    wrong = limit()(mixed(semaphore_limit="three"))
    route = routes.Route("shop", wrong)
    assert {"here"} == {policy.name for policy in routes.policies_of(route)}
    settings.REDIS_SYNC = {"ENDPOINTS": {"shop": {"limt": 3}}}
    assert [] == [*routes.policies_of(route)]


def test_route_without_a_url_name_has_the_path_of_its_view(settings, monkeypatch) -> None:
    class Callable:
        def __call__(self, request):
            return HttpResponse()

    views = (view, Plain.as_view(), Callable())
    settings.ROOT_URLCONF = tuple(path(f"{n}/", one) for n, one in enumerate(views))
    here = [f"{__name__}.{name}" for name in ("view", "Plain", "Callable")]
    assert here == [route.name for route in routes.routes()]
    monkeypatch.setitem(sys.modules, "without_patterns", ModuleType("without_patterns"))
    for none in (None, "no.such.module", "without_patterns"):
        settings.ROOT_URLCONF = none
        assert [] == routes.routes()


def test_route_name_includes_all_namespaces(settings) -> None:
    inner = path("c/", view, name="view")
    for space in ("inner", "outer"):
        inner = path(f"{space}/", include(([inner], space)))
    settings.ROOT_URLCONF = (inner,)
    assert ["outer:inner:view"] == [route.name for route in routes.routes()]
    assert "outer:inner:view" == resolve("/outer/inner/c/").view_name


# Ids


def functions_by_id() -> dict[str, set[str]]:
    """Return the functions that use each id. `_check_alias` computes E002 to E004."""
    found = defaultdict(set)
    for module in (ROOT / "django_redis_sync" / "checks").glob("*.py"):
        for node in ast.parse(module.read_text()).body:
            for one in re.findall(r"redis_sync\.([EW]\d{3})", ast.unparse(node)):
                found[one].add(f"{module.stem}.{getattr(node, 'name', '')}")
    return found | {f"E00{number}": {"settings._check_alias"} for number in (2, 3, 4)}


def test_each_check_id_belongs_to_one_check() -> None:
    """Otherwise, silencing one check would silence another."""
    assert {} == {one: where for one, where in functions_by_id().items() if len(where) > 1}


def test_each_check_id_is_documented() -> None:
    rows = re.findall(
        r"^\| `redis_sync\.([EW]\d{3})` \|", (ROOT / "docs/checks.md").read_text(), re.MULTILINE
    )
    assert sorted(functions_by_id()) == rows


# Loading


LOADED = """
import sys
import django

django.setup()
print([name for name in sys.modules if name.startswith("django_redis_sync.checks.")])
"""


def test_installed_app_does_not_import_the_checks_before_they_run() -> None:
    words = [sys.executable, "-c", LOADED]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "[]" == done.stdout.strip()


def test_process_without_the_app_installed_logs_one_warning(settings, caplog) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if "redis_sync" not in app]
    conf.current.cache_clear()
    for _ in range(3):
        conf.current()
    (record,) = caplog.records
    assert "not in INSTALLED_APPS" in record.getMessage()
