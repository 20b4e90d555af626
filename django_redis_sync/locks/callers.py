"""The leases taken through an object: by thread or task for `release`, by block for `with`."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from ..exceptions import NotAcquired
from .lease import Lease

T = TypeVar("T")

#: Leases that are over and that a caller may have in its list, before they are looked through.
_MOST_OVER = 100


class Block:
    """The end of one `with` block, loaded when the block begins: it holds the lease of the block.

    Threads and tasks don't matter to it: a generator may begin in a thread and end in another.
    """

    # The interpreter loads `__exit__` before it calls `__enter__` and keeps it until the block
    # ends (the reference defines `with` so; contextlib.ExitStack does the same). So what was
    # loaded last in a thread belongs to the `__enter__` that comes next there.
    __slots__ = ("__weakref__", "_leave", "_owner", "taken")

    def __init__(self, leave: str, owner: Any) -> None:
        self._leave, self._owner = leave, owner
        self.taken: Any = _NOTHING  # then the lease, by its taker, then _OVER

    def __call__(self, *args: Any) -> Any:
        owner, *error = args if self._owner is None else (self._owner, *args)
        return getattr(owner, self._leave)(self, *error)

    @classmethod
    def by_call(cls) -> Block:
        """A block that no `with` began or will end."""
        return cls("", None)

    @property
    def by_hand(self) -> bool:
        """Whether no `with` will end it."""
        return not self._leave

    def begins(self, owner: Any) -> bool:
        """Whether it was loaded for a block over `owner` that has taken nothing yet."""
        return self.taken is _NOTHING and self._owner in (None, owner)


class Leaving:
    """An `__exit__` or `__aexit__` that is a new Block for each `with`.

    `leave`: the method that ends a block; it is called with the Block and the exception's triple.
    """

    def __init__(self, leave: str) -> None:
        self._leave = leave

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        block = Block(self._leave, instance)
        # The list is short: a block that was loaded and did not begin is dropped at once, mostly.
        _loaded.blocks = [ref for ref in _loaded.blocks if ref() is not None]
        _loaded.blocks.append(weakref.ref(block))
        return block


#: A block's `taken` before it began, and after it ended.
_NOTHING, _OVER = object(), object()


class _Loaded(threading.local):
    """The blocks that were loaded in this thread and did not begin yet."""

    def __init__(self) -> None:
        self.blocks: list[weakref.ref[Block]] = []


_loaded = _Loaded()


def _beginning(owner: Any) -> Block | None:
    """The block that begins now; None where `__enter__` was called by hand."""
    for ref in reversed(_loaded.blocks):
        block = ref()
        if block is not None and block.begins(owner):
            _loaded.blocks.remove(ref)
            return block
    return None


class _Thread:
    """Lives for as long as its thread runs, which may be less than a `threading.Thread`."""

    __slots__ = ("__weakref__",)


class _Here(threading.local):
    def __init__(self) -> None:
        self.thread = _Thread()


_here = _Here()


class _Found(dict[weakref.ref[Any], T]):
    """By caller. A dict that can be referred to weakly."""

    __slots__ = ("__weakref__",)


class ByCaller(Generic[T]):
    """A T for each thread, or for each task inside a running loop, until it ends."""

    # Not a threading.local for each object: many objects serve a single time, and to make one costs
    # a fiftieth of a cycle.
    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._found: _Found[T] = _Found()

    def mine(self) -> T:
        loop = asyncio._get_running_loop()  # current_task() would raise where there is none
        caller = _here.thread if loop is None else asyncio.current_task(loop) or _here.thread
        mine = self._found.get(weakref.ref(caller))
        if mine is None:
            # A proxy: in a circle, it would all wait for the garbage collector. A call of C: an
            # exception out of a signal handler would be lost in there, and the entry stay.
            ended = weakref.ref(caller, partial(operator.delitem, weakref.proxy(self._found)))
            mine = self._found.setdefault(ended, self._make())
        return mine


class _Taken:
    """The leases that a thread or task took through an object."""

    __slots__ = ("__weakref__", "by_hand", "leases", "most")

    def __init__(self) -> None:
        #: With whether a block gives it back. A dict for its atomic steps: with thread_local=False
        #: all threads share it.
        self.leases: dict[Any, bool] = {}
        self.most = _MOST_OVER
        #: Entered by a call of `__enter__`, newest last.
        self.by_hand: list[Block] = []

    def add(self, lease: Lease, in_block: bool) -> None:
        self.leases[lease] = in_block
        if len(self.leases) > self.most:
            self._sweep()
            self.most = _MOST_OVER + 2 * len(self.leases)

    def _sweep(self) -> None:
        """Drop those that ended by their own `release`, and all but the newest of the lost."""
        over = [lease for lease in list(self.leases) if not lease.held]
        ended = [lease for lease in over if lease.ended]
        lost = [lease for lease in over if not lease.ended]
        for lease in (*ended, *lost[:-_MOST_OVER]):
            self.leases.pop(lease, None)

    def newest(self, take: bool, but_blocks: bool = False) -> Lease | None:
        """The newest that was neither released nor detached."""
        if take and not but_blocks:
            return self._take_newest()
        for lease, in_block in reversed(list(self.leases.items())):
            if lease.ended:
                self.leases.pop(lease, None)
                continue
            # Of two threads that take the newest, the second takes the next.
            wanted = not (in_block and but_blocks)
            if wanted and (not take or self.leases.pop(lease, None) is not None):
                return cast(Lease, lease)
        return None

    def _take_newest(self) -> Lease | None:
        while self.leases:
            try:
                lease, _ = self.leases.popitem()  # of two threads, the second gets the next
            except KeyError:
                break
            if not lease.ended:
                return cast(Lease, lease)
        return None


class PerCaller(ByCaller[_Taken]):
    """The leases taken through an object, by thread or task, and by block."""

    #: Entered by hand, in whichever thread.
    _by_hand: weakref.WeakSet[Block] | None = None

    def __init__(self) -> None:
        super().__init__(_Taken)

    # For `acquire` and `release`

    def add(self, lease: Lease) -> None:
        self.mine().add(lease, False)

    def discard(self, lease: Lease) -> None:
        self.mine().leases.pop(lease, None)

    def newest(self, take: bool = False) -> Lease | None:
        """The newest that this thread or task took and that was neither released nor detached."""
        return self.mine().newest(take)

    # For `with`

    def begin(self, owner: Any) -> Block:
        """The block that begins with this call of `owner.__enter__`."""
        return _beginning(owner) or Block.by_call()

    def hold(self, block: Block, what: Any) -> None:
        """The block took `what`: a lease, or a stack of them."""
        mine = self.mine()
        block.taken = weakref.ref(mine), what  # a circle would wait for the garbage collector
        if isinstance(what, Lease):
            mine.add(what, True)
        if block.by_hand:
            mine.by_hand.append(block)
            self._all_by_hand().add(block)

    def drop(self, block: Block) -> None:
        """The block, which was interrupted while it began, holds nothing."""
        mine, block.taken = self.mine(), _NOTHING
        with contextlib.suppress(ValueError):
            mine.by_hand.remove(block)
        self._all_by_hand().discard(block)

    def end(self, block: Block) -> Any:
        """The lease of the block. NotAcquired when it can't be told.

        An `__exit__` that was called by hand ends what this thread or task entered or acquired
        last, else the only block that any other entered by hand.
        """
        if block.taken is _NOTHING:
            found = self._by_hand_of(self.mine())
            if isinstance(found, Lease):
                return found
            block = found
        if block.taken is _OVER:
            raise NotAcquired("this block was left before")
        (caller, what), block.taken = block.taken, _OVER
        if (taken := caller()) is not None:
            taken.leases.pop(what, None)
        return what

    def _by_hand_of(self, mine: _Taken) -> Any:
        if mine.by_hand:
            block = mine.by_hand.pop()
        elif (lease := mine.newest(True, but_blocks=True)) is not None:
            return lease
        else:
            others = list(self._all_by_hand())
            if len(others) != 1:
                raise NotAcquired(
                    "this thread or task holds nothing through this object: leave a block where "
                    "it was entered, or use `with`, which may end in another thread"
                )
            (block,) = others
            if (caller := block.taken[0]()) is not None:
                caller.by_hand.remove(block)
        self._all_by_hand().discard(block)
        return block

    def _all_by_hand(self) -> weakref.WeakSet[Block]:
        found = self._by_hand
        return self.__dict__.setdefault("_by_hand", weakref.WeakSet()) if found is None else found


class Shared(PerCaller):
    """The same for all threads and tasks (thread_local=False)."""

    def __init__(self) -> None:
        super().__init__()
        self._all = _Taken()

    def mine(self) -> _Taken:
        return self._all
