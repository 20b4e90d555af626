"""The middleware: limits by view name, and permits that outlive a request's transaction."""

from __future__ import annotations

from asyncio import shield
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import HttpRequest, HttpResponse

from .limits.decorator import MARK, is_preflight, marks_of
from .limits.enforcement import Refused, aadmit, admit
from .limits.frameworks import is_drf
from .limits.holding import PASSED, Hold
from .limits.policy import Declared, Policy, endpoint_of
from .limits.refusal import aanswer, answer

#: The attributes of a request: the middleware's hold, and whether its view is async.
_HOLD = "_redis_sync_hold"
_ASYNC_VIEW = "_redis_sync_async_view"


class ConcurrencyLimitMiddleware:
    """Enforces REDIS_SYNC["ENDPOINTS"]; with ATOMIC_REQUESTS also decorators and mixins.

    Place it after the middleware that turns requests away (CsrfViewMiddleware,
    LoginRequiredMiddleware): a permit is taken just before the view and its transaction, and given
    back when both are over.
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
    ) -> HttpResponse | None:
        try:
            policies = policies_of(request, view, args, kwargs)
        except ImproperlyConfigured:
            if _is_of_admin(view):
                return None
            raise
        if not policies:
            return None
        got = admit(policies, request, preflight=is_preflight(request, view))
        if isinstance(got, Refused):
            return answer(request, got)
        _enter(request, got, policies)
        return None

    async def _aprocess_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponse | None:
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
        if isinstance(got, Refused):
            return await aanswer(request, got)
        _enter(request, got, policies)
        return None


def _enter(request: HttpRequest, hold: Hold, policies: list[Policy]) -> None:
    setattr(request, PASSED, policies)  # decorators and mixins of the view don't ask again
    if hold:
        setattr(request, _HOLD, hold)


def _hold_of(request: HttpRequest) -> Hold | None:
    return getattr(request, _HOLD, None)


async def _release_after_view(request: HttpRequest, hold: Hold) -> None:
    if getattr(request, _ASYNC_VIEW, True):
        await hold.arelease()
    else:
        # The request was cancelled, but its view runs on in the one thread that a request has: a
        # call in that thread comes after it.
        await shield(sync_to_async(hold.release)())


# Which policies


def policies_of(request: HttpRequest, view: Any, args: Any, kwargs: Any) -> list[Policy]:
    """The policies that the middleware takes for a request of this view.

    Those of decorators and mixins only where ATOMIC_REQUESTS wraps the view: elsewhere they take
    their own, after the decorators before them (login_required) has let the visitor pass.
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
    """Whether it is a page of Django's admin: with wrong settings it stays open, for there the
    people who can mend them read the mistake."""
    site = getattr(view, "__self__", None)  # of the page to log in
    return any(hasattr(view, own) for own in ("admin_site", "model_admin")) or hasattr(
        site, "admin_view"
    )


def _asks_a_sync_view(request: HttpRequest, view: Any) -> bool:
    """Whether policies_of calls methods of a sync view: they may ask the database."""
    if all(isinstance(mark, Declared) for mark in getattr(view, MARK, ())):
        return False
    return not iscoroutinefunction(view) and _matters(endpoint_of(request).policy, view)


def _matters(own: Policy | None, view: Any) -> bool:
    """Whether the middleware has to know the decorators and mixins."""
    return own is not None or is_atomic(view)


def is_atomic(view: Any) -> bool:
    """Whether Django wraps the view in a transaction."""
    skipped = getattr(view, "_non_atomic_requests", ())
    return any(
        database["ATOMIC_REQUESTS"] and alias not in skipped
        for alias, database in connections.settings.items()
    )


def _sees_the_view(policy: Policy) -> bool:
    """Whether a policy depends on something that only the view's own request can tell."""
    return policy.key not in (None, "ip") or policy.when is not None or callable(policy.limit)
