"""Checks of MIDDLEWARE, and of the limits of all views in the URLconf."""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import combinations, product
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.checks import CheckMessage
from django.utils.module_loading import import_string

from .. import conf
from ..limits.decorator import SemaphoreRequiredMixin
from ..limits.frameworks import is_drf
from ..limits.policy import Policy, endpoints
from ..limits.routes import admissions_of, declarations_of, owner_of
from ..locks.synchronized import BEFORE_COMMIT
from ..middleware import is_atomic
from ..values import MOST_PERMITS, rate_of, signature, unknown
from . import frameworks
from .frameworks import Problem
from .settings import check_semaphore, hint_for, message, mistake, policy_of
from .urlconfs import Reached, check_patterns, known

_LIMITS = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
_ADD_LIMITS = f"Add '{_LIMITS}' to MIDDLEWARE, if possible as the last entry."

_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
_ACCESS_MIXIN = "django.contrib.auth.mixins.AccessMixin"
#: Middleware that rejects requests. ConcurrencyLimitMiddleware must come after them, so that a
#: request that they reject takes no permit.
_GATEKEEPERS = (
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    _AUTHENTICATION,
)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
#: The options of a policy that can be callables, with the number of arguments of the callable.
_CALLABLES = {"limit": 1, "key": 1, "share": 1, "share_limit": 1, "when": 1, "response": 2}


def check() -> Iterator[CheckMessage]:
    """Yield a message for each mistake in MIDDLEWARE and in the limits of views."""
    found = known()
    yield from _check_middleware()
    yield from found.messages
    yield from check_patterns(found)
    yield from _messages(found.views, _problems)
    yield from _check_limits()
    yield from _check_shares(found.views)
    yield from _check_rates(found.views)
    yield from _check_order(found.views)


def check_deployment() -> Iterator[CheckMessage]:
    """Yield warnings about trusted proxies and waiting threads, which matter only in production."""
    yield from _messages(known().views, _problems_in_production)


def _messages(
    routes: list[Reached], problems_of: Callable[[Reached], Iterable[Problem]]
) -> Iterator[CheckMessage]:
    """Yield one message for each problem, with the names of up to five views that have it."""
    views: dict[Problem, list[str]] = defaultdict(list)
    for route in routes:
        for problem in problems_of(route):
            views[problem].append(route.name)
    for (number, text, hint), names in views.items():
        yield message(number, f"{text} Views: {', '.join(sorted({*names})[:5])}.", hint)


# One view


def _problems(route: Reached) -> Iterator[Problem]:
    for error in route.errors:
        yield "E013", f"{str(error).removesuffix('.')}.", hint_for(str(error))
    yield from frameworks.problems_of(route.route, partial(has_middleware, _LIMITS))
    yield from _of_transaction(route.view)
    for policy in route.policies:
        yield from _of_policy(policy, route.view)
    owner = owner_of(route.view)
    if isinstance(owner, type) and issubclass(owner, SemaphoreRequiredMixin):
        yield from _of_mixin(owner)


def _problems_in_production(route: Reached) -> Iterator[Problem]:
    for policy in route.policies:
        by_address = policy.key in ("ip", "user") or policy.share == "ip"
        if by_address and not policy.trusted_proxies:
            whom = "anonymous users" if policy.key == "user" and policy.share != "ip" else "clients"
            yield (
                "W015",
                f"{policy.name!r} limits {whom} by address, and no proxy is trusted: behind a "
                f"proxy or a Unix socket, all {whom} share one limit.",
                "Set REDIS_SYNC['REQUESTS']['trusted_proxies']. Without any proxy, silence W015.",
            )
        given = getattr(settings, conf.SETTING, {}).get("REQUESTS", {})
        waits = policy.blocking_timeout and not iscoroutinefunction(route.view)
        if waits and "max_waiting_threads" not in given:
            yield (
                "W021",
                f"{policy.name!r} has a blocking_timeout, but max_waiting_threads is not set. So "
                "on most servers, only two threads of a process can wait at a time.",
                "Set REDIS_SYNC['REQUESTS']['max_waiting_threads']. Leave a thread to other views.",
            )


def _of_transaction(view: Any) -> Iterator[Problem]:
    """Yield a problem if permits or locks of the view are released before COMMIT."""
    if not is_atomic(view):
        return
    if any(declarations_of(view)) and not has_middleware(_LIMITS):
        yield (
            "W008",
            "With ATOMIC_REQUESTS, permits are released before COMMIT.",
            f"{_ADD_LIMITS} This middleware releases permits after COMMIT.",
        )
    owner = owner_of(view)
    handlers = [getattr(owner, name, None) for name in owner.http_method_names] if owner else []
    if any(hasattr(one, BEFORE_COMMIT) for one in (view, *handlers)):
        yield (
            "W014",
            "With ATOMIC_REQUESTS, @synchronized releases its permit before COMMIT.",
            "Write @synchronized(..., release_on_commit=True).",
        )


