"""A throttle for Django REST framework and django-ninja: at most N requests at the same time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from . import conf
from .defaults import ENTRY
from .limits.admission import admit
from .limits.policy import NOT_GIVEN, Declared, endpoint_of
from .limits.rejection import RejectedRequest, retry_after
from .limits.response import Hold
from .limits.routes import is_preflight
from .limits.state import state_of
from .locks.callers import running_loop
from .values import unknown

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .defaults import Limit, PolicyOptions

_Base: Any = object
with suppress(ImportError):
    _Base = import_module("ninja.throttling").BaseThrottle  # the base that django-ninja demands

#: The options of a policy that a throttle doesn't have: it never waits, and the framework makes the
#: response.
_OTHERS = {"blocking_timeout", "close_connections", "max_waiters", "on_full", "response", "status"}
_OPTIONS = [option for option in ENTRY if option not in _OTHERS]

_NEEDS_MIDDLEWARE = (
    "ConcurrencyThrottle needs ConcurrencyLimitMiddleware, which releases the permits: add it to "
    "MIDDLEWARE. In a test that calls the view without middleware, use "
    "django_redis_sync.testing.limits_disabled()."
)
_NEEDS_THREAD = (
    "ConcurrencyThrottle can't limit an async operation, because django-ninja calls throttles on "
    "the event loop: put @semaphore_required below the decorator of the operation."
)


class ConcurrencyThrottle(_Base):  # type: ignore[misc]
    """Let at most `limit` requests of an API run at the same time. A request that exceeds the limit
    is throttled by the framework, with status 429 and Retry-After. It never waits.

    In Django REST framework, list the class last in `throttle_classes` or
    DEFAULT_THROTTLE_CLASSES. Its `scope` is the name of the semaphore. If it has none, the
    attribute `throttle_scope` of the view is the name, and a view without this attribute has no
    limit. To give options, derive a class. A derived class without any scope is named after itself:

        class Exports(ConcurrencyThrottle):
            scope, limit, key = "exports", 3, "user"

    In django-ninja, pass an object: `throttle=[ConcurrencyThrottle("exports", limit=3)]`. Async
    operations can't have throttles of this class: decorate them with `semaphore_required`.

    The options are those of `semaphore_required`, except `blocking_timeout`, `max_waiters`,
    `on_full`, `response`, and `status`. The permit is held until ConcurrencyLimitMiddleware ends.
    """

    scope: str | None = None

    def __init__(
        self, scope: str | None = None, limit: Limit = NOT_GIVEN, **options: Unpack[PolicyOptions]
    ) -> None:
        """Raise TypeError if an option is unknown."""
        if wrong := unknown(options, _OPTIONS):
            raise TypeError(f"{type(self).__name__}() has no such argument: {wrong}")
        if scope is not None:
            self.scope = scope
        self.__dict__.update(options if limit is NOT_GIVEN else {**options, "limit": limit})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise TypeError if an attribute is an option that throttles don't have."""
        super().__init_subclass__(**kwargs)
        if wrong := sorted(_OTHERS & vars(cls).keys()):
            raise TypeError(f"class {cls.__name__}: a throttle has no option {', '.join(wrong)}")

    def declared(self, view_scope: str | None) -> Declared | None:
        """Return the options of the throttle, with the name of the semaphore. Return None if the
        throttle doesn't limit the view. `view_scope`: the view's `throttle_scope`."""
        own, given = vars(self), []
        for option in _OPTIONS:
            # If the value is a function of the class, `self.<option>` would be a bound method.
            value = own.get(option, getattr(type(self), option))
            if value is not NOT_GIVEN:
                given.append((option, tuple(value) if isinstance(value, (list, set)) else value))
        name = self.scope or view_scope
        if not name and type(self) is not ConcurrencyThrottle:
            name = f"{type(self).__module__}.{type(self).__qualname__}"
        return _declared(name, tuple(given)) if name else None

    def allow_request(self, request: Any, view: Any = None) -> bool:
        """Acquire a permit for the request. Return False if it is rejected.

        `request`: the request of the framework. `view`: the view of Django REST framework. Raise
        ImproperlyConfigured on an event loop, or if ConcurrencyLimitMiddleware is missing.
        """
        if running_loop() is not None:
            raise ImproperlyConfigured(_NEEDS_THREAD)
        declared = self.declared(getattr(view, "throttle_scope", None))
        if declared is None or not conf.current().enabled:
            return True
        inner = getattr(request, "_request", request)
        if state_of(inner).holds is None:
            raise ImproperlyConfigured(_NEEDS_MIDDLEWARE)
        policy = endpoint_of(inner).policy_of(declared, "")
        preflight = view is not None and is_preflight(inner, view.dispatch)
        got = admit([policy], inner, request, preflight)
        if isinstance(got, RejectedRequest):
            _denied.seconds = retry_after(got)
            return False
        if got:
            got.keep(inner)
            if view is not None:
                _release_if_denied(view, got)
        return True

    def wait(self) -> int | None:
        """Return the seconds after which a client should retry the request that was rejected last
        in this thread."""
        return getattr(_denied, "seconds", None)


for _option in _OPTIONS:
    setattr(ConcurrencyThrottle, _option, NOT_GIVEN)

#: The frameworks call `wait` in the thread in which `allow_request` has returned False.
#: django-ninja shares a throttle between threads.
_denied = threading.local()


@lru_cache(maxsize=1000)
def _declared(name: str, options: tuple[tuple[str, Any], ...]) -> Declared:
    return Declared(name, {**dict(options), "blocking_timeout": 0})


def _release_if_denied(view: Any, hold: Hold) -> None:
    """Release the permits of `hold` at once if another throttle of the view rejects the request.
    Django REST framework asks all throttles, and then calls `view.throttled()`."""
    known = vars(view).get("throttled")
    view.throttled = partial(_throttled, weakref.ref(view), known, hold)


def _throttled(
    reference: weakref.ref[Any], known: Callable[..., Any] | None, hold: Hold, *args: Any
) -> Any:
    hold.release()
    view: Any = reference()
    return known(*args) if known is not None else type(view).throttled(view, *args)
