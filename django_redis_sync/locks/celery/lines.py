"""The tasks that a worker holds, and which of them ask for a permit next. No Celery, no Redis."""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ...engine.wire import clock
from ..jobs import Job
from ..semaphore import Semaphore

#: Max tasks of a name and share that ask for a permit at a time, and max tasks in all.
ASKING, ASKING_IN_ALL = 20, 500

#: A name and a share.
Key = tuple[str, str]


class Held:
    """A task that this worker holds.

    - `since`: when a worker first held it, in seconds since 1970. `came`: when this worker got it,
      in seconds of the clock of this process.
    - `raised`: True if the prefetch count was raised for it.
    - `queued`: True while it has not asked for a permit. `cancel`: ends its wait, or None if it
      does not ask. `waits`: True while it waits in Redis.
    - `over`: True if the worker no longer holds it.
    """

    __slots__ = (
        *("came", "cancel", "job", "key", "order", "over", "queued", "raised"),
        *("request", "semaphore", "since", "waits"),
    )

    def __init__(self, request: Any, semaphore: Semaphore, job: Job, since: float | None) -> None:
        self.request, self.semaphore, self.job = request, semaphore, job
        self.since, self.came, self.order = since or time.time(), clock(), 0
        self.key: Key = (semaphore.name, getattr(semaphore, "share", None) or "")
        self.raised = self.queued = self.waits = self.over = False
        self.cancel: Callable[[], None] | None = None

    def __lt__(self, other: Held) -> bool:
        return (self.since, self.order) < (other.since, other.order)


class Line:
    """The held tasks of a name and share. `queued`: those that have not asked, in order. `asking`:
    the number of those that ask."""

    __slots__ = ("asking", "queued")

    def __init__(self) -> None:
        self.queued: list[Held] = []
        self.asking = 0


class Lines:
    """The lines of a worker. `fresh`: the number of tasks that ask and don't wait in Redis yet, so
    that they may get a permit at once."""

    def __init__(self) -> None:
        self._lines: dict[Key, Line] = {}
        #: The lines whose tasks may ask, in turns.
        self._wanting: dict[Key, None] = {}
        self.fresh, self._asking, self._orders = 0, 0, 0

    def clear(self) -> None:
        self._lines.clear()
        self._wanting.clear()
        self.fresh = self._asking = 0

    def items(self) -> Iterable[tuple[Key, Line]]:
        return list(self._lines.items())

    def counts(self) -> Counter[str]:
        """Return the number of tasks of each name that have not asked."""
        counts = Counter[str]()
        for (name, _), line in self._lines.items():
            counts[name] += len(line.queued)
        return counts

    def put(self, held: Held) -> None:
        """Add a task that has not asked, or asks again."""
        self._orders += 1
        held.order = held.order or self._orders
        insort(self._lines.setdefault(held.key, Line()).queued, held)
        held.queued = True
        self._wanting.setdefault(held.key)

    def remove(self, held: Held) -> None:
        """Remove a task that has not asked."""
        held.queued = False
        self._lines[held.key].queued.remove(held)

    def next(self, room: int) -> Held | None:
        """Return the task that asks next, or None. `room`: the number of processes without a
        limited task. A task that gets a permit at once must find a free process. So no more tasks
        than that are fresh, and no more ask of each line."""
        if self.fresh >= room or self._asking >= ASKING_IN_ALL:
            return None
        for key in list(self._wanting):
            line = self._lines[key]
            if not line.queued:
                del self._wanting[key]
                if not line.asking:
                    del self._lines[key]
            elif line.asking < min(ASKING, room):
                del self._wanting[key]
                self._wanting[key] = None  # the other lines come first now
                held = line.queued.pop(0)
                held.queued = False
                line.asking += 1
                self._asking += 1
                self.fresh += 1
                return held
        return None

    def waits(self, held: Held) -> None:
        """Note that a task that asks waits in Redis."""
        if held.cancel is not None and not held.waits:
            held.waits = True
            self.fresh -= 1

    def asked(self, held: Held) -> None:
        """Note that a task no longer asks."""
        self.fresh -= not held.waits
        self._asking -= 1
        self._lines[held.key].asking -= 1
        self._wanting.setdefault(held.key)
        held.cancel, held.waits = None, False
