"""The soak test: processes use locks and semaphores on two Redis servers while faults happen.

The server `kept` has an append-only file, so it keeps acknowledged writes when it is killed. On
`kept`, two callers must never treat an exclusive name as held at the same time. The server
`forgetful` has no persistence. It loses its grants when the soak kills or flushes it, but no other
error may happen.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import redis

from devtools.servers import HOST, RedisServer
from django_redis_sync.protocol import scripts
from tests.behaviour.proxy import Proxy
from tests.support import journal
from tests.support.clock import Clock, reason
from tests.support.history import Replay

SETTINGS = "tests.soak.settings"
#: Times in ms. Keys and tombstones expire soon, so a short soak can check that no key is left.
CONSTANTS = {"GRACE": 200, "TOMBSTONE_TTL": 6000}
#: Seconds in which all keys must expire after the last call. Each lease, waiter, and tombstone
#: expires earlier.
SETTLE = 20.0
#: Suffixes of keys. When the soak looks for keys that did not expire, it ignores these keys. They
#: last longer than their name, or several names share them.
LASTING = (
    "stats",
    "names",
    "waiting",
    "keys",
    "marked",
    "acts",
    "groups",
    "projects",
    "sums",
    "sketch",
    "shares",
)


@dataclass
class Outcome:
    """The result of a soak.

    - `journal`: counts of the events in the journals.
    - `violations`: errors that the checker of journals found.
    - `recorded`: number of records of exclusive leases, which their holders have written.
    - `overlapping`: a text for each pair of exclusive leases that were treated as held at the same
      time.
    - `unexpected`: tracebacks of errors that processes did not expect.
    - `residue`: keys that did not expire.
    - `stuck`: number of processes that did not end.
    - `gone`: number of grants that were lost with the data of a server."""

    seed: int
    seconds: float = 0.0
    scripts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    journal: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    recorded: int = 0
    overlapping: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    residue: list[str] = field(default_factory=list)
    stuck: int = 0
    gone: int = 0

    def overlaps(self, alias: str) -> int:
        return sum(text.startswith(f"{alias} ") for text in self.overlapping)

    @property
    def good(self) -> bool:
        wrong = (self.violations, self.unexpected, self.residue, self.stuck, self.overlaps("kept"))
        return not any(wrong)

    def summary(self) -> str:
        """Return a table of all figures, and the errors."""
        events, clients = self.journal, self.clients
        grants = ("granted at once", "handed over", "granted when asked again")
        rows: dict[str, Any] = {
            "seed": self.seed,
            "seconds": int(self.seconds),
            "scripts run and checked": self.scripts,
            "grants": sum(events[word] for word in grants),
            "  of them handed off to a waiter": events["handed over"],
            "reclaimed (expired, or never claimed)": events["reclaimed"] + events["unclaimed"],
            "grants lost with the data of a server": self.gone,
            "leases reported as lost": clients["LeaseLost"],
            "calls that raised Unavailable": clients["Unavailable"],
            "tasks cancelled": clients["CancelledError"],
            "faults": sum(self.faults.values()),
            **{f"  {word}": count for word, count in sorted(self.faults.items())},
            "exclusive leases checked for overlap": self.recorded,
            "  overlaps on the server with persistence": self.overlaps("kept"),
            "  overlaps on the server that loses data": self.overlaps("forgetful"),
            "violations found in the journal": len(self.violations),
            "unexpected errors": len(self.unexpected),
            "workers that did not end": self.stuck,
            "keys that did not expire": len(self.residue),
        }
        lines = [f"{word:<42}  {value:,}" for word, value in rows.items()]
        lines += [f"{'verdict':<42}  {'good' if self.good else 'BAD'}"]
        errors = (self.overlapping[:10], self.violations[:5], self.unexpected[:5], self.residue)
        return "\n".join([*lines, *(text for some in errors for text in some)])


class Side:
    """One Redis server, the proxy in front of it, and its journal."""

    def __init__(self, alias: str, server: RedisServer, clock: Clock | None, key: str) -> None:
        self.alias, self.server, self.clock = alias, server, clock
        self.proxy = Proxy(HOST, server.port or 0)
        self.client = redis.Redis.from_url(server.url, socket_timeout=10)
        self.journal = journal.Journal(self.client, key)
        self.replay = Replay({**scripts.CONSTANTS, **CONSTANTS})
        self.seen, self.pruned, self.gone, self.ahead = 0, 0, 0, 0.0

    def judge(self) -> None:
        """Check the entries that scripts have added to the journal since the last call."""
        self.journal.drain()
        for entry in self.journal.take():
            self.seen += 1
            if len(self.replay.history.violations) < 50:
                self.replay.take(entry)
        if self.seen > self.pruned + 200_000:
            self.pruned = self.seen
            self.replay.forget()

    def lost(self) -> None:
        """Check the journal entries from before the server lost its data. Count the leases that
        were lost, and add the note "wiped" to the journal."""
        for entry in self.journal.take():
            self.replay.take(entry)
        self.gone += sum(end > self.replay.us / 1000 for end in self.replay.leases())
        self.journal.drained.append("wiped")

    def flush(self) -> None:
        with self.client.pipeline(transaction=True) as pipeline:
            lines, _ = pipeline.lrange(self.journal.key, 0, -1).flushdb().execute()
        self.journal.drained += lines
        self.lost()

    def kill(self) -> None:
        if self.alias == "kept":
            self.server.kill()
            return
        # Prevent writes between the last read of the journal and the kill.
        self.client.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
        self.journal.drained += self.client.lrange(self.journal.key, 0, -1)
        self.server.kill()
        self.lost()

    def left(self) -> list[str]:
        """Return a text `ALIAS: KEY` for each key on the server that should have expired by now."""
        keys = [key.decode() for key in self.client.scan_iter(count=1000)]
        own = [key for key in keys if key != self.journal.key]
        return [f"{self.alias}: {key}" for key in own if key.rpartition(":")[2] not in LASTING]


class Chaos:
    """Causes random faults. Each fault is a method that returns the name of what it did, or None if
    it did nothing. `counts`: how often each name was returned."""

    def __init__(self, sides: list[Side], chance: random.Random, spawn: Callable[[], Any]) -> None:
        self.sides, self.chance, self.spawn = sides, chance, spawn
        self.children = [spawn(), spawn()]
        self.counts: Counter[str] = Counter()
        often = [self.proxy_fault, self.proxy_fault, self.proxy_fault]
        self.common = [*often, self.scripts, self.connections, self.clients, self.clear, self.mark]
        self.rare = [self.kill, self.hang, self.flush, self.kill_child, self.stop_child, self.clock]

    def one(self, rare: bool) -> None:
        side = self.chance.choice(self.sides)
        word = self.chance.choice(self.rare if rare else self.common)(side)
        self.counts += Counter({word: 1} if word else {})

    def proxy_fault(self, side: Side) -> str:
        what = self.chance.choice(["drop", "cut", "refuse", "hold"])
        verb = self.chance.choice(["acquire", "acquire", "release", "renew", ""])
        times = self.chance.choice([1, 1, 3, 10])
        if what == "hold":
            side.proxy.hold(self.chance.uniform(0.05, 2.0), verb, times)
        else:
            side.proxy.cause(what, verb, times)
        words = {"drop": "reply dropped", "cut": "reply cut", "refuse": "connection closed"}
        return f"proxy: {words.get(what, 'request delayed')}"

    def scripts(self, side: Side) -> str:
        side.client.script_flush()
        return "scripts flushed"

    def connections(self, side: Side) -> str:
        kind = self.chance.choice(["normal", "pubsub"])
        side.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        return f"connections killed ({kind})"

    def clients(self, side: Side) -> str:
        ms, mode = self.chance.randint(50, 600), self.chance.choice(["ALL", "WRITE"])
        side.client.execute_command("CLIENT", "PAUSE", ms, mode)
        return "clients paused by the server"

    def clear(self, side: Side) -> str | None:
        from .work import Semaphore, Unavailable

        name = self.name(side)
        with contextlib.suppress(Unavailable):
            status = Semaphore(name, 1, using=side.alias).status()
            shown = [one.id for one in (*status.holders, *status.waiters)]
            one = shown and self.chance.choice(shown)
            if one and command(side, "clear", name, "--holder", one, "--no-input"):
                return "cleared by an operator"
        return None

    def mark(self, side: Side) -> str | None:
        from .work import KINDS

        name = self.name(side)
        if name == "rw" or KINDS[name].alone or self.chance.random() < 0.5:
            paused = command(side, "pause", name)
            time.sleep(self.chance.uniform(0, 0.2))
            return "paused and resumed" * (command(side, "resume", name) and paused) or None
        size = str(self.chance.randint(1, 6))
        return "resized by an operator" * command(side, "resize", name, size) or None

    def name(self, side: Side) -> str:
        """Return a random name for an operator action.

        A clear or a resize can let two callers hold an exclusive name. So for the server `kept`,
        no exclusive name is returned."""
        from .work import KINDS, NAMES

        spared = {n for n, kind in KINDS.items() if kind.alone and side.alias == "kept"}
        return self.chance.choice([name for name in NAMES if name not in spared])

    def kill(self, side: Side) -> str:
        side.kill()
        time.sleep(self.chance.uniform(0, 0.5))
        side.server.restart()
        how = "with its file" if side.alias == "kept" else "without data"
        return f"server killed, restarted {how}"

    def hang(self, side: Side) -> str:
        side.server.pause()
        time.sleep(self.chance.choice([0.2, 0.5, 2.5]))
        side.server.resume()
        return "server stopped and continued"

    def flush(self, side: Side) -> str | None:
        if side.alias == "kept":
            return None
        side.flush()
        return "database flushed"

    def clock(self, side: Side) -> str | None:
        """Move the server's clock forward, so that most leases expire. Never move it back, because
        later fences could then be lower."""
        if side.clock is None:
            return None
        side.ahead += self.chance.uniform(0.1, 3.0)
        side.clock.shift(side.ahead)
        return "server's clock put ahead"

    def kill_child(self, side: Side) -> str:
        child = self.children.pop(self.chance.randrange(2))
        child.kill()
        child.communicate()
        self.children.append(self.spawn())
        return "process killed"

    def stop_child(self, side: Side) -> str:
        child = self.chance.choice(self.children)
        child.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.choice([0.3, 1.0, 3.0]))
        child.send_signal(signal.SIGCONT)
        return "process stopped and continued"


def command(side: Side, *words: str) -> bool:
    """Run `manage.py locks` for the server of `side`. Return True if the command succeeds."""
    from django.core.management import CommandError

    from tests.support.commands import locks

    try:
        return bool(locks(*words, using=side.alias))
    except (CommandError, SystemExit):
        return False


def soak(seconds: float, seed: int) -> Outcome:
    """Run the soak for `seconds`. Call it only once in a process, because it sets up Django."""
    faulthandler.dump_traceback_later(seconds * 1.5 + 180, exit=True)
    outcome, start = Outcome(seed), time.monotonic()
    with contextlib.ExitStack() as stack:
        _soak(outcome, seconds, stack)
    faulthandler.cancel_dump_traceback_later()
    outcome.seconds = time.monotonic() - start
    return outcome


def _soak(outcome: Outcome, seconds: float, stack: contextlib.ExitStack) -> None:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
    file = {"appendonly": True, "appendfsync": "everysec", "auto-aof-rewrite-min-size": "16mb"}
    clock = None if reason() else Clock(folder)  # None if this machine can't move clocks
    moved = {} if clock is None else {"environment": clock.environment}
    kept = stack.enter_context(RedisServer(config=file))
    forgetful = stack.enter_context(RedisServer(**moved))
    key = f"soak-journal:{secrets.token_hex(4)}"
    sides = [Side("kept", kept, None, key), Side("forgetful", forgetful, clock, key)]
    for side in sides:
        stack.callback(side.proxy.close)
    own = {"DJANGO_SETTINGS_MODULE": SETTINGS, journal.ENV_KEY: key}
    own |= {journal.ENV_CONSTANTS: json.dumps(CONSTANTS)}
    direct = {f"SOAK_{side.alias}": side.server.url for side in sides}
    proxied = {f"SOAK_{side.alias}": side.proxy.url for side in sides}
    stack.enter_context(mock.patch.dict(os.environ, {**own, **direct}))
    from .work import NAMES  # this import sets up Django with the environment above

    stack.callback(logging.disable, logging.NOTSET)
    journal.install(key, CONSTANTS)
    stack.callback(journal.uninstall)
    chance, path = random.Random(outcome.seed), str(folder / "leases")
    seeds, end = iter(range(outcome.seed * 100, 10**12)), time.monotonic() + seconds

    def spawn(*mortal: str, **urls: str) -> Any:
        words = [str(next(seeds)), str(max(0.0, end - time.monotonic())), path, *mortal]
        argv, env = [sys.executable, "-m", "tests.soak.work", *words], {**os.environ, **urls}
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)

    lasting = [spawn(**proxied), spawn(**proxied)]
    chaos = Chaos(sides, chance, lambda: spawn("mortal"))
    stack.callback(lambda: [child.kill() for child in (*lasting, *chaos.children)])
    rare_at = time.monotonic() + 3
    while time.monotonic() < end:
        rare = time.monotonic() >= rare_at
        chaos.one(rare)
        if rare:
            rare_at = time.monotonic() + chance.uniform(2, 6)
        for side in sides:
            side.judge()
        time.sleep(chance.uniform(0.05, 0.4))

    for side in sides:
        side.proxy.calm()
        side.proxy.let_go()
    for child in (*lasting, *chaos.children):
        try:
            said = json.loads(child.communicate(timeout=60)[0])
        except subprocess.TimeoutExpired:
            outcome.stuck += 1
        else:
            outcome.clients.update(said["counts"])
            outcome.unexpected += said["unexpected"]
    for side in sides:
        for name in NAMES:
            command(side, "resume", name)
            command(side, "resize", name, "--reset")
    outcome.residue = _settle(sides)
    for side in sides:
        history = side.replay.history
        outcome.scripts += history.entries
        outcome.journal.update(history.counts)
        outcome.violations += [f"{side.alias}: {violation}" for violation in history.violations]
        outcome.gone += side.gone
        side.client.close()
    outcome.faults = chaos.counts
    outcome.recorded, outcome.overlapping = overlaps(path)


def _settle(sides: list[Side]) -> list[str]:
    """Wait until no key is left, but at most SETTLE seconds. Return the keys that are left."""
    end = time.monotonic() + SETTLE
    while True:
        for side in sides:
            side.judge()
        left = [key for side in sides for key in side.left()]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)


def overlaps(path: str) -> tuple[int, list[str]]:
    """Read the records of exclusive leases in the file `path`. Return the number of records, and a
    text for each pair of leases that were treated as held at the same time."""
    seen: dict[str, list[tuple[int, float, float]]] = {}
    for line in Path(path).read_text().splitlines():
        alias, name, fence, first, last = line.split()
        seen.setdefault(f"{alias} {name}", []).append((int(fence), float(first), float(last)))
    found: list[str] = []
    for name, rows in seen.items():
        # Two lines with the same fence are one lease: a reentrant lock that was acquired twice.
        latest, whose, before = -1.0, 0, 0
        for fence, first, last in sorted(rows):
            if fence != before and latest > first:
                known = f"{whose} was treated as held for {latest - first:.6f} s more"
                found.append(f"{name}: {fence} began at {first:.6f}; {known}")
            latest, whose = max((latest, whose), (last, fence))
            before = fence
    return sum(map(len, seen.values())), found
