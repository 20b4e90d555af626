"""Record the time at which a request reaches its view and can begin to wait."""

import time
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

ARRIVED = "shop.arrived"

Handler = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def note_arrival(get_response: Handler) -> Handler:
    """Return middleware that stores the monotonic time of arrival in `request.META`."""
    if iscoroutinefunction(get_response):

        async def anote(request: HttpRequest) -> Any:
            request.META[ARRIVED] = time.monotonic()
            return await get_response(request)

        return anote

    def note(request: HttpRequest) -> Any:
        request.META[ARRIVED] = time.monotonic()
        return get_response(request)

    return note
