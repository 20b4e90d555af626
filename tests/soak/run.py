"""The soak: random work and random faults on two private servers, checked while it runs.

`kept` has an append-only file, so acknowledged writes survive a kill. Two callers must never treat
an exclusive name as held at the same time. `forgetful` has no persistence. It is killed and
flushed, so grants are lost there, but nothing else may go wrong.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from devtools.servers import HOST, RedisServer
from exam.clock import Clock, reason
from tests.behaviour.proxy import Proxy

#: Keys and tombstones expire soon, so that even a short run can check that no key is left.
CONSTANTS = {"GRACE": 200, "TOMBSTONE_TTL": 6000}
#: Seconds; more than the longest lease, a waiter's deadline, a tombstone, and two GRACE.
SETTLE = 20.0
ALIASES = ("kept", "forgetful")


@dataclass
class Outcome:
    """The result of a soak.

    `violations`: errors that the checker of the journal found. `overlaps`: exclusive leases that
    two holders treated as held, by alias. `residue`: keys that exist after all leases have expired.
    `gone`: grants that were lost with the data of a server."""

    seed: int
    seconds: float = 0.0
    scripts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    journal: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    believers: int = 0
    overlaps: Counter[str] = field(default_factory=Counter)
    overlapping: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    residue: list[str] = field(default_factory=list)
    stuck: int = 0
    gone: int = 0

    @property
    def good(self) -> bool:
        wrong = (self.violations, self.unexpected, self.residue, self.stuck, self.overlaps["kept"])
        return not any(wrong)

    @property
    def grants(self) -> int:
        words = ("granted at once", "handed over", "granted when asked again")
        return sum(self.journal[word] for word in words)

    def summary(self) -> str:
        """Return a table of all figures."""
        rows: list[tuple[str, object]] = [
            ("seed", self.seed),
            ("seconds", f"{self.seconds:.0f}"),
            ("scripts run and checked", f"{self.scripts:,}"),
            ("grants", f"{self.grants:,}"),
            ("  of them handed off to a waiter", f"{self.journal['handed over']:,}"),
            ("reclaimed (expired, or never claimed)", self.reclaimed),
            ("grants lost with the data of a server", self.gone),
            ("leases reported as lost", f"{self.clients['LeaseLost']:,}"),
            ("calls that raised Unavailable", f"{self.clients['Unavailable']:,}"),
            ("tasks cancelled", f"{self.clients['CancelledError']:,}"),
            ("faults", f"{sum(self.faults.values()):,}"),
            *((f"  {word}", n) for word, n in sorted(self.faults.items())),
            ("exclusive leases checked for overlap", f"{self.believers:,}"),
            ("  overlaps on the server with persistence", self.overlaps["kept"]),
            ("  overlaps on the server that loses data", self.overlaps["forgetful"]),
            ("violations found in the journal", len(self.violations)),
            ("unexpected errors", len(self.unexpected)),
            ("workers that did not end", self.stuck),
            ("keys that did not expire", len(self.residue)),
            ("verdict", "good" if self.good else "BAD"),
        ]
        width = max(len(word) for word, _ in rows)
        lines = [f"{word:<{width}}  {value}" for word, value in rows]
        lines += [
            *self.overlapping[:10],
            *self.violations[:5],
            *self.unexpected[:5],
            *self.residue[:20],
        ]
        return "\n".join(lines)

    @property
    def reclaimed(self) -> str:
        return f"{self.journal['reclaimed'] + self.journal['unclaimed']:,}"


class Side:
    """One server, the proxy in front of it, and its journal, which is checked continuously."""

    def __init__(self, alias: str, server: RedisServer, proxy: Any, key: str) -> None:
        from tests.support.history import _Replay
        from tests.support.journal import _constants

        self.alias, self.server, self.proxy, self.key = alias, server, proxy, key
        self.client = redis.Redis.from_url(server.url, socket_timeout=10)
        self.replay = _Replay({**_constants, **CONSTANTS}, ())
        self._seq, self._pruned, self.gone = 0, 0, 0

    def judge(self, lines: list[bytes]) -> None:
        from tests.support.journal import parse

        for line in lines:
            self._seq += 1
            if len(self.replay.history.violations) < 50:
                self.replay.take(parse(self._seq, line))
        if self._seq > self._pruned + 200_000:
            self._prune()

    def _prune(self) -> None:
        """Remove tokens that ended long ago, because their tombstones have expired too."""
        self._pruned = self._seq
        live = {
            (name, token)
            for name, at in self.replay.names.items()
            for token in (*at.leases.scores, *at.queue, *at.deadlines.scores)
        }
        self.replay.tokens = {k: v for k, v in self.replay.tokens.items() if k in live}

    def drain(self, most: int = 20_000) -> None:
        """Check the new entries of the journal."""
        lines = self.client.lrange(self.key, 0, most - 1)
        if lines:
            self.client.ltrim(self.key, len(lines), -1)
        self.judge(lines)

    def wiped(self, lines: list[bytes]) -> None:
        """Check the entries from before the data was lost, and add a note for the checker."""
        self.judge(lines)
        now = self.replay.us / 1000
        for at in self.replay.names.values():
            self.gone += sum(end > now for end in at.leases.scores.values())
        note: list[Any] = ["", "0", "!wiped", "", [], [], [], [], ""]
        self.judge([json.dumps(note).encode()])

    def flush(self) -> None:
        with self.client.pipeline(transaction=True) as pipeline:
            lines, _ = pipeline.lrange(self.key, 0, -1).flushdb().execute()
        self.wiped(lines)

    def kill(self) -> None:
        if self.alias == "kept":
            self.server.kill()
            return
        # Prevent writes between the last read of the journal and the kill.
        self.client.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
        lines = self.client.lrange(self.key, 0, -1)
        self.server.kill()
        self.wiped(lines)

    def put_ahead(self, seconds: float) -> None:
        """Move the clock ahead, so that most leases expire. It never goes back, as fences can't."""
        assert isinstance(self.server, Shifted)
        self.server.ahead += seconds
        self.server.clock.shift(self.server.ahead)

    def left(self) -> list[str]:
        """Return the keys of names, except statistics, logs, and registries, which expire later."""
        keys = [key.decode() for key in self.client.scan_iter(count=1000)]
        ends = (":stats", ":names", ":keys", ":marked", ":acts")
        ends += (":groups", ":sums", ":sketch", ":shares")
        return [key for key in keys if key != self.key and not key.endswith(ends)]


