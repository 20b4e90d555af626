"""Find the class, the name, and the limits of a view without calling the view.

`routes_of` returns the views of a URLconf, for the system checks and for `testing`.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from inspect import isclass
from itertools import chain
from types import MethodType
from typing import Any, NamedTuple

from asgiref.sync import AsyncToSync
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.urls import ResolverMatch, URLPattern, URLResolver, get_resolver

from .. import conf
from .frameworks import is_own, scope_of, throttles_of
from .policy import Declared, Endpoint, Policy, endpoint_named

View = Callable[..., Any]

#: Name of the attribute in which a view has the options of its own decorators and mixin.
DECLARED = "_redis_sync_policies"
#: Name of the attribute in which a view has its Stack.
STACK = "_redis_sync_stack"
#: Name of an attribute of the mixin's `dispatch`: a function that gives a view instance's options.
MIXIN = "_redis_sync_declared_by"
#: Packages with `options` and `dispatch` methods that answer OPTIONS without the project's code.
_FRAMEWORKS = {"django", "rest_framework", __name__.partition(".")[0]}


class Stack(NamedTuple):
    """Decorators that directly wrap each other. `declared`: their options, the outermost decorator
    first. `view`: the view that the innermost decorator wraps."""

    declared: tuple[Declared, ...]
    view: View
    #: The function that the outermost decorator wraps.
    wraps: View


def stack_of(view: Any) -> Stack | None:
    """Return the Stack that begins at `view`, or None if `view` was not made by `decorate`."""
    stack: Stack | None = None if isinstance(view, MethodType) else getattr(view, STACK, None)
    # If another decorator made `view`, functools.wraps may have copied the attribute from the
    # wrapped view. Then the Stack does not begin at `view`.
    return stack if stack is not None and view.__wrapped__ is stack.wraps else None


def first_is_mixin(view: Any) -> bool:
    """Return True if a call of `view` runs the mixin's `dispatch` before any other code."""
    if isinstance(view, partial):  # method_decorator passes a partial of the bound method
        dispatch = getattr(view.func, "__func__", None)
    else:
        dispatch = getattr(owner_of(view), "dispatch", None)
    return hasattr(dispatch, MIXIN) and not hasattr(dispatch, "__wrapped__")


def find_request(view: View, args: Any, kwargs: Any) -> tuple[Any, HttpRequest]:
    """Return the request object that the view gets, and Django's request. Raise TypeError if the
    call has no request."""
    for seen in (*args, kwargs.get("request")):
        request = getattr(seen, "_request", seen)
        if isinstance(request, HttpRequest):
            return seen, request
    raise TypeError(
        f"{getattr(view, '__qualname__', view)!s} got no request: semaphore_required is for views; "
        "limit other functions with synchronized"
    )


def is_preflight(request: HttpRequest, view: View, args: Any = ()) -> bool:
    """Return True for an OPTIONS request that a framework answers without the view's code."""
    if request.method != "OPTIONS":
        return False
    owner: Any = owner_of(view)
    if owner is None:
        instance = instance_of(view, args)
        owner = None if instance is None else type(instance)
    return owner is not None and _answers_options(owner)


@cache
def _answers_options(owner: type) -> bool:
    handlers = [getattr(owner, "options", None)]
    handlers += [vars(base)["dispatch"] for base in owner.__mro__ if "dispatch" in vars(base)]
    # method_decorator copies the __module__ of the handler that it wraps. So a framework's handler
    # is recognized even if a project has decorated it.
    return all(str(getattr(one, "__module__", "")).split(".")[0] in _FRAMEWORKS for one in handlers)