def _of_policy(policy: Policy, view: Any) -> Iterator[Problem]:
    """Yield a problem for each option of the policy that can't work in this view."""
    for option, count in _CALLABLES.items():
        if problem := _misfit(getattr(policy, option), count):
            yield (
                "E017",
                f"{policy.name!r}: {option}={problem}.",
                "The callable for the option 'response' gets the request and the rejection. "
                "Callables for other options get only the request. No callable gets self.",
            )
    if wrong := [method for method in policy.methods or () if method not in _METHODS]:
        yield (
            "W016",
            f"{policy.name!r}: unknown methods: {unknown(wrong, _METHODS)}.",
            f"The methods that Django's views know: {', '.join(_METHODS)}.",
        )
    for option in ("key", "share"):
        of_user = getattr(policy, option) == "user"
        if of_user and not is_drf(view) and not has_middleware(_AUTHENTICATION):
            yield (
                "W019",
                f"{policy.name!r}: {option}='user' needs a middleware that sets request.user.",
                f"Add '{_AUTHENTICATION}', or silence W019 if another middleware sets the user.",
            )


def _misfit(function: Any, count: int) -> str:
    """Return the reason why `function` can't be called with `count` arguments, or "" if it can.
    Also return "" if `function` is not callable, or if Python doesn't know its arguments."""
    if not callable(function):
        return ""
    try:
        signature(function).bind(*range(count))
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return f"{name} can't be called with {count} argument{'s' * (count > 1)}: {error}"
    except ValueError:  # some built-in functions have no signature
        pass
    return ""


def _of_mixin(owner: type) -> Iterator[Problem]:
    """Yield a problem for each base class that disables the limit: it comes before
    SemaphoreRequiredMixin, and its dispatch() never calls super().dispatch(). Also yield a problem
    if a login mixin comes after SemaphoreRequiredMixin. `owner`: the class of a view."""
    place = owner.__mro__.index(SemaphoreRequiredMixin)
    for base in owner.__mro__[:place]:
        code = getattr(inspect.unwrap(vars(base).get("dispatch", base)), "__code__", None)
        if code is not None and not {"super", "dispatch"} <= {*code.co_names}:
            yield (
                "W020",
                f"{base.__qualname__}.dispatch() never calls super().dispatch(): no limit applies.",
                "Call super().dispatch(), or put semaphore_required on this dispatch().",
            )
    if any(is_a(base, _ACCESS_MIXIN) for base in owner.__mro__[place:]):
        yield (
            "W022",
            f"In {owner.__qualname__}, a request without a login takes a permit before it is "
            "rejected.",
            "List SemaphoreRequiredMixin after the mixin that requires a login.",
        )


# Checks of all views together


def _check_limits() -> Iterator[CheckMessage]:
    """Yield a warning for each name that has different limits, or different rates, in ENDPOINTS.
    Only the largest of the limits takes effect, and only the rate of the last request."""
    limits: dict[str, dict[int, str]] = defaultdict(dict)
    rates: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    for pattern in endpoints().entries:
        policy = policy_of(pattern)
        if policy is not None and isinstance(policy.limit, int):
            limits[policy.name].setdefault(policy.limit, pattern)
        if policy is not None and policy.rate is not None:
            rates[policy.name].setdefault(rate_of(policy.rate), f"{pattern!r} {policy.rate}")
    for name, said in rates.items():
        if len(said) > 1:
            yield message(
                "W018",
                f"REDIS_SYNC['ENDPOINTS'] gives {name!r} different rates: "
                f"{', '.join(said.values())}. The rate of the last request takes effect.",
                f"Give the rate once, in REDIS_SYNC['SEMAPHORES'][{name!r}].",
            )
    for name, given in limits.items():
        if len(given) > 1:
            each = ", ".join(
                f"{pattern!r} {'none' if limit == MOST_PERMITS else limit}"
                for limit, pattern in sorted(given.items())
            )
            yield message(
                "W018",
                f"REDIS_SYNC['ENDPOINTS'] gives {name!r} different limits: {each}. The largest "
                "limit takes effect.",
                f"Give the limit once, in REDIS_SYNC['SEMAPHORES'][{name!r}].",
            )


