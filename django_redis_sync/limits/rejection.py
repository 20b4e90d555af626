"""The response to a rejected request. It does not name holders, hosts, or tokens.

For a view of Django REST framework or django-ninja, the response has the form of the framework.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutine
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from ..engine.calls import Call
from ..exceptions import NotAcquired, Unavailable
from ..logs import logger
from ..protocol.reasons import OUTAGE, RATE, SHARE, Rejection
from .frameworks import has_framework, response_of
from .policy import Policy

#: Seconds for Retry-After: the min, the max, and the value if the mean hold time is unknown.
MIN_SECONDS, MAX_SECONDS, DEFAULT_SECONDS = 1.0, 120.0, 2.0
#: Max fraction by which Retry-After is increased at random, so that clients don't all retry at the
#: same time.
JITTER = 0.5


class RejectedRequest(NamedTuple):
    """A request that got no permit. `policy`: the policy that rejected it. `limit`: the policy's
    limit for this request. `rejection`: the Rejection, with its reason."""

    policy: Policy
    limit: int
    rejection: Rejection

    @property
    def status(self) -> int:
        """The HTTP status of the response. The first rule that applies decides:

        - 503 if other holders or waiters are not the cause. An example is an outage.
        - The policy's option `status`, if it is set.
        - 429 if the policy has a key, or if all permits of the request's share are in use.
        - 503 in all other cases.
        """
        if not self.rejection.why.crowded:
            return 503
        same = self.policy.key is not None or self.rejection.reason in (SHARE, RATE)
        return self.policy.status or (429 if same else 503)


def retry_after(rejected: RejectedRequest | None = None, exact: float | None = None) -> int:
    """Return the seconds for the header Retry-After. This is about the time until permits become
    free for all waiters, and then for this request. If the time is unknown, or without `rejected`,
    return about DEFAULT_SECONDS. `exact`: the seconds, if they are known, as for a rate."""
    wait = DEFAULT_SECONDS
    if rejected is not None:
        policy, limit, found = rejected
        exact = found.retry_after
    if exact is not None:
        return max(1, math.ceil(exact))
    if rejected is not None:
        hold = max(found.mean_hold or 0, policy.min_hold or 0)
        wait = (found.waiting + 1) * hold / (found.limit or limit) if hold else wait
    wait = min(max(wait, MIN_SECONDS), MAX_SECONDS)
    return math.ceil(min(wait * random.uniform(1, 1 + JITTER), MAX_SECONDS))


@dataclass(frozen=True, slots=True)
class RejectionInfo:
    """The rejection that a project's `response` callable gets as its second argument.

    `status`: the HTTP status. `retry_after`: seconds. `message`: a text in the request's language.
    `reason`: a word of `protocol.reasons`, such as "full". `name`: the name of the limit.
    """

    status: int
    retry_after: int
    message: str
    reason: str
    name: str


def _info_of(rejected: RejectedRequest) -> RejectionInfo:
    """Return the RejectionInfo of a rejected request. Raise NotAcquired if the policy has
    on_full="raise"."""
    reason, name = rejected.rejection.reason, rejected.policy.name
    if rejected.policy.on_full == "raise":
        exact = rejected.rejection.retry_after
        raise NotAcquired(f"{name!r}: {rejected.rejection}", reason, name, exact)
    message = _message(reason, rejected.rejection.why.crowded)
    return RejectionInfo(rejected.status, retry_after(rejected), message, reason, name)


def _message(reason: str, crowded: bool = False) -> str:
    """Return what the client is told. `crowded`: True if other requests are the cause."""
    if reason == RATE:
        return _("Too many requests. Please try again later.")
    if crowded:
        return _("Too many requests at the same time. Please try again in a moment.")
    return _("Please try again in a moment.")


def answer(request: HttpRequest, rejected: RejectedRequest, seen: Any = None) -> HttpResponseBase:
    """Return the response to a rejected request. `seen`: the request object that the view gets.

    Raise NotAcquired if the policy has on_full="raise".
    """
    info, made = _info_of(rejected), None
    if rejected.policy.response is not None:
        made = _checked(rejected.policy.response(request, info), rejected.policy)
    return _finished(_default(request, seen, info) if made is None else made, info)


async def aanswer(
    request: HttpRequest, rejected: RejectedRequest, seen: Any = None
) -> HttpResponseBase:
    """Async version of `answer()`. Sync callables of the project and templates run in a thread,
    because they may query the database."""
    info, made = _info_of(rejected), None
    if rejected.policy.response is not None:
        own = partial(rejected.policy.response, request)
        made = _checked(await Call(own, info).ado(), rejected.policy)
    if made is None and _is_plain(request):
        made = _default(request, seen, info)
    elif made is None:
        made = await sync_to_async(_default)(request, seen, info)
    return _finished(made, info)


def error_answer(request: HttpRequest, error: NotAcquired | Unavailable) -> HttpResponseBase:
    """Return the 503 response to an error that a view's own lock or semaphore raised."""
    reason, name, exact = OUTAGE, "", None
    if isinstance(error, NotAcquired):
        reason, name, exact = error.reason, str(error.lock_name or ""), error.retry_after
    info = RejectionInfo(503, retry_after(exact=exact), _message(reason), reason, name)
    return _finished(_default(request, None, info, error), info)