def owner_of(view: Any) -> Any:
    """Return the class of a class-based view of Django or Django REST framework, or None."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def named(view: View) -> Any:
    """Return the function, method, or class that gives a view its name. This is the view itself,
    unless the view is an object without a name, such as a partial or a syndication feed."""
    while not hasattr(view, "__qualname__"):
        if isinstance(view, partial):
            view = view.func
        else:
            view = view.awaitable if isinstance(view, AsyncToSync) else type(view)
    return view


def name_of(view: View, args: Any) -> str:
    """Return the default name of a view's semaphore: the dotted name of a class, method, or
    function."""
    if (made_of := owner_of(view)) is not None:
        return name_of_class(made_of)
    owner, found = instance_of(view, args), named(view)
    if owner is None or found is not view:
        return f"{found.__module__}.{found.__qualname__}"
    return name_of_class(owner if isclass(owner) else type(owner), view.__name__)


def check_named(view: View) -> None:
    """Raise TypeError if other views may have the same default name as this view."""
    if getattr(view, "__module__", None) == "django.utils.decorators":
        return  # method_decorator finds out with a function of its own what a decorator does
    name, owner = name_of(view, ()), getattr(view, "__self__", None)
    # Django and REST framework make an instance for each request.
    of_instance = not (owner is None or isclass(owner) or hasattr(type(owner), "as_view"))
    # method_decorator makes a partial of a bound method. Other partials differ by their arguments.
    is_partial = isinstance(view, partial) and not isinstance(view.func, MethodType)
    if named(view) is not view or "<" in name or of_instance or is_partial:
        raise TypeError(
            f"{name} is not the name of one view only, so it can't name a semaphore: give a name, "
            "as in semaphore_required('exports')"
        )


def name_of_class(owner: type, method: str = "dispatch") -> str:
    """Return the default name of a semaphore for a method of a class-based view."""
    # From a function, Django REST framework makes a class that has the function's __name__, but not
    # its __qualname__. For such a class, use the __name__.
    own = owner.__qualname__.endswith(owner.__name__)
    name = f"{owner.__module__}.{owner.__qualname__ if own else owner.__name__}"
    return name if method == "dispatch" else f"{name}.{method}"


def declarations_of(view: Any, method: str | None = None) -> Iterator[tuple[Any, str]]:
    """Yield each limit that a decorator or mixin declares on a view, with the default name of its
    semaphore. For a class-based view, also yield the limits of its handler for the HTTP method
    `method`, or of all its handlers if `method` is None."""
    for declaration in getattr(view, DECLARED, ()):
        yield declaration, name_of(view, ())
    owner = owner_of(view)
    if owner is None:
        return
    known = owner.http_method_names
    for one in known if method is None else {method.lower()}.intersection(known):
        for declaration in getattr(getattr(owner, one, None), DECLARED, ()):
            yield declaration, name_of_class(owner, one)


def places_of(view: Any, method: str) -> list[list[tuple[Any, str]]]:
    """Return the limits of a view for an HTTP method, in groups, the outermost group first. A
    request takes the permits of a group together.

    Decorators that directly wrap each other are a group. A mixin belongs to the group of the
    decorators that directly wrap it. Without them, it is a group of its own. Each limit is a pair:
    the options of the decorator or mixin, and the default name of the semaphore.
    """
    places = _places(view, lambda of: name_of(of, ()))
    owner = owner_of(view)
    handler = getattr(owner, method.lower(), None)
    return places + _places(handler, lambda of: name_of_class(owner, method.lower()))


def _places(function: Any, name: Callable[[Any], str]) -> list[list[tuple[Any, str]]]:
    places: list[list[tuple[Any, str]]] = []
    while function is not None:
        stack = stack_of(function)
        if stack is not None:
            places.append([(one, name(stack.view)) for one in stack.declared])
            if first_is_mixin(stack.view):
                declarations = getattr(stack.view, DECLARED)
                places[-1] += [(declaration, name(stack.view)) for declaration in declarations]
                return places
            function = stack.view
            continue
        inner = getattr(function, "__wrapped__", None)
        known = getattr(inner, DECLARED, ())
        own = [one for one in getattr(function, DECLARED, ()) if one not in known]
        if own:
            places.append([(one, name(function)) for one in own])
        function = inner
    return places


def instance_of(view: View, args: Any) -> Any:
    """Return the instance if `view` is a method of a class-based view. Otherwise return None."""
    if args and not isinstance(getattr(args[0], "_request", args[0]), HttpRequest):
        return args[0]
    while not hasattr(view, "__self__"):
        # Remove one layer: the partial that method_decorator makes, or a decorator's wrapper.
        inner = getattr(view, "func", None) or getattr(view, "__wrapped__", None)
        if inner is None:
            return None
        view = inner
    return view.__self__


# The URLconf


class Route(NamedTuple):
    """A view of the URLconf, and its name in ENDPOINTS."""

    name: str
    view: Any


def urlconfs() -> list[Any]:
    """Return the URLconfs of the project, ROOT_URLCONF first. A middleware can choose another one
    for a request. This function finds the others in REDIS_SYNC["URLCONFS"], in ROOT_HOSTCONF of
    django-hosts, and in settings whose names end with URLCONF or URLCONFS."""
    root = getattr(settings, "ROOT_URLCONF", None)
    named = [getattr(settings, name) for name in dir(settings) if _URLCONF.search(name)]
    hosts = getattr(settings, "ROOT_HOSTCONF", None)
    patterns = import_module(hosts).host_patterns if isinstance(hosts, str) else ()
    others = [
        *conf.current().urlconfs,
        *(host.urlconf for host in patterns),
        *chain.from_iterable(map(_texts, named)),
    ]
    return [urlconf for urlconf in dict.fromkeys([root, *others]) if urlconf]


_URLCONF = re.compile(r"URLCONFS?$")


def _texts(given: Any) -> list[str]:
    """Return the URLconfs in the value of a setting: a str, a list of str, or a dict to str. For
    any other value, return an empty list."""
    if isinstance(given, Mapping):
        given = [*given.values()]
    found = [*given] if isinstance(given, (list, tuple)) else [given]
    return found if all(isinstance(one, str) for one in found) else []


#: The views of each URLconf that was loaded. Django makes a new resolver if a test changes
#: ROOT_URLCONF.
_known = weakref.WeakKeyDictionary[URLResolver, list[Route]]()


def routes_of(urlconf: Any) -> list[Route]:
    """Return the views of a URLconf. If it can't be loaded, raise the exception of the import."""
    resolver = get_resolver(urlconf)
    found = _known.get(resolver)
    if found is None:
        found = _known[resolver] = list(_walk(resolver.url_patterns, ()))
    return found


