"""The views that the URLconf reaches, and their limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, URLResolver, get_resolver

from .decorator import marks_of, owner_of, places_of
from .policy import Endpoint, Policy, endpoints


class Route(NamedTuple):
    """A view, and its name in ENDPOINTS."""

    name: str
    view: Any


def routes() -> list[Route]:
    """Return the views of ROOT_URLCONF. Return none if it can't be loaded."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    try:
        return list(_walk(get_resolver().url_patterns, ()))
    except Exception:
        return []


def policies_of(route: Route) -> Iterator[Policy]:
    """Yield the limits of a view that are known without a request, and without mistakes."""
    endpoint = _endpoint_of(route)
    if endpoint is None:
        return
    if endpoint.policy is not None:
        yield endpoint.policy
    yield from _declared(endpoint, marks_of(route.view))


def admissions_of(route: Route, atomic: bool = False) -> list[list[list[Policy]]]:
    """Return what the requests of a view take together, for each way through the view.

    A view has one way per HTTP method. A way is a list of admissions in order: first that of the
    middleware, then one per place, outermost first. `atomic`: the middleware takes all limits of a
    view that ATOMIC_REQUESTS wraps.
    """
    endpoint = _endpoint_of(route)
    if endpoint is None:
        return []
    ways: list[list[list[Policy]]] = []
    known = getattr(owner_of(route.view), "http_method_names", ["get"])
    for method in known:
        places = [[*_declared(endpoint, place)] for place in places_of(route.view, method)]
        places.insert(0, [] if endpoint.policy is None else [endpoint.policy])
        if atomic:
            places = [[*chain.from_iterable(places)]]
        way = [sorted(place, key=lambda policy: policy.name) for place in places if place]
        if way not in ways:
            ways.append(way)
    return ways


def _endpoint_of(route: Route) -> Endpoint | None:
    try:
        return Endpoint(endpoints().find(route.name))
    except ImproperlyConfigured:
        return None


def _declared(endpoint: Endpoint, marks: Iterable[tuple[Any, str]]) -> Iterator[Policy]:
    for mark, fallback in marks:
        try:
            declared = mark.declared()
            if declared is not None:
                yield endpoint.policy_of(declared, fallback)
        except (ImproperlyConfigured, TypeError, ValueError):
            continue


def _walk(patterns: Sequence[Any], spaces: tuple[str, ...]) -> Iterator[Route]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            inner = (*spaces, pattern.namespace) if pattern.namespace else spaces
            yield from _walk(pattern.url_patterns, inner)
        elif isinstance(pattern, URLPattern):
            name = pattern.name or _path(pattern.callback)
            yield Route(":".join((*spaces, name)), pattern.callback)


def _path(view: Any) -> str:
    """Return the name of a view that has none in the URLconf, as ResolverMatch does."""
    view = getattr(view, "view_class", view)
    named = view if hasattr(view, "__name__") else type(view)
    return f"{named.__module__}.{named.__name__}"
