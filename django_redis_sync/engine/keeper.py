"""Renews leases in the background, says in time when one is lost, and finishes what failed.

One daemon thread per process and cache alias serves leases of threads and of event loops alike: a
loop that is busy for long does not lose its leases. Leases are held weakly: one that nobody can
release any more is not renewed.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured

from ..protocol.keys import Keys
from ..protocol.plans import Answer, Failure, Run
from .clerk import clerk
from .server import Server, server_of
from .threads import warn_about_uwsgi
from .wire import RETRY, ROUND, clock

logger = logging.getLogger("django_redis_sync")

#: Seconds after which what failed is given up: its lease is over then.
GIVE_UP = 120.0
_PAUSE = 0.05


class Kept(Protocol):
    """What the keeper needs of a lease."""

    @property
    def due(self) -> float: ...
    def tend(self, now: float) -> Run | None: ...
    def tended(self, step: Run, answer: Answer | Failure) -> None: ...


class Keeper:
    """Watches the leases of one alias in this process."""

    def __init__(self, alias: str) -> None:
        self.pid, self._alias = os.getpid(), alias
        self._kept: dict[str, tuple[weakref.ref[Kept], Keys]] = {}
        self._later: deque[tuple[Run, float]] = deque()
        # Invariant: the thread looks no later than _looks_at.
        self._wake, self._looks_at = threading.Event(), math.inf
        # None when there is none, or it ended: looked at by every acquire, so no is_alive().
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._looking = self._failing = False
        self.clerk = clerk(alias, self._in_use)

    def watch(self, lease: Kept, token: str, keys: Keys) -> None:
        """Tend `lease` whenever it is due, until `forget`."""
        self._kept[token] = (weakref.ref(lease), keys)
        self._expect(lease.due)
        self.clerk.note(keys)

    def _expect(self, due: float) -> None:
        """Have the thread look at `due`. It is roused only when it would sleep for longer."""
        if due < self._looks_at or self._thread is None:
            self._looks_at = min(due, self._looks_at)
            self._rouse()

    def forget(self, token: str) -> None:
        self._kept.pop(token, None)

    def later(self, step: Run) -> None:
        """Do `step` as soon as the server answers again."""
        self._later.append((step, clock() + GIVE_UP))
        self._rouse()

    def last_words(self, until: float) -> None:
        """At the end of the process: what the thread has still to do, it does now."""
        self._wake.set()
        while self._thread is not None and clock() < until:
            if not (self._looking or self._later):
                return
            time.sleep(0.002)

    def _rouse(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    warn_about_uwsgi()
                    name = f"redis-sync-keeper-{self._alias}"
                    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                self._looking = True
                due = self._look()
                self._looking = False
                # Kept even when its lease is gone: else every short lease would rouse the thread.
                if self._looks_at > clock():
                    due = min(due, self._looks_at)
                self._looks_at = due
                if self._earliest() >= due:
                    self._wake.wait(None if due == math.inf else max(0.0, due - clock()))
        finally:
            self._thread = None  # whoever needs one next starts another

    def _look(self) -> float:
        """Tend what is due, whatever happens; when to look again."""
        try:
            return self._round()
        except ImproperlyConfigured as error:
            # The alias is gone, as after a test's override_settings: nothing can be kept there.
            logger.warning("the keeper of %r keeps nothing: %s", self._alias, error)
            self._kept.clear()
            self._later.clear()
            return math.inf
        except Exception:
            logger.exception("the keeper of %r met an error and goes on", self._alias)
            time.sleep(_PAUSE)  # what is overdue would have it try again at once
            return clock() + RETRY

    def _round(self) -> float:
        """Tend what is due; when the next one will be."""
        now, leases, steps = clock(), [], []
        for token, (ref, keys) in list(self._kept.items()):
            lease = ref()
            if lease is None:
                if self._kept.pop(token, None):
                    logger.warning(
                        "a lease of %r was dropped without a release: not renewed", keys.display
                    )
            elif lease.due <= now:
                step = lease.tend(now)
                if step is not None:
                    leases.append(lease)
                    steps.append(step._replace(timeout=ROUND))
        server = server_of(self._alias)
        answers = server.many(steps)
        for kept, step, answer in zip(leases, steps, answers, strict=True):
            kept.tended(step, answer)
        del leases
        self._say(answers)
        self._finish(server)
        return min(self._earliest(), clock() + RETRY if self._later else math.inf)

    def _say(self, answers: list[Answer | Failure]) -> None:
        """A line when renewals begin to fail and one when they work again, however many leases."""
        failures = [answer for answer in answers if isinstance(answer, Failure)]
        if failures and not self._failing:
            words = len(failures), self._alias, failures[0]
            logger.warning("%d leases of %r could not be renewed: %s", *words)
        elif answers and not failures and self._failing:
            logger.warning("the leases of %r are renewed again", self._alias)
        self._failing = bool(failures) or (self._failing and not answers)

    def _earliest(self) -> float:
        leases = [ref() for ref, _ in list(self._kept.values())]
        return min((lease.due for lease in leases if lease is not None), default=math.inf)

    def _in_use(self) -> list[Keys]:
        """The names of the leases that are kept now: used for as long as they are held."""
        return [keys for ref, keys in list(self._kept.values()) if ref() is not None]

    def _finish(self, server: Server) -> None:
        todo = [self._later.popleft() for _ in range(len(self._later))]
        try:
            answers = server.many([step._replace(timeout=ROUND) for step, _ in todo])
        except Exception:
            self._later.extend(todo)
            raise
        for (step, give_up_at), answer in zip(todo, answers, strict=True):
            if isinstance(answer, Failure):
                if clock() < give_up_at:
                    self._later.append((step, give_up_at))
                else:
                    logger.error("gave up undoing on %s: %s", step.keys[0], answer)


_keepers: dict[str, Keeper] = {}


@atexit.register
def _last_words() -> None:
    until = clock() + ROUND
    for one in list(_keepers.values()):
        if one.pid == os.getpid():
            one.last_words(until)


def keeper(alias: str) -> Keeper:
    """The keeper of an alias in this process; a fork starts with none."""
    found = _keepers.get(alias)
    if found is None or found.pid != os.getpid():
        found = _keepers[alias] = Keeper(alias)
    return found
