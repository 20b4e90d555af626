"""A Django project for tests: limited views, functions that keep a request inside its view,
and functions that read the statistics."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.views import View

from django_redis_sync import Semaphore, SemaphoreRequiredMixin, semaphore_required
from tests.behaviour.both import eventually
from tests.support.operators import as_json

MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
ONE = {"name": "one", "limit": 1}
WAYS = ("decorator", "mixin", "middleware")


def as_param(*cases: tuple[str, bool]) -> Any:
    """Return a mark that runs a test with each of `cases`. A case is a pair (way, asgi): the
    arguments of the `Project` that the fixture `project` makes."""
    ids = [f"{way}-{'async' if asgi else 'sync'}" for way, asgi in cases]
    return pytest.mark.parametrize("project", cases, ids=ids, indirect=True)


BOTH = as_param(("decorator", False), ("decorator", True))
SYNC = as_param(*((way, False) for way in WAYS))
EVERYWHERE = as_param(*((way, asgi) for way in WAYS for asgi in (False, True)))


#: Run a test twice: with Django's WSGI handler, and with its ASGI handler.
CLIENTS = pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])


#: Run a test with the views of tests/request_site/views.py.
site = pytest.mark.urls("tests.request_site.views")
#: Middleware that the query parameters control. See tests/request_site/middleware.py.
OBEYING = "tests.request_site.middleware.obeying"


class Visit:
    """A request in a thread of its own. The request stays inside its view until `end()`."""

    open: ClassVar[dict[str, Visit]] = {}

    def __init__(self, get: Callable[..., Any], at: str, query: dict[str, str]) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.response: Any = None
        self.open[str(id(self))] = self
        query = {**query, "visit": str(id(self))}
        self.thread = threading.Thread(target=self.run, args=(get, at, query), daemon=True)
        self.thread.start()

    def run(self, get: Callable[..., Any], at: str, query: dict[str, str]) -> None:
        self.response = get(at, **query)

    @property
    def status(self) -> int:
        """The status of the response. Waits until the request has ended."""
        self.thread.join(60)
        return int(self.response.status_code)

    @property
    def ended(self) -> bool:
        """True if the request has ended."""
        return not self.thread.is_alive()

    def end(self) -> int:
        self.leave.set()
        return self.status

    def entered(self) -> Visit:
        eventually(lambda: self.inside.is_set() or self.ended)
        assert self.inside.is_set(), f"not admitted: {self.response}"
        return self


def stay(request: Any) -> HttpResponse:
    """Respond with 200. The request of a Visit stays in this view until `Visit.end()`."""
    if visit := Visit.open.get(request.GET.get("visit")):
        visit.inside.set()
        visit.leave.wait(60)
    return HttpResponse()


def respond_ok(request: Any) -> HttpResponse:
    return HttpResponse()


async def arespond_ok(request: Any) -> HttpResponse:
    return HttpResponse()


def async_view(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def view(request: Any) -> Any:
        return await asyncio.to_thread(body, request)

    return view


def mixed(view: Callable[[Any], Any], options: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a class-based view with SemaphoreRequiredMixin. Its handlers call `view`."""

    attributes = {f"semaphore_{option}": value for option, value in options.items()}
    handlers = dict.fromkeys(("get", "post"), staticmethod(view))
    made: Any = type("Mixed", (SemaphoreRequiredMixin, View), {**attributes, **handlers})
    return made.as_view()  # type: ignore[no-any-return]


