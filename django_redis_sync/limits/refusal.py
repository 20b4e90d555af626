"""The response to a request that was refused. Says nothing of holders, hosts or tokens."""

from __future__ import annotations

import math
import random
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from .enforcement import Refused, seconds_until_free

#: Seconds of Retry-After at the least and at the most, and where no hold was measured.
SOONEST, LATEST, USUAL = 1.0, 120.0, 2.0
#: The most that is added to it, so that those refused together don't come back together.
JITTER = 0.5


def retry_after(refused: Refused) -> int:
    """Seconds until a permit may be free for one more in the queue."""
    ahead = refused.refusal.waiting + 1
    known = seconds_until_free(refused.policy, refused.limit, refused.refusal, ahead)
    wait = min(max(USUAL if known is None else known, SOONEST), LATEST)
    return math.ceil(min(wait * random.uniform(1, 1 + JITTER), LATEST))


def answer(request: HttpRequest, refused: Refused) -> HttpResponse:
    """The response to a refused request. NotAcquired instead with on_full="raise"."""
    if refused.policy.on_full == "raise":
        raise refused.error()
    return refusal_response(request, refused)


async def aanswer(request: HttpRequest, refused: Refused) -> HttpResponse:
    """As answer. A page is made in a thread: its template may ask for the user, or any row."""
    if refused.policy.on_full == "raise" or _prefers_json(request):
        return answer(request, refused)
    return await sync_to_async(answer)(request, refused)


def refusal_response(request: HttpRequest, refused: Refused) -> HttpResponse:
    """JSON or the template django_redis_sync/refused.html, as the request prefers."""
    status, seconds = refused.status, retry_after(refused)
    message = _("Please try again in a moment.")
    if refused.refusal.why.crowded:
        message = _("Too many requests at the same time. Please try again in a moment.")
    if _prefers_json(request):
        response: HttpResponse = JsonResponse(
            {"detail": message, "status": status, "retry_after": seconds}, status=status
        )
    else:
        response = HttpResponse(_page(request, message, status, seconds), status=status)
    response["Retry-After"] = str(seconds)
    response["Cache-Control"] = "no-store"
    patch_vary_headers(response, ["Accept"])
    # Django would log an error, and mail it to the admins, for each refusal.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _prefers_json(request: HttpRequest) -> bool:
    preferred = request.get_preferred_type(["text/html", "application/json"])
    return bool(preferred == "application/json")


def _page(request: HttpRequest, message: str, status: int, seconds: int) -> str:
    names = [f"django_redis_sync/{status}.html", "django_redis_sync/refused.html"]
    context: dict[str, Any] = {"message": message, "status": status, "retry_after": seconds}
    try:
        return loader.render_to_string(names, context, request)
    except TemplateDoesNotExist:  # no template engine looks into apps
        return message
