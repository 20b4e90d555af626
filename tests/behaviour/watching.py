"""Helpers that show a test the state of a name on the server, the commands that clients send, and
the leases that are lost."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import redis
import redis.asyncio.connection
from django.conf import settings

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import Keys, keys_of
from django_redis_sync.signals import lease_lost
from tests.support.operators import locks
from tests.support.packed import leases_of


def living(kind: type) -> list[Any]:
    """Return all existing objects of the class `kind` and of its subclasses. This doesn't call
    isinstance(), which would evaluate lazy objects."""
    kinds = [kind]
    for each in kinds:
        kinds += each.__subclasses__()
    wanted = {*kinds}
    return [one for one in gc.get_objects() if type(one) in wanted]


class Standstills:
    """A context manager that observes this process and the server at `url`. `longest`: the longest
    time in seconds in which one of them, or the whole machine, did not run."""

    def __init__(self, url: str) -> None:
        self.longest, self._url = 0.0, url
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._watch)

    def __enter__(self) -> Standstills:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        with redis.Redis.from_url(self._url) as client:
            while not self._ended.is_set():
                began = time.monotonic()
                self._ended.wait(0.02)
                client.ping()
                self.longest = max(self.longest, time.monotonic() - began)


class View:
    """The state of a name on the server."""

    def __init__(self, client: redis.Redis, name: str, prefix: str | None = None) -> None:
        self.client = client
        self.keys: Keys = keys_of(settings.PREFIX if prefix is None else prefix, name)

    def now(self) -> int:
        seconds, micro = self.client.time()
        return int(seconds * 1000 + micro // 1000)

    @property
    def leases(self) -> dict[str, float]:
        """The expiry of each lease by its token, in ms of the server's clock. Includes expired
        leases."""
        return leases_of(self.client, self.keys.leases)

    @property
    def holding(self) -> int:
        """Number of unexpired leases."""
        return sum(end > self.now() for end in self.leases.values())

    @property
    def waiting(self) -> int:
        return int(self.client.zcard(self.keys.queue)) + int(self.client.zcard(self.keys.parked))

    @property
    def ends_in(self) -> float:
        """Seconds until the last lease expires; -1 if there is no lease."""
        return (self.end - self.now()) / 1000 if self.end else -1.0

    @property
    def end(self) -> float:
        """Time at which the last lease expires, in ms of the server's clock; 0 if there is none."""
        return max(self.leases.values(), default=0.0)

    def renewals(self) -> Callable[[], bool]:
        """Return a function that returns True if a lease was renewed after this call of
        `renewals()`. A renewal makes `end` later."""
        before = self.end
        return lambda: self.end > before

    @property
    def empty(self) -> bool:
        return self.holding == self.waiting == 0

    def left(self) -> list[bytes]:
        """Return the existing keys of the name, except its statistics, which expire later."""
        pattern = self.keys.leases.removesuffix("leases")
        found = self.client.scan_iter(match=f"{pattern}*", count=1000)
        return [key for key in found if key.decode() != getattr(self.keys, "stats", None)]

    def clear(self) -> None:
        """Clear all leases with the `clear` script, as an operator does."""
        script = scripts.script("clear")
        for token in self.leases:
            argv = [token, "-", "0"]
            keys = self.keys.declared
            assert self.client.eval(script.source, len(keys), *keys, *argv) == b"ok"


def shown(name: str = "", using: str | None = None) -> dict[str, Any]:
    """Return what `manage.py locks status` shows, by display name. `name`: show only this name."""
    words = ["status", *([name] if name else []), "--top", "1000"]
    text = locks(*words, format="json", using=using)
    return {row["display"]: row for row in json.loads(text)["names"]}


def count_of(name: str, event: str, using: str | None = None) -> int:
    """Return how often an event of a name was counted, as `manage.py locks status` shows it."""
    return int(shown(name, using)[name]["ever"][event])


