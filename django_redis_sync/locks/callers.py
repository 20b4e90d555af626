"""Callers, and the leases that each has acquired through an object.

A caller is a task if an event loop runs, else a thread. Callers are referenced weakly. So when a
caller ends, the leases that it did not release are garbage-collected, and no longer renewed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import AsyncToSync, markcoroutinefunction
from django.core.exceptions import SynchronousOnlyOperation

from ..exceptions import NotAcquired
from ..logs import logger

T = TypeVar("T")
#: What an `async def` function returns. Type checkers differ in how they call this type.
C = TypeVar("C", bound=Coroutine[Any, Any, Any])
P = ParamSpec("P")

#: A weak reference to a task or a thread.
Caller = weakref.ref[Any]

#: Max leases that an object stores for a caller before lost leases are removed.
_MAX_OVER = 100

_UNIDENTIFIED = (
    "a block ended in another thread or task than it began in. Several blocks of the same object "
    "are open, so the lease of this block can't be identified. The lease is not released, and "
    "expires after the other blocks have ended. Use an object for each block"
)

#: A function that returns the event loop of this thread, or None. If no loop runs, asyncio's public
#: function raises an exception, which costs 7 % more instructions per acquire and release.
running_loop = asyncio._get_running_loop


class Thread:
    """An object that exists as long as its thread runs. It represents the thread, because some
    threads have no Thread object of `threading`."""

    __slots__ = ("__weakref__", "ident")

    def __init__(self) -> None:
        self.ident = threading.get_ident()


class _Here(threading.local):
    def __init__(self) -> None:
        self.thread = Thread()


_here = _Here()


def this_caller() -> Caller:
    """Return a weak reference to the current task. If no task runs, return a weak reference to the
    Thread object of the current thread."""
    loop = running_loop()
    # A callback of an event loop runs outside of any task. Then the thread is the caller.
    return weakref.ref((loop and asyncio.current_task(loop)) or _here.thread)


_marked: Any
if sys.version_info >= (3, 12):
    _marked = inspect.markcoroutinefunction
else:

    class _Marked(functools.partial):  # type: ignore[type-arg]
        """A function that `inspect.iscoroutinefunction` takes for a coroutine function. Before
        Python 3.12, it examines the code of the innermost function of a `partial`."""

        def __new__(cls, function: Callable[..., Any]) -> Any:
            return functools.update_wrapper(super().__new__(cls, function), function)

        async def func(self) -> None:
            """The function that `inspect` examines instead of the one that is called."""

        _is_coroutine = markcoroutinefunction(lambda: None)._is_coroutine  # type: ignore[attr-defined]

        def __get__(self, owner: Any, kind: Any = None) -> Any:
            return self if owner is None else types.MethodType(self, owner)

    _marked = _Marked


def by_caller(
    method: Callable[Concatenate[Any, Caller, P], C],
) -> Callable[Concatenate[Any, P], C]:
    """Decorate an async method. The decorated method passes a reference to its caller as the first
    argument.

    The caller is the task or thread that calls the method, even if another task awaits the call.
    For example, `create_task`, `gather`, and, before Python 3.12, `wait_for` run a call in a task
    of its own.
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> C:
        return method(self, this_caller(), *args, **options)

    signature = inspect.signature(method)
    this, _, *others = signature.parameters.values()
    this = this.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)  # as in the sync method
    call.__signature__ = signature.replace(parameters=[this, *others])  # type: ignore[attr-defined]
    return _marked(call)  # type: ignore[no-any-return]


def paused_threads() -> list[int]:
    """Return the idents of the threads that have called this code through `async_to_sync()`."""
    executor: Any = getattr(AsyncToSync.executors, "current", None)
    idents = []
    while executor is not None:
        if not executor._broken:  # it is broken after the call of async_to_sync() has ended
            idents.append(executor._work_thread.ident)
        executor = getattr(executor, "_old_executor", None)  # asgiref 3.8 knows none
    return idents


