"""The views that the URLconf reaches, and their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, URLResolver, get_resolver

from .decorator import marks_of
from .policy import Endpoint, Policy, endpoints


class Route(NamedTuple):
    """A view, by the name that ENDPOINTS knows it by."""

    name: str
    view: Any


def routes() -> list[Route]:
    """The views of ROOT_URLCONF; none when it can't be loaded, of which Django's checks tell."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    try:
        return list(_walk(get_resolver().url_patterns, ()))
    except Exception:
        return []


def policies_of(route: Route) -> Iterator[Policy]:
    """The limits of a view, as far as they are known without a request and are no mistakes."""
    try:
        endpoint = Endpoint(endpoints().find(route.name))
    except ImproperlyConfigured:
        return
    if endpoint.policy is not None:
        yield endpoint.policy
    for mark, fallback in marks_of(route.view):
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
    """The name of a view that the URLconf does not name, as ResolverMatch has it."""
    view = getattr(view, "view_class", view)
    named = view if hasattr(view, "__name__") else type(view)
    return f"{named.__module__}.{named.__name__}"
