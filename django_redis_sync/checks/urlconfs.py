"""Checks of the URLconfs, and of the entries of ENDPOINTS that match no view."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from django.conf import settings
from django.core.checks import CheckMessage
from django.utils.module_loading import import_string

from ..limits.policy import Policy, endpoints
from ..limits.routes import Route, limits_of, routes_of, urlconfs
from .settings import message

_NAME_THEM = "REDIS_SYNC['URLCONFS']"


class Reached(NamedTuple):
    """A view of a URLconf that could be loaded. `policies`, `errors`: see `limits_of`."""

    route: Route
    policies: list[Policy]
    errors: list[Exception]

    @property
    def name(self) -> str:
        """The name of the view in ENDPOINTS."""
        return self.route.name

    @property
    def view(self) -> Any:
        """The view of the URLconf."""
        return self.route.view


class Known(NamedTuple):
    """What the checks know about the views of the project. `messages`: a warning for each reason
    why views may be missing."""

    views: list[Reached]
    messages: list[CheckMessage]


def known() -> Known:
    """Load the URLconfs, and return their views."""
    routes: list[Route] = []
    messages: list[CheckMessage] = []
    try:
        found = urlconfs()
    except Exception as error:
        messages.append(_broken("ROOT_HOSTCONF", error))
        found = [settings.ROOT_URLCONF]
    for urlconf in found:
        try:
            routes += routes_of(urlconf)
        except Exception as error:
            messages.append(_broken(f"The URLconf {urlconf!r}", error))
    if len(found) < 2 and not messages:
        messages += _check_middleware()
    return Known([Reached(route, *limits_of(route)) for route in routes], messages)


def _broken(what: str, error: Exception) -> CheckMessage:
    return message(
        "W027",
        f"{what} can't be loaded, so the limits of its views are not checked: "
        f"{type(error).__name__}: {error}",
        "Correct this error first, then run the checks again.",
    )


def check_patterns(known: Known) -> Iterator[CheckMessage]:
    """Yield a warning for each entry of ENDPOINTS that matches no view. If views may be missing,
    yield nothing, because one of them may match."""
    if known.messages:
        return
    met = {endpoints().pattern_for(one.name, one.view) for one in known.views}
    for pattern in endpoints().entries:
        if pattern not in met:
            yield message(
                "W006",
                f"REDIS_SYNC['ENDPOINTS'][{pattern!r}] matches no view.",
                "Use a view's name with its namespaces. Without a name, use its dotted path. If "
                f"another URLconf has the view, list that URLconf in {_NAME_THEM}.",
            )


# Middleware that chooses the URLconf of a request


def _check_middleware() -> Iterator[CheckMessage]:
    for path in settings.MIDDLEWARE:
        if _sets_urlconf(path):
            yield message(
                "W028",
                f"{path} sets request.urlconf. So the project has URLconfs that the checks don't "
                "know: the limits of their views are not checked.",
                f"List these URLconfs in {_NAME_THEM}.",
            )


def _sets_urlconf(path: str) -> bool:
    """Return True if the code of a middleware sets an attribute `urlconf`."""
    try:
        found: Any = import_string(path)
    except ImportError:  # Django itself reports the wrong path
        return False
    parts: list[Any] = [inspect.unwrap(found)]
    if isinstance(found, type):
        parts = [one for base in found.__mro__ for one in vars(base).values()]
    codes = [code for one in parts if isinstance(code := getattr(one, "__code__", None), CodeType)]
    while codes:
        code = codes.pop()
        if "urlconf" in code.co_names and any(
            one.opname == "STORE_ATTR" and one.argval == "urlconf"
            for one in dis.get_instructions(code)
        ):
            return True
        if "urlconf" in code.co_consts and "setattr" in code.co_names:
            return True
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return False
