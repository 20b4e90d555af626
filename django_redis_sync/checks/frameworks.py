"""Checks of views of Django REST framework and django-ninja."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..limits.frameworks import is_drf, is_own, ninja_operations, throttles_of
from ..limits.policy import Policy
from ..limits.routes import Route, outer_policies_of, policies_of_throttles, policies_on

#: A mistake in a view: the number of the message, its text, and its hint.
Problem = tuple[str, str, str]

_BELOW = (
    "Put semaphore_required below @api_view, or on the handler, such as get(), or use "
    "ConcurrencyThrottle. If a middleware sets the user of all requests, silence W010."
)
_OF_AUTH = (
    "Put semaphore_required below the decorator of the operation, with a callable as key or share "
    "that returns what identifies request.auth. If the authenticator also sets request.user, and "
    "the limit is below, silence W010."
)


def problems_of(route: Route, has_middleware: Callable[[], bool]) -> Iterator[Problem]:
    """Yield the mistakes in the limits of a view of a framework. `has_middleware`: a function that
    returns True if MIDDLEWARE lists ConcurrencyLimitMiddleware."""
    yield from _of_users(route)
    for throttles in throttles_of(route.view):
        own = [*map(is_own, throttles)]
        if any(own) and not has_middleware():
            yield (
                "E029",
                "ConcurrencyThrottle needs ConcurrencyLimitMiddleware.",
                "Add 'django_redis_sync.middleware.ConcurrencyLimitMiddleware' to MIDDLEWARE, if "
                "possible as the last entry. It releases the permits.",
            )
        if any(own) and not all(own[own.index(True) :]):
            yield (
                "W030",
                "A throttle is listed after ConcurrencyThrottle: a request that it rejects takes a "
                "permit first.",
                "List ConcurrencyThrottle last.",
            )
    for operation in ninja_operations(route.view):
        if operation.is_async and any(map(is_own, operation.throttle_objects)):
            yield (
                "E031",
                "ConcurrencyThrottle can't limit an async operation of django-ninja, which calls "
                "throttles on the event loop.",
                "Put semaphore_required below the decorator of the operation.",
            )


def _of_users(route: Route) -> Iterator[Problem]:
    """Yield a problem for each limit by user that applies before the user is known."""
    if is_drf(route.view) and not _has_user_of_session(route.view):
        for policy in outer_policies_of(route):
            if _is_by_user(policy):
                yield (
                    "W010",
                    f"{policy.name!r} limits by user outside of a view of Django REST framework, "
                    "which authenticates the user only inside the view.",
                    _BELOW,
                )
    for operation in ninja_operations(route.view):
        if not all(map(_is_session_auth, operation.auth_callbacks)):
            for policy in (
                *outer_policies_of(route),
                *policies_on(route, operation.run),
                *policies_on(route, operation.view_func),
                *policies_of_throttles(route, operation.throttle_objects),
            ):
                if _is_by_user(policy):
                    yield (
                        "W010",
                        f"{policy.name!r} limits by user, but the authenticator of django-ninja "
                        "sets request.auth, not request.user.",
                        _OF_AUTH,
                    )


def _is_by_user(policy: Policy) -> bool:
    return "user" in (policy.key, policy.share)


def _has_user_of_session(view: Any) -> bool:
    """Return True if the user of a view of Django REST framework is always the user of the session,
    which is known before the view."""
    known: Any = sys.modules.get("rest_framework.authentication")
    owner, given = view.cls, getattr(view, "initkwargs", {})
    base = next((one for one in owner.__mro__ if "get_authenticators" in vars(one)), None)
    if known is None or not str(getattr(base, "__module__", "")).startswith("rest_framework."):
        return False
    session = known.SessionAuthentication
    return all(
        issubclass(one, session) and one.authenticate is session.authenticate
        for one in given.get("authentication_classes", owner.authentication_classes)
    )


def _is_session_auth(authenticator: Any) -> bool:
    """Return True if an authenticator of django-ninja only admits the user of the session."""
    known: Any = sys.modules["ninja.security.session"]
    return isinstance(authenticator, (known.SessionAuth, known.SessionAuthSuperUser))
