"""System checks. None opens a connection: the server is for `locks doctor`."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from . import conf
from .defaults import ENTRY, REQUESTS, SETTINGS
from .engine.clients import backend_of
from .limits.decorator import marks_of, owner_of
from .limits.frameworks import is_drf
from .limits.policy import Endpoint, checked, endpoints
from .limits.routes import Route, policies_of, routes
from .locks.synchronized import BEFORE_COMMIT
from .middleware import ConcurrencyLimitMiddleware, is_atomic
from .protocol.keys import check_text

TAG = "redis_sync"

#: Connections that a process needs at the least: to ask, to release, to renew and to look.
FEWEST_CONNECTIONS = 4

#: Middleware that turns requests away before the view: behind ours it would do so with a permit.
_GATEKEEPERS = (
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
)


@register(TAG)
def check_settings(**_: Any) -> list[CheckMessage]:
    """REDIS_SYNC itself: nothing below makes sense when it can't be read."""
    try:
        conf.current()
        endpoints()
    except ImproperlyConfigured as error:
        hint = f"The keys of REDIS_SYNC: {', '.join(map(str.upper, SETTINGS))}."
        if "'REQUESTS'" in str(error):
            hint = f"What REQUESTS may say: {', '.join(REQUESTS)}."
        elif "['ENDPOINTS']" in str(error):
            hint = _hint(str(error))
        return [Error(str(error), hint=hint, id="redis_sync.E001")]
    return [*_check_aliases(), *_check_policies()]


def _check_aliases() -> Iterator[CheckMessage]:
    config = conf.current()
    aliases = {config.cache: "REDIS_SYNC['CACHE']"}
    for setting, entries in (("SEMAPHORES", config.semaphores), ("ENDPOINTS", config.endpoints)):
        for name, entry in entries.items():
            using = entry.get("using") if isinstance(entry, Mapping) else None
            if isinstance(using, str):
                aliases.setdefault(using, f"REDIS_SYNC[{setting!r}][{name!r}]")
    for alias, where in aliases.items():
        yield from _check_alias(alias, where)


def _check_alias(alias: str, where: str) -> Iterator[CheckMessage]:
    try:
        backend_of(alias)
    except ImproperlyConfigured as error:
        if alias not in settings.CACHES:
            number, hint = 2, "Name one of CACHES, best one that nothing else uses."
        elif not hasattr(caches[alias], "client"):
            number, hint = 3, "Name an alias whose BACKEND is django_redis.cache.RedisCache."
        else:
            number, hint = 4, "Name an alias with one server, Sentinel or Cluster."
        yield Error(f"{where}: {error}", hint=hint, id=f"redis_sync.E00{number}")


def _check_policies() -> Iterator[CheckMessage]:
    config = conf.current()
    for name in config.semaphores:
        yield from _check_entry("SEMAPHORES", name, _check_semaphore)
    for name in config.endpoints:
        yield from _check_entry("ENDPOINTS", name, _check_endpoint)


def _check_entry(setting: str, name: Any, check: Callable[[Any], None]) -> Iterator[CheckMessage]:
    try:
        check(name)
    except (ImproperlyConfigured, TypeError, ValueError, ImportError) as error:
        where = f"REDIS_SYNC[{setting!r}][{name!r}]"
        said = str(error) if where in str(error) else f"{where}: {error}"
        yield Error(said, hint=_hint(str(error)), id="redis_sync.E005")


def _hint(error: str) -> str:
    """The remedy: the purpose of the option in the error, else the options of an entry."""
    named = [row for row in ENTRY.values() if re.search(rf"\b{row.name} must\b", error)]
    if named:
        return f"{named[0].name}: {named[0].why}"
    if "limit" in error and "missing" in error:
        return "Say there how many requests may run at the same time, such as {'limit': 3}."
    return f"What an entry may say: {', '.join(sorted(ENTRY))}."


def _check_endpoint(pattern: str) -> None:
    Endpoint(endpoints().entries[pattern])


def _check_semaphore(name: Any) -> None:
    """Code that uses the name may give the limit itself, and wait for ever: requests may not."""
    check_text("a name", name)
    for option, value in conf.current().named(name).items():
        if option != "blocking_timeout" or value != math.inf:
            checked(option, value)


