"""Middleware that sets a user, and that fails or changes responses if the query parameter `outer`
says so."""

import asyncio
from types import SimpleNamespace

from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse


def obeying(get_response):
    """Set `request.user` to a user whose primary key is the query parameter `user`. After the view,
    do what the query parameter `outer` says:

    - "raise": raise an error.
    - "replace": return another response, like ConditionalGetMiddleware.
    - "wrap": replace the stream of the response, like GZipMiddleware."""

    def call(request):
        pk = request.GET.get("user")
        request.user = request._cached_user = SimpleNamespace(pk=pk) if pk else AnonymousUser()
        response, outer = get_response(request), request.GET.get("outer")
        if outer == "raise":
            raise RuntimeError("a middleware failed")
        if outer == "replace":
            return HttpResponse(status=304)
        if outer == "wrap" and response.streaming:
            content = response.streaming_content
            if response.is_async:
                response.streaming_content = (part.upper() async for part in content)
            else:
                response.streaming_content = (part.upper() for part in content)
        return response

    return call


def sleeping(get_response):
    """If the query parameter `outer` is "sleep", sleep for 60 s after the view has returned."""

    async def call(request):
        response = await get_response(request)
        if request.GET.get("outer") == "sleep":
            await asyncio.sleep(60)
        return response

    return call


sleeping.async_capable, sleeping.sync_capable = True, False
