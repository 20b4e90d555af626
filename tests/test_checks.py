"""The system checks report each mistake, accept correct projects, and open no connection."""

import math
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.checks import run_checks
from django.db import connections, transaction
from django.http import HttpResponse
from django.urls import clear_url_caches, include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_redis_sync import Lock, SemaphoreRequiredMixin, semaphore_required, synchronized
from tests.request_site import drf
from tests.request_site.project import arespond_ok

pytestmark = pytest.mark.promise(29)

ROOT = Path(__file__).resolve().parent.parent
HERE = __name__
OURS = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
KEY = "a str"


# Views


def view(request):
    return HttpResponse()


class Plain(View):
    def get(self, request):
        return view(request)


class Called:
    def __call__(self, request):
        return view(request)


def limited(name: str = "here", number: Any = 3, view: Any = view, **options):
    return semaphore_required(name, number, **options)(view)


def both(first: str, second: str):
    """Return a view with two limits. Between the limits, it has a decorator of Django."""
    return limited(first, view=never_cache(limited(second)))


def mixed(*bases: type, limit: Any = 3, **attributes):
    """Return the view of a class with `attributes` and `bases`. If `bases` does not include
    SemaphoreRequiredMixin, add this mixin last. `limit`: the `semaphore_limit` for `as_view()`."""
    given = {"semaphore_name": "nowhere", **attributes}
    mixin = () if SemaphoreRequiredMixin in bases else (SemaphoreRequiredMixin,)
    return type("Mixed", (*bases, *mixin, Plain), given).as_view(semaphore_limit=limit)


def on_get(decorator: Any):
    """Return a class-based view whose method `get` is decorated."""
    return type("OnGet", (Plain,), {"get": decorator(Plain.get)}).as_view()


class Hides:
    def dispatch(self, request):
        return HttpResponse()


class Delegates:
    def dispatch(self, request):
        return super().dispatch(request)


DRF = drf.Token.as_view()
UNLIMITED = semaphore_required("there")(view)
USED = semaphore_required("here")(view)
LOGIN_LAST = mixed(SemaphoreRequiredMixin, LoginRequiredMixin)
RACES = synchronized("stock")
AFTER_COMMIT = synchronized("stock", release_on_commit=True)(view)


class Case(NamedTuple):
    """A project, and the messages that the checks must report for it.

    `says`: the ids of the expected messages, then texts, each after a `|`. The messages must
    contain each text. But if a text begins with `!`, no message may contain its rest."""

    says: str = ""
    views: Any = ()
    sync: dict[str, Any] = {}  # REDIS_SYNC. If it has no REQUESTS, the test adds trusted_proxies
    middleware: Any = (AUTHENTICATION, OURS)
    atomic: bool = False
    caches: dict[str, Any] = {}


def cache(location: Any = "redis://127.0.0.1:1/7", **options) -> dict[str, Any]:
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}


def endpoints(**entry):
    return {"ENDPOINTS": {"view0": entry}}


def semaphores(**entry):
    return {"SEMAPHORES": {"here": entry}}


def with_cache(**caches: Any) -> dict[str, Any]:
    return {"sync": {"CACHE": next(iter(caches))}, "caches": caches}


SHARDED = cache(["redis://127.0.0.1:1"], CLIENT_CLASS="django_redis.client.ShardClient")
DJANGO_CACHE = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://h"}
SMALL_DJANGO_CACHE = {**DJANGO_CACHE, "OPTIONS": {"max_connections": 2}}
LOCAL_CACHE = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
SMALL = cache("redis://h", CONNECTION_POOL_KWARGS={"max_connections": 3})
LARGE = cache(CONNECTION_POOL_KWARGS={"max_connections": 4})
NO_PROXY = {"REQUESTS": {"trusted_proxies": 0}}
TWO_LIMITS = {"ENDPOINTS": {f"view{n}": {"name": "x", "limit": n + 1} for n in (0, 1)}}
FIVE = "view0, view1, view2, view3, view4|!view5"
OPTIONS = "Options of an entry: blocking_timeout, close_connections, enforce"

