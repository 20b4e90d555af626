"""Renews leases in the background, says in time when one is lost, and finishes what failed.

One daemon thread per process and cache alias serves leases of threads and of event loops alike: a
loop that is busy for long does not lose its leases. Leases are held weakly: one that nobody can
release any more is not renewed. Receivers run on a thread of their own, so that none holds up a
renewal. The same thread keeps the registry of names, for those who list them.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured

from ..protocol.keys import Keys, quote
from ..protocol.plans import Answer, Failure, Run
from . import connections
from .wire import clock

logger = logging.getLogger("django_redis_sync")

#: Seconds that one round of renewals may take: a hung server must not stall the watch for longer.
ROUND = 1.0
#: Seconds between two tries of what failed, and after which it is given up: its lease is over then.
RETRY, GIVE_UP = 1.0, 120.0
_PAUSE = 0.05

#: Seconds after which a name in use is written to the registry again, and between two writes of new
#: ones; days without use after which a name is dropped; names at the most, newest first.
NOTED_EVERY, NOTED_AFTER, NOTED_DAYS, MOST_NOTED = 60.0, 0.3, 1, 100_000


def names_key(prefix: str) -> str:
    """The registry: a sorted set of names as between braces, by last use in server ms."""
    return f"{quote(prefix)}:names"


def marked_key(prefix: str) -> str:
    """As names_key: the names that an operator paused or resized, by when, until taken back."""
    return f"{quote(prefix)}:marked"


def operating(keys: Keys, how: str, value: str | int = "") -> Run:
    """The step of an operator's mark: pause, resume, resize to `value`, or reset."""
    return Run("operate", keys.of(""), ("", how, value, keys.keep), connections.ATTEMPT)


class Kept(Protocol):
    """What the keeper needs of a lease."""

    @property
    def due(self) -> float: ...
    def tend(self, now: float) -> Run | None: ...
    def tended(self, answer: Answer | Failure) -> None: ...


class Keeper:
    """Watches the leases of one alias in this process."""

    def __init__(self, alias: str) -> None:
        self._alias, self._pid = alias, os.getpid()
        self._kept: dict[str, tuple[weakref.ref[Kept], Keys]] = {}
        self._later: deque[tuple[Run, float]] = deque()
        # Invariant: the thread looks no later than _looks_at.
        self._wake, self._looks_at = threading.Event(), math.inf
        # None when there is none, or it ended: looked at by every acquire, so no is_alive().
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._names, self._looking = _Names(), False

    def note(self, keys: Keys) -> None:
        """Have the name listed as in use. Costs a look-up when it was noted within the minute."""
        if keys.leases not in self._names.noted:
            self._names.add(keys)
            self._expect(self._names.due)

    def watch(self, lease: Kept, token: str, keys: Keys) -> None:
        """Tend `lease` whenever it is due, until `forget`."""
        self._kept[token] = (weakref.ref(lease), keys)
        self._expect(lease.due)
        self.note(keys)

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
        """At the end of the process: what the thread has still to write, it writes now."""
        self._names.hurry()
        self._wake.set()
        while self._thread is not None and clock() < until:
            if not (self._looking or self._names.fresh or self._later):
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
            self._names = _Names()
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
        server = connections.server(self._alias)
        for kept, answer in zip(leases, server.many(steps), strict=True):
            kept.tended(answer)
        del leases
        self._finish(server)
        self._names.tend(server, clock(), self._in_use)
        return min(self._earliest(), clock() + RETRY if self._later else math.inf)

    def _earliest(self) -> float:
        leases = [ref() for ref, _ in list(self._kept.values())]
        due = min((lease.due for lease in leases if lease is not None), default=math.inf)
        return min(due, self._names.due)

    def _in_use(self) -> list[Keys]:
        """The names of the leases that are kept now: used for as long as they are held."""
        return [keys for ref, keys in list(self._kept.values()) if ref() is not None]

    def _finish(self, server: connections.Server) -> None:
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