@register(TAG)
def check_endpoints(**_: Any) -> list[CheckMessage]:
    """The views that ENDPOINTS names."""
    if not _readable():
        return []
    found, reached = endpoints(), routes()
    messages: list[CheckMessage] = []
    met = set()
    for route in reached:
        pattern = found.pattern_of(route.name)
        if pattern is None:
            continue
        met.add(pattern)
        if is_drf(route.view) and not [*_check_entry("ENDPOINTS", pattern, _check_endpoint)]:
            policy = Endpoint(found.entries[pattern]).policy
            if policy is not None and policy.key == "user":
                messages.append(_drf_by_user(pattern, route.name))
    for pattern in found.entries:
        if pattern not in met:
            messages.append(
                Warning(
                    f"REDIS_SYNC['ENDPOINTS'][{pattern!r}] matches no view.",
                    hint="Use a view's name with its namespaces, or its dotted path without one.",
                    id="redis_sync.W006",
                )
            )
    return messages


def _drf_by_user(pattern: str, view: str) -> Warning:
    return Warning(
        f"REDIS_SYNC['ENDPOINTS'][{pattern!r}] limits {view!r} by user, but Django REST framework "
        "knows its user only inside the view.",
        hint="Put semaphore_required(..., key='user') on the handler, below method_decorator.",
        id="redis_sync.W010",
    )


@register(TAG)
def check_views(**_: Any) -> list[CheckMessage]:
    """The decorators and mixins of the views that the URLconf reaches."""
    if not _readable():
        return []
    wrong: dict[str, list[str]] = defaultdict(list)
    for route in routes():
        for mark, fallback in marks_of(route.view):
            if said := _wrong(route, mark, fallback):
                wrong[said].append(route.name)
    return [
        Error(
            f"{said} It limits {', '.join(sorted(set(names))[:5])}.",
            hint=_hint(said),
            id="redis_sync.E013",
        )
        for said, names in wrong.items()
    ]


def _wrong(route: Route, mark: Any, fallback: str) -> str:
    """The mistakes in a view's policy; empty when none, or when the settings' check has them."""
    try:
        endpoint = Endpoint(endpoints().find(route.name))
    except ImproperlyConfigured:
        return ""
    try:
        declared = mark.declared()
        if declared is not None:
            endpoint.policy_of(declared, fallback)
    except (ImproperlyConfigured, TypeError, ValueError) as error:
        return str(error)
    return ""


@register(TAG)
def check_middleware(**_: Any) -> list[CheckMessage]:
    """Whether the middleware is there when it is needed, and in its place."""
    if not _readable():
        return []
    ours = [index for index, path in enumerate(settings.MIDDLEWARE) if _is_ours(path)]
    if ours:
        return _check_order(ours)
    path = f"{ConcurrencyLimitMiddleware.__module__}.{ConcurrencyLimitMiddleware.__name__}"
    hint = f"Add '{path}' to MIDDLEWARE, as its last entry if you can."
    messages: list[CheckMessage] = []
    if endpoints().entries:
        message = "REDIS_SYNC['ENDPOINTS'] does nothing without the middleware."
        messages.append(Warning(message, hint=hint, id="redis_sync.W007"))
    racing = sorted(
        route.name for route in routes() if _marked(route.view) and is_atomic(route.view)
    )
    if racing:
        messages.append(
            Warning(
                f"ATOMIC_REQUESTS: {', '.join(racing[:5])} give their permits back before COMMIT, "
                "and wait for them inside the transaction.",
                hint=f"{hint} It takes them before the transaction begins.",
                id="redis_sync.W008",
            )
        )
    return messages


@register(TAG)
def check_synchronized(**_: Any) -> list[CheckMessage]:
    """Views that give a lock back before the COMMIT of the transaction around them."""
    racing = sorted(
        {route.name for route in routes() if is_atomic(route.view) and _synchronized(route.view)}
    )
    if not racing:
        return []
    return [
        Warning(
            f"ATOMIC_REQUESTS: @synchronized on {', '.join(racing[:5])} gives back before COMMIT: "
            "the next to get it may see the data as it was before.",
            hint="Say @synchronized(..., release_on_commit=True).",
            id="redis_sync.W014",
        )
    ]