MISTAKES = [
    Case("E001|URLCONFS must be a list|'x.urls'", sync={"URLCONFS": "x.urls"}),
    Case(
        "E001|CASHE (did you mean CACHE?)|ENABLED, WITHOUT_REDIS, CACHE", sync={"CASHE": "default"}
    ),
    Case("E001|timeout (did you mean TIMEOUT?)", sync={"timeout": 3}),
    Case("E001|status (it belongs in REQUESTS)", sync={"status": 3}),
    Case("E001|keys: zzz. |defaults.py", sync={"zzz": 3}),
    Case("E001|REQUESTS must be a dict, not 3", sync={"REQUESTS": 3}),
    Case("E001|max_waiter (did you mean|timeout, min_hold", sync={"REQUESTS": {"max_waiter": 3}}),
    Case("E001|['REQUESTS']: status must|400 to 599, not 200", sync={"REQUESTS": {"status": 200}}),
    Case("E001|TIMEOUT must be above 0|not -1", sync={"TIMEOUT": -1}),
    Case(f"E001|['ENDPOINTS']['view0']|{OPTIONS}", sync={"ENDPOINTS": {"view0": 3}}),
    Case(f"E001|['ENDPOINTS']|not a str: 3|{OPTIONS}", sync={"ENDPOINTS": {3: "exports"}}),
    Case("E002|REDIS_SYNC['CACHE']|'unknown'", sync={"CACHE": "unknown"}),
    Case("E002|['SEMAPHORES']['here']|'another'", sync=semaphores(limit=1, using="another")),
    Case("E002|['ENDPOINTS']['view0']|'another'", [view], endpoints(limit=1, using="another")),
    Case("E003|'own'|backends.locmem.LocMemCache", **with_cache(own=LOCAL_CACHE)),
    Case("E004|'shards'|ShardClient", **with_cache(shards=SHARDED)),
    Case("E005|'view0'|limit must|Permits", [view], endpoints(limit=0)),
    Case(f"E005|'view0'|limt (did you mean limit?)|{OPTIONS}", [view], endpoints(limt=1)),
    Case("E005|'there'|missing|{'limit': 3}", [view], {"ENDPOINTS": {"view0": "there"}}),
    Case(f"E005|'nowhere'|{OPTIONS}", [view], endpoints(limit=1, key="nowhere.at_all")),
    Case(f"E005|key must|{HERE}.KEY|own semaphore", [view], endpoints(limit=1, key=f"{HERE}.KEY")),
    Case("E005|max_hold must|Seconds after", [view], endpoints(limit=2, max_hold=-1)),
    Case("E005|share must|'users'|The share of", [view], endpoints(limit=3, share="users")),
    Case("E005|share_limit must", [view], endpoints(limit=3, share="user", share_limit=0)),
    Case("E005|['SEMAPHORES']['here']|limit must|not -1", sync=semaphores(limit=-1)),
    Case("E005|['SEMAPHORES']['']|empty", sync={"SEMAPHORES": {"": {"limit": 1}}}),
    Case("E005|['here'] must be a dict", sync={"SEMAPHORES": {"here": 3}}),
    Case("E005|max_hold must|not inf", sync=semaphores(max_hold=math.inf)),
    Case(f"E013|'there'|missing|{FIVE}|{{'limit': 3}}", [UNLIMITED] * 7),
    Case(f"E013|'{HERE}.view'|missing|view0", [semaphore_required(view)]),
    Case("E013|'nowhere'|missing", [mixed(limit=None)]),
    Case("E013|'nowhere'|missing", [on_get(semaphore_required("nowhere"))]),
    Case("E013|limit must be from 1|Permits", [mixed(limit=0)]),
    Case("E013|key must|'nobody'", [mixed(semaphore_key="nobody")]),
    Case("E013|'x'|missing", [semaphore_required("x")(limited())]),
    Case("E013 E013|'a'|'b'", [semaphore_required("a")(semaphore_required("b")(view))]),
    Case("E013|fair must not", [mixed(semaphore_share="user", semaphore_fair=False)]),
    Case("E016|'nowhere.at_all'|No module", sync={"ASYNC_CLIENT": "nowhere.at_all"}),
    Case("E016|not callable", sync={"ASYNC_CLIENT": f"{HERE}.KEY"}),
    Case("E017|key=<lambda>|1 argument:|view0, view1", [limited(key=lambda: "x")] * 2),
    Case("E017|share=<lambda>", [limited(share=lambda: "x")]),
    Case("E017|share_limit=<lambda>", [limited(share="user", share_limit=lambda a, b: 3)]),
    Case("E017|limit=<lambda>", [limited(number=lambda a, b: 3)]),
    Case("E017|response=<lambda>|2 arguments:", [limited(response=lambda request: None)]),
    Case("E017|when=<lambda>|self", [mixed(semaphore_when=lambda self, request: True)]),
    Case("W006|'view0'", [], endpoints(limit=1)),
    Case(f"W007|ENDPOINTS|{OURS}", [view], endpoints(limit=1), ()),
    Case(f"W008|{FIVE}|{OURS}", [limited()] * 7, {}, (), True),
    Case("W008|view0", [on_get(method_decorator(semaphore_required("here", 3)))], {}, (), True),
    Case(f"W009|{CSRF}", [], {}, (OURS, CSRF)),
    Case("W009|more than once", [], {}, (OURS, OURS)),
    Case("W010|'view0'", [DRF], endpoints(limit=1, key="user")),
    Case("W010|'view0'", [DRF], endpoints(limit=1, share="user")),
    Case("W012|'small'|pool of 3|to 4 or more", **with_cache(small=SMALL)),
    Case("W012|'small'", sync=semaphores(limit=1, using="small"), caches={"small": SMALL}),
    Case("W012|'own'|pool of 2", **with_cache(own=SMALL_DJANGO_CACHE)),
    Case("W012|pool of 2", **with_cache(x=cache("redis://h/1?max_connections=2"))),
    Case(f"W014|{FIVE}|release_on_commit", [RACES(view)] * 7, atomic=True),
    Case("W014|view0", [never_cache(RACES(view))], atomic=True),
    Case("W014|view0", [on_get(RACES)], atomic=True),
    Case("W016|PSOT (did you mean POST?)|view0|PATCH", [limited(methods=["PSOT"])]),
    Case("W018|'x'|'view0' 1, 'view1' 2", [view, view], TWO_LIMITS),
    Case(f"W019|key='user'|view0|{AUTHENTICATION}", [limited(key="user")], {}, (OURS,)),
    Case("W019|share='user'", [limited(share="user")], {}, (OURS,)),
    Case("W020|Hides.dispatch()|view0", [mixed(Hides)]),
    Case("W022|Mixed|view0", [LOGIN_LAST]),
    Case("W023|'view0' takes 'a' before 'b'|'view1' takes", [both("a", "b"), both("b", "a")]),
    Case("W023|'a'|'b'", [limited("a", view=on_get(semaphore_required("b", 3))), both("b", "a")]),
    Case(
        "W023|'a'|'b'",
        [limited("a"), both("a", "b")],
        {"ENDPOINTS": {"view0": {"name": "b", "limit": 1}}},
    ),
    Case("W024|'here'", [limited(share_limit=2)]),
    Case("W024|'here'", [USED], semaphores(limit=3, share_limit=2)),
    Case("W025|is 4, above the limit of 3", [limited(share="user", share_limit=4)]),
    Case("W025|'here'", sync=semaphores(limit=3, share_limit=4)),
    Case(
        "W018|'x'|'view0' 1/m, 'view1' 2/m|last request",
        [view, view],
        {"ENDPOINTS": {f"view{n}": {"name": "x", "rate": f"{n + 1}/m"} for n in (0, 1)}},
    ),
    Case(
        "W018|'view0' 3, 'view1' none",
        [view, view],
        {
            "ENDPOINTS": {
                "view0": {"name": "x", "limit": 3, "rate": "1/m"},
                "view1": {"name": "x", "rate": "1/60s"},
            }
        },
    ),
    Case("W035|'here'|limit of 3|most 3600 s|2/h", [limited(key="user", rate="2/h")] * 2),
    Case("W035|'view0'", [view], endpoints(limit=2, key="user", rate="2/m", max_hold=60)),
    Case("W011|'x'|pages", **with_cache(x=cache(), pages=cache([cache()["LOCATION"]]))),
    Case("W015|here|trusted_proxies", [limited(key="ip")], NO_PROXY),
    Case("W015|here|all clients", [limited(share="ip")], NO_PROXY),
    Case("W015|here|all anonymous users", [limited(key="user")], NO_PROXY),
    Case("W021|here|max_waiting_threads", [limited(blocking_timeout=2)]),
    # After a mistake in one limit, the checks also report mistakes in other limits and settings.
    Case(
        "E013 W015|limit must be an int|here",
        [limited(key="ip", view=mixed(limit="3"))],
        NO_PROXY,
    ),
    Case(
        "E002 E005 W006 W007 W014|'nowhere'",
        [RACES(view)],
        {"CACHE": "unknown", "ENDPOINTS": {"nowhere": {"limit": 0}}},
        (),
        True,
    ),
]

