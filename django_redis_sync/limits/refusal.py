"""The response to a request that was refused. Says nothing of holders, hosts or tokens."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from .enforcement import Refused, seconds_until_free
from .frameworks import answer_by_drf, answer_within_drf, answers_by_ninja, drf_error, is_drf

#: Seconds of Retry-After at the least and at the most, and where no hold was measured.
SOONEST, LATEST, USUAL = 1.0, 120.0, 2.0
#: The most that is added to it, so that those refused together don't come back together.
JITTER = 0.5


def retry_after(refused: Refused) -> int:
    """Seconds until a permit may be free for one more waiter in the queue."""
    ahead = refused.refusal.waiting + 1
    known = seconds_until_free(refused.policy, refused.limit, refused.refusal, ahead)
    wait = min(max(USUAL if known is None else known, SOONEST), LATEST)
    return math.ceil(min(wait * random.uniform(1, 1 + JITTER), LATEST))


@dataclass(frozen=True, slots=True)
class Said:
    """The answer to a refused request. `status`: of HTTP; `retry_after`: seconds; `message`: a
    sentence in the request's language; `reason`: a word of protocol.reasons; `name`: the limit's.
    """

    status: int
    retry_after: int
    message: str
    reason: str
    name: str


def said_of(refused: Refused) -> Said:
    message = _("Please try again in a moment.")
    if refused.refusal.why.crowded:
        message = _("Too many requests at the same time. Please try again in a moment.")
    reason, name = refused.refusal.reason, refused.policy.name
    return Said(refused.status, retry_after(refused), message, reason, name)


def answer(request: HttpRequest, refused: Refused, seen: Any = None) -> HttpResponse:
    """The response to a refused request. NotAcquired instead with on_full="raise".

    `seen`: the request as the view sees it.
    """
    own = refused.policy.response
    if refused.policy.on_full == "raise":
        raise refused.error()
    said = said_of(refused)
    if own is not None:
        own = async_to_sync(own) if iscoroutinefunction(own) else own
        return _finished(own(request, said), said)
    return _finished(_made(request, seen, said), said)


async def aanswer(request: HttpRequest, refused: Refused, seen: Any = None) -> HttpResponse:
    """As answer. A project's own code or template runs in a thread: it may ask for
    the user, or any row."""
    own = refused.policy.response
    if refused.policy.on_full != "raise" and iscoroutinefunction(own):
        said = said_of(refused)
        return _finished(await own(request, said), said)
    if own is None and _is_plain(request):
        return answer(request, refused, seen)
    return await sync_to_async(answer)(request, refused, seen)


def _is_plain(request: HttpRequest) -> bool:
    """Whether JSON of our own is the answer."""
    view = _view_of(request)
    return not (is_drf(view) or answers_by_ninja(view) or prefers_page(request))


def _view_of(request: HttpRequest) -> Any:
    return None if request.resolver_match is None else request.resolver_match.func


def _made(request: HttpRequest, seen: Any, said: Said) -> HttpResponse:
    """As the framework of the view answers, else JSON, or a page for clients that ask for pages."""
    view = _view_of(request)
    within = hasattr(seen, "parser_context")
    if within or is_drf(view):
        error = drf_error(said.status, said.message, said.retry_after, said.reason)
        return answer_within_drf(seen, error) if within else answer_by_drf(request, view, error)
    by_ninja = answers_by_ninja(view)
    if by_ninja is not None:
        return by_ninja(request, said.status, said.message)
    if prefers_page(request):
        page = _page(request, said.message, said.status, said.retry_after)
        response = HttpResponse(page, status=said.status)
    else:
        told = {"detail": said.message, "status": said.status, "retry_after": said.retry_after}
        response = JsonResponse(told, status=said.status)
    patch_vary_headers(response, ["Accept"])
    return response


def _finished(response: HttpResponse, said: Said) -> HttpResponse:
    """The response with the headers of a refusal, where it has none of its own."""
    if isinstance(response, HttpResponseBase):
        response.setdefault("Retry-After", str(said.retry_after))
        response.setdefault("Cache-Control", "no-store")
        # Django would log an error, and mail it to the admins, for each refusal.
        response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def prefers_page(request: HttpRequest) -> bool:
    """Whether the client asks for HTML by name, as browsers do; others take anything."""
    return bool(request.get_preferred_type(["application/json", "text/html"]) == "text/html")


def _page(request: HttpRequest, message: str, status: int, seconds: int) -> str:
    names = [f"django_redis_sync/{status}.html", "django_redis_sync/refused.html"]
    context: dict[str, Any] = {"message": message, "status": status, "retry_after": seconds}
    try:
        return loader.render_to_string(names, context, request)
    except TemplateDoesNotExist:  # no template engine looks into apps
        return message
