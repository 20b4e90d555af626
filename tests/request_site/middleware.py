"""Middleware that sets a user, or that drops, replaces, wraps, or delays the view's response."""

import asyncio
from types import SimpleNamespace

from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse


def setting_the_user(get_response):
    """Set the user to the one whose primary key is in the query, or to an anonymous user."""

    def call(request):
        pk = request.GET.get("user")
        request.user = request._cached_user = SimpleNamespace(pk=pk) if pk else AnonymousUser()
        return get_response(request)

    return call


def failing(get_response):
    """Raise after the view has returned."""

    def call(request):
        get_response(request)
        raise RuntimeError("a middleware failed")

    return call


def failing_on_request(get_response):
    """Raise after the view has returned if the query has "outer"."""

    def call(request):
        response = get_response(request)
        if "outer" in request.GET:
            raise RuntimeError("a middleware failed")
        return response

    return call


def replacing(get_response):
    """Replace the response, as ConditionalGetMiddleware does for a 304."""

    def call(request):
        get_response(request)
        return HttpResponse(status=304)

    return call


def wrapping(get_response):
    """Wrap the stream of the response, as GZipMiddleware does."""

    def call(request):
        response = get_response(request)
        if not response.streaming:
            return response
        content = response.streaming_content
        response.streaming_content = (part.upper() for part in content)
        return response

    return call


def sleeping_on_request(get_response):
    """Sleep after the view has returned if the query has "sleep"."""

    async def call(request):
        response = await get_response(request)
        if "sleep" in request.GET:
            await asyncio.sleep(60)
        return response

    return call


sleeping_on_request.async_capable = True
sleeping_on_request.sync_capable = False
