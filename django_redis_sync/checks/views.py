"""Checks of the limits of the views that the URLconf reaches, and of MIDDLEWARE: our middleware has
to be there if needed, and in its place."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, product
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from .. import conf
from ..limits.decorator import SemaphoreRequiredMixin
from ..limits.policy import Endpoint, Policy, endpoints
from ..limits.rejection import is_drf
from ..limits.routes import (
    Route,
    admissions_of,
    marks_of,
    name_of_class,
    owner_of,
    policies_of,
    routes,
)
from ..locks.synchronized import BEFORE_COMMIT
from ..middleware import is_atomic
from ..values import unknown
from .settings import check_endpoint, check_entry, check_semaphore, hint_for

OURS = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"

#: Middleware that rejects requests before the view: listed after ours, it does so with a permit.
_GATEKEEPERS = (
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
#: The callables of a policy, with the number of arguments that each gets.
_CALLABLES = {"limit": 1, "key": 1, "share": 1, "share_limit": 1, "when": 1, "response": 2}
_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
_ACCESS_MIXIN = "django.contrib.auth.mixins.AccessMixin"


def check() -> Iterator[CheckMessage]:
    """Yield the mistakes in the limits of views."""
    yield from _check_middleware()
    reached = routes()
    limited = [(route, policy) for route in reached for policy in policies_of(route)]
    yield from _check_endpoints(reached)
    yield from _check_declared(reached)
    yield from _check_synchronized(reached)
    yield from _check_policies(limited)
    yield from _check_limits(limited)
    yield from _check_shares(limited)
    yield from _check_mixins(reached)
    yield from _check_order(reached)


def check_deployment() -> Iterator[CheckMessage]:
    """Yield the findings that depend on how the project is served."""
    limited = [(route, policy) for route in routes() for policy in policies_of(route)]
    by_address = {
        policy.name
        for _, policy in limited
        if (policy.key in ("ip", "user") or policy.share == "ip") and not policy.trusted_proxies
    }
    if by_address:
        yield Warning(
            f"{_some(by_address)}: limited by address, and no proxy is trusted. Behind a proxy or "
            "a Unix socket, all clients have one address and share one limit.",
            hint="Set REDIS_SYNC['REQUESTS']['trusted_proxies'] to the number of your proxies. If "
            "clients reach the server directly, silence this check.",
            id="redis_sync.W015",
        )
    waiting = {
        policy.name
        for route, policy in limited
        if policy.blocking_timeout and not iscoroutinefunction(route.view)
    }
    given = getattr(settings, conf.SETTING, {}).get("REQUESTS", {})
    if waiting and "max_waiting_threads" not in given:
        yield Warning(
            f"{_some(waiting)}: blocking_timeout lets requests wait, but only some threads of a "
            "process may wait at a time, and max_waiting_threads is not set: under WSGI, two. The "
            "next request is rejected at once.",
            hint="Set REDIS_SYNC['REQUESTS']['max_waiting_threads'] to the number of threads of a "
            "process that may wait; leave at least one to the other views.",
            id="redis_sync.W021",
        )


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))[:5])


# ENDPOINTS, decorators, and mixins


def _check_endpoints(reached: list[Route]) -> Iterator[CheckMessage]:
    found, met = endpoints(), set()
    for route in reached:
        pattern = found.pattern_of(route.name)
        if pattern is None:
            continue
        met.add(pattern)
        if is_drf(route.view) and not [*check_entry("ENDPOINTS", pattern, check_endpoint)]:
            policy = Endpoint(found.entries[pattern]).policy
            if policy is not None and "user" in (policy.key, policy.share):
                yield Warning(
                    f"REDIS_SYNC['ENDPOINTS'][{pattern!r}] limits {route.name!r} by user, but "
                    "Django REST framework knows its user only inside the view.",
                    hint="Put semaphore_required(..., key='user'), or share='user', on the "
                    "handler, below method_decorator.",
                    id="redis_sync.W010",
                )
    for pattern in found.entries:
        if pattern not in met:
            yield Warning(
                f"REDIS_SYNC['ENDPOINTS'][{pattern!r}] matches no view.",
                hint="Use a view's name with its namespaces, or its dotted path without one.",
                id="redis_sync.W006",
            )


def _check_declared(reached: list[Route]) -> Iterator[CheckMessage]:
    wrong: dict[str, list[str]] = defaultdict(list)
    for route in reached:
        for mark, fallback in marks_of(route.view):
            if message := _mistake(route, mark, fallback):
                wrong[message].append(route.name)
    for message, names in wrong.items():
        yield Error(
            f"{message} It limits {_some(names)}.", hint=hint_for(message), id="redis_sync.E013"
        )


def _mistake(route: Route, mark: Any, fallback: str) -> str:
    """Return the mistake in a decorator or mixin; empty if there is none, or if it is in the
    settings, whose check reports it."""
    try:
        endpoint = Endpoint(endpoints().find(route.name))
    except ImproperlyConfigured:
        return ""
    try:
        declared = mark.declared()
        if declared is not None:
            endpoint.policy_of(declared, fallback)
    except (ImproperlyConfigured, TypeError, ValueError) as error:
        return f"{str(error).removesuffix('.')}."
    return ""


def _check_synchronized(reached: list[Route]) -> Iterator[CheckMessage]:
    racing = {route.name for route in reached if is_atomic(route.view) and _races(route.view)}
    if racing:
        yield Warning(
            f"With ATOMIC_REQUESTS, @synchronized on {_some(racing)} releases before COMMIT: the "
            "next holder may see the old data.",
            hint="Write @synchronized(..., release_on_commit=True).",
            id="redis_sync.W014",
        )


def _races(view: Any) -> bool:
    """Return True if a view, or a handler of its class, releases without waiting for COMMIT."""
    owner = owner_of(view)
    handlers = [getattr(owner, name, None) for name in owner.http_method_names] if owner else []
    return any(hasattr(one, BEFORE_COMMIT) for one in (view, *handlers))


# Policies


def _check_policies(limited: list[tuple[Route, Policy]]) -> Iterator[CheckMessage]:
    """Yield options that can't work: each once, with the views that it concerns."""
    views: dict[tuple[str, str], list[str]] = defaultdict(list)
    authenticates = has_middleware(_AUTHENTICATION)
    for route, policy in limited:
        for option, count in _CALLABLES.items():
            if problem := _misfit(getattr(policy, option), count):
                views["E017", f"{policy.name!r}: {option}={problem}"].append(route.name)
        for method in policy.methods or ():
            if method not in _METHODS:
                text = f"{policy.name!r}: methods has {unknown([method], _METHODS)}"
                views["W016", text].append(route.name)
        for option in ("key", "share"):
            of_user = getattr(policy, option) == "user"
            if of_user and not (authenticates or is_drf(route.view)):
                views["W019", f"{policy.name!r}: {option}='user'"].append(route.name)
    for (number, text), names in views.items():
        yield _POLICIES[number](text, _some(names))


