"""Middleware that does what real ones do to responses: fails, replaces, wraps."""

import asyncio

from django.http import HttpResponse


def failing(get_response):
    """Raises once the view has answered."""

    def call(request):
        get_response(request)
        raise RuntimeError("a middleware failed")

    return call


def failing_if_asked(get_response):
    """Raises once the view has answered, for a query with "outer"."""

    def call(request):
        response = get_response(request)
        if "outer" in request.GET:
            raise RuntimeError("a middleware failed")
        return response

    return call


def replacing(get_response):
    """Drops the response, as ConditionalGetMiddleware does for a 304."""

    def call(request):
        get_response(request)
        return HttpResponse(status=304)

    return call


def wrapping(get_response):
    """Sends another stream that reads the first, as GZipMiddleware does."""

    def call(request):
        response = get_response(request)
        content = response.streaming_content
        response.streaming_content = (part.upper() for part in content)
        return response

    return call


def lingering_if_asked(get_response):
    """Takes its time after the view has answered, for a query with "linger"."""

    async def call(request):
        response = await get_response(request)
        if "linger" in request.GET:
            await asyncio.sleep(60)
        return response

    return call


lingering_if_asked.async_capable = True
lingering_if_asked.sync_capable = False
