"""The response to a rejected request. It does not name holders, hosts, or tokens.

For a view of Django REST framework or django-ninja, it has the form of the framework. A framework
is only imported if one of its views is limited.
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import isawaitable, iscoroutine
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from ..exceptions import NotAcquired, Unavailable
from ..logs import logger
from ..protocol.reasons import OUTAGE
from .admission import RejectedRequest
from .policy import Policy
from .semaphore import seconds_until_free

#: Bounds of Retry-After in seconds, and its value if no hold was measured.
MIN_SECONDS, MAX_SECONDS, DEFAULT_SECONDS = 1.0, 120.0, 2.0
#: Part by which Retry-After is increased at random, so that clients don't return together.
JITTER = 0.5


def retry_after(rejected: RejectedRequest) -> int:
    """Return the estimated seconds until a permit is free after those of all waiters."""
    ahead = rejected.rejection.waiting + 1
    return _scattered(
        seconds_until_free(rejected.policy, rejected.limit, rejected.rejection, ahead)
    )


def _scattered(seconds: float | None) -> int:
    wait = min(max(DEFAULT_SECONDS if seconds is None else seconds, MIN_SECONDS), MAX_SECONDS)
    return math.ceil(min(wait * random.uniform(1, 1 + JITTER), MAX_SECONDS))


@dataclass(frozen=True, slots=True)
class RejectionInfo:
    """A rejection, as the second argument of a project's `response` callable gets it.

    `status`: the HTTP status. `retry_after`: seconds. `message`: a text in the request's language.
    `reason`: a word of `protocol.reasons`, such as "full". `name`: the name of the limit.
    """

    status: int
    retry_after: int
    message: str
    reason: str
    name: str


def info_of(rejected: RejectedRequest) -> RejectionInfo:
    """Return the RejectionInfo of a rejected request."""
    message = _("Please try again in a moment.")
    if rejected.rejection.why.crowded:
        message = _("Too many requests at the same time. Please try again in a moment.")
    reason, name = rejected.rejection.reason, rejected.policy.name
    return RejectionInfo(rejected.status, retry_after(rejected), message, reason, name)


def answer(request: HttpRequest, rejected: RejectedRequest, seen: Any = None) -> HttpResponseBase:
    """Return the response to a rejected request. `seen`: the request as the view sees it.

    Raise NotAcquired if the policy has on_full="raise".
    """
    if rejected.policy.on_full == "raise":
        raise rejected.error()
    info, made = info_of(rejected), None
    if rejected.policy.response is not None:
        made = _checked(rejected.policy.response(request, info), rejected.policy)
    return _finished(_default(request, seen, info) if made is None else made, info)


async def aanswer(
    request: HttpRequest, rejected: RejectedRequest, seen: Any = None
) -> HttpResponseBase:
    """Async version of `answer()`. Sync code of the project and templates run in a thread, because
    they may query the database."""
    own = rejected.policy.response
    if rejected.policy.on_full == "raise":
        raise rejected.error()
    info, made = info_of(rejected), None
    if own is not None:
        call = partial(own, request, info)
        made = call() if iscoroutinefunction(own) else await sync_to_async(call)()
        if isawaitable(made) and not isinstance(made, HttpResponseBase):
            made = await made
        made = _checked(made, rejected.policy)
    if made is None and _is_plain(request):
        made = _default(request, seen, info)
    elif made is None:
        made = await sync_to_async(_default)(request, seen, info)
    return _finished(made, info)


def error_answer(request: HttpRequest, error: NotAcquired | Unavailable) -> HttpResponseBase:
    """Return the 503 response to an error that a view's own lock or semaphore raised."""
    reason, name = OUTAGE, ""
    if isinstance(error, NotAcquired):
        reason, name = error.reason, str(error.lock_name or "")
    message = _("Please try again in a moment.")
    info = RejectionInfo(503, _scattered(None), message, reason, name)
    return _finished(_default(request, None, info), info)