def _check_shares(routes: list[Reached]) -> Iterator[CheckMessage]:
    """Yield a warning for each name whose share_limit has no effect. Either share is not given, or
    share_limit is above limit."""
    policies = [policy for route in routes for policy in route.policies]
    limits = {(policy.name, policy.limit, policy.share_limit) for policy in policies}
    shared = {policy.name for policy in policies if policy.share is not None}
    for name in sorted({name for name, _, share_limit in limits if share_limit} - shared):
        yield message(
            "W024",
            f"{name!r} has a share_limit, but share is not given. So all requests are one share.",
            "Set share to 'user', 'ip', or a callable that returns the tenant of a request.",
        )
    for name, entry in conf.current().semaphores.items():
        if not mistake(check_semaphore, name):
            limits.add((name, entry.get("limit"), entry.get("share_limit")))
    for name, limit, share_limit in sorted(limits, key=repr):
        if isinstance(limit, int) and isinstance(share_limit, int) and share_limit > limit:
            yield message(
                "W025",
                f"{name!r}: share_limit is {share_limit}, above the limit of {limit}.",
                "Lower share_limit, or remove it. Shares take turns without it, too.",
            )


def _check_rates(routes: list[Reached]) -> Iterator[CheckMessage]:
    """Yield a warning for each keyed policy whose limit never rejects a request, because its rate
    is used up before. This is certain if no request holds its permit for longer than the period of
    the rate: then all permits in use were granted within one period, and so count for the rate.
    Names in SEMAPHORES are left out, because other code may hold them for longer."""
    found: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for policy in (policy for route in routes for policy in route.policies):
        longest = max(
            math.inf if policy.max_hold is None else policy.max_hold, policy.min_hold or 0
        )
        found[policy.name].add((policy.key is None, policy.limit, policy.rate, longest))
    for name, all_of in sorted(found.items()):
        if len(all_of) > 1 or name in conf.current().semaphores:
            continue
        ((unkeyed, limit, rate, longest),) = all_of
        if unkeyed or rate is None or not isinstance(limit, int) or limit == MOST_PERMITS:
            continue
        permits, period = rate_of(rate)
        if limit >= permits and longest <= period:
            yield message(
                "W035",
                f"{name!r}: the limit of {limit} has no effect. A request holds its permit for at "
                f"most {longest:g} s, so the rate of {rate} never lets more than {permits} run.",
                "Lower the limit, or leave it out.",
            )


def _check_order(routes: list[Reached]) -> Iterator[CheckMessage]:
    """Yield a warning for each pair of limits that two views acquire in opposite orders. Requests
    of these views could wait for each other."""
    first: dict[tuple[str, str], str] = {}
    middleware = has_middleware(_LIMITS)
    for route in routes:
        if len(route.policies) < 2:
            continue
        atomic = middleware and is_atomic(route.view)
        for way in admissions_of(route.route, atomic):
            names = [{policy.name for policy in together} for together in way]
            for earlier, later in combinations(names, 2):
                for pair in product(earlier - later, later - earlier):
                    first.setdefault(pair, route.name)
    for (a, b), name in first.items():
        if a < b and (b, a) in first:
            yield message(
                "W023",
                f"{name!r} takes {a!r} before {b!r}, and {first[b, a]!r} takes {b!r} before "
                f"{a!r}: their requests can wait for each other until both are rejected.",
                "Declare both in the same order, or put one decorator directly above the other.",
            )


# MIDDLEWARE


def _check_middleware() -> Iterator[CheckMessage]:
    """Yield a warning if ConcurrencyLimitMiddleware is missing, misplaced, or listed twice."""
    places = [n for n, path in enumerate(settings.MIDDLEWARE) if _is_listed(path, _LIMITS)]
    if not places:
        if endpoints().entries:
            text = "REDIS_SYNC['ENDPOINTS'] does nothing without the middleware."
            yield message("W007", text, _ADD_LIMITS)
        return
    late = [path for path in settings.MIDDLEWARE[places[0] + 1 :] if path in _GATEKEEPERS]
    if len(places) > 1:
        text = "ConcurrencyLimitMiddleware is in MIDDLEWARE more than once."
        yield message("W009", text, "Keep the last one.")
    elif late:
        yield message(
            "W009",
            f"ConcurrencyLimitMiddleware comes before {', '.join(late)}, which rejects requests.",
            "Put ConcurrencyLimitMiddleware last, so that rejected requests take no permit.",
        )


def has_middleware(kind: str) -> bool:
    """Return True if MIDDLEWARE lists the class with the dotted path `kind`, or a subclass."""
    return any(_is_listed(path, kind) for path in settings.MIDDLEWARE)


def is_a(found: Any, kind: str) -> bool:
    """Return True if `found` is the class with the dotted path `kind`, or a subclass. The path is
    not imported, because its app may not be installed."""
    bases = found.__mro__ if isinstance(found, type) else ()
    return any(f"{base.__module__}.{base.__qualname__}" == kind for base in bases)


def _is_listed(path: str, kind: str) -> bool:
    try:
        return is_a(import_string(path), kind)
    except ImportError:  # Django itself reports the wrong path
        return False
