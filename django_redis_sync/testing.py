"""Helpers for the tests of projects: fill a semaphore, disable limits, or work without Redis.

Each helper is a context manager. It is also a decorator of functions, sync or async, and of test
cases. On a test case, it applies to each test:

    with filled("exports"):
        assert client.get("/export/").status_code == 503
"""

from __future__ import annotations

import inspect
import math
import unittest
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from difflib import get_close_matches
from functools import partial, wraps
from itertools import chain
from typing import Any, Generic, ParamSpec, TypeVar
from unittest.mock import patch
from uuid import uuid4

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.cache.backends.locmem import LocMemCache
from django.http import HttpRequest
from django.test import override_settings
from django.urls import Resolver404, ResolverMatch, resolve

from . import conf
from .defaults import Share
from .engine.calls import run
from .engine.memory import AsyncMemoryServer, MemoryServer
from .engine.renewal import renewer
from .engine.server import replaced
from .limits import identity
from .limits.breaker import forget_breakers
from .limits.decorator import names_given
from .limits.identity import key_of
from .limits.policy import Policy, endpoints
from .limits.routes import Route, is_preflight, limits_of, routes_of, urlconfs
from .locks.lease import Lease
from .locks.options import Acquirer
from .locks.semaphore import Semaphore
from .protocol.steps import SHORTEST_WAIT

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Helper(Generic[T]):
    """A context manager that is also a decorator. Each helper of this module returns an instance.
    `begin` makes a new context manager for each use."""

    def __init__(self, begin: Callable[[], AbstractContextManager[T]]) -> None:
        self._begin = begin
        self._open: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        block = self._begin()
        found = block.__enter__()
        self._open.append(block)
        return found

    def __exit__(self, *error: Any) -> bool | None:
        return self._open.pop().__exit__(*error)

    def __call__(self, decorated: F) -> F:
        """Return a function. Each call of it runs `decorated` inside a block of this helper. If
        `decorated` is a test case, run each of its tests inside a block, and return `decorated`.
        Raise TypeError for a generator function, and for a class that is not a test case."""
        function: Any = decorated
        if isinstance(function, type) and issubclass(function, unittest.TestCase):
            function.setUp = self._before(function.setUp)  # type: ignore[assignment, method-assign]
            return decorated
        generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if generates or isinstance(function, type):
            text = "this helper can't decorate {!r}: use it in a `with` block instead"
            raise TypeError(text.format(function))
        if iscoroutinefunction(function):

            @wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._begin():
                    return await function(*args, **kwargs)

        else:

            @wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._begin():
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def _before(self, set_up: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(set_up)
        def wrapper(test: unittest.TestCase) -> None:
            block = self._begin()
            block.__enter__()
            test.addCleanup(block.__exit__, None, None, None)
            set_up(test)

        return wrapper


def _helper(make: Callable[P, Iterator[T]]) -> Callable[P, Helper[T]]:
    """Decorate the generator function `make`, so that its calls return a Helper. This is like the
    decorator `contextmanager`, but a Helper can also decorate async functions. A decorator made by
    `contextmanager` would end its block before the coroutine of such a function runs."""

    @wraps(make)
    def helper(*args: P.args, **kwargs: P.kwargs) -> Helper[T]:
        return Helper(partial(contextmanager(make), *args, **kwargs))

    return helper


@_helper
def filled(
    name: str,
    limit: int | None = None,
    *,
    key: str | None = None,
    user: Any = None,
    request: HttpRequest | None = None,
    share: Share = None,
    share_limit: int | None = None,
    using: str | None = None,
    wait: bool = False,
) -> Iterator[Lease]:
    """Hold all permits of a semaphore, so that other callers are rejected or have to wait. Return a
    context manager: `with filled(...) as lease`.

    - `limit`: the limit of the code or view under test. None: the highest limit in SEMAPHORES,
      ENDPOINTS, or a view.
    - `key`, `user`, `request`: give one of them if the policy has a key. `key`: the key to fill.
      `user`: a user object, if the policy's key is "user". `request`: a request, to fill its
      key. The view at the path of the request determines the key.
    - `share`: hold only permits of this share, as many as `share_limit`.
    - `share_limit`: the max permits of the share. None: the highest share_limit in SEMAPHORES,
      ENDPOINTS, or a view.
    - `using`: a cache alias. None: the alias of a view, or CACHE.
    - `wait`: False (default): for the callers of this process that wait for this semaphore, their
      `blocking_timeout` is over at once, unless it has no limit. True: they wait.

    Raise AssertionError if permits are in use, or if the views of that name use another key. Raise
    ImproperlyConfigured if no limit is set.
    """
    limits, unloaded = _limits_of_views()
    if request is not None:
        key, view_limit = _key_of(name, request)
        limit = view_limit if limit is None else limit
    else:
        if user is not None:
            key = identity.of_user(user.pk)
        _check_key(name, key, user, limits.get(name, []))
    _check_spelling(name, limits)
    own = limits.get(name, [])
    limit = _limit_of(name, own) if limit is None else limit
    if limit is None and unloaded:
        raise unloaded[0]  # a view of this URLconf may give the limit
    permits = limit or 1
    if share is not None:
        share_limit = share_limit or _limit_of(name, own, "share_limit")
        permits = min(permits, share_limit or permits)
    using = using or next((policy.using for policy, _ in own if policy.using), None)
    semaphore = _Filling(name, limit, key=key, share=share, share_limit=share_limit, using=using)
    # Acquire on a thread: sync code must not wait on the event loop of an async test.
    with ThreadPoolExecutor(1) as thread:
        got = thread.submit(semaphore._take, False, None, permits).result()
    if not isinstance(got, Lease):
        hint = ". If tests run in parallel, give each process its own KEY_PREFIX"
        text = f"{semaphore._keys().display!r} can't be filled: {got}"
        raise AssertionError(text + hint if got.why.crowded else text)
    forget_breakers()  # Redis has answered, whatever an earlier test did
    try:
        with nullcontext() if wait else _without_waits(got):
            yield got
    finally:
        got.release()


class _Filling(Semaphore):
    """A semaphore whose share_limit in SEMAPHORES is ignored, so that one lease can hold all
    permits."""

    def _share_limit(self, named: dict[str, Any]) -> int:
        return super()._share_limit({})


_Filling.__name__ = "filled"  # the error if no limit is set shows it


#: The names for which no caller waits, as pairs (alias, Redis key), with the number of blocks.
_filled: Counter[tuple[Any, str]] = Counter()


@contextmanager
def _without_waits(lease: Lease) -> Iterator[None]:
    """A context manager. In its block, waits for the name of `lease` end after SHORTEST_WAIT,
    unless they have no limit."""
    place, completed = (lease._settings.alias, lease._settings.keys.leases), Acquirer._completed

    def at_once(self: Any, settings: Any, ask: Any, seconds: float) -> Any:
        if seconds < math.inf and _filled[settings.alias, settings.keys.leases]:
            seconds = min(seconds, SHORTEST_WAIT)
        return completed(self, settings, ask, seconds)

    _filled[place] += 1
    try:
        with patch.object(Acquirer, "_completed", at_once):
            yield
    finally:
        _filled[place] -= 1


#: Policies, each with the name of its view.
Limits = list[tuple[Policy, str]]


def _limits_of_views() -> tuple[dict[str, Limits], list[Exception]]:
    """Return two values: for each name, its policies; and the errors of the URLconfs that can't be
    loaded."""
    found: dict[str, Limits] = {}
    errors: list[Exception] = []
    for urlconf in urlconfs():
        try:
            routes = routes_of(urlconf)
        except Exception as error:
            errors.append(error)
            continue
        for route in routes:
            for policy in limits_of(route)[0]:
                found.setdefault(policy.name, []).append((policy, route.name))
    return found, errors


def _key_of(name: str, request: HttpRequest) -> tuple[str | None, int]:
    """Return two values: the key and the limit that the policy `name` has for a request. Raise
    AssertionError if the policy does not limit the request."""
    matches = [*_matches(request)]
    by_name = [
        {policy.name: policy for policy in limits_of(Route(match.view_name, match.func))[0]}
        for match in matches
    ]
    place = next((n for n, policies in enumerate(by_name) if name in policies), None)
    if place is None:
        if not matches:
            raise AssertionError(f"no URLconf has a view for {request.path}")
        known = ", ".join(sorted({*chain.from_iterable(by_name)})) or "none"
        raise AssertionError(f"{request.path} is not limited by {name!r}. Its policies: {known}")
    match = request.resolver_match = matches[place]
    policy = by_name[place][name]
    if not policy.counts(request.method, is_preflight(request, match.func)):
        raise AssertionError(f"{name!r} does not limit {request.method} of {request.path}")
    key = None if policy.key is None else run(key_of(policy, request, request))
    return key, policy.limit(request) if callable(policy.limit) else policy.limit


def _matches(request: HttpRequest) -> Iterator[ResolverMatch]:
    """Yield the views for the path of a request: that of the URLconf which `request.urlconf` names,
    or else one of each URLconf that has the path."""
    own = getattr(request, "urlconf", None)
    for urlconf in urlconfs() if own is None else [own]:
        with suppress(Resolver404):
            yield resolve(request.path_info, urlconf)


def _check_key(name: str, key: str | None, user: Any, policies: Limits) -> None:
    """Raise AssertionError if `user` is anonymous, or if the views of `name` never use `key`.
    `policies`: the policies of the name."""
    if user is not None and user.pk is None:
        raise AssertionError("anonymous users are limited by address: pass a request to filled()")
    kinds = {policy.key: view for policy, view in policies}
    if not kinds or any(_makes(kind, key) for kind in kinds):
        return
    kind, view = next(iter(kinds.items()))
    by = f"key={kind!r}" if kind is None or isinstance(kind, str) else "a callable"
    this = "without a key" if key is None else f"for {key!r}"
    raise AssertionError(
        f"{view} is limited by {by}, so its requests don't use the semaphore {name!r} {this}. "
        "Instead, pass a request to filled()"
    )


def _check_spelling(name: str, of_views: Iterable[str]) -> None:
    """Raise AssertionError if the name is unknown and similar to a known one. `of_views`: the names
    that views use."""
    known = {*conf.current().semaphores, *(one.name for one in endpoints().entries.values())}
    known.update(names_given, of_views)
    if name not in known and (close := get_close_matches(name, known, n=1, cutoff=0.8)):
        raise AssertionError(
            f"{name!r} is not known, did you mean {close[0]!r}? If code uses {name!r}, add it to "
            "REDIS_SYNC['SEMAPHORES']"
        )


def _makes(kind: Any, key: str | None) -> bool:
    """Return True if a request can have the key `key` under a policy. `kind`: the policy's option
    `key`, such as "user"."""
    if kind is None or key is None:
        return kind is None and key is None
    return kind == "user" or key.startswith("ip-" if kind == "ip" else "key-")


def _limit_of(name: str, policies: Limits, option: str = "limit") -> int | None:
    """Return the highest int limit of a name in the settings and in `policies`, or None."""
    config = conf.current()
    options = [config.named(name)]
    options += [entry.options for entry in endpoints().entries.values() if entry.name == name]
    limits = [given.get(option) for given in options]
    limits += [getattr(policy, option) for policy, _ in policies]
    return max((limit for limit in limits if isinstance(limit, int)), default=None)


@_helper
def limits_disabled() -> Iterator[None]:
    """Admit every request, without a command to Redis. Return a context manager. Locks and
    semaphores in code still work."""
    given = getattr(settings, conf.SETTING, {})
    with override_settings(**{conf.SETTING: {**given, "ENABLED": False}}):
        yield


@_helper
def without_redis() -> Iterator[None]:
    """Replace Redis by counters of permits in this process. Return a context manager.

    For the threads and event loops of this process, limits, the order of waiters, and fencing
    tokens work as with Redis. The limit of a share is enforced, but shares don't take turns.
    Statistics are missing. Operator actions, lists of names, and `locks doctor` raise
    ImproperlyConfigured. A lock on a quorum is a lock of this process. Results of single_flight
    functions are kept in this process until the block ends.
    """
    servers, caches = dict[str, MemoryServer](), dict[str, LocMemCache]()

    def server(alias: str) -> Any:
        return servers.setdefault(alias, MemoryServer(alias))

    def async_server(alias: str) -> Any:
        return AsyncMemoryServer(server(alias))

    def cache(alias: str) -> Any:
        return caches.setdefault(alias, LocMemCache(f"{uuid4()}", {"MAX_ENTRIES": 10**6}))

    with replaced(server, async_server, cache):
        forget_breakers()
        try:
            yield
        finally:
            forget_breakers()
            for results in caches.values():
                results.clear()
            for alias in servers:
                renewer(alias).housekeeper.forget()  # so that no names are written to Redis
