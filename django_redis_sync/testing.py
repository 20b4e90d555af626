"""For tests of projects that use this app: fill a semaphore, switch limits off, do without Redis.

Each is a context manager, and decorates functions, async ones too, and test cases (for each of
their tests):

    with filled("exports"):
        assert client.get("/export/").status_code == 503
"""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest
from django.test import override_settings
from django.urls import resolve

from . import conf
from .defaults import Share
from .engine.renewal import renewer
from .engine.server import replaced
from .limits import identity
from .limits.identity import key_of, run
from .limits.policy import Policy, endpoints
from .limits.routes import Route, is_preflight, policies_of, routes
from .locks.lease import Lease
from .locks.semaphore import Semaphore
from .memory import MemoryServer

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Helper(Generic[T]):
    """What the helpers below return; `begin` makes a new block."""

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
        """The function within a block of its own for each call; the test case, for each test.

        TypeError for generators and for other classes, which would run when the block is over.
        """
        if isinstance(decorated, type) and issubclass(decorated, unittest.TestCase):
            decorated.setUp = self._before(decorated.setUp)  # type: ignore[assignment, method-assign]
            return decorated
        generates = inspect.isgeneratorfunction(decorated) or inspect.isasyncgenfunction(decorated)
        if generates or isinstance(decorated, type):
            text = "decorates functions and unittest's test cases, not {!r}: use it as a `with`"
            raise TypeError(text.format(decorated))
        if iscoroutinefunction(decorated):
            return self._around_async(decorated)  # type: ignore[return-value]
        return self._around(decorated)  # type: ignore[return-value]

    def _before(self, set_up: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(set_up)
        def wrapper(test: unittest.TestCase) -> None:
            block = self._begin()
            block.__enter__()
            test.addCleanup(block.__exit__, None, None, None)
            set_up(test)

        return wrapper

    def _around(self, function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._begin():
                return function(*args, **kwargs)

        return wrapper

    def _around_async(self, function: Callable[P, Any]) -> Callable[P, Any]:
        @wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with self._begin():
                return await function(*args, **kwargs)

        return wrapper


def _helper(make: Callable[P, Iterator[T]]) -> Callable[P, Helper[T]]:
    """As contextmanager, whose own decorator would leave the block before an async function ran."""

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
) -> Iterator[Lease]:
    """Hold all permits of a semaphore, so that all others are refused or have to wait.

    `share`: hold `share_limit` permits of that share instead, so that others of the share are
    refused; None: the share_limit that SEMAPHORES, ENDPOINTS or a view says.

    `limit`: that of the code or view under test; None: the highest that SEMAPHORES, ENDPOINTS or a
    view says. `using`: a cache alias; None: that of a view, or CACHE.

    Of a keyed policy a single child is filled: `request` fills that of the view at the request's
    path (with request.user, its address, as the key asks), `user` (a user object) that of a policy
    with key "user", `key` the child of that key. AssertionError when permits are in use already,
    or when the views of that name would use another child; ImproperlyConfigured when no limit is
    set anywhere.
    """
    if request is not None:
        key, said = _child_of(name, request)
        limit = said if limit is None else limit
    else:
        if user is not None:
            key = identity.of_user(user.pk)
        _refuse_another_child(name, key, user)
    _refuse_misspelled(name)
    limit = limit if limit is not None else _limit_of(name)
    permits = limit or 1
    if share is not None:
        share_limit = share_limit or _limit_of(name, "share_limit")
        permits = min(permits, share_limit or permits)
    using = using or next((policy.using for policy, _ in _policies(name) if policy.using), None)
    semaphore = Semaphore(name, limit, key=key, share=share, share_limit=share_limit, using=using)
    # On a thread: an async test may use this too, and on its loop nothing may wait.
    with ThreadPoolExecutor(1) as thread:
        got = thread.submit(semaphore._take, False, None, permits).result()
    if not isinstance(got, Lease):
        raise AssertionError(f"{semaphore!r} can't be filled: {got}")
    try:
        yield got
    finally:
        got.release()


def _policies(name: str) -> list[tuple[Policy, str]]:
    """The policies of that name that views have, each with its view."""
    return [(policy, r.name) for r in routes() for policy in policies_of(r) if policy.name == name]


def _child_of(name: str, request: HttpRequest) -> tuple[str | None, int]:
    """The key and the limit by which the view at the request's path takes a permit of `name`."""
    match = request.resolver_match = resolve(request.path_info)
    policies = {policy.name: policy for policy in policies_of(Route(match.view_name, match.func))}
    policy = policies.get(name)
    if policy is None:
        known = ", ".join(sorted(policies)) or "nothing"
        raise AssertionError(f"{request.path} is not limited by {name!r}, but by {known}")
    if not policy.counts(request.method, is_preflight(request, match.func)):
        raise AssertionError(f"{name!r} does not limit {request.method} of {request.path}")
    key = None if policy.key is None else run(key_of(policy, request, request))
    return key, policy.limit(request) if callable(policy.limit) else policy.limit


def _refuse_another_child(name: str, key: str | None, user: Any) -> None:
    """AssertionError when no view of that name would use this child: nothing would be tested."""
    if user is not None and user.pk is None:
        raise AssertionError("who is anonymous is limited by address: give filled a request")
    kinds = {policy.key: view for policy, view in _policies(name)}
    if not kinds or any(_makes(kind, key) for kind in kinds):
        return
    kind, view = next(iter(kinds.items()))
    by = f"key={kind!r}" if kind is None or isinstance(kind, str) else "a callable"
    this = "that without a key" if key is None else repr(key)
    raise AssertionError(
        f"{view} is limited by {by}, and would use another child of {name!r} than {this}: "
        "give filled a request"
    )


def _refuse_misspelled(name: str) -> None:
    """Raise AssertionError if only a name that looks like this one is known."""
    entries = endpoints().entries.values()
    known = {*conf.current().semaphores, *(entry.name for entry in entries)}
    known |= {policy.name for route in routes() for policy in policies_of(route)}
    if name not in known and (close := get_close_matches(name, known, n=1, cutoff=0.8)):
        raise AssertionError(
            f"{name!r} is not known, did you mean {close[0]!r}? If code uses {name!r}, add it to "
            "REDIS_SYNC['SEMAPHORES']"
        )


def _makes(kind: Any, key: str | None) -> bool:
    """Whether a policy's key can come to the child to fill."""
    if kind is None or key is None:
        return kind is None and key is None
    if kind == "user":
        return True
    return key.startswith("ip-" if kind == "ip" else "key-")


def _limit_of(name: str, option: str = "limit") -> int | None:
    """The highest limit that the settings or a view give a name, if it is a number."""
    config = conf.current()
    options = [config.named(name)]
    options += [entry.options for entry in endpoints().entries.values() if entry.name == name]
    said = [given.get(option) for given in options]
    said += [getattr(policy, option) for policy, _ in _policies(name)]
    return max((limit for limit in said if isinstance(limit, int)), default=None)


@_helper
def limits_disabled() -> Iterator[None]:
    """Let every request in, without a word to Redis. Locks and semaphores in code go on."""
    given = getattr(settings, conf.SETTING, {})
    with override_settings(**{conf.SETTING: {**given, "ENABLED": False}}):
        yield


@_helper
def without_redis() -> Iterator[None]:
    """Replace Redis by a counter of permits per name, in this process.

    Locks, semaphores and limits work among its threads and event loops: limits and the order of
    waiters hold, and fences grow. A lease lasts until its release, whatever its `timeout`, and
    `min_hold` keeps nothing. The limit of a share holds, but shares don't take turns. Other
    processes share nothing, no statistics are kept, and what needs a server (operator actions,
    listing names, `locks doctor`) raises NotImplementedError. Quorum locks are not covered.
    """
    servers: dict[str, MemoryServer] = {}

    def server(alias: str) -> Any:
        return servers.setdefault(alias, MemoryServer(alias))

    def async_server(alias: str) -> Any:
        return server(alias).asynchronous

    with replaced(server, async_server):
        try:
            yield
        finally:
            for alias in servers:
                renewer(alias).housekeeper.forget()  # else a Redis would hear of it afterwards