class Counted:
    """The number of each command in a `with` block of `counted()` or `sent()`, and the duration of
    the block in seconds. Both are set when the block ends."""

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}
        self.seconds = 0.0

    def __getitem__(self, name: str) -> int:
        return self.by_name.get(name, 0)

    @property
    def by_clients(self) -> int:
        """Number of commands that only clients send, such as EVALSHA and BLPOP. Commands that
        scripts also call don't count."""
        names = ("eval", "evalsha", "blpop", "subscribe", "script", "ping")
        return sum(count for name, count in self.by_name.items() if name.split("|")[0] in names)


@contextlib.contextmanager
def counted(client: redis.Redis) -> Iterator[Counted]:
    """Count the commands that the server ran during the block, with `INFO commandstats`."""

    def calls() -> dict[str, int]:
        stats: dict[str, Any] = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}

    seen, before, start = Counted(), calls(), time.monotonic()
    yield seen
    seen.by_name = {name: n - before.get(name, 0) for name, n in calls().items()}
    seen.seconds = time.monotonic() - start


class Losses:
    """Records when `on_lost` and `lease_lost` were called. Pass this object as `on_lost`."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = defaultdict(list)  # by token
        self.signals: dict[str, list[float]] = defaultdict(list)
        self.late = 0.0  # longest delay with which a thread of this process woke up, in seconds
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.wake_up, daemon=True)

    def __call__(self, lease: Any) -> None:
        assert not lease.held
        self.calls[lease.token].append(time.time())

    def signal(self, lease: Any, reason: str, **_: Any) -> None:
        assert reason
        self.signals[lease.token].append(time.time())

    def __enter__(self) -> Losses:
        lease_lost.connect(self.signal)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        lease_lost.disconnect(self.signal)
        self.over.set()
        self.thread.join()

    def of(self, lease: Any) -> float:
        """Return the time when the last of `on_lost` and `lease_lost` was called for a lease, in
        seconds of this machine's clock. Return 0 until both have been called."""
        calls, signals = self.calls[lease.token], self.signals[lease.token]
        assert len(calls) < 2 and len(signals) < 2, "a lost lease is reported once"
        return max(calls + signals) if calls and signals else 0.0

    def preceded(self, end: float, lease: Any) -> bool:
        """Return True if `on_lost` and `lease_lost` were called for the lease before `end`, a time
        in ms of this machine's clock. On a busy machine, each of three threads may wake up
        `self.late` seconds too late. So allow three times this delay."""
        return 0 < self.of(lease) < end / 1000 + 3 * self.late

    def wake_up(self) -> None:
        expected = time.monotonic()
        while not self.over.wait(0.01):
            self.late = max(self.late, time.monotonic() - expected - 0.01)
            expected = time.monotonic()


def load_scripts(client: redis.Redis) -> None:
    """Load all scripts into a server, so that no later call has to send a script's source."""
    for name in (*scripts.NAME_SCRIPTS, *scripts.OTHER_SCRIPTS):
        client.script_load(scripts.script(name).source)


@contextlib.contextmanager
def sent() -> Iterator[Counted]:
    """Count the commands that this thread and its event loop send to any server during the block.

    Commands of background threads don't count. Before the block, all scripts are loaded, so that no
    call has to load them."""
    with redis.Redis.from_url(os.environ["DJANGO_REDIS_SYNC_TEST_RAW_URL"]) as client:
        load_scripts(client)
    seen, mine, names = Counted(), threading.get_ident(), Counter[str]()

    def noting(send: Any) -> Any:
        def note(self: Any, command: Any, *args: Any, **options: Any) -> Any:
            if threading.get_ident() == mine:
                chunks = command if isinstance(command, (list, tuple)) else [command]
                found = re.findall(rb"\*\d+\r\n\$\d+\r\n(\w+)\r\n", b"".join(chunks))
                names.update(name.decode().lower() for name in found)
            return send(self, command, *args, **options)

        return note

    with contextlib.ExitStack() as stack:
        for module in (redis.connection, redis.asyncio.connection):
            kind, name = module.AbstractConnection, "send_packed_command"
            stack.enter_context(mock.patch.object(kind, name, noting(getattr(kind, name))))
        yield seen
    seen.by_name = dict(names)
