"""Views of Django REST framework and django-ninja: recognize them, and make the response to a
rejected request in the form of the framework.

A framework is only imported if one of its views is limited.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from django.db import connections
from django.http import HttpRequest


def is_drf(view: Any) -> bool:
    """Return True for a view of Django REST framework, which authenticates the user inside the
    view."""
    return hasattr(getattr(view, "cls", None), "perform_authentication")


def ninja_operations(view: Any) -> list[Any]:
    """Return the operations of a django-ninja view. Return an empty list for any other view."""
    if "ninja" not in sys.modules:
        return []
    for owner in (view, *(getattr(view, "__closure__", None) or ())):
        found: Any = getattr(owner, "__self__", None)  # of a bound method
        with suppress(AttributeError, ValueError):  # not a cell, or a cell that is still empty
            found = owner.cell_contents
        if type(found).__module__.startswith("ninja.") and getattr(found, "operations", None):
            return list(found.operations)
    return []


def has_framework(view: Any) -> bool:
    """Return True if a framework makes the responses to rejected requests of `view`."""
    return is_drf(view) or bool(ninja_operations(view))


def throttles_of(view: Any) -> list[list[Any]]:
    """Return the throttles of a view: the classes of a view of Django REST framework, or for each
    operation of django-ninja its objects. Return an empty list for any other view."""
    if is_drf(view):
        given = getattr(view, "initkwargs", {})
        return [[*given.get("throttle_classes", view.cls.throttle_classes)]]
    return [[*operation.throttle_objects] for operation in ninja_operations(view)]


def scope_of(view: Any) -> str | None:
    """Return the `throttle_scope` of a view of Django REST framework, or None."""
    given, owner = getattr(view, "initkwargs", None) or {}, getattr(view, "cls", None)
    scope = given.get("throttle_scope", getattr(owner, "throttle_scope", None))
    return scope if isinstance(scope, str) else None


def is_own(throttle: Any) -> bool:
    """Return True for an object or a subclass of ConcurrencyThrottle."""
    known: Any = sys.modules.get(f"{__name__.partition('.')[0]}.throttling")
    kind = throttle if isinstance(throttle, type) else type(throttle)
    return known is not None and issubclass(kind, known.ConcurrencyThrottle)


def response_of(
    view: Any, request: HttpRequest, seen: Any, info: Any, error: Exception | None = None
) -> Any:
    """Return the response of the view's framework to a rejected request, as the exception handler
    of the project makes it. Return None for a view without a framework.

    `seen`: the request object that the view gets. `info`: a RejectionInfo. `error`: the exception
    that the view raised, if it was called.
    """
    if hasattr(seen, "parser_context") or is_drf(view):
        return _by_drf(view, request, seen, info, error)
    if operations := ninja_operations(view):
        failure = import_module("ninja.errors").HttpError(info.status, info.message)
        return operations[0].api.on_exception(request, failure)
    return None


# Django REST framework


def _by_drf(
    function: Any, request: HttpRequest, seen: Any, info: Any, error: Exception | None
) -> Any:
    exceptions: Any = import_module("rest_framework.exceptions")
    failure = exceptions.APIException(info.message, code=info.reason)
    # DRF sends `wait` as Retry-After.
    failure.status_code, failure.wait = info.status, info.retry_after
    if hasattr(seen, "parser_context"):  # the request was rejected inside the view
        # Return the response that the view makes from the error. If this line raised the error,
        # Django would log the response as a server error.
        with _unmarked(function, inside=True):
            return seen.parser_context["view"].handle_exception(failure)
    view = _view_in(error) or _new_view(request)
    if not hasattr(view, "headers"):
        view.headers = view.default_response_headers
    _negotiate(view, view.request)
    with _unmarked(function, inside=False):
        response = view.handle_exception(failure)
    return view.finalize_response(view.request, response, *view.args, **view.kwargs)


def _view_in(error: BaseException | None) -> Any:
    """Return the view instance that raised `error` while it handled a request, or None. Its request
    has the data that the view has already read and parsed."""
    trace = None if error is None else error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        drf = hasattr(type(owner), "perform_authentication")
        if drf and hasattr(getattr(owner, "request", None), "parser_context"):
            return owner
        trace = trace.tb_next
    return None


def _new_view(request: HttpRequest) -> Any:
    """Return a view instance in the state in which the function that `as_view()` returned would
    give it the request."""
    match: Any = request.resolver_match
    view = match.func.cls(**getattr(match.func, "initkwargs", {}))
    view.action_map = getattr(match.func, "actions", None) or {}  # only view sets have `actions`
    for method, action in view.action_map.items():
        setattr(view, method, getattr(view, action))
    view.setup(request, *match.args, **match.kwargs)
    view.request = view.initialize_request(request, *match.args, **match.kwargs)
    return view


def _negotiate(view: Any, request: Any) -> None:
    """Set what the view sets before it asks its throttles, unless it is set. A request that accepts
    none of the view's renderers, or whose version is invalid, is rejected all the same."""
    if not hasattr(view, "format_kwarg"):
        view.format_kwarg = view.get_format_suffix(**view.kwargs)
    if not getattr(request, "accepted_renderer", None):
        chosen = view.perform_content_negotiation(request, force=True)
        request.accepted_renderer, request.accepted_media_type = chosen
    if getattr(request, "versioning_scheme", None) is None:
        request.version, request.versioning_scheme = None, None
        with suppress(import_module("rest_framework.exceptions").APIException):
            version = view.determine_version(request, *view.args, **view.kwargs)
            request.version, request.versioning_scheme = version


@contextmanager
def _unmarked(function: Any, inside: bool) -> Iterator[None]:
    """Undo that the exception handler of DRF marks transactions for rollback. With ATOMIC_REQUESTS,
    it marks each open transaction, even if a test or a middleware began the transaction.

    `inside`: True if the view `function` runs. Then the transaction that ATOMIC_REQUESTS began for
    the view stays marked, because the view may have written before it was rejected.
    """
    exempt = getattr(function, "_non_atomic_requests", ())
    others = []
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and not connection.needs_rollback:
            of_test = getattr(connection.atomic_blocks[-1], "_from_testcase", False)
            if of_test or not inside or connection.alias in exempt:
                others.append(connection)
    try:
        yield
    finally:
        for connection in others:
            if connection.in_atomic_block:
                connection.set_rollback(False)
