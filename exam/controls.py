"""Locks that test the exam itself: a correct lock, and broken locks, which must fail.

A broken lock is the correct lock with defects. The code of the defects is in this module and in
right.lua. For each fault, the field `control` in faults.ini has one or more lines "DEFECTS: KINDS".
Under this fault, a lock with these defects must have a problem of one of these kinds. `stuck` and
`overlap` each stand for several kinds. `python -m exam --self` examines the broken locks under
their faults. It examines the correct lock under all faults, with limit 1 and with limit 2.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from .adapter import ALL, Adapter, Lost, Place
from .checker import NEVER_FREE, NEVER_REPORTED, NOT_GIVEN, REPORTED_LATE, TWO_INSIDE
from .faults import FAULTS

SCRIPT = Path(__file__).with_name("right.lua").read_text(encoding="utf-8")


@dataclass
class Grant:
    token: str
    number: int
    sent: float  # when the client sent the request; the lease began then or later
    pid: int
    ended: threading.Event


class Right(Adapter):
    """A fair semaphore with fencing tokens and renewed leases. Its waiters poll every 20 ms."""

    promises = replace(ALL, max_wait=2)
    defects: Sequence[str] = ()

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        patience = 10 if "counts-from-reply" in self.defects else 3
        retry = Retry(NoBackoff(), 0)
        self.client = redis.Redis.from_url(place.url, socket_timeout=patience, retry=retry)
        self.keys = [f"{place.name}:{part}" for part in ("leases", "queue", "seen", "fence")]
        self.scripts = {}
        for what in ("acquire", "renew", "release"):
            text = f"local what, defects = '{what}', '{' '.join(self.defects)}'\n{SCRIPT}"
            self.scripts[what] = self.client.register_script(text)
            with contextlib.suppress(redis.RedisError):
                self.client.script_load(text)

    def words(self, token: str) -> list[Any]:
        """Return the arguments (ARGV) for the script right.lua."""
        lease = int(self.place.lease * 1000)
        return [token, self.place.limit, lease, int(time.time() * 1000)]

    def run(self, what: str, token: str) -> int:
        script, words = self.scripts[what], self.words(token)
        if {"no-fallback", f"no-fallback-to-{what}"} & {*self.defects}:
            return int(self.client.evalsha(script.sha, 4, *self.keys, *words))
        return int(script(self.keys, words))

    def retried(self, what: str, token: str, seconds: float) -> int:
        end = time.monotonic() + seconds
        while True:
            try:
                return self.run(what, token)
            except redis.RedisError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def acquire(self, wait: float) -> Grant | None:
        end = time.monotonic() + wait * (6 if "hangs" in self.defects else 1)
        token = f"{os.getpid()}" if "pid-owner" in self.defects else uuid.uuid4().hex
        if "object-owner" in self.defects:
            token = f"{os.getpid()} {id(self)}"
        try:
            while True:
                sent, number = time.monotonic(), 0
                try:
                    number = self.run("acquire", token)
                except redis.RedisError:
                    if "no-fallback" in self.defects:
                        raise
                    if "lets-in" in self.defects:
                        return self.granted(token, 1, sent)
                    if "new-tokens" in self.defects:
                        token = uuid.uuid4().hex
                    time.sleep(0.05)
                if number and self.held(grant := self.granted(token, number, sent)):
                    return grant
                if time.monotonic() >= end:
                    if "stays-in-line" not in self.defects:
                        self.retried("release", token, 2)
                    return None
                self.pause()
        except BaseException:
            if "leaves-grants" not in self.defects:
                with contextlib.suppress(redis.RedisError):
                    self.retried("release", token, 2)
            raise

    def pause(self) -> None:
        """Wait before the next request of the same acquire."""
        if "subscribes-late" not in self.defects:
            return time.sleep(0.02)
        with self.client.pubsub() as channel:
            channel.subscribe(self.keys[0])
            for _ in ("the confirmation", "a notification"):
                channel.get_message(timeout=4)

    def granted(self, token: str, number: int, sent: float) -> Grant:
        if "leaves-grants" in self.defects:
            time.sleep(0.02)
        if "two-steps" in self.defects:
            self.client.zadd(self.keys[0], {token: (time.time() + self.place.lease) * 1000})
        if "counts-from-reply" in self.defects:
            sent = time.monotonic()
        grant = Grant(token, number, sent, os.getpid(), threading.Event())
        renewal = partial(threading.Thread, target=self.renew, args=(grant,), daemon=True)
        if "never-renews" in self.defects:
            return grant
        try:
            renewal().start()
        except RuntimeError:
            if "leaves-grants" in self.defects:
                raise
        if "fork-renews" in self.defects:
            os.register_at_fork(after_in_child=renewal().start)
        return grant

    def renew(self, grant: Grant) -> None:
        while not grant.ended.wait(self.place.lease / 4):
            sent = time.monotonic()
            try:
                if self.run("renew", grant.token):
                    grant.sent = sent
                elif "never-reports" not in self.defects:
                    return
            except redis.RedisError:
                if "ends-at-error" in self.defects:
                    return

    def held(self, grant: Grant) -> bool:
        if {"never-reports", "never-renews"} & {*self.defects}:
            return True
        return time.monotonic() < grant.sent + self.place.lease * 0.9

    def fence(self, grant: Grant) -> float:
        return float(grant.number)

    def release(self, grant: Grant) -> None:
        if grant.pid != os.getpid() and "fork-releases" not in self.defects:
            return
        if "forgets-release" in self.defects:
            with contextlib.suppress(redis.RedisError):
                self.run("release", grant.token)
                grant.ended.set()
            return
        grant.ended.set()
        if "get-compare-del" in self.defects:
            if self.client.zscore(self.keys[0], grant.token):
                self.client.delete(self.keys[0])
            return
        try:
            released = self.run("release", grant.token)
        except redis.RedisError:
            # The request that failed may have released the lease. Then the retry finds no lease.
            released = self.retried("release", grant.token, self.place.lease) or 1
        if not released:
            raise Lost("its lease ended")

    async def aacquire(self, wait: float) -> Any:
        """Async version of `acquire()`. It does not renew the lease."""
        client = redis.asyncio.Redis.from_url(self.place.url)
        script = self.scripts["acquire"].script
        words, end = self.words(uuid.uuid4().hex), time.monotonic() + wait
        while time.monotonic() < end:
            if number := await client.eval(script, 4, *self.keys, *words):
                return Grant(words[0], number, time.monotonic(), os.getpid(), threading.Event())
            await asyncio.sleep(0.02)
        return None


#: Names of the correct locks, which must not break a promise in any trial.
RIGHT = ("right", "right-at-two")
#: Name -> adapter class, for the correct locks and for the broken locks that faults.ini names.
CONTROLS = {one: type(one, (Right,), {"title": one, "limit": n + 1}) for n, one in enumerate(RIGHT)}
#: (broken lock, fault) -> kinds of problems. The trial must find a problem of one of these kinds.
EXPECTED: dict[tuple[str, str], set[str]] = {}
_GROUPS = {"stuck": {NEVER_FREE, NOT_GIVEN}, "overlap": {TWO_INSIDE, NEVER_REPORTED, REPORTED_LATE}}

for _fault, _section in FAULTS.items():
    for _line in _section.control.strip().splitlines():
        _defects, _kinds = (part.split(", ") for part in _line.split(": "))
        _name, _limit = "-".join(_defects).replace(" ", "-"), 2 if "limit 2" in _defects else 1
        _words = {"title": _name, "defects": _defects, "limit": _limit}
        CONTROLS[_name] = type(_name, (Right,), {**_words, "shared": "shared" in _defects})
        EXPECTED[_name, _fault] = {kind for one in _kinds for kind in _GROUPS.get(one, {one})}