class Project:
    """A project whose views are limited in one of the WAYS, with sync or async views."""

    def __init__(self, settings: Any, way: str = "decorator", asgi: bool = False) -> None:
        self.settings, self.way, self.asgi = settings, way, asgi
        self.routes: dict[str, Any] = {}
        settings.MIDDLEWARE = [MIDDLEWARE] if way == "middleware" else []

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *error: object) -> None:
        for visit in Visit.open.values():
            visit.leave.set()
            visit.thread.join(60)
        Visit.open.clear()

    def configure(self, **sync: Any) -> None:
        self.settings.REDIS_SYNC = {**self.settings.REDIS_SYNC, **sync}

    def with_middleware(self, **sync: Any) -> None:
        """Add the library's middleware to MIDDLEWARE, and the options `sync` to REDIS_SYNC."""
        if MIDDLEWARE not in self.settings.MIDDLEWARE:
            self.settings.MIDDLEWARE = [*self.settings.MIDDLEWARE, MIDDLEWARE]
        self.configure(**sync)

    def limit(self, at: str = "home", body: Callable[[Any], Any] = stay, **options: Any) -> None:
        """Serve the sync view `body` at the path /`at`/, with a limit. The options of the limit are
        those in ONE, replaced or extended by `options`."""
        options = {**ONE, **options}
        view = async_view(body) if self.asgi else body
        if self.way == "decorator":
            view = semaphore_required(**options)(view)
        elif self.way == "mixin":
            view = mixed(view, options)
        else:
            known = self.settings.REDIS_SYNC.get("ENDPOINTS", {})
            self.configure(ENDPOINTS={**known, at: options})
        self.serve(**{at: view})

    def serve(self, **views: Callable[..., Any]) -> None:
        self.routes |= {at: path(f"{at}/", view, name=at) for at, view in views.items()}
        self.settings.ROOT_URLCONF = tuple(self.routes.values())

    def get(self, at: str = "home", method: str = "GET", **query: str) -> Any:
        return call(f"/{at}/?{urlencode(query)}", self.asgi, method)

    def status(self, at: str = "home", method: str = "GET", **query: str) -> int:
        return int(self.get(at, method, **query).status_code)

    def visit(self, at: str = "home", **query: str) -> Visit:
        return Visit(self.get, at, query)

    def lose_redis(self) -> None:
        """Give the cache an address at which no server listens."""
        self.use_redis("redis://127.0.0.1:1")  # no server listens on port 1

    def use_redis(self, url: str) -> None:
        cache = {**self.settings.CACHES["default"], "LOCATION": url}
        self.settings.CACHES = {**self.settings.CACHES, "default": cache}


def call(path: str, asgi: bool = False, method: str = "GET", **options: Any) -> Any:
    """Return Django's response to a request, through all middleware."""
    client = AsyncClient() if asgi else Client()
    send = getattr(client, method.lower())
    return (async_to_sync(send) if asgi else send)(path, **options)


def status_of(view: Any, request: Any = None, run: Any = asyncio.run, **kwargs: Any) -> int:
    """Call a view without any middleware, and return the status of its response. `run`: runs the
    coroutine of an async view."""
    response = view(RequestFactory().get("/") if request is None else request, **kwargs)
    return int((run(response) if asyncio.iscoroutine(response) else response).status_code)


@contextlib.contextmanager
def received(signal: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield a list that gets the arguments of each `signal` that is sent during the block."""
    found: list[dict[str, Any]] = []

    def receiver(**arguments: Any) -> None:
        found.append(arguments)

    signal.connect(receiver)
    try:
        yield found
    finally:
        signal.disconnect(receiver)


# Statistics, as operators see them


def in_use(name: str = "one") -> int:
    return Semaphore(name, 1).status().in_use


def waiting(name: str = "one") -> int:
    return Semaphore(name, 1).status().waiting


def facts(name: str = "one", *words: str) -> list[dict[str, Any]]:
    """Return the entries of `manage.py locks status` for a name, or for the keys of a policy.

    Wait until there are entries, because the library registers names in the background."""

    def shown() -> Any:
        with contextlib.suppress(CommandError):
            return as_json("status", name, *words)["names"]

    found: list[dict[str, Any]] = eventually(shown)
    return found


def key_in(name: str) -> str:
    """Return the key of the policy `name`, which must have been used with only one key."""
    (key,) = eventually(lambda: [one["key"] for one in facts(name) if one["key"] is not None])
    return str(key)


OUTCOMES = ("granted", "waited", "rejected", "timed_out", "shadow_rejected")


def outcomes(name: str = "one") -> dict[str, int]:
    """Return a dict from each outcome to the number of its requests."""
    counts = Counter[str]()
    for one in facts(name):
        counts.update({kind: one["ever"][kind] for kind in OUTCOMES})
    return {kind: number for kind, number in counts.items() if number}


def reasons(rejections: list[dict[str, Any]]) -> list[str]:
    return [sent["rejection"].reason for sent in rejections]
