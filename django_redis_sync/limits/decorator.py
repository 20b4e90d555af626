"""The decorator for views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from inspect import isawaitable, isclass, iscoroutine, isfunction
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..defaults import ENTRY
from ..locks.transactions import warn_if_racing
from ..values import unknown
from .admission import RejectedRequest, aadmit, admit
from .policy import NOT_GIVEN, Declared, Policy, endpoint_of
from .rejection import aanswer, answer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import Limit, PolicyOptions

View = Callable[..., Any]
Function = TypeVar("Function", bound=View)

_REMEDY = "Add ConcurrencyLimitMiddleware to MIDDLEWARE: it holds the permit until the COMMIT."

#: The attribute of a view that has the policies which the view itself takes.
MARK = "_redis_sync_policies"
#: The attribute of a view that has its Stack.
_STACK = "_redis_sync_stack"
#: The attribute of the mixin's dispatch: a function from the view's instance to its options.
MIXIN = "_redis_sync_declared_by"
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
    """Let at most `limit` requests into a view at the same time. The others wait or are rejected.

    It decorates sync and async views, and methods of class-based views, directly or with
    method_decorator. Decorators directly on each other take their limits together. Without
    parentheses, or without a name, the semaphore is named after the view, and REDIS_SYNC gives its
    limit. The options are those of `defaults.PolicyOptions`.

    Raise TypeError or ValueError for wrong options. At the first call, raise TypeError if the
    function gets no request, and ImproperlyConfigured if nothing gives a limit.
    """
    if wrong := unknown(options, ENTRY):
        raise TypeError(f"semaphore_required() has no such argument: {wrong}")
    if limit is not NOT_GIVEN:
        options["limit"] = limit
    if name is not None and not isinstance(name, str):
        if options or not callable(name):
            raise TypeError("semaphore_required takes the semaphore's name first, a str")
        return decorate(name, _BARE)
    return partial(decorate, declared=Declared(name, options))


def decorate(view: View, declared: Declared) -> View:
    """Return `view` with a policy around it. Raise TypeError if it can't be a view."""
    if isclass(view):
        raise TypeError(
            f"semaphore_required is for functions: put method_decorator(semaphore_required(...), "
            f"name='dispatch') on {view.__name__}, or use SemaphoreRequiredMixin"
        )
    if not callable(view):
        raise TypeError(f"semaphore_required is for views, not for a {type(view).__name__}")

    stack = _stack_of(view)
    declared_here = (declared, *stack.declared) if stack else (declared,)
    inner = stack.view if stack else view
    mixin = _first_is_mixin(inner)

    if iscoroutinefunction(inner):

        @wraps(view)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            return await arespond(inner, declared_here, args, kwargs, mixin)

    else:
        plain = isfunction(inner) and not hasattr(inner, "__wrapped__")

        @wraps(view)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            of_no_class = plain and args and isinstance(args[0], HttpRequest)
            if not of_no_class and _of_async_class(inner, args):
                return arespond(inner, declared_here, args, kwargs, mixin)
            return respond(inner, declared_here, args, kwargs, mixin)

    setattr(wrapped, MARK, (declared, *getattr(view, MARK, ())))
    setattr(wrapped, _STACK, Stack(declared_here, inner, view))
    return wrapped


class Stack(NamedTuple):
    """Decorators directly on each other: their options, outermost first, and the view below."""

    declared: tuple[Declared, ...]
    view: View
    #: What the outermost of them wraps.
    wraps: View


def _stack_of(view: Any) -> Stack | None:
    """Return the Stack that begins at `view`, None if `view` is not a wrapper of `decorate`."""
    stack: Stack | None = getattr(view, _STACK, None)
    # Other decorators copy our attribute, but wrap another function than ours does.
    return stack if stack is not None and view.__wrapped__ is stack.wraps else None


def _first_is_mixin(view: Any) -> bool:
    """Return True if the first code of `view` is the dispatch of the mixin."""
    if isinstance(view, partial):  # method_decorator passes a partial of the bound method
        dispatch = getattr(view.func, "__func__", None)
    else:
        dispatch = getattr(owner_of(view), "dispatch", None)
    return hasattr(dispatch, MIXIN) and not hasattr(dispatch, "__wrapped__")


def _policies(
    view: View, declared: tuple[Declared, ...], args: Any, kwargs: Any, mixin: bool
) -> tuple[list[Policy], HttpRequest, Any]:
    """Return the policies of one place, the request, and the request as the view sees it."""
    seen, request = find_request(view, args, kwargs)
    endpoint = endpoint_of(request)
    if mixin:
        owner = _owner(view, ())
        declared = (*declared, _declared_by_mixin(view, owner, request, args, kwargs))
    policies = [endpoint.policy_of(one, one.name or name_of(view, args)) for one in declared]
    return policies, request, seen


def _declared_by_mixin(view: Any, owner: Any, request: HttpRequest, args: Any, kwargs: Any) -> Any:
    if owner is not None:
        return getattr(type(owner).dispatch, MIXIN)(owner)
    mark = next(mark for mark in getattr(view, MARK) if not isinstance(mark, Declared))
    return mark.declared_for(request, args[1:], kwargs)


