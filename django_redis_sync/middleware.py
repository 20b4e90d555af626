"""The middleware. It limits views by name, holds permits until the request's transaction has ended,
and answers 503 if a view's own lock raises an error."""

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
from .limits.admission import aadmit, admit
from .limits.frameworks import is_drf
from .limits.policy import Declared, Policy, endpoint_of
from .limits.rejection import RejectedRequest, aanswer, answer, error_answer
from .limits.response import Hold, racing_of_request
from .limits.routes import DECLARED, declarations_of, is_preflight
from .limits.state import State, begin, ended, runs_sync_code, state_of
from .locks.callers import running_loop
from .locks.transactions import transactions_of, warn_of_race
from .logs import logger

_WHAT = "A permit of ConcurrencyLimitMiddleware"
_REMEDY = "List it before the middleware that begins the transaction."


class ConcurrencyLimitMiddleware:
    """Apply the limits of REDIS_SYNC["ENDPOINTS"]. If ATOMIC_REQUESTS wraps a view in a
    transaction, also apply the limits of the view's decorators and mixins.

    List it after the middleware that rejects requests (CsrfViewMiddleware,
    LoginRequiredMiddleware). It acquires permits before the view and its transaction begin, and
    releases them after both have ended.

    A subclass can skip requests: if its `__call__` or `process_view` doesn't call the method of
    this class for a request, the middleware takes no permit.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
            if type(self).process_view is ConcurrencyLimitMiddleware.process_view:
                # Django would run a sync process_view in a thread, even if no limit applies.
                vars(self)["process_view"] = self._process_view_of_async

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._acall(request)
        state, response = begin(request), None
        try:
            response = self.get_response(request)
        finally:
            holds = _to_release(ended(state), request, response)
            racing = transactions_of(None) if holds else []
            for hold in holds:
                hold.release()
        if racing:
            warn_of_race(_WHAT, _REMEDY, racing)
        return response

    async def _acall(self, request: HttpRequest) -> Any:
        state, racing = begin(request), list[str]()
        try:
            response = await self.get_response(request)
            if state.racing:
                racing = await racing_of_request()
        except BaseException:
            # If the request was cancelled, a sync view still runs in the thread that runs the
            # request's sync code. Release in that thread, so that the release comes after the end
            # of the view.
            if state.holds or runs_sync_code():
                await shield(sync_to_async(_release_all)(state))
            raise
        finally:
            holds = ended(state)
        for hold in _to_release(holds, request, response):
            await hold.arelease()
        if racing:
            warn_of_race(_WHAT, _REMEDY, racing)
        return response

    def process_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        policies = _policies_or_none(request, view, args, kwargs)
        if not policies or state_of(request).holds is None:
            return None
        got = admit(policies, request, preflight=is_preflight(request, view))
        if isinstance(got, RejectedRequest):
            return answer(request, got)
        _admitted(request, policies, got)
        return None

    @markcoroutinefunction
    def _process_view_of_async(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> Any:
        # Packages that trace requests wrap this method. If their function is sync, as that of older
        # versions of sentry-sdk, Django calls it in a thread, and nobody would await a coroutine.
        if running_loop() is None:
            return type(self).process_view(self, request, view, args, kwargs)
        return self._aprocess_view(request, view, args, kwargs)

    async def _aprocess_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        if _asks_a_sync_view(request, view):
            policies = await sync_to_async(_policies_or_none)(request, view, args, kwargs)
        else:
            policies = _policies_or_none(request, view, args, kwargs)
        if not policies or state_of(request).holds is None:
            return None
        got = await aadmit(policies, request, preflight=is_preflight(request, view))
        if isinstance(got, RejectedRequest):
            return await aanswer(request, got)
        _admitted(request, policies, got)
        return None

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Answer 503 if a view's own lock or semaphore raised NotAcquired or Unavailable.

        Under ASGI, Django calls this in a thread.
        """
        if isinstance(error, (NotAcquired, Unavailable)) and conf.current().error_responses:
            logger.warning("503 for %s: %s: %s", request.path, type(error).__name__, error)
            return error_answer(request, error)
        return None


def _admitted(request: HttpRequest, policies: list[Policy], hold: Hold) -> None:
    """Note that decorators and mixins must not apply these policies again, and hold the permits
    until the middleware ends."""
    state_of(request).passed = policies
    hold.keep(request)


def _to_release(holds: list[Hold], request: HttpRequest, response: Any) -> list[Hold]:
    """Return those of `holds` that have to be released now. The others end with the response."""
    return [hold for hold in holds if hold and not hold.goes_with(request, response)]


def _release_all(state: State) -> None:
    for hold in state.holds or ():
        hold.release()


# Policies


def _policies_or_none(request: HttpRequest, view: Any, args: Any, kwargs: Any) -> list[Policy]:
    """Return the result of `policies_of`. If the settings are wrong, return an empty list for a
    page of Django's admin, so that the admin can show the mistake. For other views, raise
    ImproperlyConfigured."""
    try:
        return policies_of(request, view, args, kwargs)
    except ImproperlyConfigured:
        is_login_page = hasattr(getattr(view, "__self__", None), "admin_view")
        if is_login_page or hasattr(view, "admin_site") or hasattr(view, "model_admin"):
            return []
        raise


def policies_of(request: HttpRequest, view: Any, args: Any, kwargs: Any) -> list[Policy]:
    """Return the policies that the middleware applies to a request of this view.

    The policies of decorators and mixins are included only if ATOMIC_REQUESTS wraps the view.
    Otherwise, each decorator or mixin applies its own policy, and outer decorators, such as
    login_required, run first.
    """
    endpoint, declarations = endpoint_of(request), [*declarations_of(view, request.method)]
    own = [] if endpoint.policy is None else [endpoint.policy]
    atomic = bool(declarations) and is_atomic(view)
    if not declarations or not (own or atomic):
        return own
    declared = [
        endpoint.policy_of(declaration.declared_for(request, args, kwargs), name)
        for declaration, name in declarations
    ]
    known = {(policy.using, policy.name) for policy in declared}
    policies = [policy for policy in own if (policy.using, policy.name) not in known]
    if atomic:
        drf = is_drf(view)
        policies += [policy for policy in declared if not (drf and _sees_the_view(policy))]
    return policies


def _asks_a_sync_view(request: HttpRequest, view: Any) -> bool:
    """Return True if `policies_of` calls a sync view's methods. They may query the database."""
    if all(isinstance(declaration, Declared) for declaration in getattr(view, DECLARED, ())):
        return False
    matters = endpoint_of(request).policy is not None or is_atomic(view)
    return matters and not iscoroutinefunction(view)


def is_atomic(view: Any) -> bool:
    """Return True if Django wraps the view in a transaction."""
    skipped = getattr(view, "_non_atomic_requests", ())
    return any(
        database["ATOMIC_REQUESTS"] and alias not in skipped
        for alias, database in connections.settings.items()
    )


def _sees_the_view(policy: Policy) -> bool:
    """Return True if a policy may depend on data that only the request object of Django REST
    framework has."""
    return (
        policy.key not in (None, "ip")
        or policy.share not in (None, "ip")
        or policy.when is not None
        or callable(policy.limit)
        or callable(policy.share_limit)
    )