def _checked(made: Any, policy: Policy) -> HttpResponseBase | None:
    """Return the response that a project's `response` callable made. If it made something else, log
    an error and return None."""
    if isinstance(made, HttpResponseBase):
        return made
    if iscoroutine(made):
        made.close()  # prevents Python's warning that it was never awaited
    logger.error(
        "response=%s of the limit %r returned a %s, not an HttpResponse: the default response was "
        "sent (an async callable works only if the view is async)",
        _name_of(policy.response),
        policy.name,
        type(made).__name__,
    )
    return None


def _name_of(function: Any) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _is_plain(request: HttpRequest) -> bool:
    """Return True if the default response is JSON that this module makes itself."""
    view = _view_of(request)
    return not (is_drf(view) or answers_by_ninja(view) or prefers_page(request))


def _view_of(request: HttpRequest) -> Any:
    return None if request.resolver_match is None else request.resolver_match.func


def _default(request: HttpRequest, seen: Any, info: RejectionInfo) -> HttpResponse:
    """Return the response in the form of the view's framework. Without a framework, return a page
    for clients that prefer HTML, and JSON for others."""
    view = _view_of(request)
    within = hasattr(seen, "parser_context")
    if within or is_drf(view):
        error = drf_error(info.status, info.message, info.retry_after, info.reason)
        return answer_within_drf(seen, error) if within else answer_by_drf(request, view, error)
    by_ninja = answers_by_ninja(view)
    if by_ninja is not None:
        return by_ninja(request, info.status, info.message)
    if prefers_page(request):
        page = _page(request, info.message, info.status, info.retry_after)
        response = HttpResponse(page, status=info.status)
    else:
        data = {"detail": info.message, "status": info.status, "retry_after": info.retry_after}
        response = JsonResponse(data, status=info.status)
    patch_vary_headers(response, ["Accept"])
    return response


def _finished(response: HttpResponseBase, info: RejectionInfo) -> HttpResponseBase:
    """Return the response. Add the headers of a rejection that it does not have."""
    response.setdefault("Retry-After", str(info.retry_after))
    response.setdefault("Cache-Control", "no-store")
    # Otherwise Django logs an error for each rejection, and mails it to the admins.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def prefers_page(request: HttpRequest) -> bool:
    """Return True if the client prefers HTML to JSON, as browsers do."""
    return bool(request.get_preferred_type(["application/json", "text/html"]) == "text/html")


def _page(request: HttpRequest, message: str, status: int, seconds: int) -> str:
    names = [f"django_redis_sync/{status}.html", "django_redis_sync/rejected.html"]
    context: dict[str, Any] = {"message": message, "status": status, "retry_after": seconds}
    try:
        return loader.render_to_string(names, context, request)
    except TemplateDoesNotExist:  # no template engine has APP_DIRS
        return message


# The frameworks


def is_drf(view: Any) -> bool:
    """Return True for a view of Django REST framework. It authenticates inside the view."""
    return hasattr(getattr(view, "cls", None), "perform_authentication")


def drf_error(status: int, message: str, seconds: int, reason: str) -> Exception:
    """Return an error for REST framework's exception handlers. They set `Retry-After` to its
    `wait`."""
    error: Any = import_module("rest_framework.exceptions").APIException(message, code=reason)
    error.status_code, error.wait = status, seconds
    return error  # type: ignore[no-any-return]


def answer_by_drf(request: HttpRequest, view: Any, error: Exception) -> HttpResponse:
    """Return the response of a REST framework view to an error, made by its exception handler and
    renderers. The view was not called yet."""
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
    """Return the response of a REST framework handler to an error. `seen`: the framework's request.

    If the error were raised, Django would log the response as an error of the server.
    """
    response = seen.parser_context["view"].handle_exception(error)
    return response  # type: ignore[no-any-return]


def answers_by_ninja(view: Any) -> Callable[[HttpRequest, int, str], HttpResponse] | None:
    """Return a function with which the API of a django-ninja view makes a response of a status and
    a message. Return None for any other view."""
    if "ninja" not in sys.modules:
        return None
    inside = inspect.getclosurevars(view).nonlocals.values() if inspect.isfunction(view) else ()
    for found in (getattr(view, "__self__", None), *inside):
        if type(found).__module__.startswith("ninja.") and getattr(found, "operations", None):
            api: Any = found.operations[0].api
            error = import_module("ninja.errors").HttpError
            return lambda request, *given: api.on_exception(request, error(*given))
    return None