def may_wait() -> bool:
    """Return True if sync code may wait in this thread, because no event loop runs in it. As in
    Django's ORM, the environment variable DJANGO_ALLOW_ASYNC_UNSAFE permits a wait on an event
    loop."""
    return running_loop() is None or bool(os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"))


def check_may_wait(of: Any, method: str) -> None:
    """Raise SynchronousOnlyOperation if sync code must not wait in this thread. `of` and `method`:
    the object and the method that would wait, for the message."""
    if not may_wait():
        block = f"`async with {of!r}` or " if method == "acquire" else ""
        raise SynchronousOnlyOperation(
            f"{method} of {of!r} in sync code waits for Redis and would stop this event loop. If "
            f"a task of the loop holds the lock, the wait would never end. Write {block}`await "
            f"….a{method}()`, or call sync code with sync_to_async."
        )


class ByCaller(dict[Caller, T]):
    """A dict with a value for each thread and task. A value is made on first use, and removed when
    its thread or task ends."""

    __slots__ = ("__weakref__",)

    # A threading.local per object would be expensive, because many objects are used only once.
    def at(self, caller: Caller, make: Callable[[], T]) -> T:
        """Return the value of a caller. If there is none, return `make()`, and store it for as long
        as the caller exists."""
        found = self.get(caller)
        if found is None:
            found = make()
            if (living := caller()) is not None:
                # When the caller ends, the weak reference calls `ended`. `ended` is a C function,
                # because a signal handler could interrupt a Python function. The exception of the
                # handler would then be lost. The proxy avoids a reference cycle.
                ended = partial(operator.delitem, weakref.proxy(self))
                return self.setdefault(weakref.ref(living, ended), found)
        return found


#: The tasks for which no sync code waits.
_independent: ByCaller[bool] = ByCaller()


def sync_code_waits() -> bool:
    """Return True if sync code has called this async code through `async_to_sync()`."""
    caller = this_caller()
    if caller in _independent:
        return False
    threads = paused_threads()
    # A task runs in one context, so this never changes. A thread may use several contexts.
    if not threads and isinstance(caller(), asyncio.Future):
        _independent.at(caller, lambda: True)
    return bool(threads)


_anyone = Thread()
#: The caller to which objects with thread_local=False assign all their leases. It never ends.
_ANYONE: Caller = weakref.ref(_anyone)


class Holdings:
    """The leases that were taken through a semaphore, and its open `with` blocks.

    An item is a lease, or a group of leases of `acquire_all`. `acquire` and blocks add items, and
    `release` takes the newest item of its caller. The item of an open block is stored until the
    block ends, even if the lease ends earlier. So a block never releases the lease of another
    block.
    """

    # Invariant: `_blocks` maps each caller with an open block to the items of its open blocks, the
    # newest last. The entry may outlive the caller, because a block in a generator may end in
    # another thread.
    def __init__(self, shared: bool = False) -> None:
        # The leases are the keys of a dict, because operations on a dict are atomic.
        self._leases: ByCaller[dict[Any, None]] = ByCaller()
        self._shared = shared
        self._blocks: dict[Caller, list[Any]] = {}
        #: Number of blocks that ended in another thread or task and could not be identified.
        self._unidentified = 0

    # For `acquire` and `release`

    def add(self, item: Any) -> None:
        """Add `item` as the newest item of the caller that acquired it."""
        mine = self._of(item._caller)
        mine[item] = None
        if self._blocks:
            self._replace_released(item)
        if len(mine) > _MAX_OVER and len(mine) % _MAX_OVER == 0:
            # The newest _MAX_OVER leases stay even if they are lost, so that `release` finds them.
            for old in list(mine)[:-_MAX_OVER]:
                if not old.held:
                    mine.pop(old, None)

    def discard(self, item: Any) -> None:
        """Remove `item`, so that `release` no longer finds it."""
        self._of(item._caller).pop(item, None)

    def newest(self, caller: Caller | None = None) -> Any:
        """Return the newest item of a caller that was not released or detached, or None. `caller`:
        None for this caller."""
        caller = caller or this_caller()
        mine = [item for item in reversed(list(self._of(caller))) if not item.ended]
        if self._shared:  # the caller's own items come first; the sort keeps their order
            mine.sort(key=lambda item: item._caller != caller)
        return mine[0] if mine else None

    def take_newest(self, caller: Caller | None = None) -> Any:
        """Remove and return the newest item of a caller that was not released or detached. Return
        None if there is none."""
        mine = self._of(caller or this_caller())
        if self._shared:
            while (item := self.newest(caller)) is not None:
                if mine.pop(item, self) is None:  # another thread may have removed it
                    return item
            return None
        try:
            while True:
                item, _ = mine.popitem()  # atomic: two threads never get the same item
                if not item.ended:
                    return item
        except KeyError:
            return None

    def take(self, caller: Caller | None = None) -> Any:
        """Remove and return the newest item, as `take_newest()` does. Raise NotAcquired if there is
        none."""
        item = self.take_newest(caller)
        if item is None:
            raise NotAcquired(
                "this thread or task holds nothing through this object. If another one acquired "
                "it, keep the leases that acquire() returned, and release them"
            )
        return item

    # For `with`

    def enter(self, item: Any) -> None:
        """Begin a `with` block with `item`, for the caller that acquired it."""
        self.add(item)
        self._blocks[item._caller] = [*self._blocks.get(item._caller, ()), item]

    def leave(self, caller: Caller | None = None) -> Any:
        """End a block of a caller and return its item. `caller`: None for this caller.

        - If the caller has open blocks, end its newest one.
        - If only other callers have open blocks, this block began in another thread or task. If all
          open blocks have the same item, end one of them.
        - If their items differ, the item of this block can't be identified. Log an error and return
          None. The item is renewed until all other blocks have ended.
        - If no block is open, `__exit__` was called directly. Return the newest item of this
          caller. Raise NotAcquired if there is none.
        """
        caller = caller or this_caller()
        if caller not in self._blocks:
            blocks = list(self._blocks.values())
            if not blocks:
                return self.take(caller)
            if any(item is not blocks[0][0] for items in blocks for item in items):
                logger.error(_UNIDENTIFIED)
                self._unidentified += 1
                self._forget_unidentified()
                return None
            caller = next(iter(self._blocks))
        item = self._end(caller)
        if self._unidentified:
            self._forget_unidentified()
        return item

    def undo(self, item: Any) -> None:
        """Remove `item`, because its acquire or block was interrupted."""
        self.discard(item)
        if self._blocks.get(item._caller, [None])[-1] is item:
            self._end(item._caller)

    # Inside

    def _of(self, caller: Caller) -> dict[Any, None]:
        return self._leases.at(_ANYONE if self._shared else caller, dict)

    def _replace_released(self, item: Any) -> None:
        """Let `item` take the place of an item that its caller has released inside the block.
        Otherwise, code that releases and acquires a lock in its block would keep it afterward."""
        items = self._blocks.get(item._caller, ())
        for place in reversed(range(len(items))):
            if items[place].ended:
                self._blocks[item._caller] = [*items[:place], item, *items[place + 1 :]]
                return

    def _end(self, caller: Caller) -> Any:
        *others, item = self._blocks.pop(caller)
        if others:
            self._blocks[caller] = others
        self._of(caller).pop(item, None)
        return item

    def _forget_unidentified(self) -> None:
        """If every block has ended, remove all items of `_blocks`. Each item belongs to an open
        block, or to one of the `_unidentified` blocks that have ended."""
        if self._unidentified >= sum(map(len, self._blocks.values())):
            self._unidentified = 0
            for caller, items in list(self._blocks.items()):
                for _ in items:
                    self._end(caller)


def never_continues(caller: Caller) -> bool:
    """Return True if the caller is a task that can't run any more, because its event loop was
    closed before the task was done. `asyncio.run()` leaves no such task: it first cancels all."""
    task = caller()
    if task is None or isinstance(task, Thread):
        return False
    return bool(task.get_loop().is_closed() and not task.done())
