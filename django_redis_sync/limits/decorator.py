"""The decorator `semaphore_required` and the mixin `SemaphoreRequiredMixin` for views."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from inspect import isawaitable, isclass, iscoroutine, isfunction
from typing import TYPE_CHECKING, Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django import views
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import classonlymethod

from ..defaults import ENTRY
from ..values import unknown
from .admission import aadmit, admit
from .policy import NOT_GIVEN, Declared, Policy, endpoint_of
from .rejection import RejectedRequest, aanswer, answer
from .routes import (
    DECLARED,
    MIXIN,
    STACK,
    Stack,
    View,
    check_named,
    find_request,
    first_is_mixin,
    instance_of,
    is_preflight,
    name_of,
    named,
    stack_of,
)
from .state import runs_sync_code

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..defaults import Limit, PolicyOptions

Function = TypeVar("Function", bound=View)
#: The options of decorators that directly wrap each other: one Declared for each decorator, the
#: outermost decorator first.
Declarations = tuple[Declared, ...]

_BARE = Declared(None, {})

#: The names that decorators of this process give to semaphores.
names_given: set[str] = set()


@overload
def semaphore_required(name: Function, /) -> Function: ...
@overload
def semaphore_required(
    name: str | None = None, limit: Limit = None, **options: Unpack[PolicyOptions]
) -> Callable[[Function], Function]: ...
def semaphore_required(
    name: str | View | None = None, limit: Any = NOT_GIVEN, **options: Any
) -> Any:
    """Let at most `limit` requests of a view run at the same time. Further requests wait or are
    rejected.

    Use it on sync and async views, and on methods of class-based views, directly or with
    method_decorator. Decorators that directly wrap each other acquire their permits together.
    Without `name`, the semaphore is named after the view. Without `limit`, the setting REDIS_SYNC
    gives the limit. `options`: see `defaults.PolicyOptions`.

    Raise TypeError or ValueError for wrong options. A call of the view raises TypeError if the
    function gets no request, and ImproperlyConfigured if no limit is set.
    """
    if wrong := unknown(options, ENTRY):
        raise TypeError(f"semaphore_required() has no such argument: {wrong}")
    if limit is not NOT_GIVEN:
        options["limit"] = limit
    if name is not None and not isinstance(name, str):
        if options or not callable(name):
            raise TypeError("the first argument of semaphore_required must be a name, a str")
        return decorate(name, _BARE)
    return partial(decorate, declared=Declared(name, options))


def decorate(view: View, declared: Declared) -> View:
    """Return a view that calls `view` and limits its requests with the options `declared`. Raise
    TypeError if `view` is a class or can't be called."""
    if isclass(view):
        raise TypeError(
            f"semaphore_required is for functions: put method_decorator(semaphore_required(...), "
            f"name='dispatch') on {view.__name__}, or use SemaphoreRequiredMixin"
        )
    if isinstance(view, (classmethod, staticmethod)):
        return type(view)(decorate(view.__func__, declared))
    if not callable(view):
        raise TypeError(f"semaphore_required is for views, not for a {type(view).__name__}")
    if hasattr(view, "_ninja_operation"):
        raise TypeError(
            f"put @semaphore_required below the decorator that makes {view.__qualname__} an "
            "operation: otherwise django-ninja calls the function without the limit"
        )

    stack = stack_of(view)
    declared_here = (declared, *stack.declared) if stack else (declared,)
    inner = stack.view if stack else view
    mixin = first_is_mixin(inner)
    if declared.name is None:
        check_named(inner)
    else:
        names_given.add(declared.name)

    if iscoroutinefunction(inner):

        @wraps(view)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            return await arespond(inner, declared_here, args, kwargs, mixin)

    else:
        plain = isfunction(inner) and not hasattr(inner, "__wrapped__")

        @wraps(view)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            of_no_class = plain and args and isinstance(args[0], HttpRequest)
            if not of_no_class and getattr(instance_of(inner, args), "view_is_async", False):
                return arespond(inner, declared_here, args, kwargs, mixin)
            return respond(inner, declared_here, args, kwargs, mixin)

    if (found := named(view)) is not view:
        wrapped.__module__, wrapped.__doc__ = found.__module__, found.__doc__
        wrapped.__name__, wrapped.__qualname__ = found.__name__, found.__qualname__
    setattr(wrapped, DECLARED, (declared, *getattr(view, DECLARED, ())))
    setattr(wrapped, STACK, Stack(declared_here, inner, view))
    return wrapped


def _policies(
    view: View, declared: Declarations, args: Any, kwargs: Any, mixin: bool
) -> tuple[list[Policy], HttpRequest, Any]:
    """Return three things: the policies to apply, Django's request, and the request object that
    the view gets."""
    seen, request = find_request(view, args, kwargs)
    endpoint = endpoint_of(request)
    if mixin:
        owner = instance_of(view, ())
        declared = (*declared, _declared_by_mixin(view, owner, request, args, kwargs))
    policies = [endpoint.policy_of(one, one.name or name_of(view, args)) for one in declared]
    return policies, request, seen


