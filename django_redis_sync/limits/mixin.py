"""The mixin for class-based views."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import isfunction
from typing import Any

from django.http import HttpRequest
from django.utils.decorators import classonlymethod
from django.views import View

from ..defaults import ENTRY
from ..values import unknown
from .decorator import MARK, MIXIN, arespond, respond
from .policy import NOT_GIVEN, Declared


class SemaphoreRequiredMixin:
    """Admit at most `semaphore_limit` requests of a class-based view at the same time.

    Each option of `defaults.Entry` is an attribute `semaphore_<option>`; a function there is called
    with the request alone. To decide per request, override `get_semaphore_<option>(self)`. Without
    a name, the semaphore is named after the class. List the mixin before View and after
    LoginRequiredMixin, so that a request without a login takes no permit.

    In Django REST framework, put a policy by user on the handler, as a decorator: the framework
    knows its user only there.
    """

    semaphore_name: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise TypeError if the limit would silently have no effect: after View, or misspelt."""
        super().__init_subclass__(**kwargs)
        bases = cls.__mro__
        if View in bases and bases.index(View) < bases.index(SemaphoreRequiredMixin):
            raise TypeError(
                f"class {cls.__name__}: list SemaphoreRequiredMixin before View and what is made "
                "of it, or nothing limits the view"
            )
        ours = [name for name in vars(cls) if name.startswith(("semaphore_", "get_semaphore_"))]
        if wrong := unknown(ours, _NAMES):
            raise TypeError(f"class {cls.__name__} has attributes that are no options: {wrong}")

    @classonlymethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., Any]:
        """Return the view function, with a mark for the middleware."""
        view: Any = super().as_view(**initkwargs)  # type: ignore[misc]
        setattr(view, MARK, (_Mark(cls, initkwargs), *getattr(view, MARK, ())))
        return view  # type: ignore[no-any-return]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Take the permits, then dispatch. Return a coroutine for an async view."""
        dispatch = super().dispatch  # type: ignore[misc]
        answers = arespond if getattr(self, "view_is_async", False) else respond
        return answers(dispatch, (declared_by(self),), (request, *args), kwargs)


def declared_by(view: Any) -> Declared:
    """Return the options of a view with the mixin for its current request."""
    given, of_request = [], False
    for option in ENTRY:
        value = getattr(view, f"get_semaphore_{option}")()
        if value is not NOT_GIVEN:
            of_request = of_request or _may_reference_request(view, option, value)
            given.append((option, tuple(value) if isinstance(value, (list, set)) else value))
    name = view.get_semaphore_name()
    return Declared(name, dict(given), True) if of_request else _declared(name, tuple(given))


def _may_reference_request(view: Any, option: str, value: Any) -> bool:
    """Return True if a callable may reference the view, and so its request: if it was made for this
    request, as a closure or a bound method is."""
    if not callable(value) or value is getattr(type(view), f"semaphore_{option}", None):
        return False
    parts = ("__closure__", "__defaults__", "__kwdefaults__")
    return not isfunction(value) or any(getattr(value, part) for part in parts)


# A decorator directly on this dispatch takes these limits together with its own.
setattr(SemaphoreRequiredMixin.dispatch, MIXIN, declared_by)


@lru_cache(maxsize=1000)
def _declared(name: str | None, options: tuple[tuple[str, Any], ...]) -> Declared:
    return Declared(name, dict(options))


class _Mark:
    """The limit of a view with the mixin, for the middleware and the checks."""

    name = None

    def __init__(self, view_class: Any, initkwargs: dict[str, Any]) -> None:
        self._view_class, self._initkwargs = view_class, initkwargs

    def declared(self) -> Declared | None:
        """Return the options in its attributes; None if an overridden method needs the request."""
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
        # Not bound: a function in the class is a policy's callable, not a method.
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
