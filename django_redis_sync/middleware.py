"""The middleware: limits by view name, permits beyond a request's transaction, and 503 responses to
the errors of a view's own locks."""

from __future__ import annotations

from asyncio import shield
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import HttpRequest, HttpResponseBase

from . import conf
from .exceptions import NotAcquired, Unavailable
from .limits.admission import RejectedRequest, aadmit, admit
from .limits.policy import Declared, Policy, endpoint_of
from .limits.rejection import aanswer, answer, error_answer, is_drf
from .limits.response import PASSED, Hold
from .limits.routes import MARK, is_preflight, marks_of
from .logs import logger

#: The attributes of a request: the middleware's hold, and whether its view is async.
_HOLD = "_redis_sync_hold"
_ASYNC_VIEW = "_redis_sync_async_view"


class ConcurrencyLimitMiddleware:
    """Enforce REDIS_SYNC["ENDPOINTS"], and with ATOMIC_REQUESTS also decorators and mixins.

    List it after the middleware that rejects requests (CsrfViewMiddleware,
    LoginRequiredMiddleware). It takes permits just before the view and its transaction, and
    releases them after both.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        self.process_view: Callable[..., Any] = self._process_view
        if self._is_async:
            markcoroutinefunction(self)
            # Django would run a sync process_view in a thread, for unlimited requests too.
            self.process_view = self._aprocess_view

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._acall(request)
        try:
            response = self.get_response(request)
        except BaseException:
            if hold := _hold_of(request):
                hold.release()
            raise
        if (hold := _hold_of(request)) and not hold.goes_with(response):
            hold.release()
        return response

    async def _acall(self, request: HttpRequest) -> Any:
        try:
            response = await self.get_response(request)
        except BaseException:
            if hold := _hold_of(request):
                await _release_after_view(request, hold)
            raise
        if (hold := _hold_of(request)) and not hold.goes_with(response):
            await hold.arelease()
        return response

    def _process_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        try:
            policies = policies_of(request, view, args, kwargs)
        except ImproperlyConfigured:
            if _is_of_admin(view):
                return None
            raise
        if not policies:
            return None
        got = admit(policies, request, preflight=is_preflight(request, view))
        if isinstance(got, RejectedRequest):
            return answer(request, got)
        _enter(request, got, policies)
        return None

    async def _aprocess_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        try:
            if _asks_a_sync_view(request, view):
                policies = await sync_to_async(policies_of)(request, view, args, kwargs)
            else:
                policies = policies_of(request, view, args, kwargs)
        except ImproperlyConfigured:
            if _is_of_admin(view):
                return None
            raise
        if not policies:
            return None
        setattr(request, _ASYNC_VIEW, iscoroutinefunction(view))
        got = await aadmit(policies, request, preflight=is_preflight(request, view))
        if isinstance(got, RejectedRequest):
            return await aanswer(request, got)
        _enter(request, got, policies)
        return None

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Answer 503 if a view's own lock or semaphore raised NotAcquired or Unavailable.

        Under ASGI, Django calls this in a thread.
        """
        if not isinstance(error, (NotAcquired, Unavailable)):
            return None
        if not conf.current().error_responses:
            return None
        logger.warning("503 for %s: %s: %s", request.path, type(error).__name__, error)
        return error_answer(request, error)


def _enter(request: HttpRequest, hold: Hold, policies: list[Policy]) -> None:
    setattr(request, PASSED, policies)  # decorators and mixins don't apply these again
    if hold:
        setattr(request, _HOLD, hold)


def _hold_of(request: HttpRequest) -> Hold | None:
    return getattr(request, _HOLD, None)


async def _release_after_view(request: HttpRequest, hold: Hold) -> None:
    if getattr(request, _ASYNC_VIEW, True):
        await hold.arelease()
    else:
        # The request was cancelled, but its view runs on in the thread of the request's sync code.
        # A call in that thread comes after the view.
        await shield(sync_to_async(hold.release)())


# Policies


def policies_of(request: HttpRequest, view: Any, args: Any, kwargs: Any) -> list[Policy]:
    """Return the policies that the middleware applies to a request of this view.

    They include those of decorators and mixins only if ATOMIC_REQUESTS wraps the view. Otherwise
    these apply their own, after the decorators outside of them (login_required).
    """
    endpoint = endpoint_of(request)
    own = endpoint.policy
    marks = [*marks_of(view, request.method)]
    if not marks:
        return [own] if own is not None else []
    if not _matters(own, view):
        return []
    declared = [
        endpoint.policy_of(declared, fallback)
        for mark, fallback in marks
        for declared in (mark.declared_for(request, args, kwargs),)
    ]
    policies = []
    if own is not None and all((own.using, own.name) != (p.using, p.name) for p in declared):
        policies.append(own)
    if is_atomic(view):
        drf = is_drf(view)
        policies += [policy for policy in declared if not (drf and _sees_the_view(policy))]
    return policies


def _is_of_admin(view: Any) -> bool:
    """Return True for a page of Django's admin. It stays open with wrong settings, because it shows
    the mistake to those who can correct it."""
    site = getattr(view, "__self__", None)  # of the login page
    return any(hasattr(view, own) for own in ("admin_site", "model_admin")) or hasattr(
        site, "admin_view"
    )


def _asks_a_sync_view(request: HttpRequest, view: Any) -> bool:
    """Return True if `policies_of` calls methods of a sync view: they may query the database."""
    if all(isinstance(mark, Declared) for mark in getattr(view, MARK, ())):
        return False
    return not iscoroutinefunction(view) and _matters(endpoint_of(request).policy, view)


def _matters(own: Policy | None, view: Any) -> bool:
    """Return True if the middleware needs to know the decorators and mixins."""
    return own is not None or is_atomic(view)


def is_atomic(view: Any) -> bool:
    """Return True if Django wraps the view in a transaction."""
    skipped = getattr(view, "_non_atomic_requests", ())
    return any(
        database["ATOMIC_REQUESTS"] and alias not in skipped
        for alias, database in connections.settings.items()
    )


def _sees_the_view(policy: Policy) -> bool:
    """Return True if a policy depends on data that only the view's own request has."""
    return (
        policy.key not in (None, "ip")
        or policy.share not in (None, "ip")
        or policy.when is not None
        or callable(policy.limit)
        or callable(policy.share_limit)
    )