class Shifted(RedisServer):
    """A server whose clock is `ahead` seconds."""

    def __init__(self, clock: Clock, **options: Any) -> None:
        super().__init__(environment=clock.environment, **options)
        self.clock, self.ahead = clock, 0.0


class Chaos:
    """The faults. Each is a method that returns the name under which it is counted."""

    def __init__(self, sides: list[Side], chance: random.Random, tasks: Any) -> None:
        self.sides, self.chance, self.tasks = sides, chance, tasks
        self.children: list[subprocess.Popen[str]] = []
        self.counts: Counter[str] = Counter()
        self.spawn: Callable[[], None] = lambda: None
        self.common: list[Callable[[Side], str | None]] = [
            self.harm,
            self.harm,
            self.harm,
            self.scripts,
            self.connections,
            self.clients,
            self.clear,
            self.mark,
            self.cancel,
            self.cancel,
        ]
        self.rare = [self.kill, self.hang, self.flush, self.kill_child, self.stop_child, self.clock]

    def one(self, rare: bool) -> None:
        side = self.chance.choice(self.sides)
        word = self.chance.choice(self.rare if rare else self.common)(side)
        if word:
            self.counts[word] += 1

    def harm(self, side: Side) -> str:
        what = self.chance.choice(["drop", "cut", "refuse", "hold"])
        verb = self.chance.choice(["acquire", "acquire", "release", "renew", ""])
        proxy = side.proxy
        if what == "hold":
            proxy._loop.call_soon_threadsafe(proxy._go.clear)
        proxy.harm(what, verb, self.chance.choice([1, 1, 3, 10]))
        if what == "hold":
            proxy._loop.call_soon_threadsafe(
                proxy._loop.call_later, self.chance.uniform(0.05, 2.0), proxy._go.set
            )
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
        from django_redis_sync import Unavailable
        from django_redis_sync.operators import actions
        from django_redis_sync.operators.status import status_of

        try:
            shown = status_of(self._name(side), using=side.alias)
            if not shown.everyone:
                return None
            one = self.chance.choice(shown.everyone)
            (done,) = actions.clear(shown, [one.token], using=side.alias)
            return "cleared by an operator" if done.done else None
        except Unavailable:
            return None

    def mark(self, side: Side) -> str | None:
        from django_redis_sync import Unavailable
        from django_redis_sync.operators import actions

        from .work import KINDS

        name, alias = self._name(side), side.alias
        try:
            if name == "rw" or KINDS[name].alone or self.chance.random() < 0.5:
                actions.pause(name, using=alias)
                time.sleep(self.chance.uniform(0, 0.2))
                actions.resume(name, using=alias)
                return "paused and resumed by an operator"
            actions.resize(name, None, self.chance.randint(1, 6), using=alias)
            return "resized by an operator"
        except Unavailable:
            return None

    def _name(self, side: Side) -> str:
        """Return a name for an operator action.

        A clear or a resize can cause an overlap, so exclusive names of `kept` are spared."""
        from .work import KINDS, NAMES

        spared = {n for n, kind in KINDS.items() if kind.alone and side.alias == "kept"}
        return self.chance.choice([name for name in NAMES if name not in spared])

    def cancel(self, side: Side) -> str:
        self.tasks.cancel(self.chance, self.chance.randint(1, 5))
        return "tasks cancelled"

    def kill(self, side: Side) -> str:
        side.kill()
        time.sleep(self.chance.uniform(0, 0.5))
        side.server.restart()
        return "server killed, restarted " + (
            "with its file" if side.alias == "kept" else "without data"
        )

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
        if not isinstance(side.server, Shifted):
            return None
        side.put_ahead(self.chance.uniform(0.1, 3.0))
        return "server's clock put ahead"

    def kill_child(self, side: Side) -> str:
        self._end(self.chance.choice(self.children))
        self.spawn()
        return "process killed"

    def stop_child(self, side: Side) -> str:
        child = self.chance.choice(self.children)
        child.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.choice([0.3, 1.0, 3.0]))
        child.send_signal(signal.SIGCONT)
        return "process stopped and continued"

    def _end(self, child: subprocess.Popen[str]) -> None:
        child.kill()
        child.communicate()
        self.children.remove(child)

    def unmark(self) -> None:
        """Undo all operator overrides."""
        from django_redis_sync.operators import actions

        from .work import NAMES

        for side in self.sides:
            for name in NAMES:
                actions.resume(name, using=side.alias)
                actions.reset(name, using=side.alias)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def soak(seconds: float, seed: int, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Run the soak for `seconds`. Call it only once in a process, because it sets up Django."""
    faulthandler.dump_traceback_later(seconds * 1.5 + 180, exit=True)
    outcome, start = Outcome(seed), time.monotonic()
    with contextlib.ExitStack() as stack:
        _soak(outcome, seconds, stack, say)
    faulthandler.cancel_dump_traceback_later()
    outcome.seconds = time.monotonic() - start
    return outcome


def _soak(
    outcome: Outcome, seconds: float, stack: contextlib.ExitStack, say: Callable[[str], None]
) -> None:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
    file = {"appendonly": True, "appendfsync": "everysec", "auto-aof-rewrite-min-size": "16mb"}
    servers = {
        "kept": stack.enter_context(RedisServer(config=file)),
        # The clock can't be moved without a compiler.
        "forgetful": stack.enter_context(RedisServer() if reason() else Shifted(Clock(folder))),
    }
    direct = {f"SOAK_{alias.upper()}_URL": server.url for alias, server in servers.items()}
    proxies = {a: Proxy(HOST, s.port or 0) for a, s in servers.items()}
    for proxy in proxies.values():
        stack.callback(proxy.close)
    by_proxy = {f"SOAK_{alias.upper()}_URL": proxy.url for alias, proxy in proxies.items()}
    names = {"DJANGO_SETTINGS_MODULE": "tests.soak.settings"}
    stack.enter_context(environment(**names, **by_proxy))
    import django

    django.setup()
    logging.disable(logging.CRITICAL)
    stack.callback(logging.disable, logging.NOTSET)

    from tests.support import journal

    from .work import Log, Tasks, Threads

    key = f"soak-journal:{secrets.token_hex(4)}"
    stack.enter_context(
        environment(
            **{journal.ENV_KEY: key, journal.ENV_CONSTANTS: json.dumps(CONSTANTS)},
        )
    )
    journal.install(key, CONSTANTS)
    stack.callback(journal.uninstall)

    sides = [Side(alias, servers[alias], proxies[alias], key) for alias in ALIASES]
    chance, path = random.Random(outcome.seed), str(folder / "believers")
    log, end = Log(path), time.monotonic() + seconds
    threads = Threads(outcome.seed, 8, list(ALIASES), False, log)
    tasks = Tasks(outcome.seed, 24, list(ALIASES), log)
    chaos = Chaos(sides, chance, tasks)

    def spawn() -> None:
        left = max(0.0, end - time.monotonic())
        words = [str(outcome.seed * 100 + len(chaos.counts)), str(left), path]
        chaos.children.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.soak.child", *words],
                env={**os.environ, **direct},
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    stack.callback(lambda: [chaos._end(child) for child in chaos.children[:]])
    chaos.spawn = spawn
    spawn()
    spawn()
    reported = time.monotonic()
    rare_at = time.monotonic() + 3
    while time.monotonic() < end:
        rare = time.monotonic() >= rare_at
        chaos.one(rare)
        if rare:
            rare_at = time.monotonic() + chance.uniform(2, 6)
        for side in sides:
            side.drain()
        if time.monotonic() > reported + 30:
            reported = time.monotonic()
            seen, faults = sum(side._seq for side in sides), sum(chaos.counts.values())
            say(f"{end - reported:5.0f} s left, {seen:,} scripts, {faults} faults")
        time.sleep(chance.uniform(0.05, 0.4))

    for proxy in proxies.values():
        proxy.calm()
        proxy.let_go()
    outcome.stuck = threads.join(30) + tasks.join(30)
    counts = Counter(log.counts)
    unexpected = log.unexpected
    for child in chaos.children[:]:
        out, _ = child.communicate(timeout=60)
        said = json.loads(out)
        counts.update(said["counts"])
        unexpected += said["unexpected"]
        chaos.children.remove(child)
    chaos.unmark()
    _settle(sides)
    outcome.residue = [f"{side.alias}: {key}" for side in sides for key in side.left()]
    for side in sides:
        side.drain(10**9)
        history = side.replay.history
        outcome.violations += [f"{side.alias}: {violation}" for violation in history.violations]
        outcome.journal.update(history.counts)
        outcome.scripts += history.entries
        outcome.gone += side.gone
        side.client.close()
    outcome.faults, outcome.clients, outcome.unexpected = chaos.counts, counts, unexpected
    outcome.believers, outcome.overlapping = overlaps(path)
    outcome.overlaps = Counter(text.partition(" ")[0] for text in outcome.overlapping)


def _settle(sides: list[Side]) -> None:
    """Wait until no key is left, but at most SETTLE seconds."""
    end = time.monotonic() + SETTLE
    while time.monotonic() < end:
        for side in sides:
            side.drain()
        if not any(side.left() for side in sides):
            return
        time.sleep(0.1)


def overlaps(path: str) -> tuple[int, list[str]]:
    """Return the number of exclusive leases, and a line for each overlap of two of them."""
    seen: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    with open(path) as lines:
        for line in lines:
            alias, name, fence, first, last = line.split()
            seen.setdefault((alias, name), []).append((int(fence), float(first), float(last)))
    found: list[str] = []
    for (alias, name), rows in seen.items():
        # A reentrant lease that was acquired again has two lines.
        latest, whose = -1.0, 0
        before = 0
        for fence, first, last in sorted(rows):
            if fence != before and latest > first:
                known = f"{whose} was treated as held for {latest - first:.6f} s more"
                found.append(f"{alias} {name}: {fence} began at {first:.6f}; {known}")
            latest, whose = max((latest, whose), (last, fence))
            before = fence
    return sum(map(len, seen.values())), found