def respond(
    view: View, declared: tuple[Declared, ...], args: Any, kwargs: Any, mixin: bool = False
) -> Any:
    """Return the view's response, or the rejection; in sync code."""
    policies, request, seen = _policies(view, declared, args, kwargs, mixin)
    hold = admit(policies, request, seen, is_preflight(request, view, args))
    if isinstance(hold, RejectedRequest):
        return answer(request, hold, seen)
    try:
        if hold:
            warn_if_racing(f"The permit of {policies[0].name!r}", _REMEDY)
        response = view(*args, **kwargs)
        if not isinstance(response, HttpResponseBase) and isawaitable(response):
            raise _not_async(view, response)
    except BaseException:
        hold.release()
        raise
    if not hold.goes_with(response):
        hold.release()
    return response


def _not_async(view: View, awaitable: Any) -> TypeError:
    if iscoroutine(awaitable):
        awaitable.close()  # else Python warns that nothing awaited it
    name = f"{view.__module__}.{getattr(view, '__qualname__', view)}"
    return TypeError(
        f"the view {name} returned a {type(awaitable).__name__}, but is not async: define it with "
        "'async def', or mark it with asgiref.sync.markcoroutinefunction"
    )


async def arespond(
    view: View, declared: tuple[Declared, ...], args: Any, kwargs: Any, mixin: bool = False
) -> Any:
    """Async version of `respond()`."""
    policies, request, seen = _policies(view, declared, args, kwargs, mixin)
    hold = await aadmit(policies, request, seen, is_preflight(request, view, args))
    if isinstance(hold, RejectedRequest):
        return await aanswer(request, hold, seen)
    try:
        response = view(*args, **kwargs)
        if isawaitable(response):
            response = await response
    except BaseException:
        await hold.arelease()
        raise
    if not hold.goes_with(response):
        await hold.arelease()
    return response


def find_request(view: View, args: Any, kwargs: Any) -> tuple[Any, HttpRequest]:
    """Return the request as the view sees it, and Django's own. Raise TypeError without one."""
    for seen in (*args[:2], kwargs.get("request")):
        request = getattr(seen, "_request", seen)
        if isinstance(request, HttpRequest):
            return seen, request
    raise TypeError(
        f"{getattr(view, '__qualname__', view)!s} got no request: semaphore_required is for views; "
        "for other functions there is synchronized"
    )


def is_preflight(request: HttpRequest, view: View, args: Any = ()) -> bool:
    """Return True if a framework answers the request before any code of the view runs: OPTIONS, if
    the class does not answer it by itself."""
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
    """Return the class that Django or Django REST framework made a view of, or None."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def name_of(view: View, args: Any) -> str:
    """Return the name of a semaphore without a name: that of the view's class, or of the view."""
    if (made_of := owner_of(view)) is not None:
        return name_of_class(made_of)
    owner = _owner(view, args)
    if owner is None:
        return f"{view.__module__}.{view.__qualname__}"
    return name_of_class(type(owner), view.__name__)


def name_of_class(owner: type, method: str = "dispatch") -> str:
    """Return the name of a semaphore without a name, for a method of a class-based view."""
    # Django REST framework names a class after the function of which it made it, by __name__ alone.
    own = owner.__qualname__.endswith(owner.__name__)
    name = f"{owner.__module__}.{owner.__qualname__ if own else owner.__name__}"
    return name if method == "dispatch" else f"{name}.{method}"


def marks_of(view: Any, method: str | None = None) -> Iterator[tuple[Any, str]]:
    """Yield the limits that decorators and mixins declare on a view, and on the handler of its
    class for a method (None: all), each with the name of its semaphore if it gives none."""
    for mark in getattr(view, MARK, ()):
        yield mark, name_of(view, ())
    owner = owner_of(view)
    if owner is None:
        return
    known = owner.http_method_names
    for one in known if method is None else {method.lower()}.intersection(known):
        for mark in getattr(getattr(owner, one, None), MARK, ()):
            yield mark, name_of_class(owner, one)


def places_of(view: Any, method: str) -> list[list[tuple[Any, str]]]:
    """Return the limits of a view for a method by the place that declares them, outermost first,
    each as `marks_of` does. The limits of a place are taken in one admission."""
    places = _places(view, lambda of: name_of(of, ()))
    owner = owner_of(view)
    handler = getattr(owner, method.lower(), None)
    return places + _places(handler, lambda of: name_of_class(owner, method.lower()))


def _places(function: Any, name: Callable[[Any], str]) -> list[list[tuple[Any, str]]]:
    places: list[list[tuple[Any, str]]] = []
    while function is not None:
        stack = _stack_of(function)
        if stack is not None:
            places.append([(one, name(stack.view)) for one in stack.declared])
            if _first_is_mixin(stack.view):
                marks = getattr(stack.view, MARK)
                places[-1] += [(mark, name(stack.view)) for mark in marks]
                return places
            function = stack.view
            continue
        inner = getattr(function, "__wrapped__", None)
        known = getattr(inner, MARK, ())
        own = [mark for mark in getattr(function, MARK, ()) if mark not in known]
        if own:
            places.append([(mark, name(function)) for mark in own])
        function = inner
    return places


def _owner(view: View, args: Any) -> Any:
    """Return the instance of a class-based view that this is a method of, or None."""
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
    """Return True for a method of an async class-based view, whose `dispatch` is a plain def."""
    return bool(getattr(_owner(view, args), "view_is_async", False))
