"""The decorator for views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from inspect import isawaitable, isclass, isfunction
from typing import TYPE_CHECKING, Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..locks.transactions import warn_if_racing
from .enforcement import Refused, aadmit, admit
from .holding import Hold
from .policy import NOT_GIVEN, Declared, endpoint_of
from .refusal import aanswer, answer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import Limit, PolicyOptions

View = Callable[..., Any]
Function = TypeVar("Function", bound=View)

_REMEDY = "Add ConcurrencyLimitMiddleware to MIDDLEWARE: it holds the permit until the COMMIT."

#: The attribute of a view that says which policies it takes by itself.
MARK = "_redis_sync_policies"
_BARE = Declared(None, {})
#: The packages whose `options` and `dispatch` run no code of the project.
_FRAMEWORKS = {"django", "rest_framework", __name__.partition(".")[0]}


@overload
def semaphore_required(name: Function, /) -> Function: ...
@overload
def semaphore_required(
    name: str | None = None, limit: Limit = None, **options: Unpack[PolicyOptions]
) -> Callable[[Function], Function]: ...
def semaphore_required(
    name: str | View | None = None, limit: Any = NOT_GIVEN, **options: Any
) -> Any:
    """Let at most `limit` requests into a view at the same time; refuse, or let wait, the others.

    For sync and async views; methods of class-based views by way of method_decorator or directly.
    Without parentheses, or without a name, the semaphore is named after the view, and its limit
    stands in REDIS_SYNC. The options are those of `defaults.PolicyOptions`.

    TypeError or ValueError for wrong options; TypeError at the first call when the function gets
    no request; ImproperlyConfigured at the first call when nothing says a limit.
    """
    if limit is not NOT_GIVEN:
        options["limit"] = limit
    if name is not None and not isinstance(name, str):
        if options or not callable(name):
            raise TypeError("semaphore_required takes the semaphore's name first, a str")
        return decorate(name, _BARE)
    return partial(decorate, declared=Declared(name, options))


def decorate(view: View, declared: Declared) -> View:
    """`view` with a policy around it. TypeError when it can't be a view."""
    if isclass(view):
        raise TypeError(
            f"semaphore_required is for functions: put method_decorator(semaphore_required(...), "
            f"name='dispatch') on {view.__name__}, or use SemaphoreRequiredMixin"
        )
    if not callable(view):
        raise TypeError(f"semaphore_required is for views, not for a {type(view).__name__}")

    if iscoroutinefunction(view):

        @wraps(view)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            return await arespond(view, declared, args, kwargs)

    else:
        plain = isfunction(view) and not hasattr(view, "__wrapped__")

        @wraps(view)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            of_no_class = plain and args and isinstance(args[0], HttpRequest)
            if not of_no_class and _of_async_class(view, args):
                return arespond(view, declared, args, kwargs)
            return respond(view, declared, args, kwargs)

    setattr(wrapped, MARK, (declared, *getattr(view, MARK, ())))
    return wrapped


def respond(view: View, declared: Declared, args: Any, kwargs: Any) -> Any:
    """The view's response, or the refusal; in sync code."""
    seen, request = find_request(view, args, kwargs)
    policy = endpoint_of(request).policy_of(declared, declared.name or name_of(view, args))
    hold = admit([policy], request, seen, is_preflight(request, view, args))
    if isinstance(hold, Refused):
        return answer(request, hold, seen)
    try:
        if hold:
            warn_if_racing(f"The permit of {policy.name!r}", _REMEDY)
        response = view(*args, **kwargs)
        if not isinstance(response, HttpResponseBase) and isawaitable(response):
            return _finish(response, hold)
    except BaseException:
        hold.release()
        raise
    if not hold.goes_with(response):
        hold.release()
    return response


async def _finish(response: Any, hold: Hold) -> Any:
    """Release after the awaitable that a sync function returned."""
    try:
        response = await response
    except BaseException:
        await hold.arelease()
        raise
    if not hold.goes_with(response):
        await hold.arelease()
    return response


