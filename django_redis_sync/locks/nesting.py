"""Find a wait that can never end, because the holder of the lock waits for the code that asks.

The holder may be the caller itself. It may also be a thread or task that has called the caller's
code: sync code can run an event loop (`asyncio.run()`, `async_to_sync()`), and async code can run
sync code on a thread (`sync_to_async()`). The functions here run only when a wait begins.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from asgiref.sync import SyncToAsync

from ..engine.renewal import renewer
from ..engine.wire import clock
from ..logs import logger
from ..protocol.keys import Keys
from .callers import Caller, Thread, paused_threads, running_loop, this_caller
from .lease_state import LeaseSettings
from .transactions import release_if_over

#: Max leases that `own_hold` examines. They are the newest leases of the process.
_MAX_SEARCHED = 100

#: Max seconds to wait until a task that holds the lock awaits something.
_SETTLES = 0.5

_BEGINS_CALL, _RUNS_CALL = SyncToAsync.__call__.__code__, SyncToAsync.thread_handler.__code__


def on_wait(
    settings: LeaseSettings, endless: Callable[[Any, str], None] | None
) -> Callable[..., None]:
    """Return the function to call when a wait begins, and again when the wait ends. `endless`:
    called with what `own_hold` returns if the wait can never end. None: don't look for such
    waits."""

    def on_wait(token: str, begins: bool, caller: Caller | None = None) -> None:
        renewer(settings.alias).housekeeper.note_waiter(token, settings if begins else None)
        if not begins or release_if_over(settings):
            return
        if endless and (own := own_hold(settings.keys, settings.alias, caller)):
            endless(*own)

    return on_wait


def warn_of_endless_wait(lease: Any, hint: str) -> None:
    """Log a warning about a wait for `lease` that can never end, unless another thread releases the
    lease. `hint`: a text about the holder."""
    message = "this caller waits for a permit of %r that it holds itself: %s"
    logger.warning(message, lease.name, hint)


def own_hold(keys: Keys, alias: Any, caller: Caller | None = None) -> tuple[Any, str] | None:
    """Find a lease of the name that is held by the caller, or by a thread or task that waits for
    the caller. Return the lease and a hint for an error message, or None. `caller`: None for this
    thread or task."""
    caller = caller or this_caller()
    for lease in renewer(alias).newest(keys, _MAX_SEARCHED):
        holder = lease._caller()
        if holder is None or not lease.held:
            continue
        kind = "thread" if isinstance(holder, Thread) else "task"
        if lease._caller == caller:
            return lease, f"this {kind} holds the lock, and only an RLock may be taken again"
        if _waits_for_this_code(holder):
            hint = f"the {kind} that holds the lock has called this code, and waits for its end"
            return lease, hint
    return None


def _waits_for_this_code(holder: Any) -> bool:
    """Return True if a thread or task can't continue before the code that calls this function has
    ended. `holder`: a task, or the Thread object of a thread."""
    paused = paused_threads()
    if isinstance(holder, Thread):
        # Below an event loop of this thread, there is the sync code that runs the loop.
        here = holder.ident == threading.get_ident() and running_loop() is not None
        return here or holder.ident in paused
    coroutine, until = holder.get_coro(), clock() + _SETTLES
    while True:
        now = sys._current_frames()
        frames = [frame for ident in (threading.get_ident(), *paused) for frame in _up(now[ident])]
        if any(_is_below(one.cr_frame, frames) for one in _awaited(coroutine)):
            return True
        # A task that has called this thread may not have come to its `await` yet. On an event loop,
        # it has, because it runs on that loop, too.
        is_moving = getattr(coroutine, "cr_running", False) and running_loop() is None
        if not is_moving or clock() >= until:
            return False
        time.sleep(0.001)


def _up(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(coroutine: Any) -> Iterator[Any]:
    """Return the coroutine and those that it awaits, from the outermost to the innermost."""
    while hasattr(coroutine, "cr_await"):
        yield coroutine
        coroutine = coroutine.cr_await


def _is_below(frame: FrameType | None, frames: list[FrameType]) -> bool:
    """Return True if `frame`, the frame of a coroutine, has called the code of `frames`: directly
    through a nested event loop, or through `sync_to_async()`."""
    if frame is None or frame.f_code is not _BEGINS_CALL:
        return frame in frames
    # Both ends of a call of sync_to_async() have this list of the call.
    call = frame.f_locals.get("task_context")
    runs = [one.f_locals.get("task_context") for one in frames if one.f_code is _RUNS_CALL]
    return call is not None and any(one is call for one in runs)