_POLICIES: dict[str, Callable[[str, str], CheckMessage]] = {
    "E017": lambda text, names: Error(
        f"{text}. It limits {names}.",
        hint="response is called with the request and the rejection, all others with the request. "
        "In a class with the mixin, write a function without self.",
        id="redis_sync.E017",
    ),
    "W016": lambda text, names: Warning(
        f"{text}: requests with other methods are not limited. It limits {names}.",
        hint=f"The methods that Django's views know: {', '.join(_METHODS)}.",
        id="redis_sync.W016",
    ),
    "W019": lambda text, names: Warning(
        f"{text} needs request.user, but MIDDLEWARE has no AuthenticationMiddleware. It limits "
        f"{names}.",
        hint=f"Add '{_AUTHENTICATION}'. If another middleware sets request.user, silence this.",
        id="redis_sync.W019",
    ),
}


def _misfit(function: Any, count: int) -> str:
    """Return why a policy's callable can't be called with `count` arguments, else empty."""
    if not callable(function):
        return ""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return f"{name} can't be called with {count} argument{'s' * (count > 1)}: {error}"
    except ValueError:  # it has no signature, as some built-in functions
        pass
    return ""


def _check_limits(limited: list[tuple[Route, Policy]]) -> Iterator[CheckMessage]:
    """Yield names that ENDPOINTS give different limits: the largest of them takes effect."""
    limits: dict[str, dict[int, str]] = defaultdict(dict)
    for pattern, entry in endpoints().entries.items():
        if [*check_entry("ENDPOINTS", pattern, check_endpoint)]:
            continue
        policy = Endpoint(entry).policy
        if policy is not None and isinstance(policy.limit, int):
            limits[policy.name].setdefault(policy.limit, pattern)
    for name, given in limits.items():
        if len(given) > 1:
            each = ", ".join(f"{pattern!r} {limit}" for limit, pattern in sorted(given.items()))
            yield Warning(
                f"REDIS_SYNC['ENDPOINTS'] gives {name!r} different limits: {each}. Each request is "
                "checked against its own limit, so the largest takes effect.",
                hint=f"Give the limit once, in REDIS_SYNC['SEMAPHORES'][{name!r}].",
                id="redis_sync.W018",
            )


def _check_shares(limited: list[tuple[Route, Policy]]) -> Iterator[CheckMessage]:
    """Yield names with a share_limit that can't have the effect that it seems to have."""
    semaphores = conf.current().semaphores
    policies = {(policy.name, policy.limit, policy.share_limit) for _, policy in limited}
    entries = {
        (name, entry.get("limit"), entry.get("share_limit"))
        for name, entry in semaphores.items()
        if not [*check_entry("SEMAPHORES", name, check_semaphore)]
    }
    shared = {policy.name for _, policy in limited if policy.share is not None}
    alone = {name for name, _, share_limit in policies if share_limit and name not in shared}
    for name in sorted(alone):
        yield Warning(
            f"{name!r}: share_limit without share. All requests are one share, so that share_limit "
            "is the limit of them all.",
            hint="Give share too: 'user', 'ip', or a callable that returns a request's tenant.",
            id="redis_sync.W024",
        )
    for name, limit, share_limit in sorted(policies | entries, key=repr):
        if isinstance(limit, int) and isinstance(share_limit, int) and share_limit > limit:
            yield Warning(
                f"{name!r}: share_limit is {share_limit}, above the limit of {limit}: it acts as "
                f"{limit}.",
                hint="Lower share_limit, or leave it out: then shares only take turns.",
                id="redis_sync.W025",
            )


