"""The mixin for class-based views."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from django.utils.decorators import classonlymethod
from django.views import View

from ..defaults import ENTRY
from ..values import unknown
from .decorator import MARK, arespond, respond
from .policy import NOT_GIVEN, Declared


class SemaphoreRequiredMixin:
    """Lets at most `semaphore_limit` requests into a class-based view at the same time.

    Each option of `defaults.Entry` is an attribute `semaphore_<option>` (a function there is called
    with the request alone), and a method `get_semaphore_<option>(self)` to override where it
    depends on the view. Without a name the semaphore is named after the class. List the mixin
    before View, and after LoginRequiredMixin and the like: a visitor turned away takes no permit.

    On Django REST framework's views a policy by user belongs on the handler, as a decorator: the
    framework knows its user only there.
    """

    semaphore_name: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """TypeError where the limit would silently not be there: behind View, or misspelt."""
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
        """As View's; leaves a mark for the middleware."""
        view: Any = super().as_view(**initkwargs)  # type: ignore[misc]
        setattr(view, MARK, (_Mark(cls, initkwargs), *getattr(view, MARK, ())))
        return view  # type: ignore[no-any-return]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Take the permits, then dispatch. For an async view: the coroutine that does so."""
        dispatch = super().dispatch  # type: ignore[misc]
        answers = arespond if getattr(self, "view_is_async", False) else respond
        return answers(dispatch, declared_by(self), (request, *args), kwargs)


def declared_by(view: Any) -> Declared:
    """The options of a view with the mixin, now."""
    given = []
    for option in ENTRY:
        value = getattr(view, f"get_semaphore_{option}")()
        if value is not NOT_GIVEN:
            given.append((option, tuple(value) if isinstance(value, (list, set)) else value))
    return _declared(view.get_semaphore_name(), tuple(given))


@lru_cache(maxsize=1000)
def _declared(name: str | None, options: tuple[tuple[str, Any], ...]) -> Declared:
    return Declared(name, dict(options))


class _Mark:
    """Tells the middleware the options of a view with the mixin."""

    name = None

    def __init__(self, view_class: Any, initkwargs: dict[str, Any]) -> None:
        self._view_class, self._initkwargs = view_class, initkwargs

    def declared(self) -> Declared | None:
        """The options in its attributes; None when a method of its own depends on the request."""
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
    get.__doc__ = f"The option {option!r}, for this request."
    return get


_NAMES = [f"{what}_{one}" for one in ("name", *ENTRY) for what in ("semaphore", "get_semaphore")]
for _option in ENTRY:
    setattr(SemaphoreRequiredMixin, f"semaphore_{_option}", NOT_GIVEN)
for _option in ("name", *ENTRY):
    setattr(SemaphoreRequiredMixin, f"get_semaphore_{_option}", _getter(_option))