def _checked(made: Any, policy: Policy) -> HttpResponseBase | None:
    """Return the response that a project's `response` callable made. If it made something else, log
    an error and return None."""
    if isinstance(made, HttpResponseBase):
        return made
    if iscoroutine(made):
        made.close()  # prevents the warning that the coroutine was never awaited
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
    """Return True if the default response is JSON, made without a framework or a template."""
    view = _view_of(request)
    return not (has_framework(view) or _prefers_page(request))


def _view_of(request: HttpRequest) -> Any:
    return None if request.resolver_match is None else request.resolver_match.func


def _default(
    request: HttpRequest, seen: Any, info: RejectionInfo, error: Exception | None = None
) -> HttpResponseBase:
    """Return the response in the form of the view's framework. Without a framework, or if it fails,
    return a page for clients that prefer HTML, and JSON for others. `error`: the exception that the
    view raised, if it was called."""
    try:
        made = response_of(_view_of(request), request, seen, info, error)
        if made is not None:
            return _checked_type(made)
    except Exception:
        logger.exception(
            "the exception handler for %s failed on a rejection, so the plain response was sent",
            request.path,
        )
    if _prefers_page(request):
        response = HttpResponse(_page(request, info), status=info.status)
    else:
        data = {"detail": info.message, "status": info.status, "retry_after": info.retry_after}
        response = JsonResponse(data, status=info.status)
    patch_vary_headers(response, ["Accept"])
    return response


def _checked_type(made: Any) -> HttpResponseBase:
    if not isinstance(made, HttpResponseBase):
        raise TypeError(f"it returned a {type(made).__name__}, not an HttpResponse")
    return made


def _finished(response: HttpResponseBase, info: RejectionInfo) -> HttpResponseBase:
    """Add Retry-After and Cache-Control, unless the response has them. Return the response."""
    response.setdefault("Retry-After", str(info.retry_after))
    response.setdefault("Cache-Control", "no-store")
    # Without this attribute, Django would log each rejection, and mail those with status 503 to the
    # admins.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _prefers_page(request: HttpRequest) -> bool:
    """Return True if the client prefers HTML to JSON, as browsers do."""
    return bool(request.get_preferred_type(["application/json", "text/html"]) == "text/html")


def _page(request: HttpRequest, info: RejectionInfo) -> str:
    """Return the page of a rejection. If it can't be rendered, log an error and return a text."""
    names = [f"django_redis_sync/{info.status}.html", "django_redis_sync/rejected.html"]
    context = {"message": info.message, "status": info.status, "retry_after": info.retry_after}
    template = None
    try:
        template = loader.select_template(names)
        return str(template.render(context, request))
    except Exception as error:
        # If no template was found, no template engine searches this app. Any other error is a
        # mistake in the project's own template or context processors.
        if template is not None or not isinstance(error, TemplateDoesNotExist):
            words = "a template of %s failed, so the rejected request to %s got plain text"
            logger.exception(words, " or ".join(names), request.path)
        return info.message
