"""What the library knows about a request while Django handles it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from asgiref.sync import AsyncToSync, SyncToAsync
from django.http import HttpRequest

from .policy import Policy, SemaphoreId

#: Name of the attribute in which a request has its State.
_STATE = "_redis_sync"


class State:
    """The data that decorators, the mixin, and the middleware store about a request.

    - `held`: the semaphores from which the request has a permit.
    - `passed`: the policies that the middleware has applied.
    - `longest`: the longest `blocking_timeout` of the request's limits so far.
    - `waited`: the seconds that the request has waited, for all of its limits together.
    - `holds`: the Holds (see `response`) that the middleware releases when it ends. None if no
      middleware serves the request.
    - `racing`: True if a transaction was open when a limited function ended.
    - `outer`: the State of the request whose view made this request, or None.
    """

    __slots__ = ("held", "holds", "longest", "outer", "passed", "racing", "waited")

    def __init__(self) -> None:
        self.held: set[SemaphoreId] = set()
        self.passed: Sequence[Policy] = ()
        self.longest, self.waited = 0.0, 0.0
        self.holds: list[Any] | None = None
        self.racing = False
        self.outer: State | None = None


#: The State of the request that the middleware serves in this context.
_served: ContextVar[State | None] = ContextVar("redis_sync_served", default=None)


def state_of(request: HttpRequest) -> State:
    """Return the State of a request.

    A view may call other views with request objects of its own, as a view for batches does. They
    have the State of the view's request, whose transaction includes them.
    """
    found: State | None = request.__dict__.get(_STATE)
    if found is None:
        found = _served.get()
        if found is None or found.holds is None:
            found = State()
        request.__dict__[_STATE] = found
    return found


def begin(request: HttpRequest) -> State:
    """Note that the middleware serves the request from now on, and return the request's State."""
    state: State | None = request.__dict__.get(_STATE)
    if state is None:
        state = request.__dict__[_STATE] = State()
        state.outer = _served.get()
    state.holds = state.holds or []
    _served.set(state)
    return state


def ended(state: State) -> list[Any]:
    """Note that the middleware ends, and return the Holds that it has to release."""
    holds, state.holds = state.holds or [], None
    _served.set(state.outer)
    return holds


def runs_sync_code() -> bool:
    """Return True if this async code is part of a request that has run sync code, and so may have
    a transaction in the thread of its sync code."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None:
        return context in SyncToAsync.context_to_thread_executor
    return getattr(AsyncToSync.executors, "current", None) is not None