def _synchronized(view: Any) -> bool:
    """Whether a view, or a handler of its class, gives back without waiting for a COMMIT."""
    owner = owner_of(view)
    handlers = [getattr(owner, name, None) for name in owner.http_method_names] if owner else []
    return any(hasattr(one, BEFORE_COMMIT) for one in (view, *handlers))


def _check_order(ours: Sequence[int]) -> list[CheckMessage]:
    late = [path for path in settings.MIDDLEWARE[ours[0] + 1 :] if path in _GATEKEEPERS]
    messages: list[CheckMessage] = []
    if len(ours) > 1:
        message = "ConcurrencyLimitMiddleware stands in MIDDLEWARE more than once."
        messages.append(Warning(message, hint="Keep the last one.", id="redis_sync.W009"))
    elif late:
        messages.append(
            Warning(
                f"ConcurrencyLimitMiddleware stands before {', '.join(late)}: it takes permits for "
                "requests that are about to be turned away.",
                hint="Put it last, or at least behind these.",
                id="redis_sync.W009",
            )
        )
    return messages


def _is_ours(path: str) -> bool:
    try:
        found = import_string(path)
    except ImportError:  # Django says so itself
        return False
    return isinstance(found, type) and issubclass(found, ConcurrencyLimitMiddleware)


@register(TAG)
def check_pool(**_: Any) -> list[CheckMessage]:
    """Whether there are connections enough to release while others wait."""
    if not _readable():
        return []
    alias = conf.current().cache
    cache: dict[str, Any] = settings.CACHES.get(alias, {})
    most = cache.get("OPTIONS", {}).get("CONNECTION_POOL_KWARGS", {}).get("max_connections")
    if not isinstance(most, int) or most >= FEWEST_CONNECTIONS:
        return []
    return [
        Warning(
            f"The cache {alias!r} has a pool of {most} connections: those who release, renew and "
            "ask again have to wait for each other.",
            hint=f"Set max_connections to {FEWEST_CONNECTIONS} at the least, better to as many as "
            "a process has threads.",
            id="redis_sync.W012",
        )
    ]


@register(TAG, deploy=True)
def check_shared_url(**_: Any) -> list[CheckMessage]:
    """Whether clearing another cache would wipe the leases."""
    if not _readable():
        return []
    places: dict[str, list[str]] = defaultdict(list)
    for alias, cache in settings.CACHES.items():
        location = cache.get("LOCATION", "")
        first = location[0] if isinstance(location, (list, tuple)) and location else location
        places[str(first).split(",")[0]].append(alias)
    mine = conf.current().cache
    shared = next((aliases for aliases in places.values() if mine in aliases), [])
    others = sorted(alias for alias in shared if alias != mine)
    if not others:
        return []
    return [
        Warning(
            f"The cache {mine!r} of REDIS_SYNC shares its LOCATION with {', '.join(others)}: "
            "cache.clear() there wipes every lease, and both share one pool of connections.",
            hint="Give it a database and a URL of its own.",
            id="redis_sync.W011",
        )
    ]


@register(TAG, deploy=True)
def check_proxies(**_: Any) -> list[CheckMessage]:
    """Whether clients behind a proxy or a Unix socket are told apart where that matters."""
    if not _readable():
        return []
    alike = sorted(
        {
            policy.name
            for route in routes()
            for policy in policies_of(route)
            if policy.key in ("ip", "user") and not policy.trusted_proxies
        }
    )
    if not alike:
        return []
    return [
        Warning(
            f"{', '.join(alike[:5])}: limited by address, and no proxy is trusted. Behind a proxy "
            "or a Unix socket all clients have one address, and share one limit.",
            hint="Set REDIS_SYNC['REQUESTS']['trusted_proxies'] to the number of proxies of yours; "
            "where clients reach the server directly, silence this check.",
            id="redis_sync.W015",
        )
    ]


def _readable() -> bool:
    """Whether REDIS_SYNC can be read: check_settings says so when not."""
    try:
        conf.current()
        endpoints()
    except ImproperlyConfigured:
        return False
    return True


def _marked(view: Any) -> bool:
    """Whether a decorator or a mixin limits the view, or a handler of its class."""
    return any(True for _ in marks_of(view))