class _Names:
    """The names that this process used within the minute, and which are still to be written, those
    in `fresh`.

    A fresh child of a policy that an operator paused or resized is treated as the policy is.
    """

    # Invariant: due is no later than the end of the minute while anything is noted.
    def __init__(self) -> None:
        self.noted: set[str] = set()
        self.due = self._minute_ends = math.inf
        self.fresh: deque[Keys] = deque()
        self._not_before = self._trim_at = 0.0

    def add(self, keys: Keys) -> None:
        if len(self.noted) < MOST_NOTED:
            now = clock()
            self.noted.add(keys.leases)
            self.fresh.append(keys)
            self._minute_ends = min(self._minute_ends, now + NOTED_EVERY)
            self.due = min(self.due, max(now, self._not_before))

    def hurry(self) -> None:
        """Have what is fresh written without a pause after the last time."""
        self._not_before = 0.0
        if self.fresh:
            self.due = 0.0

    def tend(
        self, server: connections.Server, now: float, in_use: Callable[[], list[Keys]]
    ) -> None:
        """Write what is fresh, when it is time; note anew once a minute."""
        if now < self.due:
            return
        if now >= self._minute_ends:
            self._minute_ends = math.inf
            self.noted.clear()
            for keys in in_use():
                if keys.leases not in self.noted:
                    self.add(keys)
        self._not_before = now + NOTED_AFTER
        fresh = [self.fresh.popleft() for _ in range(len(self.fresh))]
        try:
            self._write(server, fresh, now)
        except Failure as failure:
            # Nobody's work depends on it: it is tried again with whatever is fresh by then.
            logger.log(
                logging.WARNING if failure.why == "final" else logging.DEBUG,
                "could not list names in use: %s",
                failure,
            )
            self.fresh.extend(fresh[: MOST_NOTED - len(self.fresh)])
            again = now + (NOTED_EVERY if failure.why == "final" else RETRY)
            self.due = min(self._minute_ends, again)
            return
        self.due = self._minute_ends
        if self.fresh:
            self.due = min(self.due, self._not_before)

    def _write(self, server: connections.Server, fresh: list[Keys], now: float) -> None:
        by_prefix: dict[str, list[Keys]] = {}
        for keys in fresh:
            by_prefix.setdefault(_prefix(keys), []).append(keys)
        for prefix, some in by_prefix.items():
            seconds, _ = server.command("TIME", timeout=ROUND)
            registry, ms = f"{prefix}:names", int(seconds) * 1000
            for start in range(0, len(some), 1000):
                pairs = [(ms, keys.quoted) for keys in some[start : start + 1000]]
                flat = [word for pair in pairs for word in pair]
                server.command("ZADD", registry, *flat, timeout=ROUND)
            self._inherit(server, f"{prefix}:marked", [k for k in some if "@" in k.quoted])
            if now >= self._trim_at:
                self._trim_at = now + NOTED_EVERY
                old = ms - NOTED_DAYS * 86_400_000
                server.command("ZREMRANGEBYSCORE", registry, "-inf", old, timeout=ROUND)
                server.command("ZREMRANGEBYRANK", registry, 0, -1 - MOST_NOTED, timeout=ROUND)
                server.command("PEXPIRE", registry, 2 * NOTED_DAYS * 86_400_000, timeout=ROUND)

    def _inherit(self, server: connections.Server, marked: str, children: list[Keys]) -> None:
        """Have fresh children of marked policies paused and resized as these are."""
        by_policy: dict[str, list[Keys]] = {}
        for keys in children:
            by_policy.setdefault(keys.quoted.partition("@")[0], []).append(keys)
        for policy, some in by_policy.items():
            if server.command("ZSCORE", marked, policy, timeout=ROUND) is None:
                continue
            for keys in some:
                info = keys.info.replace(f"{{{keys.quoted}}}", f"{{{policy}}}")
                self._follow(server, marked, info, keys)

    def _follow(self, server: connections.Server, marked: str, policy: str, child: Keys) -> None:
        def marks(info: str) -> Any:
            return server.command("HMGET", info, "#paused", "#limit", timeout=ROUND)

        wanted, has = marks(policy), marks(child.info)
        for mark, of_policy, own in zip(("pause", "resize"), wanted, has, strict=True):
            if of_policy and not own:
                server.command("ZADD", marked, of_policy, child.quoted, timeout=ROUND)
                server.run(operating(child, mark, of_policy))
        # Taken back meanwhile: whoever did that may not have seen the child yet.
        for undo, before, after in zip(("resume", "reset"), wanted, marks(policy), strict=True):
            if before and not after:
                server.run(operating(child, undo))


def _prefix(keys: Keys) -> str:
    """The prefix, quoted, of the keys of a name."""
    return keys.leases.removesuffix(f":{{{keys.quoted}}}:leases")


_keepers: dict[str, Keeper] = {}


@atexit.register
def _last_words() -> None:
    until = clock() + ROUND
    for one in list(_keepers.values()):
        if one._pid == os.getpid():
            one.last_words(until)


def keeper(alias: str) -> Keeper:
    """The keeper of an alias in this process; a fork starts with none."""
    found = _keepers.get(alias)
    if found is None or found._pid != os.getpid():
        found = _keepers[alias] = Keeper(alias)
    return found


class _Courier:
    """Runs receivers one after the other, on a thread that ends when there is nothing to do."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._todo: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, call: Callable[[], Any]) -> None:
        self._todo.put(call)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="redis-sync-courier", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        from django.db import connections as databases

        while True:
            try:
                call = self._todo.get(timeout=5)
            except queue.Empty:
                with self._lock:
                    if self._todo.empty():
                        self._thread = None
                        return
                continue
            try:
                call()
            except Exception:
                logger.exception("a receiver of a lost lease failed")
            finally:
                databases.close_all()


_courier: _Courier | None = None


def tell(call: Callable[[], Any]) -> None:
    """Run a receiver off the keeper's thread."""
    global _courier
    if _courier is None or _courier._pid != os.getpid():
        _courier = _Courier()
    _courier.send(call)


_warned: list[bool] = []


def warn_about_uwsgi() -> None:
    """uWSGI runs no threads of ours unless told to: nothing would be renewed."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None or _warned:
        return
    options = {o.decode() if isinstance(o, bytes) else o for o in getattr(uwsgi, "opt", {})}
    if not options & {"enable-threads", "threads"}:
        _warned.append(True)
        logger.error("uWSGI runs without --enable-threads: leases can't be renewed")