CORRECT = [
    Case(),
    Case("", sync={"CACHE": "own"}, caches={"own": DJANGO_CACHE}),
    Case(
        "",
        [view, view],
        {
            "SEMAPHORES": {
                "exports": {"limit": 3},
                "lock": {"timeout": 60},
                "patient": {"blocking_timeout": math.inf},
            },
            "ENDPOINTS": {"view*": "exports", "view1": {"limit": 1, "key": "user"}},
        },
    ),
    Case("", [limited(), limited(view=Plain.as_view()), limited(view=arespond_ok)]),
    Case("", [USED], semaphores(limit=3)),
    Case("", [semaphore_required(view)], endpoints(name="here", limit=3)),
    Case("", [mixed(), mixed(LoginRequiredMixin), mixed(Delegates)]),
    Case("", [mixed(limit=None, get_semaphore_limit=lambda self: 3)]),
    Case("", [mixed(get_semaphore_name=lambda self: self.kwargs["tenant"])]),
    Case("", [limited(), AFTER_COMMIT], atomic=True),
    Case("", [transaction.non_atomic_requests(lambda r: RACES(view)(r))], atomic=True),
    Case("", [], {}, (OURS, "django.middleware.common.CommonMiddleware")),
    Case("", [], {}, ("no.such.Middleware", f"{HERE}.view")),  # Django itself reports these entries
    Case("", [DRF], {}, (OURS,)),
    Case("", **with_cache(x=LARGE)),
    Case(
        "", [limited(number=int, key=lambda r, *more: "x", when=bool)]
    ),  # the checks can't read the signature of int
    Case("", [limited(number=lambda r: 3, when=lambda r: True, response=lambda r, why: None)]),
    Case("", [limited(share=lambda r: "x", share_limit=lambda r: 2)]),
    Case("", [limited(share="user", share_limit=3), limited(share="user", view=arespond_ok)]),
    Case(
        "",
        [USED, semaphore_required("here", share="user")(view)],
        semaphores(limit=3, share_limit=2),
    ),
    Case("", sync=semaphores(limit=3, share_limit=2)),
    Case("", [limited(share="user", share_limit=int)]),
    Case("", [limited(key="user", rate="2/m")]),  # three requests may last longer than a minute
    Case("", [limited(key="user", rate="4/d")]),
    Case("", [limited(rate="2/d")]),  # other code may hold the name for longer
    Case("", [limited(key="user", rate="2/d")], {"SEMAPHORES": {"here": {"max_hold": 99999}}}),
    Case("", [limited(key="user", rate="2/h"), limited(key="user", rate="2/h", max_hold=9e4)]),
    Case("", [limited(key="user", rate="2/h", min_hold=7200)]),
    Case("", [semaphore_required("here", rate="2/d", key="user")(view)]),
    Case("", [limited("a", view=limited("b")), limited("b", view=limited("a")), both("a", "b")]),
    Case("", [limited(blocking_timeout=2, view=arespond_ok)]),
    Case("", [limited(key="ip")], {"REQUESTS": {"trusted_proxies": 1}}),
    Case("", [limited(blocking_timeout=2)], {"REQUESTS": {"max_waiting_threads": 1}}),
]
DEPLOYMENTS = {"W011", "W015", "W021"}