async def arespond(view: View, declared: Declared, args: Any, kwargs: Any) -> Any:
    """The view's response, or the refusal; in async code."""
    seen, request = find_request(view, args, kwargs)
    policy = endpoint_of(request).policy_of(declared, declared.name or name_of(view, args))
    hold = await aadmit([policy], request, seen, is_preflight(request, view, args))
    if isinstance(hold, Refused):
        return await aanswer(request, hold, seen)
    return await _finish(_called(view, args, kwargs), hold)


async def _called(view: View, args: Any, kwargs: Any) -> Any:
    response = view(*args, **kwargs)
    return await response if isawaitable(response) else response


def find_request(view: View, args: Any, kwargs: Any) -> tuple[Any, HttpRequest]:
    """The request as the view sees it, and Django's own in it. TypeError when there is none."""
    for seen in (*args[:2], kwargs.get("request")):
        request = getattr(seen, "_request", seen)
        if isinstance(request, HttpRequest):
            return seen, request
    raise TypeError(
        f"{getattr(view, '__qualname__', view)!s} got no request: semaphore_required is for views; "
        "for other functions there is synchronized"
    )


def is_preflight(request: HttpRequest, view: View, args: Any = ()) -> bool:
    """Whether a framework answers the request before any code of the view runs: OPTIONS, of a class
    that does not answer it by itself."""
    if request.method != "OPTIONS":
        return False
    owner: Any = owner_of(view)
    if owner is None:
        instance = _owner(view, args)
        owner = None if instance is None else type(instance)
    return owner is not None and _answers_options(owner)


@cache
def _answers_options(owner: type) -> bool:
    handlers = [getattr(owner, "options", None)]
    handlers += [vars(base)["dispatch"] for base in owner.__mro__ if "dispatch" in vars(base)]
    # method_decorator's wrapper of a handler keeps its module.
    return all(str(getattr(one, "__module__", "")).split(".")[0] in _FRAMEWORKS for one in handlers)


def owner_of(view: Any) -> Any:
    """The class that a view function was made of, by Django or Django REST framework, or None."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def name_of(view: View, args: Any) -> str:
    """The name of a semaphore without a name: the view's, or its class's where that is known."""
    if (made_of := owner_of(view)) is not None:
        return name_of_class(made_of)
    owner = _owner(view, args)
    if owner is None:
        return f"{view.__module__}.{view.__qualname__}"
    return name_of_class(type(owner), view.__name__)


def name_of_class(owner: type, method: str = "dispatch") -> str:
    """The same for a method of a class-based view."""
    # Django REST framework names a class after the function of which it made it, by __name__ alone.
    own = owner.__qualname__.endswith(owner.__name__)
    name = f"{owner.__module__}.{owner.__qualname__ if own else owner.__name__}"
    return name if method == "dispatch" else f"{name}.{method}"


def marks_of(view: Any, method: str | None = None) -> Iterator[tuple[Any, str]]:
    """The limits that decorators and mixins left on a view, and on the handler of its class for a
    method (on all of them for None), each with the name of a semaphore without a name."""
    for mark in getattr(view, MARK, ()):
        yield mark, name_of(view, ())
    owner = owner_of(view)
    if owner is None:
        return
    known = owner.http_method_names
    for one in known if method is None else {method.lower()}.intersection(known):
        for mark in getattr(getattr(owner, one, None), MARK, ()):
            yield mark, name_of_class(owner, one)


def _owner(view: View, args: Any) -> Any:
    """The class-based view's instance that this is a method of, or None."""
    if args and not isinstance(getattr(args[0], "_request", args[0]), HttpRequest):
        return args[0]
    while not hasattr(view, "__self__"):
        # method_decorator hands a wrapped partial of the bound method on, at each call anew.
        inner = getattr(view, "func", None) or getattr(view, "__wrapped__", None)
        if inner is None:
            return None
        view = inner
    return view.__self__


def _of_async_class(view: View, args: Any) -> bool:
    """Whether this is a method of an async class-based view: there `dispatch` is a plain def."""
    return bool(getattr(_owner(view, args), "view_is_async", False))