# Classes with the mixin


def _check_mixins(reached: list[Route]) -> Iterator[CheckMessage]:
    for owner in dict.fromkeys(owner_of(route.view) for route in reached):
        if not isinstance(owner, type) or not issubclass(owner, SemaphoreRequiredMixin):
            continue
        name = name_of_class(owner)
        place = owner.__mro__.index(SemaphoreRequiredMixin)
        for base in owner.__mro__[:place]:
            if _hides_dispatch(base):
                yield Warning(
                    f"{base.__qualname__}.dispatch() doesn't call super().dispatch(): the "
                    f"SemaphoreRequiredMixin of {name} limits nothing.",
                    hint="Call super().dispatch(), or put semaphore_required on the method.",
                    id="redis_sync.W020",
                )
        if any(is_a(base, _ACCESS_MIXIN) for base in owner.__mro__[place:]):
            yield Warning(
                f"{name} lists SemaphoreRequiredMixin before the mixin that requires a login: "
                "requests that are about to be rejected take permits.",
                hint="List SemaphoreRequiredMixin after it, and before View.",
                id="redis_sync.W022",
            )


def _hides_dispatch(base: type) -> bool:
    code = getattr(inspect.unwrap(vars(base).get("dispatch", base)), "__code__", None)
    return code is not None and not {"super", "dispatch"} <= {*code.co_names}


# The order of several limits


def _check_order(reached: list[Route]) -> Iterator[CheckMessage]:
    """Yield pairs of limits that one view takes in the opposite order of another view: requests of
    the two could wait for each other."""
    first: dict[tuple[str, str], str] = {}
    for route in reached:
        for way in admissions_of(route, has_middleware(OURS) and is_atomic(route.view)):
            names = [{policy.name for policy in together} for together in way]
            for earlier, later in combinations(names, 2):
                for pair in product(earlier - later, later - earlier):
                    first.setdefault(pair, route.name)
    for (a, b), name in first.items():
        if a < b and (b, a) in first:
            yield Warning(
                f"{name!r} takes {a!r} before {b!r}, and {first[b, a]!r} takes {b!r} before "
                f"{a!r}: their requests can wait for each other until both are rejected.",
                hint="Declare both limits in the same order, or put the decorators directly on "
                "each other: then they are taken together.",
                id="redis_sync.W023",
            )


# MIDDLEWARE


def _check_middleware() -> Iterator[CheckMessage]:
    """Yield a warning if the middleware is missing, misplaced, or listed twice."""
    places = [n for n, path in enumerate(settings.MIDDLEWARE) if _is_listed(path, OURS)]
    if not places:
        yield from _check_missing_middleware()
        return
    late = [path for path in settings.MIDDLEWARE[places[0] + 1 :] if path in _GATEKEEPERS]
    if len(places) > 1:
        message = "ConcurrencyLimitMiddleware is in MIDDLEWARE more than once."
        yield Warning(message, hint="Keep the last one.", id="redis_sync.W009")
    elif late:
        yield Warning(
            f"ConcurrencyLimitMiddleware stands before {', '.join(late)}: it takes permits for "
            "requests that are about to be rejected.",
            hint="Put it last, or at least after these.",
            id="redis_sync.W009",
        )


def _check_missing_middleware() -> Iterator[CheckMessage]:
    hint = f"Add '{OURS}' to MIDDLEWARE, if possible as the last entry."
    if endpoints().entries:
        message = "REDIS_SYNC['ENDPOINTS'] does nothing without the middleware."
        yield Warning(message, hint=hint, id="redis_sync.W007")
    racing = sorted(
        route.name for route in routes() if any(marks_of(route.view)) and is_atomic(route.view)
    )
    if racing:
        yield Warning(
            "With ATOMIC_REQUESTS, permits are acquired inside the transaction and released "
            f"before COMMIT in {', '.join(racing[:5])}.",
            hint=f"{hint} It takes them before the transaction begins.",
            id="redis_sync.W008",
        )


def has_middleware(kind: str) -> bool:
    """Return True if MIDDLEWARE has the class of this dotted path, or a subclass."""
    return any(_is_listed(path, kind) for path in settings.MIDDLEWARE)


def is_a(found: Any, kind: str) -> bool:
    """Return True if a class is the one of this dotted path, or a subclass. It is not imported:
    its app may not be installed."""
    bases = found.__mro__ if isinstance(found, type) else ()
    return any(f"{base.__module__}.{base.__qualname__}" == kind for base in bases)


def _is_listed(path: str, kind: str) -> bool:
    try:
        return is_a(import_string(path), kind)
    except ImportError:  # Django reports it
        return False