@pytest.fixture
def messages(settings, monkeypatch):
    """Return a function that runs the checks on a project, and returns their messages.

    A check that opens a connection fails."""
    own, connect, checking = settings.CACHES, socket.socket.connect, threading.current_thread()

    def refuse(*args):
        assert threading.current_thread() is not checking, "a check opened a connection"
        return connect(*args)

    monkeypatch.setattr(socket.socket, "connect", refuse)

    def of(case: Case, deploy: bool = True, urls: Any = None) -> list:
        settings.REDIS_SYNC = {"REQUESTS": {"trusted_proxies": 1}, **case.sync}
        settings.MIDDLEWARE, settings.CACHES = case.middleware, {**own, **case.caches}
        named = [path(f"{n}/", one, name=f"view{n}") for n, one in enumerate(case.views)]
        settings.ROOT_URLCONF = tuple(urls or named)
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", case.atomic)
        clear_url_caches()
        return run_checks(tags=["redis_sync"], include_deployment_checks=deploy)

    yield of
    clear_url_caches()


def ids(found: list) -> list[str]:
    return [message.id.removeprefix("redis_sync.") for message in found]


@pytest.mark.parametrize("case", [*MISTAKES, *CORRECT], ids=lambda case: case.says or "correct")
def test_system_check_reports_exactly_the_mistakes_of_a_project(case: Case, messages) -> None:
    expected, *texts = case.says.split("|")
    found = messages(case)
    assert sorted(expected.split()) == sorted(ids(found))
    said = "\n".join(f"{one.msg} {one.hint}" for one in found)
    for text in texts:
        assert (text.removeprefix("!") in said) != text.startswith("!"), said
    assert all(one.hint for one in found), "no remedy"
    kinds = {one.id.partition(".")[2][0] + type(one).__name__[0] for one in found}
    assert kinds <= {"EE", "WW"}
    assert set() == {*ids(messages(case, deploy=False))} & DEPLOYMENTS