def _declared_by_mixin(view: Any, owner: Any, request: HttpRequest, args: Any, kwargs: Any) -> Any:
    if owner is not None:
        return getattr(type(owner).dispatch, MIXIN)(owner)
    by_class = next(one for one in getattr(view, DECLARED) if not isinstance(one, Declared))
    return by_class.declared_for(request, args[1:], kwargs)


def respond(view: View, declared: Declarations, args: Any, kwargs: Any, mixin: bool = False) -> Any:
    """Acquire the permits, call the sync view, and return its response. If the request is rejected,
    return the response of `answer()` without a call of the view."""
    policies, request, seen = _policies(view, declared, args, kwargs, mixin)
    hold = admit(policies, request, seen, is_preflight(request, view, args))
    if isinstance(hold, RejectedRequest):
        return answer(request, hold, seen)
    response = None
    try:
        response = view(*args, **kwargs)
        if not isinstance(response, HttpResponseBase):
            if isawaitable(response):
                raise _not_async(view, response)
            if response is None:
                _check_result(view, args)
    finally:
        if hold.ends_with(request, response):
            hold.release()
    return response


def _not_async(view: View, awaitable: Any) -> TypeError:
    if iscoroutine(awaitable):
        awaitable.close()  # prevents the warning that the coroutine was never awaited
    name = f"{view.__module__}.{getattr(view, '__qualname__', view)}"
    return TypeError(
        f"the view {name} returned a {type(awaitable).__name__}, but is not async: define it with "
        "'async def', or mark it with asgiref.sync.markcoroutinefunction"
    )


def _check_result(view: View, args: Any) -> None:
    """Raise TypeError if `view`, which returned None, is a method such as `setup` of a class-based
    view: its caller would also ignore the response to a rejected request."""
    owner = instance_of(view, args)
    name, handlers = named(view).__name__, getattr(owner, "http_method_names", ())
    # Django itself reports a handler that returned None.
    if hasattr(type(owner), "as_view") and name not in {"dispatch", *handlers}:
        raise TypeError(
            f"{type(owner).__qualname__}.{name} returned None, not a response, so it can't reject "
            "a request: put semaphore_required on the method that returns the response, such as "
            "'get' or 'dispatch'"
        )


