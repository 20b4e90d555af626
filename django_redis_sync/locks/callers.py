"""Which leases a thread or task took through an object, so that nobody has to carry them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

from .lease import Lease


class PerCaller:
    """The leases taken through one object, by thread, or by task where one runs."""

    def __init__(self) -> None:
        self._threads = threading.local()
        self._tasks: weakref.WeakKeyDictionary[Any, tuple[list[Lease], list[Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def _lists(self) -> tuple[list[Lease], list[Any]]:
        loop = asyncio._get_running_loop()  # current_task() would raise where there is none
        task = None if loop is None else asyncio.current_task(loop)
        if task is not None:
            return self._tasks.setdefault(task, ([], []))
        try:
            lists: tuple[list[Lease], list[Any]] = self._threads.lists
        except AttributeError:
            lists = self._threads.lists = ([], [])
        return lists

    def add(self, lease: Lease) -> None:
        taken = self._lists()[0]
        while taken and taken[-1].ended:  # by the lease's own release: else they would pile up
            taken.pop()
        taken.append(lease)

    def discard(self, lease: Lease) -> None:
        taken = self._lists()[0]
        for i in reversed(range(len(taken))):
            if taken[i] is lease:
                del taken[i]
                return

    def newest(self, take: bool = False) -> Lease | None:
        """The newest that was neither released nor detached."""
        taken = self._lists()[0]
        while taken and taken[-1].ended:
            taken.pop()
        if not taken:
            return None
        return taken.pop() if take else taken[-1]

    def entered(self) -> list[Any]:
        """What the open `with` blocks entered, innermost last."""
        return self._lists()[1]


class Shared(PerCaller):
    """One list for all threads and tasks (thread_local=False)."""

    def __init__(self) -> None:
        super().__init__()
        self._all: tuple[list[Lease], list[Any]] = ([], [])

    def _lists(self) -> tuple[list[Lease], list[Any]]:
        return self._all