def test_endpoints_setting_accepts_namespaced_view_names_and_import_paths(messages) -> None:
    inner = path("c/", view, name="view")
    for space in ("inner", "outer"):
        inner = path(f"{space}/", include(([inner], space)))
    unnamed = [path(f"{n}/", one) for n, one in enumerate((view, Plain.as_view(), Called()))]
    names = ["outer:inner:view", *(f"{HERE}.{one}" for one in ("view", "Plain", "Called"))]
    case = Case(sync={"ENDPOINTS": {name: {"limit": 3} for name in names}})
    assert [] == ids(messages(case, urls=[inner, *unnamed]))
    assert ["W006"] * 4 == ids(messages(case, urls=[path("x/", view, name="x")]))


def test_system_checks_find_no_mistake_in_a_project_without_urls(settings) -> None:
    settings.ROOT_URLCONF = None
    assert [] == run_checks(tags=["redis_sync"])


@pytest.mark.parametrize("urlconf", ["no.such.module", "without_patterns"])
def test_system_check_names_a_urlconf_that_can_not_be_loaded(
    urlconf: str, settings, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "without_patterns", ModuleType("without_patterns"))
    settings.ROOT_URLCONF = urlconf
    (found,) = run_checks(tags=["redis_sync"])
    assert "redis_sync.W027" == found.id and repr(urlconf) in found.msg


def test_each_check_id_is_documented() -> None:
    page = (ROOT / "docs/checks.md").read_text()
    documented = re.findall(r"^\| `redis_sync\.([EW]\d{3})` \|", page, re.MULTILINE)
    tested = {id for case in MISTAKES for id in case.says.partition("|")[0].split()}
    # locks/test_jobs.py, limits/test_urlconfs.py, and field/test_throttles.py test these.
    elsewhere = {
        "W026",
        "W027",
        "W028",
        "E029",
        "W030",
        "E031",
        "W032",
        "E033",
        "E034",
        "W036",
    }  # other files test these ids
    assert sorted(tested | elsewhere) == documented


def test_django_setup_does_not_import_the_check_modules() -> None:
    loaded = "[name for name in sys.modules if name.startswith('django_redis_sync.checks.')]"
    words = [sys.executable, "-c", f"import sys, django; django.setup(); print({loaded})"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "[]" == done.stdout.strip()


def test_one_warning_per_process_is_logged_if_the_app_is_not_installed(settings, caplog) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC}  # make the library read the settings again
    assert not Lock("installed").locked() and not caplog.records
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if "redis_sync" not in app]
    settings.REDIS_SYNC = {**settings.REDIS_SYNC}
    for _ in range(3):
        assert not Lock("not installed").locked()
    (record,) = caplog.records
    assert "not in INSTALLED_APPS" in record.getMessage()