async def arespond(
    view: View, declared: Declarations, args: Any, kwargs: Any, mixin: bool = False
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
        if response is None:
            _check_result(view, args)
        at_once = await hold.aends_with(request, response)
    except BaseException:
        # Don't look for a transaction: if the task was cancelled, sync code may still run.
        if not (runs_sync_code() and hold.keep(request)):
            await hold.arelease()
        raise
    if at_once:
        await hold.arelease()
    return response


# The mixin


class SemaphoreRequiredMixin:
    """Let at most `semaphore_limit` requests of a class-based view run at the same time.

    Each option of `defaults.EntryOptions` is an attribute `semaphore_<option>`. A function in such
    an attribute is called without `self`: with the request, and for `response` also with the
    rejection. To compute an option for each request, override `get_semaphore_<option>(self)`, or
    make the attribute a property.
    Without a name, the semaphore is named after the class. List the mixin before View and after
    LoginRequiredMixin, so that a request without a login takes no permit.

    Django REST framework authenticates the user only after the mixin has acquired the permits. So
    if the policy depends on the user, don't use the mixin. Decorate the handler, such as `get`.
    """

    semaphore_name: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise TypeError if the mixin is listed after View, or if an attribute is misspelt. In
        both cases, the limit or the option would have no effect."""
        super().__init_subclass__(**kwargs)
        bases = cls.__mro__
        if views.View in bases and bases.index(views.View) < bases.index(SemaphoreRequiredMixin):
            raise TypeError(
                f"class {cls.__name__}: list SemaphoreRequiredMixin before View and its "
                "subclasses, otherwise the view has no limit"
            )
        ours = [name for name in vars(cls) if name.startswith(("semaphore_", "get_semaphore_"))]
        if wrong := unknown(ours, _NAMES):
            raise TypeError(f"class {cls.__name__} has attributes that are not options: {wrong}")
        for name in ours:
            value = getattr(cls, name)
            if hasattr(value, "__get__") and not callable(value):  # a property reads the request
                setattr(cls, f"get_{name}", lambda self, name=name: getattr(self, name))

    @classonlymethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return the view function. The arguments are those of the view's own `as_view()`.

        The attribute DECLARED of the view function has the options of the class. The middleware and
        the checks read this attribute."""
        view: Any = super().as_view(*args, **kwargs)  # type: ignore[misc]
        getter = SemaphoreRequiredMixin.get_semaphore_name  # type: ignore[attr-defined]
        if cls.semaphore_name is None and cls.get_semaphore_name is getter:  # type: ignore[attr-defined]
            check_named(view)
        found = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", None)
        declared = (_DeclaredByClass(cls, found or {}), *getattr(view, DECLARED, ()))
        if hasattr(cls.dispatch, MIXIN):  # otherwise the class has replaced dispatch()
            # Django gives a view the attributes of dispatch(), such as csrf_exempt. Add those of
            # the dispatch() that the mixin overrides.
            base = dict(vars(super().dispatch))  # type: ignore[misc]
            declared += base.pop(DECLARED, ())
            for name in base.keys() - {STACK, "__wrapped__"} - vars(view).keys():
                setattr(view, name, base[name])
        setattr(view, DECLARED, declared)
        return view  # type: ignore[no-any-return]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Acquire the permits, then dispatch. Return a response, or a coroutine for an async
        view."""
        dispatch = super().dispatch  # type: ignore[misc]
        answers = arespond if getattr(self, "view_is_async", False) else respond
        return answers(dispatch, (declared_by(self),), (request, *args), kwargs)


def declared_by(view: Any) -> Declared:
    """Return the mixin's options for a request. `view`: the view instance that handles the
    request."""
    given, of_request = [], False
    for option in ENTRY:
        value = getattr(view, f"get_semaphore_{option}")()
        if value is not NOT_GIVEN:
            of_request = of_request or _may_reference_request(view, option, value)
            given.append((option, tuple(value) if isinstance(value, (list, set)) else value))
    name = view.get_semaphore_name()
    try:
        return Declared(name, dict(given), True) if of_request else _declared(name, tuple(given))
    except TypeError:
        for option, value in given:
            if iscoroutine(value):
                value.close()  # prevents the warning that the coroutine was never awaited
                raise TypeError(
                    f"get_semaphore_{option} of {type(view).__qualname__} must not be async: let "
                    "it return an async function that gets the request"
                ) from None
        raise


def _may_reference_request(view: Any, option: str, value: Any) -> bool:
    """Return True if `value` is a callable that may refer to the view and thereby to its request,
    such as a closure or a bound method. `option`: the option with this value."""
    if not callable(value) or value is getattr(type(view), f"semaphore_{option}", None):
        return False
    parts = ("__closure__", "__defaults__", "__kwdefaults__")
    return not isfunction(value) or any(getattr(value, part) for part in parts)


# With this attribute, a decorator that directly wraps `dispatch` acquires the mixin's permits
# together with its own permits.
setattr(SemaphoreRequiredMixin.dispatch, MIXIN, declared_by)


@lru_cache(maxsize=1000)
def _declared(name: str | None, options: tuple[tuple[str, Any], ...]) -> Declared:
    return Declared(name, dict(options))


class _DeclaredByClass:
    """The limit that a view class with the mixin declares. The middleware and the checks read
    it."""

    name = None

    def __init__(self, view_class: Any, initkwargs: dict[str, Any]) -> None:
        self._view_class, self._initkwargs = view_class, initkwargs

    def declared(self) -> Declared | None:
        """Return the options that the view's attributes give. Return None if a method
        `get_semaphore_<option>` is overridden, because that method may need the request."""
        for option in ("name", *ENTRY):
            getter = f"get_semaphore_{option}"
            if getattr(self._view_class, getter) is not getattr(SemaphoreRequiredMixin, getter):
                return None
        return declared_by(self._view_class(**self._initkwargs))

    def declared_for(self, request: HttpRequest, args: Any, kwargs: Any) -> Declared:
        view = self._view_class(**self._initkwargs)
        view.setup(request, *args, **kwargs)
        return declared_by(view)


def _getter(option: str) -> Callable[[Any], Any]:
    attribute = f"semaphore_{option}"

    def get(self: Any) -> Any:
        # If the value is a function of the class, return the function itself. `self.<attribute>`
        # would return a bound method.
        return self.__dict__.get(attribute, getattr(type(self), attribute))

    get.__name__ = f"get_{attribute}"
    get.__qualname__ = f"{SemaphoreRequiredMixin.__qualname__}.{get.__name__}"
    get.__doc__ = f"Return the option {option!r} for this request."
    return get


_NAMES = [f"{what}_{one}" for one in ("name", *ENTRY) for what in ("semaphore", "get_semaphore")]
for _option in ENTRY:
    setattr(SemaphoreRequiredMixin, f"semaphore_{_option}", NOT_GIVEN)
for _option in ("name", *ENTRY):
    setattr(SemaphoreRequiredMixin, f"get_semaphore_{_option}", _getter(_option))