def limits_of(route: Route) -> tuple[list[Policy], list[Exception]]:
    """Return two values: the valid limits of a view that don't depend on the request, and the
    exceptions for wrong options of its decorators, mixins, and throttles."""
    endpoint = _endpoint_of(route)
    if endpoint is None:
        return [], []
    throttled = [_of_throttles(route.view, one) for one in throttles_of(route.view)]
    found = [*_policies_or_errors(endpoint, chain(declarations_of(route.view), *throttled))]
    policies = [] if endpoint.policy is None else [endpoint.policy]
    policies += [one for one in found if isinstance(one, Policy)]
    return policies, [one for one in found if isinstance(one, Exception)]


def outer_policies_of(route: Route) -> Iterator[Policy]:
    """Yield the valid limits that apply before the handler of a class-based view: those of
    ENDPOINTS, of decorators around the view or its `dispatch`, and of the mixin."""
    endpoint = _endpoint_of(route)
    if endpoint is not None and endpoint.policy is not None:
        yield endpoint.policy
    # Also find decorators on a `dispatch` that a `dispatch` of a subclass calls.
    bases = getattr(owner_of(route.view), "__mro__", ())
    dispatches = [vars(base)["dispatch"] for base in bases if "dispatch" in vars(base)]
    for one in (route.view, *dispatches):
        yield from policies_on(route, one)


def policies_on(route: Route, function: Any) -> list[Policy]:
    """Return the valid limits that decorators declare on a function of a view."""
    endpoint = _endpoint_of(route)
    found = ((one, name_of(function, ())) for one in getattr(function, DECLARED, ()))
    return [] if endpoint is None else _declared(endpoint, found)


def policies_of_throttles(route: Route, throttles: Iterable[Any]) -> list[Policy]:
    """Return the valid limits of those throttles of a view that are of this package."""
    endpoint = _endpoint_of(route)
    return [] if endpoint is None else _declared(endpoint, _of_throttles(route.view, throttles))


def _of_throttles(view: Any, throttles: Iterable[Any]) -> Iterator[tuple[Any, str]]:
    for throttle in filter(is_own, throttles):
        one = throttle() if isinstance(throttle, type) else throttle
        yield _DeclaredByThrottle(one, scope_of(view)), ""


class _DeclaredByThrottle(NamedTuple):
    """The limit that a throttle declares."""

    throttle: Any
    scope: str | None

    def declared(self) -> Declared | None:
        """Return the options, or None if the throttle doesn't limit the view."""
        return self.throttle.declared(self.scope)  # type: ignore[no-any-return]


def admissions_of(route: Route, atomic: bool = False) -> list[list[list[Policy]]]:
    """For each HTTP method of a view, return the list of admissions that a request passes. If the
    lists of several methods are equal, return this list only once.

    An admission is a list of policies. A request takes their permits together. If ENDPOINTS limits
    the view, the middleware makes the first admission. The decorators and mixins make the others,
    the outermost first. `atomic`: True if ATOMIC_REQUESTS wraps the view. Then the middleware takes
    all permits in one admission.
    """
    endpoint = _endpoint_of(route)
    if endpoint is None:
        return []
    ways: list[list[list[Policy]]] = []
    known = getattr(owner_of(route.view), "http_method_names", ["get"])
    for method in known:
        places = [_declared(endpoint, place) for place in places_of(route.view, method)]
        places.insert(0, [] if endpoint.policy is None else [endpoint.policy])
        if atomic:
            places = [[*chain.from_iterable(places)]]
        way = [sorted(place, key=lambda policy: policy.name) for place in places if place]
        if way not in ways:
            ways.append(way)
    return ways


def _endpoint_of(route: Route) -> Endpoint | None:
    try:
        return endpoint_named(route.name, route.view)
    except ImproperlyConfigured:
        return None


def _declared(endpoint: Endpoint, declarations: Iterable[tuple[Any, str]]) -> list[Policy]:
    return [
        found for found in _policies_or_errors(endpoint, declarations) if isinstance(found, Policy)
    ]


def _policies_or_errors(
    endpoint: Endpoint, declarations: Iterable[tuple[Any, str]]
) -> Iterator[Policy | Exception]:
    """Yield the Policy of each limit that doesn't depend on the request. If a limit has wrong
    options, yield the exception instead."""
    for declaration, fallback in declarations:
        try:
            declared = declaration.declared()
            if declared is not None:
                yield endpoint.policy_of(declared, fallback)
        except (ImproperlyConfigured, TypeError, ValueError) as error:
            yield error


def _walk(patterns: Sequence[Any], spaces: tuple[str, ...]) -> Iterator[Route]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            inner = (*spaces, pattern.namespace) if pattern.namespace else spaces
            yield from _walk(pattern.url_patterns, inner)
        elif isinstance(pattern, URLPattern):
            view = pattern.callback
            match = ResolverMatch(view, (), {}, url_name=pattern.name, namespaces=[*spaces])
            yield Route(match.view_name, view)
