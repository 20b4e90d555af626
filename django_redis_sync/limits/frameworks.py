"""Rejections in the form of Django REST framework and of django-ninja.

Neither framework is imported unless a view of it is limited.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from django.http import HttpRequest, HttpResponse


def is_drf(view: Any) -> bool:
    """Return True for a view of Django REST framework, which authenticates inside the view."""
    return hasattr(getattr(view, "cls", None), "perform_authentication")


def drf_error(status: int, message: str, seconds: int, reason: str) -> Exception:
    """Return an error that REST framework's exception handlers know. They make `Retry-After` of its
    `wait`."""
    error: Any = import_module("rest_framework.exceptions").APIException(message, code=reason)
    error.status_code, error.wait = status, seconds
    return error  # type: ignore[no-any-return]


def answer_by_drf(request: HttpRequest, view: Any, error: Exception) -> HttpResponse:
    """Return the response of a REST framework view to an error before the view was called, made by
    its exception handler and renderers."""
    match: Any = request.resolver_match
    made = view.cls(**getattr(view, "initkwargs", {}))
    made.action_map = getattr(view, "actions", None) or {}  # of a view set
    made.args, made.kwargs = match.args, match.kwargs
    made.format_kwarg = made.get_format_suffix(**match.kwargs)
    made.headers = made.default_response_headers
    made.request = made.initialize_request(request, *match.args, **match.kwargs)
    response = made.finalize_response(made.request, made.handle_exception(error))
    return response  # type: ignore[no-any-return]


def answer_within_drf(seen: Any, error: Exception) -> HttpResponse:
    """Return the response of a handler to an error. `seen` is the framework's request.

    The error is not raised: Django would log the framework's response as an error of the server.
    """
    response = seen.parser_context["view"].handle_exception(error)
    return response  # type: ignore[no-any-return]


def answers_by_ninja(view: Any) -> Callable[[HttpRequest, int, str], HttpResponse] | None:
    """Return how the API of a django-ninja view answers an error; None for any other view."""
    if "ninja" not in sys.modules:
        return None
    inside = inspect.getclosurevars(view).nonlocals.values() if inspect.isfunction(view) else ()
    for found in (getattr(view, "__self__", None), *inside):
        if type(found).__module__.startswith("ninja.") and getattr(found, "operations", None):
            api: Any = found.operations[0].api
            error = import_module("ninja.errors").HttpError
            return lambda request, *given: api.on_exception(request, error(*given))
    return None
